/*
 * Captures: packets as sent and received, in a pcapng file that Wireshark and tshark read (draft-ietf-opsawg-pcapng;
 * link type RAW, so each packet begins with its IP header).
 */
#ifndef SOFTDEV_ROCE_CAPTURE_H
#define SOFTDEV_ROCE_CAPTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "roce/icrc.h"

struct roce_capture;
/* Creates the file, for this user only, in place of one of this user's. NULL with errno. */
struct roce_capture *roce_capture_open(const char *path);
void roce_capture_close(struct roce_capture *capture);
/* Header fields of a packet. */
struct roce_capture_origin {
	const struct roce_path *path;
	struct roce_ipv4 ip; /* as far as the ICRC reveals it */
	uint8_t tos;         /* traffic class with its ECN bits */
	bool inbound;
};
/* Writes one UDP payload including its ICRC. now_ns: time of day. False: writing failed, which is said once on standard
 * error; later packets are not written, and the file ends with the last whole one. */
bool roce_capture_packet(struct roce_capture *capture, const struct roce_capture_origin *origin, uint64_t now_ns,
			 const uint8_t *bytes, size_t size);

#endif

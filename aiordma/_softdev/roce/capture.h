/*
 * Captures: packets as they were sent and received, in a pcapng file that Wireshark and tshark read
 * (draft-ietf-opsawg-pcapng; link type RAW, so each packet begins with its IP header).
 */
#ifndef AIORDMA_WIRE_CAPTURE_H
#define AIORDMA_WIRE_CAPTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "roce/icrc.h"

struct wire_capture;
/* Creates the file anew. NULL with errno. */
struct wire_capture *wire_capture_open(const char *path);
void wire_capture_close(struct wire_capture *capture);
/* Of a packet, what its headers say. */
struct wire_capture_origin {
	const struct wire_path *path;
	struct wire_ipv4 ip; /* as far as the ICRC tells */
	uint8_t tos;         /* traffic class with its ECN bits */
	bool inbound;
};
/* One UDP payload, ICRC included. now_ns: time of day. False: it could not be written, and no later one will be. */
bool wire_capture_packet(struct wire_capture *capture, const struct wire_capture_origin *origin, uint64_t now_ns,
			 const uint8_t *bytes, size_t size);

#endif

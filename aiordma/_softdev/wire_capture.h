/*
 * Captures: packets as they were sent and received, in a pcapng file that Wireshark and tshark read
 * (draft-ietf-opsawg-pcapng; link type RAW, so each packet begins with its IP header).
 */
#ifndef AIORDMA_WIRE_CAPTURE_H
#define AIORDMA_WIRE_CAPTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire_icrc.h"

struct wire_capture;
/* Creates the file anew. NULL with errno. */
struct wire_capture *wire_capture_open(const char *path);
void wire_capture_close(struct wire_capture *capture);
/*
 * One UDP payload, ICRC included. tos: traffic class with its ECN bits; now_ns: time of day. The IP and UDP headers
 * are written as the kernel sends them for us (identification 0, don't fragment); those that came are not known.
 * False: it could not be written, and no later one will be.
 */
bool wire_capture_packet(struct wire_capture *capture, const struct wire_path *path, uint8_t tos, bool inbound,
			 uint64_t now_ns, const uint8_t *bytes, size_t size);

#endif

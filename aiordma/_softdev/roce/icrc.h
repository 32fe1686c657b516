/*
 * The invariant CRC of RoCEv2 (IBTA annex A17.3.3): CRC-32 over what no router may change.
 *
 * The IP identification is covered, and a UDP socket neither sets nor sees it. Packets sent by an unconnected
 * socket with IP_MTU_DISCOVER=DO have "don't fragment" set and the identification 0, or, where the kernel made several
 * of what was sent as one (UDP_SEGMENT), their place in it. IPv6 has no identification, so there the check is exact for
 * everybody's packets.
 */
#ifndef AIORDMA_ROCE_ICRC_H
#define AIORDMA_ROCE_ICRC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/base.h"

/* One direction between two UDP ports. Addresses as in GIDs: IPv4 is mapped (::ffff:a.b.c.d). */
struct roce_path {
	uint8_t src[16], dst[16];
	uint16_t src_port, dst_port;
};

/* What the IPv4 header said. */
struct roce_ipv4 {
	uint16_t id;
	bool may_fragment;
};

/* ICRC of the bytes from the BTH to the end of the pad, as a number whose bytes are stored lowest first. */
uint32_t roce_icrc_ipv4(const struct roce_path *path, struct roce_ipv4 ip, const uint8_t *bytes, size_t size);
/* Of a packet that is sent by itself. */
static inline uint32_t roce_icrc(const struct roce_path *path, const uint8_t *bytes, size_t size)
{
	return roce_icrc_ipv4(path, (struct roce_ipv4){ 0 }, bytes, size);
}

/*
 * Is there an IPv4 header, identification and "don't fragment" unknown, with which the ICRC of a packet of so many bytes
 * is right? At most one, as the CRC tells the 2^17 of them apart: one damaged packet in 2^15 passes. For packets of
 * others, without privilege. difference: the one that was stored, exclusive-or roce_icrc().
 */
bool roce_icrc_find(uint32_t difference, size_t size, struct roce_ipv4 *found);
/*
 * The same for a packet with its ICRC behind it; of one over IPv6 the ICRC is right or not. guess: the identification that
 * is looked at first, which is quick.
 */
bool roce_icrc_check(const struct roce_path *path, const uint8_t *bytes, size_t size, uint16_t guess,
		     struct roce_ipv4 *found);

/* Continues a CRC-32 register (neither inverted before nor after) over more bytes. */
uint32_t roce_crc(uint32_t crc, const void *bytes, size_t size);
/* The same without the help of the CPU. */
uint32_t roce_crc_tables(uint32_t crc, const void *bytes, size_t size);

#endif

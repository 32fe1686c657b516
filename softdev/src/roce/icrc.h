/*
 * The invariant CRC of RoCEv2 (IBTA annex A17.3.3): CRC-32 over the fields that routers may not change.
 *
 * The CRC covers the IP identification, which a UDP socket neither sets nor sees. Packets from an unconnected socket
 * with IP_MTU_DISCOVER=DO have "don't fragment" set and the identification 0, or, where the kernel split one message
 * into several packets (UDP_SEGMENT), their place in it. IPv6 has no identification, so there the check is exact for
 * packets of any sender.
 */
#ifndef SOFTDEV_ROCE_ICRC_H
#define SOFTDEV_ROCE_ICRC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/base.h"

/* One direction between two UDP ports. Addresses are GIDs: IPv4 is mapped (::ffff:a.b.c.d). */
struct roce_path {
	uint8_t src[16], dst[16];
	uint16_t src_port, dst_port;
};

/* Fields of the IPv4 header. */
struct roce_ipv4 {
	uint16_t id;
	bool may_fragment;
};

/* ICRC of the bytes from the BTH to the end of the pad, as a number to store in little-endian order. */
uint32_t roce_icrc_ipv4(const struct roce_path *path, struct roce_ipv4 ip, const uint8_t *bytes, size_t size);
/* Of a packet that is sent singly. */
static inline uint32_t roce_icrc(const struct roce_path *path, const uint8_t *bytes, size_t size)
{
	return roce_icrc_ipv4(path, (struct roce_ipv4){ 0 }, bytes, size);
}

/*
 * Whether some IPv4 header, with identification and "don't fragment" unknown, makes the ICRC of a packet of that size
 * right. At most one does, because the CRC distinguishes all 2^17 of them: one damaged packet in 2^15 passes. For
 * packets of other devices, without privilege. difference: the stored ICRC, exclusive-or roce_icrc().
 */
bool roce_icrc_find(uint32_t difference, size_t size, struct roce_ipv4 *found);
/*
 * The same for a packet followed by its ICRC; over IPv6 the ICRC is right or wrong. guess: the identification to try
 * first, which is fast.
 */
bool roce_icrc_check(const struct roce_path *path, const uint8_t *bytes, size_t size, uint16_t guess,
		     struct roce_ipv4 *found);

/* Continues a CRC-32 register (neither inverted before nor after) over more bytes. */
uint32_t roce_crc(uint32_t crc, const void *bytes, size_t size);
/* The same without CPU instructions for it. */
uint32_t roce_crc_tables(uint32_t crc, const void *bytes, size_t size);

#endif

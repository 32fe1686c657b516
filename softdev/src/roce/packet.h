/*
 * RoCEv2 packets: parsing and packing the UDP payload of port 4791. No sockets, no queue pairs, no memory.
 *
 * Layouts: IBTA volume 1, 9.2 (BTH), 9.3 (extended headers), annex A17 (RoCEv2).
 */
#ifndef SOFTDEV_ROCE_PACKET_H
#define SOFTDEV_ROCE_PACKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	ROCE_PORT = 4791,
	ROCE_BTH = 12,
	ROCE_RETH = 16,
	ROCE_AETH = 4,
	ROCE_IMM = 4,
	ROCE_IETH = 4,
	ROCE_ATOMIC = 28,
	ROCE_ATOMIC_ACK = 8,
	ROCE_DETH = 8,
	ROCE_ICRC = 4,
	ROCE_MAX_PAYLOAD = 4096,
	ROCE_MAX_HEADERS = ROCE_BTH + ROCE_ATOMIC,
	ROCE_MAX_PACKET = ROCE_MAX_HEADERS + ROCE_MAX_PAYLOAD + ROCE_ICRC,
	ROCE_CNP_BYTES = 16,
	ROCE_PKEY = 0xffff,
	ROCE_24 = 0xffffff,
};

/* The five low bits of an opcode; the three high bits are the transport. */
enum roce_transport { ROCE_RC = 0x00, ROCE_UC = 0x20, ROCE_UD = 0x60, ROCE_CNP = 0x80 };
enum roce_operation {
	ROCE_SEND_FIRST = 0x00,
	ROCE_SEND_MIDDLE,
	ROCE_SEND_LAST,
	ROCE_SEND_LAST_IMM,
	ROCE_SEND_ONLY,
	ROCE_SEND_ONLY_IMM,
	ROCE_WRITE_FIRST,
	ROCE_WRITE_MIDDLE,
	ROCE_WRITE_LAST,
	ROCE_WRITE_LAST_IMM,
	ROCE_WRITE_ONLY,
	ROCE_WRITE_ONLY_IMM,
	ROCE_READ_REQUEST,
	ROCE_READ_FIRST,
	ROCE_READ_MIDDLE,
	ROCE_READ_LAST,
	ROCE_READ_ONLY,
	ROCE_ACK,
	ROCE_ATOMIC_ACKNOWLEDGE,
	ROCE_COMPARE_SWAP,
	ROCE_FETCH_ADD,
	ROCE_SEND_LAST_INV = 0x16,
	ROCE_SEND_ONLY_INV = 0x17,
	ROCE_OPERATIONS = 32,
};
enum { ROCE_CNP_OPCODE = ROCE_CNP | 1 };

/* Which headers an operation has and where in its message it stands. */
enum {
	ROCE_HAS_RETH = 1 << 0,
	ROCE_HAS_AETH = 1 << 1,
	ROCE_HAS_IMM = 1 << 2,
	ROCE_HAS_IETH = 1 << 3,
	ROCE_HAS_ATOMIC = 1 << 4,
	ROCE_HAS_ATOMIC_ACK = 1 << 5,
	ROCE_HAS_DETH = 1 << 6,
	ROCE_HAS_PAYLOAD = 1 << 7,
	ROCE_IS_FIRST = 1 << 8, /* FIRST and ONLY */
	ROCE_IS_LAST = 1 << 9,  /* LAST and ONLY */
	ROCE_IS_SEND = 1 << 10,
	ROCE_IS_WRITE = 1 << 11,
	ROCE_IS_RESPONSE = 1 << 12, /* for the requester; otherwise for the responder */
	ROCE_IS_KNOWN = 1 << 13,
};
/* 0: no such opcode. */
uint16_t roce_traits(uint8_t opcode);

/* AETH syndrome: kind in bits 6-5; below it credits, an RNR timer or a NAK code. */
enum {
	ROCE_AETH_ACK = 0x00,
	ROCE_AETH_RNR = 0x20,
	ROCE_AETH_NAK = 0x60,
	ROCE_AETH_KIND = 0x60,
	ROCE_AETH_VALUE = 0x1f,
	ROCE_NO_CREDITS = 0x1f, /* end-to-end flow control is not used */
};
enum roce_nak {
	ROCE_NAK_SEQUENCE,
	ROCE_NAK_INVALID_REQUEST,
	ROCE_NAK_REMOTE_ACCESS,
	ROCE_NAK_REMOTE_OPERATION,
	ROCE_NAK_INVALID_RD,
};

struct roce_packet {
	uint8_t opcode;
	bool solicited, ack_request, migrated, fecn, becn;
	uint16_t pkey;
	uint32_t qpn, psn; /* destination */
	uint32_t src_qpn, qkey;
	uint64_t addr;
	uint32_t rkey, length;      /* RETH; length of the whole request */
	uint64_t swap_add, compare; /* AtomicETH */
	uint64_t original;          /* AtomicAckETH */
	uint8_t syndrome;
	uint32_t msn;
	uint32_t imm;        /* in packet byte order */
	uint32_t invalidate; /* rkey */
	const uint8_t *payload;
	uint32_t payload_length; /* without pad */
};

enum roce_verdict {
	ROCE_OK,
	ROCE_TOO_SHORT,   /* for the headers of its opcode */
	ROCE_BAD_OPCODE,  /* unknown, or of a transport that RoCE does not have */
	ROCE_BAD_VERSION, /* of the transport header */
	ROCE_BAD_PKEY,    /* another partition */
	ROCE_BAD_LENGTH,  /* payload that is not allowed, too long, or with its pad not a multiple of four */
	ROCE_VERDICTS,
};
/* data: UDP payload of `size` bytes including the ICRC, which is not checked here. The payload is not copied. */
enum roce_verdict roce_parse(const uint8_t *data, size_t size, struct roce_packet *packet);

/* Writes the headers of `packet` that its opcode requires; payload_length determines the pad. Returns their length. */
size_t roce_pack_headers(const struct roce_packet *packet, uint8_t to[ROCE_MAX_HEADERS]);
static inline uint32_t roce_pad(uint32_t payload_length)
{
	return -payload_length & 3;
}

/* a - b modulo 2^24: negative when a is behind b. */
static inline int32_t roce_psn_diff(uint32_t a, uint32_t b)
{
	return (int32_t)((a - b) << 8) >> 8;
}
static inline uint32_t roce_psn_add(uint32_t psn, uint32_t n)
{
	return (psn + n) & ROCE_24;
}
/* The number of PSNs that a message takes: at least one. */
static inline uint32_t roce_packets(uint32_t length, uint32_t mtu)
{
	return length ? (length - 1) / mtu + 1 : 1;
}

#endif

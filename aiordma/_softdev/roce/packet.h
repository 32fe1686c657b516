/*
 * RoCEv2 packets: what a UDP payload to port 4791 says, in both directions. No sockets, no queue pairs, no memory.
 *
 * Layouts: IBTA volume 1, 9.2 (BTH), 9.3 (extended headers), annex A17 (RoCEv2).
 */
#ifndef AIORDMA_WIRE_PACKET_H
#define AIORDMA_WIRE_PACKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	WIRE_PORT = 4791,
	WIRE_BTH = 12,
	WIRE_RETH = 16,
	WIRE_AETH = 4,
	WIRE_IMM = 4,
	WIRE_IETH = 4,
	WIRE_ATOMIC = 28,
	WIRE_ATOMIC_ACK = 8,
	WIRE_DETH = 8,
	WIRE_ICRC = 4,
	WIRE_MAX_PAYLOAD = 4096,
	WIRE_MAX_HEADERS = WIRE_BTH + WIRE_ATOMIC,
	WIRE_MAX_PACKET = WIRE_MAX_HEADERS + WIRE_MAX_PAYLOAD + WIRE_ICRC,
	WIRE_CNP_BYTES = 16,
	WIRE_PKEY = 0xffff,
	WIRE_24 = 0xffffff,
};

/* The five low bits of an opcode; the three high ones are the transport. */
enum wire_transport { WIRE_RC = 0x00, WIRE_UC = 0x20, WIRE_UD = 0x60, WIRE_CNP = 0x80 };
enum wire_operation {
	WIRE_SEND_FIRST = 0x00,
	WIRE_SEND_MIDDLE,
	WIRE_SEND_LAST,
	WIRE_SEND_LAST_IMM,
	WIRE_SEND_ONLY,
	WIRE_SEND_ONLY_IMM,
	WIRE_WRITE_FIRST,
	WIRE_WRITE_MIDDLE,
	WIRE_WRITE_LAST,
	WIRE_WRITE_LAST_IMM,
	WIRE_WRITE_ONLY,
	WIRE_WRITE_ONLY_IMM,
	WIRE_READ_REQUEST,
	WIRE_READ_FIRST,
	WIRE_READ_MIDDLE,
	WIRE_READ_LAST,
	WIRE_READ_ONLY,
	WIRE_ACK,
	WIRE_ATOMIC_ACKNOWLEDGE,
	WIRE_COMPARE_SWAP,
	WIRE_FETCH_ADD,
	WIRE_SEND_LAST_INV = 0x16,
	WIRE_SEND_ONLY_INV = 0x17,
	WIRE_OPERATIONS = 32,
};
enum { WIRE_CNP_OPCODE = WIRE_CNP | 1 };

/* What an operation carries and where in its message it stands. */
enum {
	WIRE_HAS_RETH = 1 << 0,
	WIRE_HAS_AETH = 1 << 1,
	WIRE_HAS_IMM = 1 << 2,
	WIRE_HAS_IETH = 1 << 3,
	WIRE_HAS_ATOMIC = 1 << 4,
	WIRE_HAS_ATOMIC_ACK = 1 << 5,
	WIRE_HAS_DETH = 1 << 6,
	WIRE_HAS_PAYLOAD = 1 << 7,
	WIRE_IS_FIRST = 1 << 8, /* FIRST and ONLY */
	WIRE_IS_LAST = 1 << 9,  /* LAST and ONLY */
	WIRE_IS_SEND = 1 << 10,
	WIRE_IS_WRITE = 1 << 11,
	WIRE_IS_RESPONSE = 1 << 12, /* for the requester; else for the responder */
	WIRE_IS_KNOWN = 1 << 13,
};
/* 0: no such opcode. */
uint16_t wire_traits(uint8_t opcode);

/* AETH syndrome: kind in bits 6-5, below it credits, an RNR timer or a NAK code. */
enum {
	WIRE_AETH_ACK = 0x00,
	WIRE_AETH_RNR = 0x20,
	WIRE_AETH_NAK = 0x60,
	WIRE_AETH_KIND = 0x60,
	WIRE_AETH_VALUE = 0x1f,
	WIRE_NO_CREDITS = 0x1f, /* end to end flow control is not used */
};
enum wire_nak {
	WIRE_NAK_SEQUENCE,
	WIRE_NAK_INVALID_REQUEST,
	WIRE_NAK_REMOTE_ACCESS,
	WIRE_NAK_REMOTE_OPERATION,
	WIRE_NAK_INVALID_RD,
};

struct wire_packet {
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
	uint32_t imm;        /* as it lies on the wire */
	uint32_t invalidate; /* rkey */
	const uint8_t *payload;
	uint32_t payload_length; /* without pad */
};

enum wire_verdict {
	WIRE_OK,
	WIRE_TOO_SHORT,   /* for the headers its opcode says it has */
	WIRE_BAD_OPCODE,  /* unknown, or of a transport that RoCE does not have */
	WIRE_BAD_VERSION, /* of the transport header */
	WIRE_BAD_PKEY,    /* another partition */
	WIRE_BAD_LENGTH,  /* payload that may not be there, too long, or not a multiple of four with its pad */
	WIRE_VERDICTS,
};
/* data: UDP payload of `size` bytes, the ICRC (not checked here) included. The payload stays where it is. */
enum wire_verdict wire_parse(const uint8_t *data, size_t size, struct wire_packet *packet);

/* Headers of `packet` as its opcode wants them; payload_length sets the pad. Returns their length. */
size_t wire_pack_headers(const struct wire_packet *packet, uint8_t to[WIRE_MAX_HEADERS]);
static inline uint32_t wire_pad(uint32_t payload_length)
{
	return -payload_length & 3;
}

/* a - b in the circle of 24 bit sequence numbers: negative when a is behind. */
static inline int32_t wire_psn_diff(uint32_t a, uint32_t b)
{
	return (int32_t)((a - b) << 8) >> 8;
}
static inline uint32_t wire_psn_add(uint32_t psn, uint32_t n)
{
	return (psn + n) & WIRE_24;
}
/* Sequence numbers that a message takes: at least one. */
static inline uint32_t wire_packets(uint32_t length, uint32_t mtu)
{
	return length ? (length - 1) / mtu + 1 : 1;
}

#endif

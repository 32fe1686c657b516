/*
 * RoCEv2 packets: the table of opcodes, parsing and packing.
 */
#include "roce/packet.h"

#include <string.h>

#define SEND (WIRE_IS_KNOWN | WIRE_IS_SEND | WIRE_HAS_PAYLOAD)
#define WRITE (WIRE_IS_KNOWN | WIRE_IS_WRITE | WIRE_HAS_PAYLOAD)
#define READ (WIRE_IS_KNOWN | WIRE_IS_RESPONSE | WIRE_HAS_PAYLOAD)
#define ONLY (WIRE_IS_FIRST | WIRE_IS_LAST)

static const uint16_t operations[WIRE_OPERATIONS] = {
	[WIRE_SEND_FIRST] = SEND | WIRE_IS_FIRST,
	[WIRE_SEND_MIDDLE] = SEND,
	[WIRE_SEND_LAST] = SEND | WIRE_IS_LAST,
	[WIRE_SEND_LAST_IMM] = SEND | WIRE_IS_LAST | WIRE_HAS_IMM,
	[WIRE_SEND_ONLY] = SEND | ONLY,
	[WIRE_SEND_ONLY_IMM] = SEND | ONLY | WIRE_HAS_IMM,
	[WIRE_WRITE_FIRST] = WRITE | WIRE_IS_FIRST | WIRE_HAS_RETH,
	[WIRE_WRITE_MIDDLE] = WRITE,
	[WIRE_WRITE_LAST] = WRITE | WIRE_IS_LAST,
	[WIRE_WRITE_LAST_IMM] = WRITE | WIRE_IS_LAST | WIRE_HAS_IMM,
	[WIRE_WRITE_ONLY] = WRITE | ONLY | WIRE_HAS_RETH,
	[WIRE_WRITE_ONLY_IMM] = WRITE | ONLY | WIRE_HAS_RETH | WIRE_HAS_IMM,
	[WIRE_READ_REQUEST] = WIRE_IS_KNOWN | ONLY | WIRE_HAS_RETH,
	[WIRE_READ_FIRST] = READ | WIRE_IS_FIRST | WIRE_HAS_AETH,
	[WIRE_READ_MIDDLE] = READ,
	[WIRE_READ_LAST] = READ | WIRE_IS_LAST | WIRE_HAS_AETH,
	[WIRE_READ_ONLY] = READ | ONLY | WIRE_HAS_AETH,
	[WIRE_ACK] = WIRE_IS_KNOWN | WIRE_IS_RESPONSE | ONLY | WIRE_HAS_AETH,
	[WIRE_ATOMIC_ACKNOWLEDGE] = WIRE_IS_KNOWN | WIRE_IS_RESPONSE | ONLY | WIRE_HAS_AETH | WIRE_HAS_ATOMIC_ACK,
	[WIRE_COMPARE_SWAP] = WIRE_IS_KNOWN | ONLY | WIRE_HAS_ATOMIC,
	[WIRE_FETCH_ADD] = WIRE_IS_KNOWN | ONLY | WIRE_HAS_ATOMIC,
	[WIRE_SEND_LAST_INV] = SEND | WIRE_IS_LAST | WIRE_HAS_IETH,
	[WIRE_SEND_ONLY_INV] = SEND | ONLY | WIRE_HAS_IETH,
};

uint16_t wire_traits(uint8_t opcode)
{
	const uint8_t operation = opcode & 0x1f;

	switch (opcode & 0xe0) {
	case WIRE_RC:
		return operations[operation];
	case WIRE_UC:
		return operation <= WIRE_WRITE_ONLY_IMM ? operations[operation] : 0;
	case WIRE_UD:
		return operation == WIRE_SEND_ONLY || operation == WIRE_SEND_ONLY_IMM ?
			       operations[operation] | WIRE_HAS_DETH :
			       0;
	case WIRE_CNP:
		return opcode == WIRE_CNP_OPCODE ? WIRE_IS_KNOWN | WIRE_HAS_PAYLOAD : 0;
	default:
		return 0;
	}
}

static uint32_t headers_length(uint16_t traits)
{
	return WIRE_BTH + (traits & WIRE_HAS_DETH ? WIRE_DETH : 0) + (traits & WIRE_HAS_RETH ? WIRE_RETH : 0) +
	       (traits & WIRE_HAS_ATOMIC ? WIRE_ATOMIC : 0) + (traits & WIRE_HAS_AETH ? WIRE_AETH : 0) +
	       (traits & WIRE_HAS_ATOMIC_ACK ? WIRE_ATOMIC_ACK : 0) + (traits & WIRE_HAS_IMM ? WIRE_IMM : 0) +
	       (traits & WIRE_HAS_IETH ? WIRE_IETH : 0);
}

/* ---- reading ---------------------------------------------------------------------------------------- */

static uint32_t get32(const uint8_t *at)
{
	return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static uint64_t get64(const uint8_t *at)
{
	return (uint64_t)get32(at) << 32 | get32(at + 4);
}

static const uint8_t *parse_extended(const uint8_t *at, uint16_t traits, struct wire_packet *p)
{
	if (traits & WIRE_HAS_DETH) {
		p->qkey = get32(at);
		p->src_qpn = get32(at + 4) & WIRE_24;
		at += WIRE_DETH;
	}
	if (traits & WIRE_HAS_RETH) {
		p->addr = get64(at);
		p->rkey = get32(at + 8);
		p->length = get32(at + 12);
		at += WIRE_RETH;
	}
	if (traits & WIRE_HAS_ATOMIC) {
		p->addr = get64(at);
		p->rkey = get32(at + 8);
		p->swap_add = get64(at + 12);
		p->compare = get64(at + 20);
		at += WIRE_ATOMIC;
	}
	if (traits & WIRE_HAS_AETH) {
		p->syndrome = at[0];
		p->msn = get32(at) & WIRE_24;
		at += WIRE_AETH;
	}
	if (traits & WIRE_HAS_ATOMIC_ACK) {
		p->original = get64(at);
		at += WIRE_ATOMIC_ACK;
	}
	if (traits & WIRE_HAS_IMM) {
		memcpy(&p->imm, at, sizeof(p->imm));
		at += WIRE_IMM;
	}
	if (traits & WIRE_HAS_IETH) {
		p->invalidate = get32(at);
		at += WIRE_IETH;
	}
	return at;
}

enum wire_verdict wire_parse(const uint8_t *data, size_t size, struct wire_packet *p)
{
	if (size < WIRE_BTH + WIRE_ICRC)
		return WIRE_TOO_SHORT;
	const uint16_t traits = wire_traits(data[0]);
	if (!traits)
		return WIRE_BAD_OPCODE;
	if (data[1] & 0x0f)
		return WIRE_BAD_VERSION;
	const uint32_t head = headers_length(traits), pad = data[1] >> 4 & 3;
	if (size < head + WIRE_ICRC)
		return WIRE_TOO_SHORT;
	if (size - head - WIRE_ICRC < pad)
		return WIRE_BAD_LENGTH;
	const size_t payload = size - head - WIRE_ICRC - pad;
	if (size % 4 || payload > WIRE_MAX_PAYLOAD || (!(traits & WIRE_HAS_PAYLOAD) && (payload || pad)))
		return WIRE_BAD_LENGTH;
	memset(p, 0, sizeof(*p));
	p->opcode = data[0];
	p->solicited = data[1] & 0x80;
	p->migrated = data[1] & 0x40;
	p->pkey = (uint16_t)(data[2] << 8 | data[3]);
	p->fecn = data[4] & 0x80;
	p->becn = data[4] & 0x40;
	p->qpn = get32(data + 4) & WIRE_24;
	p->ack_request = data[8] & 0x80;
	p->psn = get32(data + 8) & WIRE_24;
	/* The highest bit says full or limited member of the partition, of which there is one. */
	if ((p->pkey & 0x7fff) != (WIRE_PKEY & 0x7fff))
		return WIRE_BAD_PKEY;
	p->payload = parse_extended(data + WIRE_BTH, traits, p);
	p->payload_length = (uint32_t)payload;
	return WIRE_OK;
}

/* ---- writing ---------------------------------------------------------------------------------------- */

static uint8_t *put32(uint8_t *to, uint32_t value)
{
	to[0] = (uint8_t)(value >> 24);
	to[1] = (uint8_t)(value >> 16);
	to[2] = (uint8_t)(value >> 8);
	to[3] = (uint8_t)value;
	return to + 4;
}

static uint8_t *put64(uint8_t *to, uint64_t value)
{
	return put32(put32(to, (uint32_t)(value >> 32)), (uint32_t)value);
}

size_t wire_pack_headers(const struct wire_packet *p, uint8_t to[WIRE_MAX_HEADERS])
{
	const uint16_t traits = wire_traits(p->opcode);
	uint8_t *at = to;

	*at++ = p->opcode;
	*at++ = (uint8_t)((p->solicited ? 0x80 : 0) | (p->migrated ? 0x40 : 0) | wire_pad(p->payload_length) << 4);
	*at++ = (uint8_t)(p->pkey >> 8);
	*at++ = (uint8_t)p->pkey;
	at = put32(at, (p->fecn ? 0x80000000u : 0) | (p->becn ? 0x40000000u : 0) | (p->qpn & WIRE_24));
	at = put32(at, (p->ack_request ? 0x80000000u : 0) | (p->psn & WIRE_24));
	if (traits & WIRE_HAS_DETH)
		at = put32(put32(at, p->qkey), p->src_qpn & WIRE_24);
	if (traits & WIRE_HAS_RETH)
		at = put32(put32(put64(at, p->addr), p->rkey), p->length);
	if (traits & WIRE_HAS_ATOMIC)
		at = put64(put64(put32(put64(at, p->addr), p->rkey), p->swap_add), p->compare);
	if (traits & WIRE_HAS_AETH)
		at = put32(at, (uint32_t)p->syndrome << 24 | (p->msn & WIRE_24));
	if (traits & WIRE_HAS_ATOMIC_ACK)
		at = put64(at, p->original);
	if (traits & WIRE_HAS_IMM) {
		memcpy(at, &p->imm, sizeof(p->imm));
		at += WIRE_IMM;
	}
	if (traits & WIRE_HAS_IETH)
		at = put32(at, p->invalidate);
	return (size_t)(at - to);
}

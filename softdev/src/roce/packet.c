/*
 * RoCEv2 packets: the table of opcodes, parsing and packing.
 */
#include "roce/packet.h"

#include <string.h>

#define SEND (ROCE_IS_KNOWN | ROCE_IS_SEND | ROCE_HAS_PAYLOAD)
#define WRITE (ROCE_IS_KNOWN | ROCE_IS_WRITE | ROCE_HAS_PAYLOAD)
#define READ (ROCE_IS_KNOWN | ROCE_IS_RESPONSE | ROCE_HAS_PAYLOAD)
#define ONLY (ROCE_IS_FIRST | ROCE_IS_LAST)

static const uint16_t operations[ROCE_OPERATIONS] = {
	[ROCE_SEND_FIRST] = SEND | ROCE_IS_FIRST,
	[ROCE_SEND_MIDDLE] = SEND,
	[ROCE_SEND_LAST] = SEND | ROCE_IS_LAST,
	[ROCE_SEND_LAST_IMM] = SEND | ROCE_IS_LAST | ROCE_HAS_IMM,
	[ROCE_SEND_ONLY] = SEND | ONLY,
	[ROCE_SEND_ONLY_IMM] = SEND | ONLY | ROCE_HAS_IMM,
	[ROCE_WRITE_FIRST] = WRITE | ROCE_IS_FIRST | ROCE_HAS_RETH,
	[ROCE_WRITE_MIDDLE] = WRITE,
	[ROCE_WRITE_LAST] = WRITE | ROCE_IS_LAST,
	[ROCE_WRITE_LAST_IMM] = WRITE | ROCE_IS_LAST | ROCE_HAS_IMM,
	[ROCE_WRITE_ONLY] = WRITE | ONLY | ROCE_HAS_RETH,
	[ROCE_WRITE_ONLY_IMM] = WRITE | ONLY | ROCE_HAS_RETH | ROCE_HAS_IMM,
	[ROCE_READ_REQUEST] = ROCE_IS_KNOWN | ONLY | ROCE_HAS_RETH,
	[ROCE_READ_FIRST] = READ | ROCE_IS_FIRST | ROCE_HAS_AETH,
	[ROCE_READ_MIDDLE] = READ,
	[ROCE_READ_LAST] = READ | ROCE_IS_LAST | ROCE_HAS_AETH,
	[ROCE_READ_ONLY] = READ | ONLY | ROCE_HAS_AETH,
	[ROCE_ACK] = ROCE_IS_KNOWN | ROCE_IS_RESPONSE | ONLY | ROCE_HAS_AETH,
	[ROCE_ATOMIC_ACKNOWLEDGE] = ROCE_IS_KNOWN | ROCE_IS_RESPONSE | ONLY | ROCE_HAS_AETH | ROCE_HAS_ATOMIC_ACK,
	[ROCE_COMPARE_SWAP] = ROCE_IS_KNOWN | ONLY | ROCE_HAS_ATOMIC,
	[ROCE_FETCH_ADD] = ROCE_IS_KNOWN | ONLY | ROCE_HAS_ATOMIC,
	[ROCE_SEND_LAST_INV] = SEND | ROCE_IS_LAST | ROCE_HAS_IETH,
	[ROCE_SEND_ONLY_INV] = SEND | ONLY | ROCE_HAS_IETH,
};

uint16_t roce_traits(uint8_t opcode)
{
	const uint8_t operation = opcode & 0x1f;

	switch (opcode & 0xe0) {
	case ROCE_RC:
		return operations[operation];
	case ROCE_UC:
		return operation <= ROCE_WRITE_ONLY_IMM ? operations[operation] : 0;
	case ROCE_UD:
		return operation == ROCE_SEND_ONLY || operation == ROCE_SEND_ONLY_IMM ?
			       operations[operation] | ROCE_HAS_DETH :
			       0;
	case ROCE_CNP:
		return opcode == ROCE_CNP_OPCODE ? ROCE_IS_KNOWN | ROCE_HAS_PAYLOAD : 0;
	default:
		return 0;
	}
}

static uint32_t headers_length(uint16_t traits)
{
	return ROCE_BTH + (traits & ROCE_HAS_DETH ? ROCE_DETH : 0) + (traits & ROCE_HAS_RETH ? ROCE_RETH : 0) +
	       (traits & ROCE_HAS_ATOMIC ? ROCE_ATOMIC : 0) + (traits & ROCE_HAS_AETH ? ROCE_AETH : 0) +
	       (traits & ROCE_HAS_ATOMIC_ACK ? ROCE_ATOMIC_ACK : 0) + (traits & ROCE_HAS_IMM ? ROCE_IMM : 0) +
	       (traits & ROCE_HAS_IETH ? ROCE_IETH : 0);
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

static const uint8_t *parse_extended(const uint8_t *at, uint16_t traits, struct roce_packet *p)
{
	if (traits & ROCE_HAS_DETH) {
		p->qkey = get32(at);
		p->src_qpn = get32(at + 4) & ROCE_24;
		at += ROCE_DETH;
	}
	if (traits & ROCE_HAS_RETH) {
		p->addr = get64(at);
		p->rkey = get32(at + 8);
		p->length = get32(at + 12);
		at += ROCE_RETH;
	}
	if (traits & ROCE_HAS_ATOMIC) {
		p->addr = get64(at);
		p->rkey = get32(at + 8);
		p->swap_add = get64(at + 12);
		p->compare = get64(at + 20);
		at += ROCE_ATOMIC;
	}
	if (traits & ROCE_HAS_AETH) {
		p->syndrome = at[0];
		p->msn = get32(at) & ROCE_24;
		at += ROCE_AETH;
	}
	if (traits & ROCE_HAS_ATOMIC_ACK) {
		p->original = get64(at);
		at += ROCE_ATOMIC_ACK;
	}
	if (traits & ROCE_HAS_IMM) {
		memcpy(&p->imm, at, sizeof(p->imm));
		at += ROCE_IMM;
	}
	if (traits & ROCE_HAS_IETH) {
		p->invalidate = get32(at);
		at += ROCE_IETH;
	}
	return at;
}

enum roce_verdict roce_parse(const uint8_t *data, size_t size, struct roce_packet *p)
{
	if (size < ROCE_BTH + ROCE_ICRC)
		return ROCE_TOO_SHORT;
	const uint16_t traits = roce_traits(data[0]);
	if (!traits)
		return ROCE_BAD_OPCODE;
	if (data[1] & 0x0f)
		return ROCE_BAD_VERSION;
	const uint32_t head = headers_length(traits), pad = data[1] >> 4 & 3;
	if (size < head + ROCE_ICRC)
		return ROCE_TOO_SHORT;
	if (size - head - ROCE_ICRC < pad)
		return ROCE_BAD_LENGTH;
	const size_t payload = size - head - ROCE_ICRC - pad;
	if (size % 4 || payload > ROCE_MAX_PAYLOAD || (!(traits & ROCE_HAS_PAYLOAD) && (payload || pad)))
		return ROCE_BAD_LENGTH;
	memset(p, 0, sizeof(*p));
	p->opcode = data[0];
	p->solicited = data[1] & 0x80;
	p->migrated = data[1] & 0x40;
	p->pkey = (uint16_t)(data[2] << 8 | data[3]);
	p->fecn = data[4] & 0x80;
	p->becn = data[4] & 0x40;
	p->qpn = get32(data + 4) & ROCE_24;
	p->ack_request = data[8] & 0x80;
	p->psn = get32(data + 8) & ROCE_24;
	/* The highest bit is set for a full member of the partition, and clear for a limited one. There is one
	 * partition. */
	if ((p->pkey & 0x7fff) != (ROCE_PKEY & 0x7fff))
		return ROCE_BAD_PKEY;
	p->payload = parse_extended(data + ROCE_BTH, traits, p);
	p->payload_length = (uint32_t)payload;
	return ROCE_OK;
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

size_t roce_pack_headers(const struct roce_packet *p, uint8_t to[ROCE_MAX_HEADERS])
{
	const uint16_t traits = roce_traits(p->opcode);
	uint8_t *at = to;

	*at++ = p->opcode;
	*at++ = (uint8_t)((p->solicited ? 0x80 : 0) | (p->migrated ? 0x40 : 0) | roce_pad(p->payload_length) << 4);
	*at++ = (uint8_t)(p->pkey >> 8);
	*at++ = (uint8_t)p->pkey;
	at = put32(at, (p->fecn ? 0x80000000u : 0) | (p->becn ? 0x40000000u : 0) | (p->qpn & ROCE_24));
	at = put32(at, (p->ack_request ? 0x80000000u : 0) | (p->psn & ROCE_24));
	if (traits & ROCE_HAS_DETH)
		at = put32(put32(at, p->qkey), p->src_qpn & ROCE_24);
	if (traits & ROCE_HAS_RETH)
		at = put32(put32(put64(at, p->addr), p->rkey), p->length);
	if (traits & ROCE_HAS_ATOMIC)
		at = put64(put64(put32(put64(at, p->addr), p->rkey), p->swap_add), p->compare);
	if (traits & ROCE_HAS_AETH)
		at = put32(at, (uint32_t)p->syndrome << 24 | (p->msn & ROCE_24));
	if (traits & ROCE_HAS_ATOMIC_ACK)
		at = put64(at, p->original);
	if (traits & ROCE_HAS_IMM) {
		memcpy(at, &p->imm, sizeof(p->imm));
		at += ROCE_IMM;
	}
	if (traits & ROCE_HAS_IETH)
		at = put32(at, p->invalidate);
	return (size_t)(at - to);
}

/*
 * Request packets (IBTA 9.4): derives the headers of a packet from its place in the message.
 */
#include "roce/request.h"

#include <string.h>

static uint8_t operation(const struct roce_message *m, bool first, bool last)
{
	const bool write = m->opcode == IBV_WR_RDMA_WRITE || m->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
	const uint8_t base = write ? ROCE_WRITE_FIRST : ROCE_SEND_FIRST;

	if (!last)
		return base + (first ? ROCE_SEND_FIRST : ROCE_SEND_MIDDLE);
	if (m->opcode == IBV_WR_SEND_WITH_INV)
		return first ? ROCE_SEND_ONLY_INV : ROCE_SEND_LAST_INV;
	const uint8_t imm = m->opcode == IBV_WR_SEND_WITH_IMM || m->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
	return base + imm + (first ? ROCE_SEND_ONLY : ROCE_SEND_LAST);
}

/* Packets [from, ...) of a READ, up to the end of their segment. Returns how many. */
static uint32_t read(const struct roce_ask *a, const struct roce_message *m, uint32_t from, struct roce_packet *p)
{
	uint32_t end = (from / ROCE_READ_SEGMENT + 1) * ROCE_READ_SEGMENT;

	if (end > m->packets)
		end = m->packets;
	p->opcode = ROCE_READ_REQUEST;
	p->addr = m->addr + (uint64_t)from * a->mtu;
	p->length = end == m->packets ? m->length - from * a->mtu : (end - from) * a->mtu;
	return end - from;
}

static void atomic(const struct roce_message *m, struct roce_packet *p)
{
	const bool swap = m->opcode == IBV_WR_ATOMIC_CMP_AND_SWP;

	p->opcode = swap ? ROCE_COMPARE_SWAP : ROCE_FETCH_ADD;
	p->addr = m->addr;
	p->swap_add = swap ? m->swap : m->compare_add;
	p->compare = swap ? m->compare_add : 0;
}

/* One packet of a SEND or WRITE: its bytes from packet `done` on. */
static void piece(const struct roce_ask *a, const struct roce_message *m, uint32_t done, struct roce_request *out)
{
	struct roce_packet *p = &out->packet;
	const bool last = done + 1 == m->packets, singly = m->singly;

	out->offset = done * a->mtu;
	p->payload_length = last ? m->length - out->offset : a->mtu;
	p->opcode =
		(uint8_t)((singly ? ROCE_WRITE_ONLY : operation(m, !done, last)) | (a->reliable ? ROCE_RC : ROCE_UC));
	p->solicited = last && m->solicited;
	p->addr = m->addr + (singly ? out->offset : 0);
	p->length = singly ? p->payload_length : m->length;
	p->imm = m->imm;
	p->invalidate = m->imm;
}

/*
 * A READ of no bytes needs no key (C9-88), and rxe (6.12) does not keep the key. If the request is repeated with the
 * same key, rxe finds another READ in its place and does not answer. With key 0 it answers, unless a request for bytes
 * has arrived since: then rxe looks for that key, and fails. So the key is 0 if nothing was sent after the READ;
 * otherwise the acknowledgement of the later packets covers the READ, too.
 */
static uint32_t key(const struct roce_ask *a, const struct roce_message *m, uint64_t sequence)
{
	const bool alone = sequence + 1 == a->high;

	return m->opcode == IBV_WR_RDMA_READ && !m->length && alone ? 0 : m->rkey;
}

uint32_t roce_request_make(const struct roce_ask *a, uint32_t index, uint64_t sequence, struct roce_request *out)
{
	const struct roce_message *m = roce_at(a, index);
	const uint32_t done = (uint32_t)(sequence - m->first);
	struct roce_packet *p = &out->packet;

	memset(p, 0, sizeof(*p));
	out->index = index;
	out->offset = 0;
	out->again = sequence < a->high;
	p->pkey = ROCE_PKEY;
	p->migrated = true;
	p->qpn = a->qpn;
	p->psn = roce_psn_of(a, sequence);
	p->rkey = out->again ? key(a, m, sequence) : m->rkey;
	if (m->opcode == IBV_WR_RDMA_READ)
		return read(a, m, done, p);
	if (roce_is_atomic(m))
		atomic(m, p);
	else
		piece(a, m, done, out);
	return 1;
}

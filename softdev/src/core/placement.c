/*
 * The order in which a personality places messages and their bytes.
 *
 * Cards promise none within a message: its last byte may be there before its first. Packets are placed as they come, and
 * the lines of a packet as they pass the bus. A message is cut into pieces, which are placed in an order that depends on
 * the seed of the faults, and on how many orders the queue pair has drawn: a program that fails does so again. This holds
 * for WRITEs, for SENDs in the buffers of the receive, and for READs in those of the requester.
 *
 * Between WRITEs: of those that are posted together, one may be placed before the one that stands before it. It is
 * placed again in its turn, so that in the end later bytes are above earlier ones. Nothing that keeps to completions can
 * tell: it does not look at the destination before that, and a source does not change.
 */
#include <string.h>

#include "core/internal.h"

enum { LINE = 64 };

bool soft_any_order(uint32_t access)
{
	return soft_unordered &&
	       (access & IBV_ACCESS_RELAXED_ORDERING || !strcmp(soft_personality()->placement, "any"));
}

bool soft_is_loose(uint32_t key)
{
	const struct soft_region *r = soft_key_find(key);

	return r && soft_any_order(r->access);
}

bool soft_is_loose_list(const struct ibv_sge *sge, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if (sge[i].length && !soft_is_loose(sge[i].lkey))
			return false;
	return true;
}

static uint64_t draw(struct soft_qp *qp)
{
	return soft_seed_draw(atomic_fetch_add_explicit(&qp->placements, 1, memory_order_relaxed));
}

static uint32_t common(uint32_t a, uint32_t b)
{
	while (b) {
		const uint32_t rest = a % b;
		a = b;
		b = rest;
	}
	return a;
}

void soft_order_begin(struct soft_order *o, struct soft_qp *qp, uint32_t length)
{
	const uint32_t mtu = 128u << (qp->attr.path_mtu ? qp->attr.path_mtu : IBV_MTU_1024);
	const uint64_t drawn = draw(qp);

	o->length = length;
	o->size = length > mtu ? mtu : LINE;
	o->pieces = o->left = (length + o->size - 1) / o->size;
	o->step = 1;
	o->at = 0;
	if (o->pieces < 2)
		return;
	/* Any step that has no factor in common with their number comes to each of them once. */
	o->at = (uint32_t)(drawn % o->pieces);
	o->step = 1 + (uint32_t)((drawn >> 32) % (o->pieces - 1));
	while (common(o->pieces, o->step) != 1)
		o->step++;
}

bool soft_order_next(struct soft_order *o, uint32_t *offset, uint32_t *n)
{
	if (!o->left)
		return false;
	*offset = o->at * o->size;
	*n = o->length - *offset < o->size ? o->length - *offset : o->size;
	o->at = (uint32_t)(((uint64_t)o->at + o->step) % o->pieces);
	o->left--;
	return true;
}

bool soft_order_early(struct soft_qp *qp)
{
	return draw(qp) & 1;
}

bool soft_place(struct soft_qp *qp, char *to, const char *from, uint32_t n)
{
	struct soft_order order;
	uint32_t offset, part;

	soft_order_begin(&order, qp, n);
	while (soft_order_next(&order, &offset, &part))
		if (!soft_rx_copy(to + offset, from + offset, part))
			return false;
	return true;
}

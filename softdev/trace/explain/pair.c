/*
 * The other end of a queue pair, in whichever recording it is.
 */
#include <string.h>

#include "trace/explain/explain.h"

static bool lived_together(const struct story *a, const struct qp *one, const struct story *b, const struct qp *other)
{
	const uint64_t forever = UINT64_MAX;
	const uint64_t made = world_time(a, one->made), there = world_time(b, other->made);
	const uint64_t gone = one->gone ? world_time(a, one->gone) : forever;
	const uint64_t gone_there = other->gone ? world_time(b, other->gone) : forever;

	return made < gone_there && there < gone;
}

/* By how much this is more likely the other end than another of that number; 0: it is not. */
static unsigned likeness(const struct story *a, const struct qp *qp, const struct story *b, const struct qp *other)
{
	unsigned points = 1;

	if (other->caps.type != qp->caps.type)
		return 0;
	if (other->is.dest_qpn == qp->number)
		points += 4;
	if (lived_together(a, qp, b, other))
		points += 2;
	if (qp->addressed && other->addressed && !memcmp(other->address.sgid, qp->address.dgid, 16))
		points++;
	return points;
}

bool peer_find(const struct findings *in, const struct story *story, const struct qp *qp, struct peer *peer)
{
	unsigned best = 0;

	if (!qp->rtr)
		return false;
	for (size_t s = 0; s < in->story_count; s++) {
		const struct story *there = &in->stories[s];
		for (size_t n = 0; n < there->qp_count; n++) {
			const struct qp *other = &there->qps[n];
			if (other->number != qp->is.dest_qpn)
				continue;
			const unsigned points = likeness(story, qp, there, other);
			if (points <= best)
				continue;
			best = points;
			*peer = (struct peer){ there, other, other->is.dest_qpn == qp->number };
		}
	}
	return best > 0;
}

bool peer_admirer(const struct findings *in, const struct story *story, const struct qp *qp, struct peer *peer)
{
	for (size_t s = 0; s < in->story_count; s++) {
		const struct story *there = &in->stories[s];
		for (size_t n = 0; n < there->qp_count; n++) {
			const struct qp *other = &there->qps[n];
			if (other == qp || !other->rtr || other->is.dest_qpn != qp->number ||
			    other->number == qp->is.dest_qpn || !lived_together(story, qp, there, other))
				continue;
			*peer = (struct peer){ there, other, false };
			return true;
		}
	}
	return false;
}

const char *peer_address(const struct qp *qp, char text[TRACE_ADDRESS_BYTES])
{
	if (!qp->addressed || !qp->address.global)
		snprintf(text, TRACE_ADDRESS_BYTES, "the peer");
	else
		trace_gid_text(qp->address.dgid, text);
	return text;
}

bool found_other_mtu(struct findings *to, const struct story *s, const struct trace_item *item,
		     const struct trace_item *posted, const struct qp *qp, const struct peer *peer)
{
	const unsigned here = trace_mtu_bytes(qp->is.path_mtu), there = trace_mtu_bytes(peer->qp->is.path_mtu);
	const struct trace_wr *w = &posted->record.wr;

	if (!here || !there || here == there || w->length <= (here < there ? here : there))
		return false;
	found(to, s, "mtu-mismatch", FAILED, item->ns, qp->object,
	      "%s of %s of %u bytes on QP 0x%x: path_mtu is %u here, and %u on the peer's QP 0x%x, so a message of "
	      "several packets has others than the peer takes. Use the smaller one on both.",
	      trace_status_name(item->record.done.status), trace_an_opcode(w->opcode), w->length, qp->number, here,
	      there, peer->qp->number);
	return true;
}

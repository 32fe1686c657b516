/*
 * Rule: datagrams that no queue pair gets. A UD queue pair's sends complete with success whatever becomes of them.
 */
#include <infiniband/verbs.h>
#include <string.h>

#include "trace/explain/explain.h"

enum { GRH = 40 };

/* The queue pair of that number, in any recording; *any: whether there is one for datagrams besides the sender. */
static bool find(const struct findings *in, const struct qp *own, uint32_t number, struct peer *peer, bool *any)
{
	bool there = false;

	*any = false;
	for (size_t k = 0; k < in->story_count; k++) {
		const struct story *s = &in->stories[k];
		for (size_t n = 0; n < s->qp_count; n++) {
			const struct qp *qp = &s->qps[n];
			*any |= qp != own && qp->caps.type == IBV_QPT_UD;
			if (qp->number == number) {
				*peer = (struct peer){ s, qp, false };
				there = true;
			}
		}
	}
	return there;
}

/* GIDs that any recording has used as its own. */
static bool known_gid(const struct findings *in, const uint8_t gid[16])
{
	bool any = false;

	for (size_t k = 0; k < in->story_count; k++) {
		const struct story *s = &in->stories[k];
		for (size_t n = 0; n < s->qp_count + s->ah_count; n++) {
			const bool pair = n < s->qp_count;
			const struct trace_address *a = pair ? &s->qps[n].address : &s->ahs[n - s->qp_count].address;
			if (!a->sgid_known)
				continue;
			any = true;
			if (!memcmp(a->sgid, gid, 16))
				return true;
		}
	}
	return !any;
}

static void judge_pair(struct findings *to, const struct story *s, const struct trace_item *item, const struct qp *qp,
		       const struct peer *peer)
{
	const struct trace_wr *wr = &item->record.wr;
	const struct qp *there = peer->qp;
	/* The highest bit means: the queue pair's own. */
	const uint32_t qkey = wr->address & 0x80000000u ? qp->is.qkey : (uint32_t)wr->address;

	if (there->caps.type != IBV_QPT_UD)
		found(to, s, "wrong-dest-qp", WRONG, item->ns, qp->object,
		      "a datagram of QP 0x%x was sent to QP 0x%x, which is %s and takes none: it is dropped silently.",
		      qp->number, there->number, trace_qp_type_name(there->caps.type));
	else if (there->seen & IBV_QP_QKEY && qkey != there->is.qkey)
		found(to, s, "wrong-qkey", WRONG, item->ns, qp->object,
		      "a datagram of QP 0x%x has the queue key 0x%x, and QP 0x%x has 0x%x: it is dropped silently.",
		      qp->number, qkey, there->number, there->is.qkey);
	else if (!there->rtr)
		found(to, s, "peer-not-ready", WRONG, item->ns, qp->object,
		      "a datagram of QP 0x%x was sent to QP 0x%x, which never left %s: it is dropped silently.",
		      qp->number, there->number, trace_state_name(there->state));
	else if (qp->is.pkey_index != there->is.pkey_index)
		found(to, s, "wrong-pkey", WRONG, item->ns, qp->object,
		      "QP 0x%x has pkey_index %u and QP 0x%x has %u: partitions must be the same.", qp->number,
		      qp->is.pkey_index, there->number, there->is.pkey_index);
	else if (!there->recv_posts && !there->caps.srq)
		found(to, s, "no-receives", WRONG, item->ns, qp->object,
		      "a datagram of QP 0x%x was sent to QP 0x%x, to which no receive was ever posted: it is dropped "
		      "silently.",
		      qp->number, there->number);
	else if (there->smallest_receive < (uint64_t)wr->length + GRH && there->smallest_receive >= wr->length &&
		 !there->received)
		found(to, s, "grh-room", WRONG, item->ns, qp->object,
		      "a datagram of %u bytes was sent to QP 0x%x, whose receives have %u: the first %d of each are "
		      "for the header (GRH), so that %u are needed.",
		      wr->length, there->number, there->smallest_receive, GRH, wr->length + GRH);
}

static void judge(struct findings *to, const struct story *s, const struct trace_item *item, const struct qp *qp)
{
	const struct trace_wr *wr = &item->record.wr;
	const long handle = map_get(&s->by_ah, wr->remote);
	char wanted[TRACE_ADDRESS_BYTES];
	struct peer peer = { 0 };
	bool any;

	if (handle >= 0 && s->ahs[handle].addressed && s->ahs[handle].address.global && to->story_count > 1 &&
	    !known_gid(to, s->ahs[handle].address.dgid))
		found(to, s, "wrong-gid", WRONG, item->ns, qp->object,
		      "a datagram of QP 0x%x was sent to %s, which is the address of none that were recorded.",
		      qp->number, trace_gid_text(s->ahs[handle].address.dgid, wanted));
	if (find(to, qp, wr->rkey, &peer, &any))
		judge_pair(to, s, item, qp, &peer);
	else if (any)
		found(to, s, "wrong-dest-qp", WRONG, item->ns, qp->object,
		      "a datagram of QP 0x%x was sent to the queue pair number 0x%x, which none that were recorded "
		      "has: it is dropped silently.",
		      qp->number, wr->rkey);
}

void rule_datagrams(struct findings *to, const struct story *s)
{
	for (size_t i = 0; i < s->from->count; i++) {
		const struct trace_item *item = item_at(s, i);
		const bool send = item->record.kind == TRACE_SEND && !item->record.error;
		const long n = send ? map_get(&s->by_qp, item->record.object) : NONE;
		if (n >= 0 && s->qps[n].caps.type == IBV_QPT_UD)
			judge(to, s, item, &s->qps[n]);
	}
	for (size_t n = 0; n < s->qp_count; n++) {
		const struct qp *qp = &s->qps[n];
		if (qp->caps.type == IBV_QPT_UD && qp->recv_posts && qp->smallest_receive <= GRH)
			found(to, s, "grh-room", WRONG, qp->made, qp->object,
			      "a receive of %u bytes was posted to QP 0x%x. The first %d of each receive of a UD "
			      "queue pair are for the header (GRH): there is no room for a datagram.",
			      qp->smallest_receive, qp->number, GRH);
	}
}

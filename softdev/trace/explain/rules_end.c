/*
 * Rules: objects that could not be destroyed, that were left over, and work that never completed.
 */
#include <infiniband/verbs.h>

#include "trace/explain/explain.h"

void rule_ends(struct findings *to, const struct story *s)
{
	for (size_t n = 0; n < s->incident_count; n++) {
		const struct incident *one = &s->incidents[n];
		if (one->kind != END_REFUSED)
			continue;
		const struct trace_item *item = item_at(s, one->item);
		const char *what = trace_kind_name(item->record.kind), *why = trace_errno_name(item->record.error);
		const unsigned pairs = (unsigned)(one->value >> 32), others = (unsigned)(one->value & UINT32_MAX);
		if (item->record.error == 16)
			found(to, s, "destroy-in-use", FAILED, item->ns, item->record.object,
			      "%s of 0x%llx failed (%s): %u queue pairs and %u %s still use it. Destroy them first.",
			      what, (unsigned long long)item->record.object, why, pairs, others,
			      item->record.kind == TRACE_CHANNEL_GONE ? "completion queues" :
									"memory regions or shared receive queues");
		else
			found(to, s, "destroy-refused", FAILED, item->ns, item->record.object,
			      "%s of 0x%llx failed (%s).", what, (unsigned long long)item->record.object, why);
	}
}

/* ---- what is left ------------------------------------------------------------------------------------- */

#define LEFT(s, list, count)                                                                                           \
	({                                                                                                             \
		unsigned left_ = 0;                                                                                    \
		for (size_t n_ = 0; n_ < (s)->count; n_++)                                                             \
			left_ += !(s)->list[n_].gone;                                                                  \
		left_;                                                                                                 \
	})

/* Those that are left, as "2 queue pairs, 1 memory region". False: none. rdma_cm keeps protection domains of its own. */
static bool list_left(const struct story *s, char *text, size_t size)
{
	const struct {
		const char *name;
		unsigned count;
	} all[] = {
		{ "queue pair", LEFT(s, qps, qp_count) },
		{ "completion queue", LEFT(s, cqs, cq_count) },
		{ "memory region", LEFT(s, mrs, mr_count) },
		{ "completion channel", LEFT(s, channels, channel_count) },
		{ "shared receive queue", LEFT(s, srqs, srq_count) },
		{ "address handle", LEFT(s, ahs, ah_count) },
	};
	size_t at = 0;

	for (size_t n = 0; n < sizeof(all) / sizeof(*all) && at < size; n++) {
		if (all[n].count)
			at += (size_t)snprintf(text + at, size - at, "%s%u %s%s", at ? ", " : "", all[n].count,
					       all[n].name, all[n].count > 1 ? "s" : "");
	}
	return at > 0;
}

void rule_leaks(struct findings *to, const struct story *s)
{
	const unsigned pairs = LEFT(s, qps, qp_count);
	char text[200];

	if (s->from->header.ended && list_left(s, text, sizeof(text)))
		found(to, s, "leaked", ADVICE, s->end, 0, "the program has ended without destroying %s%s.", text,
		      pairs ? ": a peer learns of the end only by a timeout" : "");
	if (story_died(s) && pairs)
		found(to, s, "process-died", WRONG, s->end, 0,
		      "the process has ended without exit(): it was killed, has crashed, or called _exit(), with %u "
		      "queue pairs in use. Peers learn of it only by a timeout.",
		      pairs);
}

/* ---- what never completed ----------------------------------------------------------------------------- */

static bool signalled(const struct qp *qp, const struct trace_wr *wr)
{
	return qp->caps.sig_all || wr->flags & IBV_SEND_SIGNALED;
}

static void judge(struct findings *to, const struct story *s, const struct qp *qp)
{
	const struct trace_item *oldest = NULL;
	uint64_t waiting = 0;
	struct peer peer;

	for (size_t n = 0; n < queue_length(&qp->sends); n++) {
		const struct trace_item *item = item_at(s, queue_at(&qp->sends, n));
		if (!signalled(qp, &item->record.wr))
			continue;
		oldest = oldest ? oldest : item;
		waiting++;
	}
	const long c = map_get(&s->by_cq, qp->caps.send_cq);
	if (!oldest || c < 0)
		return;
	const struct cq *cq = &s->cqs[c];
	if (s->from->alive && s->end - oldest->ns < 1000000000)
		return; /* it may still come */
	if (cq->last_empty <= oldest->ns) {
		if (cq->last_done <= oldest->ns)
			found(to, s, "not-polled", WRONG, oldest->ns, qp->object,
			      "%llu signalled work requests of QP 0x%x, from wr_id 0x%llx on, were posted, and its "
			      "completion queue was not polled afterwards: what became of them is not known.",
			      (unsigned long long)waiting, qp->number, (unsigned long long)oldest->record.wr.wr_id);
		return;
	}
	const bool send = oldest->record.wr.opcode == IBV_WR_SEND || oldest->record.wr.opcode == IBV_WR_SEND_WITH_IMM;
	const bool known = peer_find(to, s, qp, &peer) && !peer.qp->caps.srq;
	if (send && known && peer.qp == qp && qp->received >= qp->recv_posts)
		found(to, s, "wrong-dest-qp", FAILED, oldest->ns, qp->object,
		      "%llu work requests of QP 0x%x, from wr_id 0x%llx on, never completed: dest_qp_num is its own "
		      "number, so that it sends to itself, and it has no receive for them.",
		      (unsigned long long)waiting, qp->number, (unsigned long long)oldest->record.wr.wr_id);
	else if (send && known && peer.qp->received >= peer.qp->recv_posts)
		found(to, s, "no-receives", FAILED, oldest->ns, qp->object,
		      "%llu work requests of QP 0x%x, from wr_id 0x%llx on, never completed: the peer's QP 0x%x has "
		      "no receive for them (%llu were posted to it, and %llu consumed), and rnr_retry %u %s.",
		      (unsigned long long)waiting, qp->number, (unsigned long long)oldest->record.wr.wr_id,
		      peer.qp->number, (unsigned long long)peer.qp->recv_posts, (unsigned long long)peer.qp->received,
		      qp->is.rnr_retry, qp->is.rnr_retry == 7 ? "waits for ever" : "has not run out yet");
	else
		found(to, s, "never-completed", WRONG, oldest->ns, qp->object,
		      "%llu signalled work requests of QP 0x%x, from wr_id 0x%llx on, had no completion when the "
		      "recording ended, %.3f s after the first of them was posted (timeout %u%s).",
		      (unsigned long long)waiting, qp->number, (unsigned long long)oldest->record.wr.wr_id,
		      (double)(s->end > oldest->ns ? s->end - oldest->ns : 0) / 1e9, qp->is.timeout,
		      qp->is.timeout ? "" : ", which means: for ever");
}

void rule_stuck(struct findings *to, const struct story *s)
{
	for (size_t n = 0; n < s->qp_count; n++) {
		const struct qp *qp = &s->qps[n];
		if (!qp->gone && qp->state == IBV_QPS_RTS && queue_length(&qp->sends))
			judge(to, s, qp);
	}
}

/*
 * Rule: a thread that polls a completion queue to the end, where nothing can come.
 *
 * Programs poll queues in which nothing is outstanding all the time, while they wait for another thread, a socket or a
 * word in memory. So it takes more: the thread posts itself what completes there, polls nothing else, and what it waits for
 * can be told: a send that was not signalled, or a completion that comes in another queue.
 */
#include <infiniband/verbs.h>

#include "trace/explain/explain.h"

enum { MANY = 10000 }; /* polls, without anything else in between */

static bool completes_in(const struct qp *qp, const struct cq *cq)
{
	return !qp->gone && (qp->caps.send_cq == cq->object || qp->caps.recv_cq == cq->object);
}

/* Whether the last thing that was done by any thread that posts or polls is the polling of this queue. */
static bool ends_with(const struct story *s, const struct cq *cq)
{
	for (size_t i = s->from->count; i-- > 0;) {
		const struct trace_item *item = item_at(s, i);
		if (item->ring >= TRACE_RING_THREADS)
			return item->record.kind == TRACE_EMPTY && item->record.object == cq->object;
	}
	return false;
}

/* Whether no other thread posts or polls, as far as the records go back. */
static bool is_alone(const struct story *s, const struct cq *cq)
{
	for (size_t i = 0; i < s->from->count; i++) {
		const struct trace_item *item = item_at(s, i);
		if (item->ring >= TRACE_RING_THREADS && item->ring != cq->last_poller)
			return false;
	}
	return true;
}

static bool by_unsignalled(struct findings *to, const struct story *s, const struct cq *cq)
{
	for (size_t n = 0; n < s->qp_count; n++) {
		const struct qp *qp = &s->qps[n];
		const size_t count = queue_length(&qp->sends);
		if (qp->gone || qp->caps.send_cq != cq->object || !count)
			continue;
		const struct trace_item *last = item_at(s, queue_at(&qp->sends, count - 1));
		found(to, s, "polled-in-vain", WRONG, cq->last_empty, cq->object,
		      "the completion queue 0x%llx was polled to the end, %llu times, and nothing can come: the work "
		      "requests of QP 0x%x that have no completion (%zu; the newest is wr_id 0x%llx) were posted "
		      "without IBV_SEND_SIGNALED, and sq_sig_all is 0, so that they make none.",
		      (unsigned long long)cq->object, (unsigned long long)cq->last_empty_run, qp->number, count,
		      (unsigned long long)last->record.wr.wr_id);
		return true;
	}
	return false;
}

static void by_other_queue(struct findings *to, const struct story *s, const struct cq *cq)
{
	for (size_t n = 0; n < s->qp_count; n++) {
		const struct qp *qp = &s->qps[n];
		if (!completes_in(qp, cq) || qp->caps.send_cq == qp->caps.recv_cq)
			continue;
		const bool sends = qp->caps.send_cq == cq->object;
		const uint64_t object = sends ? qp->caps.recv_cq : qp->caps.send_cq;
		const long k = map_get(&s->by_cq, object);
		if (k < 0 || !s->cqs[k].pending || s->cqs[k].last_empty > cq->last_done)
			continue;
		found(to, s, "polled-in-vain", WRONG, cq->last_empty, cq->object,
		      "the completion queue 0x%llx was polled to the end, %llu times, and nothing can come: it is the "
		      "%s_cq of QP 0x%x, which has no %s outstanding. Its %s complete in the queue 0x%llx: %llu are "
		      "outstanding, and it was %s.",
		      (unsigned long long)cq->object, (unsigned long long)cq->last_empty_run, sends ? "send" : "recv",
		      qp->number, sends ? "signalled send" : "receive", sends ? "receives" : "sends",
		      (unsigned long long)object, (unsigned long long)s->cqs[k].pending,
		      s->cqs[k].polls ? "not polled meanwhile" : "never polled");
		return;
	}
}

/* Receives are outstanding, and the peers' ends show that none of what they sent takes one. */
static void by_write(struct findings *to, const struct story *s, const struct cq *cq)
{
	uint64_t writes = 0;
	struct peer peer = { 0 };

	for (size_t n = 0; n < s->qp_count; n++) {
		const struct qp *qp = &s->qps[n];
		if (!completes_in(qp, cq))
			continue;
		if (qp->received || queue_length(&qp->sends) || !peer_find(to, s, qp, &peer) || !peer.mutual)
			return;
		for (size_t i = 0; i < peer.story->from->count; i++) {
			const struct trace_record *r = &item_at(peer.story, i)->record;
			if (r->kind != TRACE_SEND || r->error || r->qpn != peer.qp->number ||
			    r->device != peer.qp->device)
				continue;
			if (r->wr.opcode != IBV_WR_RDMA_WRITE)
				return;
			writes++;
		}
	}
	if (writes)
		found(to, s, "polled-in-vain", WRONG, cq->last_empty, cq->object,
		      "the completion queue 0x%llx was polled to the end, %llu times, for receives, of which %llu are "
		      "outstanding. All that came are %llu RDMA WRITEs (the peer's QP 0x%x), which complete nothing at "
		      "their target: use RDMA_WRITE_WITH_IMM, or send a message afterwards.",
		      (unsigned long long)cq->object, (unsigned long long)cq->last_empty_run,
		      (unsigned long long)cq->pending, (unsigned long long)writes, peer.qp->number);
}

void rule_vain(struct findings *to, const struct story *s)
{
	if (s->from->header.ended)
		return;
	for (size_t n = 0; n < s->cq_count; n++) {
		const struct cq *cq = &s->cqs[n];
		bool shared = false;
		for (size_t k = 0; k < s->qp_count; k++)
			shared |= s->qps[k].caps.srq && completes_in(&s->qps[k], cq);
		if (shared || cq->gone || cq->last_empty_run < MANY || !ends_with(s, cq) || !is_alone(s, cq))
			continue;
		if (cq->pending)
			by_write(to, s, cq);
		else if (!by_unsignalled(to, s, cq))
			by_other_queue(to, s, cq);
	}
}

/*
 * Rules: completion queues that overrun, wake-ups that are lost, events that are not acknowledged, queues that
 * several threads poll.
 */
#include <infiniband/verbs.h>

#include "trace/explain/explain.h"

/* How many completions the queue pairs of this queue may have at a time. */
static uint64_t could_come(const struct story *s, const struct cq *cq, unsigned *pairs)
{
	uint64_t sum = 0;

	*pairs = 0;
	for (size_t n = 0; n < s->qp_count; n++) {
		const struct qp *qp = &s->qps[n];
		const bool send = qp->caps.send_cq == cq->object, receive = qp->caps.recv_cq == cq->object;
		if (qp->gone && cq->made > qp->gone)
			continue;
		*pairs += send || receive;
		sum += (send ? qp->caps.send_wr : 0) + (receive ? qp->caps.recv_wr : 0);
	}
	return sum;
}

void rule_overrun(struct findings *to, const struct story *s)
{
	for (size_t n = 0; n < s->cq_count; n++) {
		const struct cq *cq = &s->cqs[n];
		unsigned pairs;
		const uint64_t sum = could_come(s, cq, &pairs);
		if (cq->overran || cq->broken)
			found(to, s, "cq-overrun", FAILED, cq->last_done > cq->made ? cq->last_done : cq->made,
			      cq->object,
			      "the completion queue 0x%llx has overrun (%s): it has %u entries (%u were asked for), "
			      "and up to %llu completions were outstanding. Its %u queue pairs may have %llu; "
			      "completions are lost, and the queue pairs go to ERR. Make it larger, or poll before "
			      "posting more.",
			      (unsigned long long)cq->object, cq->overran ? "event CQ_ERR" : "ibv_poll_cq failed",
			      cq->is.cqe, cq->is.asked, (unsigned long long)cq->pending_most, pairs,
			      (unsigned long long)sum);
		else if (cq->pending_most > cq->is.cqe)
			found(to, s, "cq-too-small", WRONG, cq->made, cq->object,
			      "the completion queue 0x%llx has %u entries (%u were asked for), and %llu completions "
			      "were outstanding at a time: had they all come before a poll, it would have overrun.",
			      (unsigned long long)cq->object, cq->is.cqe, cq->is.asked,
			      (unsigned long long)cq->pending_most);
		else if (cq->pending_most > cq->is.asked)
			found(to, s, "cq-too-small", ADVICE, cq->made, cq->object,
			      "%u entries were asked for of the completion queue 0x%llx, and %llu completions were "
			      "outstanding at a time. This device gave it %u; another may give fewer.",
			      cq->is.asked, (unsigned long long)cq->object, (unsigned long long)cq->pending_most,
			      cq->is.cqe);
	}
}

/* ---- wake-ups ----------------------------------------------------------------------------------------- */

/* A program that waits in poll() or epoll_wait() is not seen waiting: only that nothing more is done with the queue. */
static void look_unarmed(struct findings *to, const struct story *s, const struct cq *cq)
{
	/* A program that polls in a loop needs no event. */
	const bool over = s->from->header.ended || cq->gone, spins = cq->last_empty_run > 2;

	if (over || spins || !cq->is.channel || !cq->ever_event || cq->armed || !cq->pending ||
	    cq->last_empty < cq->armed_at)
		return;
	found(to, s, "not-rearmed", WRONG, cq->last_empty, cq->object,
	      "the completion queue 0x%llx was polled until it was empty, and not armed again (ibv_req_notify_cq) "
	      "after its last event, while %llu completions are still to come: there will be no event for them.",
	      (unsigned long long)cq->object, (unsigned long long)cq->pending);
}

void rule_wakeups(struct findings *to, const struct story *s)
{
	bool waits = false;

	for (size_t n = 0; n < s->incident_count; n++) {
		const struct incident *one = &s->incidents[n];
		if (one->kind != WAIT_UNARMED && one->kind != WAIT_UNPOLLED)
			continue;
		const struct trace_item *item = item_at(s, one->item);
		const struct cq *cq = &s->cqs[one->cq];
		waits = true;
		if (one->kind == WAIT_UNARMED)
			found(to, s, "not-rearmed", FAILED, item->ns, cq->object,
			      "ibv_get_cq_event waits for ever: the completion queue 0x%llx of its channel is not "
			      "armed. %s Call ibv_req_notify_cq before each wait, and poll after it.",
			      (unsigned long long)cq->object,
			      cq->ever_armed ? "An arming is good for one event, and it has had that one." :
					       "It never was.");
		else
			found(to, s, "armed-too-late", FAILED, item->ns, cq->object,
			      "ibv_get_cq_event waits for ever (a lost wake-up): the completion queue 0x%llx was "
			      "armed after it had last been polled, and not polled again. What had completed before "
			      "the arming (%llu were outstanding) makes no event: arm, then poll until it is empty, "
			      "then wait.",
			      (unsigned long long)cq->object, (unsigned long long)cq->pending_at_arm);
	}
	for (size_t n = 0; n < s->cq_count && !waits; n++)
		look_unarmed(to, s, &s->cqs[n]);
}

/* ---- threads ------------------------------------------------------------------------------------------ */

void rule_polling(struct findings *to, const struct story *s)
{
	enum { OFTEN = 16 };

	for (size_t n = 0; n < s->cq_count; n++) {
		const struct cq *cq = &s->cqs[n];
		if (cq->pollers[1] && cq->turns >= OFTEN)
			found(to, s, "double-polling", WRONG, cq->made, cq->object,
			      "the completion queue 0x%llx is polled by two threads (%u and %u, in turns %llu times): "
			      "each takes completions that the other may wait for, and they contend for its lock. "
			      "Give each thread a queue of its own.",
			      (unsigned long long)cq->object, s->from->threads[cq->pollers[0] % TRACE_RINGS],
			      s->from->threads[cq->pollers[1] % TRACE_RINGS], (unsigned long long)cq->turns);
	}
}

/* ---- acknowledgements --------------------------------------------------------------------------------- */

void rule_acks(struct findings *to, const struct story *s)
{
	for (size_t n = 0; n < s->incident_count; n++) {
		const struct incident *one = &s->incidents[n];
		if (one->kind != END_ENTERED || one->over)
			continue;
		const struct trace_item *item = item_at(s, one->item);
		if (one->cq >= 0)
			found(to, s, "unacked-events", FAILED, item->ns, item->record.object,
			      "ibv_destroy_cq of the completion queue 0x%llx waits for ever: %llu events were taken "
			      "by ibv_get_cq_event and not acknowledged by ibv_ack_cq_events.",
			      (unsigned long long)item->record.object, (unsigned long long)one->value);
		else
			found(to, s, "unacked-cm-events", FAILED, item->ns, item->record.object,
			      "rdma_destroy_id waits for ever: %llu events of this id were taken by rdma_get_cm_event "
			      "and not acknowledged by rdma_ack_cm_event.",
			      (unsigned long long)one->value);
	}
}

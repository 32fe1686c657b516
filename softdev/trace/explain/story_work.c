/*
 * Work requests and completions in stories.
 */
#include <infiniband/verbs.h>

#include "trace/explain/story.h"

static struct cq *cq_of(const struct story *s, uint64_t object)
{
	const long n = map_get(&s->by_cq, object);

	return n < 0 ? NULL : &s->cqs[n];
}

static bool signalled(const struct qp *qp, const struct trace_wr *wr)
{
	return qp->caps.sig_all || wr->flags & IBV_SEND_SIGNALED;
}

static struct mr *mr_of(const struct story *s, const struct trace_record *r)
{
	const long n = r->wr.num_sge && !(r->wr.flags & IBV_SEND_INLINE) ?
			       map_get(&s->by_lkey, key_of(r->device, r->wr.lkey)) :
			       NONE;

	return n < 0 ? NULL : &s->mrs[n];
}

static void begin(const struct story *s, const struct trace_record *r, uint64_t cq_object, bool completes)
{
	struct mr *mr = mr_of(s, r);
	struct cq *cq = cq_of(s, cq_object);

	if (mr) {
		mr->uses++;
		mr->in_flight++;
	}
	if (!cq || !completes)
		return;
	cq->pending++;
	cq->pending_most = cq->pending > cq->pending_most ? cq->pending : cq->pending_most;
}

static void finish(const struct story *s, size_t item, uint64_t cq_object, bool completes)
{
	struct mr *mr = mr_of(s, &item_at(s, item)->record);
	struct cq *cq = cq_of(s, cq_object);

	if (mr && mr->in_flight)
		mr->in_flight--;
	if (cq && completes && cq->pending)
		cq->pending--;
}

void story_drain(struct story *s, struct qp *qp)
{
	for (size_t n = 0; n < queue_length(&qp->sends); n++) {
		const size_t item = queue_at(&qp->sends, n);
		finish(s, item, qp->caps.send_cq, signalled(qp, &item_at(s, item)->record.wr));
	}
	for (size_t n = 0; n < queue_length(&qp->receives); n++)
		finish(s, queue_at(&qp->receives, n), qp->caps.recv_cq, true);
	queue_drop(&qp->sends, queue_length(&qp->sends));
	queue_drop(&qp->receives, queue_length(&qp->receives));
}

static void push(struct story *s, struct queue *queue, size_t i)
{
	if (!queue_push(queue, i))
		s->no_memory = true;
}

static void refused(struct story *s, size_t i, long qp)
{
	struct incident *one = story_incident(s, POST_REFUSED, i);

	one->qp = qp;
	one->wr = (long)i;
	one->state = qp < 0 ? 0 : s->qps[qp].state;
	if (qp < 0)
		return;
	const bool send = item_at(s, i)->record.kind == TRACE_SEND;
	one->value = queue_length(send ? &s->qps[qp].sends : &s->qps[qp].receives);
	one->run = s->qps[qp].unsignalled_run;
}

static void early(struct story *s, size_t i, long qp)
{
	struct incident *one = story_incident(s, POST_EARLY, i);

	one->qp = qp;
	one->wr = (long)i;
	one->state = s->qps[qp].state;
}

void story_send(struct story *s, size_t i)
{
	const struct trace_item *item = item_at(s, i);
	const struct trace_record *r = &item->record;
	const long n = map_get(&s->by_qp, r->object);

	if (n < 0)
		return;
	struct qp *qp = &s->qps[n];
	if (qp->made && (qp->state == IBV_QPS_RESET || qp->state == IBV_QPS_INIT || qp->state == IBV_QPS_RTR))
		early(s, i, n);
	if (r->error) {
		refused(s, i, n);
		return;
	}
	const uint64_t batch = (uint64_t)r->wr.place + 1;
	qp->send_posts++;
	qp->send_calls += !r->wr.place;
	qp->send_bytes += r->wr.length;
	qp->batch_most = batch > qp->batch_most ? batch : qp->batch_most;
	qp->last_post = item->ns;
	qp->unsignalled_run = signalled(qp, &r->wr) ? 0 : qp->unsignalled_run + 1;
	qp->longest_run = qp->unsignalled_run > qp->longest_run ? qp->unsignalled_run : qp->longest_run;
	push(s, &qp->sends, i);
	const uint64_t now = queue_length(&qp->sends);
	qp->most_outstanding = now > qp->most_outstanding ? now : qp->most_outstanding;
	begin(s, r, qp->caps.send_cq, signalled(qp, &r->wr));
}

void story_recv(struct story *s, size_t i)
{
	const struct trace_record *r = &item_at(s, i)->record;

	if (!r->qpn) {
		const long n = map_get(&s->by_srq, r->object);
		if (r->error) {
			refused(s, i, NONE);
		} else if (n >= 0) {
			s->srqs[n].posted++;
			push(s, &s->srqs[n].queue, i);
			begin(s, r, 0, false);
		}
		return;
	}
	const long n = map_get(&s->by_qp, r->object);
	if (n < 0)
		return;
	struct qp *qp = &s->qps[n];
	if (qp->made && qp->state == IBV_QPS_RESET)
		early(s, i, n);
	if (r->error) {
		refused(s, i, n);
		return;
	}
	qp->recv_posts++;
	qp->smallest_receive = r->wr.length < qp->smallest_receive ? r->wr.length : qp->smallest_receive;
	push(s, &qp->receives, i);
	begin(s, r, qp->caps.recv_cq, true);
}

/* The n of the first work request with that number, or the length. */
static size_t find(const struct story *s, const struct queue *queue, uint64_t wr_id, const struct qp *only_signalled)
{
	size_t n = 0;

	for (; n < queue_length(queue); n++) {
		const struct trace_wr *wr = &item_at(s, queue_at(queue, n))->record.wr;
		if (wr->wr_id == wr_id && (!only_signalled || signalled(only_signalled, wr)))
			break;
	}
	return n;
}

static struct queue *receives_of(struct story *s, struct qp *qp)
{
	const long n = qp->caps.srq ? map_get(&s->by_srq, qp->caps.srq) : NONE;

	return n < 0 ? &qp->receives : &s->srqs[n].queue;
}

/* Whether it is the completion of a receive: only one that has succeeded says so itself. */
static bool is_receive(struct story *s, struct qp *qp, const struct trace_record *r)
{
	if (!r->done.status)
		return r->done.opcode & IBV_WC_RECV;
	if (qp->caps.send_cq != qp->caps.recv_cq)
		return r->object == qp->caps.recv_cq;
	return find(s, &qp->sends, r->done.wr_id, NULL) == queue_length(&qp->sends) &&
	       find(s, receives_of(s, qp), r->done.wr_id, NULL) < queue_length(receives_of(s, qp));
}

static long finish_send(struct story *s, struct qp *qp, const struct trace_item *item)
{
	const struct trace_done *done = &item->record.done;
	const size_t n = find(s, &qp->sends, done->wr_id, done->status ? NULL : qp);

	if (n == queue_length(&qp->sends))
		return NONE;
	const size_t wr = queue_at(&qp->sends, n);
	const uint64_t posted = item_at(s, wr)->ns;
	for (size_t k = 0; k <= n; k++) {
		const size_t one = queue_at(&qp->sends, k);
		finish(s, one, qp->caps.send_cq, k == n || signalled(qp, &item_at(s, one)->record.wr));
	}
	queue_drop(&qp->sends, n + 1);
	if (!done->status)
		latency_add(&qp->latencies, item->ns > posted ? item->ns - posted : 0);
	return (long)wr;
}

static long finish_receive(struct story *s, struct qp *qp, const struct trace_item *item)
{
	struct queue *queue = receives_of(s, qp);
	const size_t n = find(s, queue, item->record.done.wr_id, NULL);

	if (n == queue_length(queue))
		return NONE;
	const size_t wr = queue_at(queue, n);
	finish(s, wr, queue == &qp->receives ? qp->caps.recv_cq : 0, queue == &qp->receives);
	queue_remove(queue, n);
	return (long)wr;
}

static void note_bad(struct story *s, size_t i, long n, long cq, long wr)
{
	struct qp *qp = &s->qps[n];
	const uint8_t status = item_at(s, i)->record.done.status;
	const bool flushed = status == IBV_WC_WR_FLUSH_ERR;

	if (flushed && qp->flushed++)
		return;
	struct incident *one = story_incident(s, COMPLETED_BAD, i);
	one->qp = n;
	one->cq = cq;
	one->wr = wr;
	one->state = qp->state;
	if (qp->first_error == NONE)
		qp->first_error = (long)s->incident_count - 1;
	if (qp->caps.type != IBV_QPT_UD && qp->state != IBV_QPS_ERR) {
		qp->state = IBV_QPS_ERR;
		qp->failed = item_at(s, i)->ns;
	}
}

void story_done(struct story *s, size_t i)
{
	const struct trace_item *item = item_at(s, i);
	const struct trace_record *r = &item->record;
	const long c = map_get(&s->by_cq, r->object), n = map_get(&s->by_number, key_of(r->device, r->qpn));
	struct cq *cq = c < 0 ? NULL : &s->cqs[c];

	if (cq) {
		const uint64_t batch = (uint64_t)r->done.place + 1;
		if (!r->done.place) {
			story_poll(cq, item);
			cq->polls++;
		}
		cq->completions++;
		cq->last_done = item->ns;
		cq->poll_batch_most = batch > cq->poll_batch_most ? batch : cq->poll_batch_most;
	}
	if (n < 0)
		return;
	struct qp *qp = &s->qps[n];
	const bool receive = is_receive(s, qp, r);
	const long wr = receive ? finish_receive(s, qp, item) : finish_send(s, qp, item);
	if (r->done.status) {
		note_bad(s, i, n, c, wr);
	} else if (receive) {
		qp->received++;
		qp->recv_bytes += r->done.byte_len;
		qp->last_receive = item->ns;
	} else {
		qp->sent++;
		qp->last_send_done = item->ns;
	}
}

/*
 * Which completion ends which request.
 */
#include <infiniband/verbs.h>

#include "trace/explain/requests.h"

static bool is_of(const struct qp *qp, const struct trace_item *item)
{
	return item->record.device == qp->device && item->record.qpn == qp->number && item->ns >= qp->made &&
	       (!qp->gone || item->ns <= qp->gone);
}

static bool ends_sends(const struct trace_record *r)
{
	return r->kind == TRACE_DONE && (r->done.status || !(r->done.opcode & IBV_WC_RECV));
}

bool requests_of(const struct story *s, const struct qp *qp, request_seen seen, void *to)
{
	struct queue waiting = { 0 };
	bool good = true;

	for (size_t i = 0; good && i < s->from->count; i++) {
		const struct trace_item *item = item_at(s, i);
		if (!is_of(qp, item))
			continue;
		if (item->record.kind == TRACE_SEND && !item->record.error)
			good = queue_push(&waiting, i);
		if (!ends_sends(&item->record))
			continue;
		size_t k = 0;
		while (k < queue_length(&waiting) &&
		       item_at(s, queue_at(&waiting, k))->record.wr.wr_id != item->record.done.wr_id)
			k++;
		if (k == queue_length(&waiting))
			continue;
		for (size_t one = 0; one <= k; one++)
			seen(to, item_at(s, queue_at(&waiting, one)), item, one == k);
		queue_drop(&waiting, k + 1);
	}
	for (size_t one = 0; good && one < queue_length(&waiting); one++)
		seen(to, item_at(s, queue_at(&waiting, one)), NULL, false);
	queue_free(&waiting);
	return good;
}

/* A completion that has failed does not say itself whether it is a receive's. */
static bool was_receive(const struct story *s, const struct qp *qp, const struct incident *one)
{
	const struct trace_record *r = &item_at(s, one->item)->record;

	if (qp->caps.send_cq != qp->caps.recv_cq)
		return r->object == qp->caps.recv_cq;
	return one->wr != NONE && item_at(s, (size_t)one->wr)->record.kind == TRACE_RECV;
}

void arrivals_of(const struct story *s, const struct qp *qp, arrival_seen seen, void *to)
{
	for (size_t i = 0; i < s->from->count; i++) {
		const struct trace_item *item = item_at(s, i);
		const struct trace_done *done = &item->record.done;
		if (item->record.kind == TRACE_DONE && !done->status && done->opcode & IBV_WC_RECV && is_of(qp, item))
			seen(to, item);
	}
	for (size_t n = 0; n < s->incident_count; n++) {
		const struct incident *one = &s->incidents[n];
		if (one->kind == COMPLETED_BAD && one->qp != NONE && &s->qps[one->qp] == qp && was_receive(s, qp, one))
			seen(to, item_at(s, one->item));
	}
}

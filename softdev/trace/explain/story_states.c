/*
 * Queue pairs in stories: made, modified, destroyed.
 */
#include <infiniband/verbs.h>

#include "trace/explain/story.h"

static void tell_made(struct story *s, size_t i)
{
	const struct trace_item *item = item_at(s, i);
	const struct trace_record *r = &item->record;
	/* The one before it in the same ring is of the same call. */
	const struct trace_item *before = NULL;
	size_t asked = i;

	while (asked-- > 0) {
		if (item_at(s, asked)->ring != item->ring)
			continue;
		before = item_at(s, asked);
		break;
	}
	const bool known = before && before->record.kind == TRACE_QP_ASKED && before->record.object == r->object;
	if (r->error) {
		struct incident *one = story_incident(s, MAKE_REFUSED, i);
		one->wr = known ? (long)asked : NONE;
		return;
	}
	const long n = ADD(s, qp);
	if (n < 0)
		return;
	struct qp *qp = &s->qps[n];
	*qp = (struct qp){ .object = r->object,
			   .made = item->ns,
			   .number = r->qpn,
			   .device = r->device,
			   .caps = r->qp,
			   .smallest_receive = UINT32_MAX,
			   .first_error = NONE };
	if (known)
		qp->asked = before->record.asked;
	story_put(s, &s->by_qp, r->object, n);
	story_put(s, &s->by_number, key_of(r->device, r->qpn), n);
}

static void take(struct qp *qp, const struct trace_modify *m)
{
	struct trace_modify *is = &qp->is;

	qp->seen |= m->mask;
#define TAKE(bit, field)                                                                                               \
	if (m->mask & (bit))                                                                                           \
	is->field = m->field
	TAKE(IBV_QP_ACCESS_FLAGS, access);
	TAKE(IBV_QP_PKEY_INDEX, pkey_index);
	TAKE(IBV_QP_PORT, port);
	TAKE(IBV_QP_QKEY, qkey);
	TAKE(IBV_QP_PATH_MTU, path_mtu);
	TAKE(IBV_QP_TIMEOUT, timeout);
	TAKE(IBV_QP_RETRY_CNT, retry_cnt);
	TAKE(IBV_QP_RNR_RETRY, rnr_retry);
	TAKE(IBV_QP_RQ_PSN, rq_psn);
	TAKE(IBV_QP_SQ_PSN, sq_psn);
	TAKE(IBV_QP_MAX_QP_RD_ATOMIC, max_rd_atomic);
	TAKE(IBV_QP_MAX_DEST_RD_ATOMIC, max_dest_rd_atomic);
	TAKE(IBV_QP_MIN_RNR_TIMER, min_rnr_timer);
	TAKE(IBV_QP_DEST_QPN, dest_qpn);
#undef TAKE
}

static void enter(struct story *s, struct qp *qp, uint8_t state, uint64_t ns)
{
	qp->state = state;
	switch (state) {
	case IBV_QPS_RESET:
		story_drain(s, qp);
		qp->init = qp->rtr = qp->rts = qp->failed = 0;
		qp->first_error = NONE;
		return;
	case IBV_QPS_INIT:
		qp->init = ns;
		return;
	case IBV_QPS_RTR:
		qp->rtr = ns;
		return;
	case IBV_QPS_RTS:
		qp->rts = qp->rts ? qp->rts : ns;
		qp->rtr = qp->rtr ? qp->rtr : ns; /* which was not seen */
		return;
	case IBV_QPS_ERR:
		if (!qp->failed) {
			qp->failed = ns;
			qp->failed_by_program = true;
		}
		return;
	default:
		return;
	}
}

static void tell_modify(struct story *s, size_t i)
{
	const struct trace_item *item = item_at(s, i);
	const struct trace_record *r = &item->record;
	const long n = map_get(&s->by_qp, r->object);

	if (n < 0)
		return;
	struct qp *qp = &s->qps[n];
	if (r->error) {
		struct incident *one = story_incident(s, MODIFY_REFUSED, i);
		one->qp = n;
		one->state = qp->state;
		return;
	}
	qp->by_cm |= r->modify.origin == TRACE_BY_CM;
	take(qp, &r->modify);
	/* An end that rdma_cm's own look shows may be the device's, and one that was found may be anybody's. */
	const bool own = r->modify.origin == TRACE_BY_CM && r->modify.state == IBV_QPS_ERR;
	if (r->modify.mask & IBV_QP_STATE && !(own && qp->state == IBV_QPS_ERR))
		enter(s, qp, r->modify.state, item->ns);
	if (r->modify.origin == TRACE_FOUND)
		qp->failed_by_program = false;
}

static void tell_address(struct story *s, size_t i)
{
	const struct trace_item *item = item_at(s, i);
	const struct trace_record *r = &item->record;
	const bool handle = item->ring == TRACE_RING_MEMORY;
	const long n = map_get(handle ? &s->by_ah : &s->by_qp, r->object);

	/* Of a modification that was refused, it only says why. */
	for (size_t k = s->incident_count; !handle && k-- > 0;) {
		struct incident *one = &s->incidents[k];
		if (one->kind != MODIFY_REFUSED || one->qp != n)
			continue;
		if (one->wr == NONE && item_at(s, one->item)->record.modify.mask & IBV_QP_AV) {
			one->wr = (long)i;
			return;
		}
		break;
	}
	if (n < 0)
		return;
	if (handle) {
		s->ahs[n].address = r->address;
		s->ahs[n].addressed = true;
	} else {
		s->qps[n].address = r->address;
		s->qps[n].addressed = true;
	}
}

void story_pair(struct story *s, size_t i)
{
	const struct trace_item *item = item_at(s, i);
	const struct trace_record *r = &item->record;

	switch (r->kind) {
	case TRACE_QP:
		tell_made(s, i);
		return;
	case TRACE_MODIFY:
		tell_modify(s, i);
		return;
	case TRACE_ADDRESS:
		tell_address(s, i);
		return;
	case TRACE_QP_GONE: {
		const long n = map_get(&s->by_qp, r->object);
		if (r->error) {
			story_incident(s, END_REFUSED, i)->qp = n;
		} else if (n >= 0) {
			s->qps[n].gone = item->ns ? item->ns : 1;
			story_drain(s, &s->qps[n]);
		}
		return;
	}
	default:
		return;
	}
}

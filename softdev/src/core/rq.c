/*
 * Receive queues: a QP's own and shared ones.
 */
#include <stdlib.h>
#include <string.h>

#include "core/internal.h"

int soft_rq_init(struct soft_rq *rq, uint32_t max_wr, uint32_t max_sge)
{
	uint32_t size = max_wr <= 1 ? 1 : UINT32_C(1) << (32 - __builtin_clz(max_wr - 1));

	rq->stride = (uint32_t)(sizeof(struct soft_rwqe) + max_sge * sizeof(struct ibv_sge));
	rq->mask = size - 1;
	rq->limit = max_wr;
	rq->max_sge = max_sge;
	rq->head = rq->tail = 0;
	rq->wqes = malloc((size_t)size * rq->stride);
	return rq->wqes ? 0 : ENOMEM;
}

void soft_rq_free(struct soft_rq *rq)
{
	free(rq->wqes);
	rq->wqes = NULL;
}

/* Copies one request in. 0 or errno. The queue's lock held. */
static int append(struct soft_rq *rq, const struct ibv_recv_wr *wr)
{
	uint64_t length = 0;

	if (rq->tail - rq->head >= rq->limit)
		return ENOMEM;
	if (wr->num_sge < 0 || (uint32_t)wr->num_sge > rq->max_sge)
		return (int)soft_personality()->recv_sge_error;
	struct soft_rwqe *wqe = soft_rq_at(rq, rq->tail);
	wqe->wr_id = wr->wr_id;
	wqe->num_sge = (uint32_t)wr->num_sge;
	for (int i = 0; i < wr->num_sge; i++) {
		wqe->sge[i] = wr->sg_list[i];
		length += wr->sg_list[i].length;
	}
	wqe->length = length > UINT32_MAX ? UINT32_MAX : (uint32_t)length;
	rq->tail++;
	return 0;
}

/* A message that waits at this QP may find a receive now. */
static void feed(struct soft_qp *qp, struct soft_after *after)
{
	soft_lock(&qp->rq_lock);
	if (qp->path->receive &&
	    !(soft_unlikely(atomic_load_explicit(&soft_faults_on, memory_order_relaxed)) && soft_fault_is_deaf(qp)))
		qp->path->receive(qp, after);
	soft_unlock(&qp->rq_lock);
	if (!qp->remote) {
		struct soft_qp *requester = soft_qp_find(qp->attr.dest_qp_num);
		if (requester)
			soft_after_pump(after, requester);
	}
}

int soft_post_recv(struct ibv_qp *ibqp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct soft_qp *qp = to_qp(ibqp);
	struct soft_after after = { 0 };
	int err = 0;

	soft_lock(&qp->rq_lock);
	uint32_t state = soft_state(qp);
	if (soft_unlikely(qp->srq || state - IBV_QPS_INIT > IBV_QPS_SQE - IBV_QPS_INIT)) /* RESET, ERR */
		err = qp->srq || state == IBV_QPS_RESET ? EINVAL : (int)soft_personality()->late_recv_error;
	for (; !err && wr; wr = wr->next) {
		err = append(&qp->rq, wr);
		if (err)
			break;
	}
	if (soft_unlikely(err)) {
		*bad = wr;
		err = soft_error_returned(err);
	}
	if (soft_unlikely(state == IBV_QPS_ERR))
		soft_rq_flush(qp);
	bool starved = atomic_load_explicit(&qp->starved, memory_order_relaxed);
	if (soft_unlikely(starved))
		atomic_store(&qp->starved, false);
	soft_unlock(&qp->rq_lock);
	if (soft_unlikely(starved)) {
		feed(qp, &after);
		soft_after_run(&after);
	}
	return err;
}

void soft_rq_flush(struct soft_qp *qp)
{
	struct ibv_wc wc = { .status = IBV_WC_WR_FLUSH_ERR, .opcode = IBV_WC_RECV, .qp_num = qp->qp.qp_num };

	if (qp->srq) {
		/* Of the shared queue it is gone, and nobody else can give it back to the program. */
		if (qp->current) {
			wc.wr_id = qp->current->wr_id;
			soft_cq_push(to_cq(qp->qp.recv_cq), &wc, true);
		}
		qp->current = NULL;
		return;
	}
	for (; qp->rq.head != qp->rq.tail; qp->rq.head++) {
		wc.wr_id = soft_rq_at(&qp->rq, qp->rq.head)->wr_id;
		soft_cq_push(to_cq(qp->qp.recv_cq), &wc, true);
	}
	qp->current = NULL;
}

bool soft_rq_take(struct soft_qp *qp)
{
	struct soft_srq *srq = qp->srq;
	bool limit = false;

	if (soft_fault(SOFT_FAULT_RNR)) {
		soft_fault_look_again(to_cq(qp->qp.recv_cq), qp->recv_slot);
		return false;
	}
	if (soft_likely(!srq)) {
		if (soft_likely(qp->rq.head != qp->rq.tail)) {
			qp->current = soft_rq_at(&qp->rq, qp->rq.head);
			return true;
		}
		atomic_store(&qp->starved, true);
		return false;
	}
	soft_lock(&srq->lock);
	bool found = srq->rq.head != srq->rq.tail;
	if (found) {
		struct soft_rwqe *wqe = soft_rq_at(&srq->rq, srq->rq.head++);
		memcpy(qp->srq_wqe, wqe, sizeof(*wqe) + wqe->num_sge * sizeof(wqe->sge[0]));
		limit = srq->srq_limit && srq->rq.tail - srq->rq.head < srq->srq_limit;
		if (limit)
			srq->srq_limit = 0;
	} else {
		atomic_store(&qp->starved, true);
		srq->starved = true;
	}
	soft_unlock(&srq->lock);
	if (limit)
		soft_async_push(to_ctx(srq->srq.context), IBV_EVENT_SRQ_LIMIT_REACHED, &srq->srq);
	if (found)
		qp->current = qp->srq_wqe;
	return found;
}

void soft_rq_release(struct soft_qp *qp)
{
	if (!qp->srq)
		qp->rq.head++;
	qp->current = NULL;
}

void soft_rq_put_back(struct soft_qp *qp)
{
	if (!qp->srq)
		qp->current = NULL;
}

/* ---- shared receive queues ------------------------------------------------------------------------ */

int soft_post_srq_recv(struct ibv_srq *ibsrq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct soft_srq *srq = to_srq(ibsrq);
	struct soft_after after = { 0 };
	int err = 0;

	soft_lock(&srq->lock);
	for (; wr; wr = wr->next) {
		err = append(&srq->rq, wr);
		if (err) {
			*bad = wr;
			err = soft_error_returned(err);
			break;
		}
	}
	bool starved = srq->starved;
	srq->starved = false;
	soft_unlock(&srq->lock);
	if (soft_unlikely(starved)) {
		for (uint32_t i = 0; i < atomic_load(&soft_proc.qp_used); i++) {
			struct soft_qp *qp = atomic_load(&soft_proc.qps[i]);
			if (qp && qp->srq == srq && atomic_exchange(&qp->starved, false))
				feed(qp, &after);
		}
		soft_after_run(&after);
	}
	return err;
}

/*
 * Queue pairs: their state, and the end of their outstanding work.
 */
#include <stdlib.h>

#include "core/internal.h"

/* The last number of the last slot is the multicast QP's. */
enum { NUMBERS = SOFT_MAX_QP - 1, NUMBERS_AHEAD = SOFT_MAX_QP / 2, DRAWS = 256 };

uint32_t soft_qp_draw(struct soft_qp *qp)
{
	static uint16_t ring[NUMBERS];
	static struct soft_draw draw = { .ring = ring, .count = NUMBERS, .ahead = NUMBERS_AHEAD };

	for (uint32_t n = 0; n < DRAWS + NUMBERS; n++) {
		const uint32_t i = n < DRAWS ? soft_draw(&draw, soft_random()) : n - DRAWS;
		const uint32_t number = soft_proc.slot << SOFT_QPN_INDEX_BITS | i;
		if (soft_qp_find(number))
			continue;
		atomic_store(&soft_proc.numbered[i], qp);
		atomic_store(&qp->number, number);
		return number;
	}
	return 0;
}

const struct soft_path_ops *soft_qp_first_path(const struct soft_qp *qp)
{
	return qp->qp.qp_type == IBV_QPT_UD ? &soft_datagram_path : &soft_local_path;
}

void soft_qp_set_state(struct soft_qp *qp, enum ibv_qp_state state)
{
	qp->qp.state = state;
	qp->attr.qp_state = qp->attr.cur_qp_state = state;
	atomic_store_explicit(&qp->state, (uint32_t)state, memory_order_release);
}

static void to_error(struct soft_qp *qp, bool noted, struct soft_after *after)
{
	bool flushed = false;
	uint32_t dest = 0;

	soft_lock(&qp->sq_lock);
	soft_lock(&qp->rq_lock);
	uint32_t state = soft_state(qp);
	bool stale = noted && atomic_load(&qp->fail_life) != atomic_load(&qp->life);
	if (atomic_load(&qp->number) && state != IBV_QPS_RESET && !stale) {
		soft_qp_set_state(qp, IBV_QPS_ERR);
		soft_sq_flush(qp);
		soft_rq_flush(qp);
		if (qp->path->close)
			qp->path->close(qp);
		dest = qp->attr.dest_qp_num;
		flushed = true;
		if (qp->srq)
			soft_async_push(to_ctx(qp->qp.context), IBV_EVENT_QP_LAST_WQE_REACHED, &qp->qp);
	}
	soft_unlock(&qp->rq_lock);
	soft_unlock(&qp->sq_lock);
	if (!flushed)
		return;
	/* Lets a requester of this process that waits for this QP find out that it went away. */
	struct soft_qp *peer = soft_qp_find(dest);
	if (peer && peer != qp)
		soft_after_pump(after, peer);
}

void soft_qp_error(struct soft_qp *qp, struct soft_after *after)
{
	to_error(qp, false, after);
}

/*
 * The program may see the first completion in error, reset the QP and connect it anew before the thread that has
 * pushed that completion comes to the rest: a link to another peer failed then, for no reason.
 */
void soft_qp_fail(struct soft_qp *qp, struct soft_after *after)
{
	to_error(qp, true, after);
}

/*
 * An adapter would have received the data and acknowledged it by itself. Here perhaps no thread has polled, and from
 * now on none will.
 */
void soft_qp_last_look(struct soft_qp *qp)
{
	struct soft_after after = { 0 };

	soft_lock(&qp->rq_lock);
	const struct soft_path_ops *path = qp->path;
	if (path->last_look)
		path->last_look(qp, &after);
	soft_unlock(&qp->rq_lock);
	soft_after_run(&after);
	if (path->catch_up)
		path->catch_up();
}

void soft_qp_reset(struct soft_qp *qp)
{
	struct soft_after after = { 0 };
	uint32_t dest;

	soft_qp_last_look(qp);
	soft_lock(&qp->sq_lock);
	soft_lock(&qp->rq_lock);
	dest = qp->remote ? 0 : qp->attr.dest_qp_num;
	soft_qp_set_state(qp, IBV_QPS_RESET);
	atomic_fetch_add(&qp->life, 1);
	for (; qp->sq_head != qp->sq_tail; qp->sq_head++) {
		struct soft_wqe *wqe = soft_sq_at(qp, qp->sq_head);
		free(wqe->inline_copy);
		wqe->inline_copy = NULL;
	}
	soft_sq_flush(qp);
	qp->rq.head = qp->rq.tail = 0;
	qp->current = NULL;
	atomic_store(&qp->starved, false);
	qp->met = qp->remote = false;
	qp->expected = 0;
	qp->longest = SOFT_MAX_MSG;
	qp->fault_until = qp->slow_send = qp->slow_receive = 0;
	atomic_store(&qp->holds, SOFT_HOLDS_UNKNOWN);
	atomic_store(&qp->note, 0);
	atomic_store(&qp->left_whole, false);
	atomic_store(&qp->left_note, 0);
	const struct soft_path_ops *path = qp->path;
	if (path->leave)
		path->leave(qp);
	soft_unlock(&qp->rq_lock);
	soft_unlock(&qp->sq_lock);
	if (path->drop)
		path->drop(qp);
	soft_lock(&qp->sq_lock);
	soft_lock(&qp->rq_lock);
	qp->path = soft_qp_first_path(qp);
	soft_unlock(&qp->rq_lock);
	soft_unlock(&qp->sq_lock);
	soft_cq_purge(to_cq(qp->qp.send_cq), qp->qp.qp_num);
	atomic_store(&qp->sq_polled, qp->sq_tail);
	soft_cq_purge(to_cq(qp->qp.recv_cq), qp->qp.qp_num);
	struct soft_qp *peer = dest ? soft_qp_find(dest) : NULL;
	if (peer && peer != qp) {
		soft_after_pump(&after, peer);
		soft_after_run(&after);
	}
}

/*
 * What faults do to queue pairs: links that are cut, peers that are slow, work requests and queue pairs that fail.
 */
#include <stdio.h>

#include "core/internal.h"

enum { AGAIN_NS = 1000000 };

/* Looks at that side of the queue pair again: at the next poll, and at the latest then. */
static void again(struct soft_cq *cq, uint32_t slot, uint64_t when)
{
	soft_cq_ring(cq, slot);
	soft_clock_want(when);
}

void soft_fault_look_again(struct soft_cq *cq, uint32_t slot)
{
	again(cq, slot, soft_clock_ns() + AGAIN_NS);
}

bool soft_fault_is_cut(const struct soft_qp *qp)
{
	const unsigned cut = atomic_load_explicit(&soft_fault_state.cut, memory_order_relaxed);

	return soft_unlikely(cut) && cut >> (qp->qp.context->device - soft_devices) & 1;
}

/* ---- the requester: sq_lock held ---------------------------------------------------------------------- */

static bool fails(struct soft_wqe *wqe, enum ibv_wc_status status, enum soft_run *run)
{
	wqe->status = (uint8_t)status;
	*run = SOFT_RUN_DONE;
	return true;
}

/* Nothing passes: it waits as long as a card repeats its packets, and fails then. */
enum soft_run soft_fault_cut_run(struct soft_qp *qp, struct soft_wqe *wqe)
{
	const uint64_t now = soft_clock_ns();
	enum soft_run run = SOFT_RUN_DONE;

	if (qp->qp.qp_type != IBV_QPT_RC)
		return run; /* lost, and nobody is told */
	if (!qp->fault_until)
		qp->fault_until = qp->attr.timeout ? now + soft_retry_ns(qp) : UINT64_MAX;
	if (now >= qp->fault_until) {
		qp->fault_until = 0;
		fails(wqe, IBV_WC_RETRY_EXC_ERR, &run);
		return run;
	}
	qp->wait = SOFT_WAIT_TURN;
	again(to_cq(qp->qp.send_cq), qp->send_slot, qp->fault_until);
	return SOFT_RUN_WAIT;
}

static bool is_too_long(const struct soft_qp *qp, const struct soft_wqe *wqe)
{
	const unsigned mtu = atomic_load_explicit(&soft_fault_state.mtu, memory_order_relaxed);

	/* Packets of a queue pair are as long as its path MTU, as far as the message is. */
	return mtu && wqe->length > 128u << mtu && (qp->qp.qp_type == IBV_QPT_UD || qp->attr.path_mtu > mtu);
}

static bool is_slow(struct soft_qp *qp, enum soft_run *run)
{
	const uint64_t slow = atomic_load_explicit(&soft_fault_state.slow, memory_order_relaxed);
	const uint64_t now = slow ? soft_clock_ns() : 0;

	if (!slow)
		return false;
	if (now >= qp->slow_send) {
		qp->slow_send = now + slow;
		return false;
	}
	qp->wait = SOFT_WAIT_TURN;
	again(to_cq(qp->qp.send_cq), qp->send_slot, qp->slow_send);
	*run = SOFT_RUN_WAIT;
	return true;
}

bool soft_fault_stops(struct soft_qp *qp, struct soft_wqe *wqe, enum soft_run *run)
{
	if (soft_fault_is_cut(qp) || is_too_long(qp, wqe)) {
		*run = soft_fault_cut_run(qp, wqe);
		return true;
	}
	qp->fault_until = 0;
	if (soft_fault_hit(SOFT_FAULT_ERROR))
		return fails(wqe, IBV_WC_GENERAL_ERR, run);
	if (qp->qp.qp_type == IBV_QPT_RC && soft_fault_hit(SOFT_FAULT_RETRY))
		return fails(wqe, IBV_WC_RETRY_EXC_ERR, run);
	return !wqe->offset && is_slow(qp, run);
}

/* ---- the responder: rq_lock held ---------------------------------------------------------------------- */

bool soft_fault_is_deaf(struct soft_qp *qp)
{
	const uint64_t slow = atomic_load_explicit(&soft_fault_state.slow, memory_order_relaxed);

	if (soft_fault_is_cut(qp))
		return true; /* soft_fault_cut() rings when it ends */
	if (!slow)
		return false;
	if (soft_clock_ns() < qp->slow_receive) {
		again(to_cq(qp->qp.recv_cq), qp->recv_slot, qp->slow_receive);
		return true;
	}
	return false;
}

void soft_fault_took(struct soft_qp *qp)
{
	const uint64_t slow = atomic_load_explicit(&soft_fault_state.slow, memory_order_relaxed);

	qp->slow_receive = slow ? soft_clock_ns() + slow : 0;
}

/* ---- all queue pairs: no lock held ----------------------------------------------------------------------- */

static bool is_of(const struct soft_qp *qp, unsigned devices)
{
	return atomic_load(&qp->number) && devices >> (qp->qp.context->device - soft_devices) & 1;
}

void soft_fault_cut(unsigned devices, bool down)
{
	for (uint32_t i = 0; i < atomic_load(&soft_proc.qp_used); i++) {
		struct soft_qp *qp = atomic_load(&soft_proc.qps[i]);

		if (!qp)
			continue;
		soft_lock(&qp->sq_lock);
		soft_lock(&qp->rq_lock);
		if (is_of(qp, devices)) {
			if (qp->path->cut)
				qp->path->cut(qp, down);
			if (!down) {
				soft_cq_ring(to_cq(qp->qp.send_cq), qp->send_slot);
				soft_cq_ring(to_cq(qp->qp.recv_cq), qp->recv_slot);
			}
		}
		soft_unlock(&qp->rq_lock);
		soft_unlock(&qp->sq_lock);
	}
}

static bool is_connected(struct soft_qp *qp)
{
	return atomic_load(&qp->number) && soft_receives(soft_state(qp));
}

static bool kill(struct soft_qp *qp)
{
	struct soft_after after = { 0 };

	soft_qp_error(qp, &after);
	soft_lock(&qp->rq_lock);
	const bool dead = atomic_load(&qp->number) && soft_state(qp) == IBV_QPS_ERR;
	if (dead)
		soft_async_push(to_ctx(qp->qp.context), IBV_EVENT_QP_FATAL, &qp->qp);
	soft_unlock(&qp->rq_lock);
	soft_after_run(&after);
	return dead;
}

bool soft_fault_may_kill(uint32_t number)
{
	const uint32_t used = atomic_load(&soft_proc.qp_used);
	struct soft_qp *found = number ? soft_qp_find(number) : NULL;

	for (uint32_t i = 0; !number && !found && i < used; i++) {
		found = atomic_load(&soft_proc.qps[i]);
		found = found && is_connected(found) ? found : NULL;
	}
	return found && is_connected(found);
}

bool soft_fault_kill(uint32_t number, uint64_t random)
{
	const uint32_t used = atomic_load(&soft_proc.qp_used);
	struct soft_qp *found = number ? soft_qp_find(number) : NULL;

	if (number)
		return found && is_connected(found) && kill(found);
	for (uint32_t i = 0; i < used; i++) {
		struct soft_qp *qp = atomic_load(&soft_proc.qps[(random + i) % used]);

		if (qp && is_connected(qp))
			return kill(qp);
	}
	return false;
}

size_t soft_fault_list_qps(char *to, size_t size)
{
	static const char *const types[] = { [IBV_QPT_RC] = "RC", [IBV_QPT_UC] = "UC", [IBV_QPT_UD] = "UD" };
	static const char *const states[] = { "RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR" };
	size_t used = 0;

	for (uint32_t i = 0; i < atomic_load(&soft_proc.qp_used); i++) {
		struct soft_qp *qp = atomic_load(&soft_proc.qps[i]);
		const uint32_t number = qp ? atomic_load(&qp->number) : 0;

		if (!number)
			continue;
		soft_lock(&qp->rq_lock);
		const uint32_t state = soft_state(qp), peer = qp->attr.dest_qp_num;
		const enum ibv_qp_type type = qp->qp.qp_type;
		soft_unlock(&qp->rq_lock);
		if (type > IBV_QPT_UD || !types[type] || state >= sizeof(states) / sizeof(*states))
			continue;
		const int n = snprintf(to + used, size - used, "qp 0x%06x %s %s to 0x%06x\n", number, types[type],
				       states[state], peer);
		if (n < 0 || (size_t)n >= size - used) {
			to[used] = 0;
			break;
		}
		used += (size_t)n;
	}
	return used;
}

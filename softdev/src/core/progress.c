/*
 * Progress of a CQ: handling the work that its doors announce. Polls, arming, ibv_get_cq_event and the progress thread
 * run it.
 *
 * Hot lanes. Door bits cost two transfers of a cache line between CPUs for each message. A receiver that keeps polling
 * saves both sides that cost: it leaves the bit of a busy lane set and checks the lane itself at each poll. A sender
 * that finds the bit set has nothing to do, since every check of this door includes that lane.
 *   Sender:    publish (tail, seq_cst)  ; read the bit ; if it is clear, set it as usual ; read `armed`
 *   Receiver:  clear the bit (seq_cst)  ; check the lane once more
 * Either the sender sees the bit clear, or the receiver's last check finds the record.
 */
#include "core/internal.h"

enum {
	HOT_LANES = 2,      /* per CQ: each costs an empty poll some nanoseconds */
	HOT_MISSES = 65536, /* polls with an empty hot lane after which it is no longer hot */
};

static struct soft_qp *qp_of(uintptr_t entry)
{
	return (struct soft_qp *)(entry & ~SOFT_SLOT_SEND);
}

/* ---- hot lanes -------------------------------------------------------------------------------------- */

static void heat(struct soft_cq *cq, struct soft_door *door, uint32_t slot)
{
	const uint64_t bit = UINT64_C(1) << slot;
	uint64_t hot = atomic_load_explicit(&cq->hot, memory_order_relaxed);

	if (hot & bit) {
		atomic_store_explicit(&cq->hot_misses, 0, memory_order_relaxed);
	} else if (door && __builtin_popcountll(hot) < HOT_LANES) {
		/* The bit first: once it is clear, senders set it and the lane is found the usual way. */
		atomic_store(&cq->hot_door[slot], door);
		atomic_fetch_or(&door->near, bit);
		atomic_fetch_or(&cq->hot, bit);
		atomic_store_explicit(&cq->hot_misses, 0, memory_order_relaxed);
	}
}

void soft_cq_cool(struct soft_cq *cq, uint32_t slot)
{
	if (slot >= 64 || !(atomic_load(&cq->hot) & UINT64_C(1) << slot))
		return;
	atomic_fetch_and(&cq->hot, ~(UINT64_C(1) << slot));
	atomic_fetch_and(&atomic_load(&cq->hot_door[slot])->near, ~(UINT64_C(1) << slot));
}

/* ---- progress --------------------------------------------------------------------------------------- */

/* door: of the peer that announced it, or NULL. */
static void run_slot(struct soft_cq *cq, struct soft_door *door, uint32_t slot, struct soft_after *after)
{
	uintptr_t entry = (uintptr_t)atomic_load_explicit(&cq->slots[slot], memory_order_acquire);
	struct soft_qp *qp = qp_of(entry);
	bool busy = false;

	if (!qp)
		return;
	/* The QP may have been destroyed or even recreated meanwhile: then there is nothing to do, or its own work. */
	if (entry & SOFT_SLOT_SEND) {
		soft_lock(&qp->sq_lock);
		if ((!qp->path->collect || qp->path->collect(qp, after)) && qp->sq_next != qp->sq_tail)
			soft_sq_pump(qp, after);
		soft_unlock(&qp->sq_lock);
		return;
	}
	soft_lock(&qp->rq_lock);
	const bool faults = soft_unlikely(atomic_load_explicit(&soft_faults_on, memory_order_relaxed));
	if (qp->path->receive && !(faults && soft_fault_is_deaf(qp)))
		busy = qp->path->receive(qp, after);
	if (faults && busy)
		soft_fault_took(qp);
	soft_unlock(&qp->rq_lock);
	if (busy && slot < 64)
		heat(cq, door, slot);
}

static void run_bits(struct soft_cq *cq, struct soft_door *door, uint64_t bits, uint32_t base, struct soft_after *after)
{
	for (; bits; bits &= bits - 1) {
		uint32_t slot = base + (uint32_t)__builtin_ctzll(bits);
		if (slot < atomic_load_explicit(&cq->slots_used, memory_order_acquire))
			run_slot(cq, door, slot, after);
	}
}

static void run_door(struct soft_cq *cq, struct soft_door *door, uint64_t hot, struct soft_after *after)
{
	struct soft_door *peer = door == cq->own ? NULL : door;
	/* seq_cst loads: those of req_notify and get_cq_event must not be reordered before their stores to `armed`. */
	uint64_t rung = atomic_load(&door->near) & ~hot;

	if (rung)
		run_bits(cq, peer, rung & atomic_fetch_and(&door->near, ~rung), 0, after);
	if (soft_likely(!atomic_load(&door->summary)))
		return;
	for (uint64_t fours = atomic_exchange(&door->summary, 0); fours; fours &= fours - 1) {
		uint32_t w = 4 * (uint32_t)__builtin_ctzll(fours);
		for (uint32_t end = w + 4; w < end; w++)
			run_bits(cq, peer, atomic_exchange(&door->far[w], 0), 64 + w * 64, after);
	}
}

void soft_cq_progress(struct soft_cq *cq)
{
	struct soft_after after = { 0 };
	uint64_t hot = atomic_load(&cq->hot);
	uint32_t n = atomic_load(&cq->ndoors);

	if (hot)
		run_bits(cq, NULL, hot, 0, &after);
	if (soft_unlikely(atomic_load(&cq->rung)) && atomic_exchange(&cq->rung, false))
		run_door(cq, cq->own, hot, &after);
	for (uint32_t i = 0; i < n; i++) {
		struct soft_door *door = atomic_load(&cq->doors[i]);
		if (door)
			run_door(cq, door, hot, &after);
	}
	soft_after_run(&after);
}

void soft_cq_ring(struct soft_cq *cq, uint32_t slot)
{
	soft_door_ring(cq->own, slot);
	atomic_store(&cq->rung, true);
}

void soft_cq_visit_hot(struct soft_cq *cq)
{
	uint64_t hot = atomic_load_explicit(&cq->hot, memory_order_relaxed);
	struct soft_after after = { 0 };
	uint32_t misses = atomic_load_explicit(&cq->hot_misses, memory_order_relaxed) + 1;

	atomic_store_explicit(&cq->hot_misses, misses, memory_order_relaxed);
	if (soft_unlikely(misses > HOT_MISSES))
		for (uint64_t bits = hot; bits; bits &= bits - 1)
			soft_cq_cool(cq, (uint32_t)__builtin_ctzll(bits));
	run_bits(cq, NULL, hot, 0, &after);
	soft_after_run(&after);
}

/* ---- all QPs of a CQ -------------------------------------------------------------------------------- */

void soft_cq_break(struct soft_cq *cq)
{
	for (uint32_t i = 0; i < atomic_load(&cq->slots_used); i++) {
		uintptr_t entry = (uintptr_t)atomic_load(&cq->slots[i]);
		struct soft_qp *qp = qp_of(entry);
		struct soft_after after = { 0 };

		if (!qp || soft_state(qp) == IBV_QPS_ERR || soft_state(qp) == IBV_QPS_RESET)
			continue;
		soft_qp_error(qp, &after);
		soft_lock(&qp->rq_lock);
		if (soft_state(qp) == IBV_QPS_ERR)
			soft_async_push(to_ctx(cq->cq.context), IBV_EVENT_QP_FATAL, &qp->qp);
		soft_unlock(&qp->rq_lock);
		soft_after_run(&after);
	}
}

void soft_cq_idle(struct soft_cq *cq)
{
	uint32_t n = atomic_load(&cq->slots_used);
	bool unacked = false;

	atomic_store(&cq->unacked, false); /* before the check: later senders set it again */
	for (uint32_t i = 0; i < n; i++) {
		uintptr_t entry = (uintptr_t)atomic_load(&cq->slots[i]);
		struct soft_qp *qp = qp_of(entry);

		if (!qp || !(entry & SOFT_SLOT_SEND))
			continue;
		soft_lock(&qp->sq_lock);
		if (qp->path->kick)
			unacked |= qp->path->kick(qp);
		soft_unlock(&qp->sq_lock);
	}
	if (unacked)
		atomic_store(&cq->unacked, true);
}

/*
 * The thread that polls the CQ goes on with it. While none does because all sleep, the progress thread does so at once; if
 * the program does something else, it does so after a while.
 */
void soft_again(struct soft_cq *cq, uint32_t slot)
{
	soft_cq_ring(cq, slot);
	if (soft_cq_armed(cq))
		soft_kick_self();
	else
		soft_timer_want(soft_now_ns() + SOFT_STALL_NS);
}

/*
 * The same behind a lock that another thread has. That thread may have lost its processor to this one, which must sleep for
 * it to go on: asked again at once, the progress thread took the processor for some milliseconds.
 */
void soft_again_unlocked(struct soft_cq *cq, uint32_t slot)
{
	enum { LOCKED_NS = 20000 };

	soft_cq_ring(cq, slot);
	soft_timer_want(soft_now_ns() + LOCKED_NS);
}

/*
 * Completion queues: entries, polling, arming.
 */
#include <sched.h>
#include <unistd.h>

#include "core/internal.h"

_Thread_local struct soft_chan *soft_chan_taking;
_Thread_local unsigned soft_chan_wakes;

/* The set watches for each write, so the counter is not read. */
void soft_chan_wake(struct soft_chan *chan)
{
	uint64_t one = 1;

	soft_chan_wakes++;
	if (write(chan->wake_fd, &one, sizeof(one)) < 0) {
		/* EAGAIN, after more wake-ups than a process lives for */
	}
}

/*
 * One request for notification yields one event. The request ends and the event is queued under one lock: whoever finds
 * a CQ of the channel no longer armed finds its event, too (ibv_get_cq_event()).
 */
static void fire(struct soft_cq *cq, bool solicited)
{
	struct soft_chan *chan = to_chan(cq->cq.channel);
	const uint64_t ends = solicited ? SOFT_ARM_WANTED : SOFT_ARM_ANY;
	uint64_t armed = atomic_load_explicit(cq->armed, memory_order_relaxed);
	bool fired = false;

	if (!(armed & ends))
		return;
	soft_lock(&chan->lock);
	while (armed & ends) {
		if (!atomic_compare_exchange_weak(cq->armed, &armed, armed & ~(uint64_t)SOFT_ARM_WANTED))
			continue;
		fired = !soft_fault(SOFT_FAULT_EVENT);
		break;
	}
	if (fired && !cq->events_queued++) {
		cq->event_next = NULL;
		*chan->tail = cq;
		chan->tail = &cq->event_next;
	}
	soft_unlock(&chan->lock);
	if (fired && soft_chan_taking != chan)
		soft_chan_wake(chan);
}

void soft_cq_spend(struct soft_cq *cq)
{
	fire(cq, true);
}

static inline void show(struct soft_cq *cq, const struct ibv_wc *wc, bool solicited, struct soft_qp *sender,
			uint32_t sent)
{
	bool overrun = false;

	soft_lock(&cq->lock);
	uint32_t tail = atomic_load_explicit(&cq->tail, memory_order_relaxed);
	if (soft_unlikely(tail - atomic_load_explicit(&cq->head, memory_order_relaxed) > cq->mask)) {
		overrun = !cq->ignore_overrun && !atomic_exchange(&cq->overrun, true);
	} else {
		struct soft_cqe *e = &cq->ring[tail & cq->mask];
		e->wc = *wc;
		e->sender = sender;
		e->sent = sent;
		if (cq->timestamps)
			e->timestamp = soft_now_ns();
		atomic_store_explicit(&cq->tail, tail + 1, memory_order_relaxed);
	}
	/* Arming takes the same lock: an entry is either seen by the poll that follows arming, or sees the arming. */
	soft_unlock(&cq->lock);
	if (cq->cq.channel)
		fire(cq, solicited || wc->status != IBV_WC_SUCCESS);
	if (soft_unlikely(overrun)) {
		soft_async_push(to_ctx(cq->cq.context), IBV_EVENT_CQ_ERR, &cq->cq);
		/* Its QPs fail too, but later, without the locks that are held here. */
		atomic_store(&cq->broken, true);
		soft_kick_self();
	}
}

void soft_cq_show(struct soft_cq *cq, const struct ibv_wc *wc, bool solicited, struct soft_qp *sender, uint32_t sent)
{
	show(cq, wc, solicited, sender, sent);
}

void soft_cq_add(struct soft_cq *cq, const struct ibv_wc *wc, bool solicited, struct soft_qp *sender, uint32_t sent)
{
	if (soft_likely(!cq->batch) || !soft_batch_takes(cq, wc, solicited, sender, sent))
		show(cq, wc, solicited, sender, sent);
}

static inline void push(struct soft_cq *cq, const struct ibv_wc *wc, bool solicited, struct soft_qp *sender,
			uint32_t sent)
{
	bool twice = false;

	if (soft_unlikely(atomic_load_explicit(&soft_faults_on, memory_order_relaxed)) &&
	    soft_fault_takes(cq, wc, solicited, sender, sent, &twice))
		return;
	soft_cq_add(cq, wc, solicited, sender, sent);
	if (soft_unlikely(twice)) /* a work request gives its place back once */
		soft_cq_add(cq, wc, solicited, NULL, 0);
}

void soft_cq_push(struct soft_cq *cq, const struct ibv_wc *wc, bool solicited)
{
	push(cq, wc, solicited, NULL, 0);
}

void soft_cq_push_sent(struct soft_cq *cq, const struct ibv_wc *wc, struct soft_qp *sender, uint32_t sent)
{
	push(cq, wc, false, sender, sent);
}

/* ---- polling --------------------------------------------------------------------------------------- */

/*
 * Ticks (tenths of a millisecond) of empty polls after which peers with overdue acknowledgements are kicked. A peer
 * that takes this long for its answer can afford one kick. With many QPs it happens less often, since all of them are
 * checked. Where no completion waits for the acknowledgements, it can wait longer: the peer is probably busy with what
 * it got, and its progress thread would only take the CPU from it.
 */
enum { IDLE_TICKS = 500000, IDLE_TICKS_PER_SLOT = 1000, UNWANTED = 64 };

static void idle(struct soft_cq *cq, bool wanted)
{
	uint64_t now = soft_ticks(), since = atomic_load_explicit(&cq->idle_since, memory_order_relaxed);
	uint64_t patience = IDLE_TICKS + (uint64_t)IDLE_TICKS_PER_SLOT * atomic_load(&cq->slots_used);

	if (!since) {
		atomic_store_explicit(&cq->idle_since, now, memory_order_relaxed);
	} else if (now - since > (wanted ? patience : patience * UNWANTED)) {
		atomic_store_explicit(&cq->idle_since, now, memory_order_relaxed);
		soft_cq_idle(cq);
	}
}

static inline bool look(struct soft_cq *cq)
{
	uint64_t hot = atomic_load_explicit(&cq->hot, memory_order_relaxed);

	if (soft_cq_announced(cq, hot))
		soft_cq_progress(cq);
	else if (hot)
		soft_cq_visit_hot(cq);
	if (soft_unlikely(atomic_load_explicit(&soft_pollers, memory_order_relaxed)) &&
	    atomic_load_explicit(&cq->head, memory_order_relaxed) ==
		    atomic_load_explicit(&cq->tail, memory_order_relaxed))
		soft_fabrics.net->poll();
	if (atomic_load_explicit(&cq->head, memory_order_relaxed) !=
	    atomic_load_explicit(&cq->tail, memory_order_relaxed)) {
		if (atomic_load_explicit(&cq->idle_since, memory_order_relaxed))
			atomic_store_explicit(&cq->idle_since, 0, memory_order_relaxed);
		return true;
	}
	bool wanted = atomic_load_explicit(&cq->waiting, memory_order_relaxed);
	if (wanted || atomic_load_explicit(&cq->unacked, memory_order_relaxed))
		idle(cq, wanted);
	return false;
}

/* What a poll returns that finds no entry: after an overrun some are missing, and a program might wait for them. */
static int nothing(const struct soft_cq *cq)
{
	return soft_unlikely(atomic_load_explicit(&cq->overrun, memory_order_relaxed)) ? -EIO : 0;
}

static inline void take(const struct soft_cqe *e)
{
	if (!e->sender)
		return;
	if (soft_unlikely(soft_completes_in_any_order))
		atomic_fetch_add_explicit(&e->sender->sq_polled, 1, memory_order_relaxed);
	else
		atomic_store_explicit(&e->sender->sq_polled, e->sent, memory_order_relaxed);
}

int soft_poll_cq(struct ibv_cq *ibcq, int n, struct ibv_wc *wc)
{
	struct soft_cq *cq = to_cq(ibcq);
	int got = 0;

	if (soft_unlikely(n < 0))
		return -EINVAL;
	if (!look(cq))
		return nothing(cq);
	soft_lock(&cq->lock);
	uint32_t head = atomic_load_explicit(&cq->head, memory_order_relaxed);
	uint32_t tail = atomic_load_explicit(&cq->tail, memory_order_relaxed);
	for (; got < n && head != tail; head++) {
		const struct soft_cqe *e = &cq->ring[head & cq->mask];
		take(e);
		wc[got++] = e->wc;
	}
	atomic_store_explicit(&cq->head, head, memory_order_relaxed);
	soft_unlock(&cq->lock);
	return got;
}

int soft_cq_pop(struct soft_cq *cq, int n, struct soft_cqe *out)
{
	int got = 0;

	if (!look(cq))
		return nothing(cq);
	soft_lock(&cq->lock);
	uint32_t head = atomic_load_explicit(&cq->head, memory_order_relaxed);
	uint32_t tail = atomic_load_explicit(&cq->tail, memory_order_relaxed);
	for (; got < n && head != tail; head++) {
		out[got] = cq->ring[head & cq->mask];
		take(&out[got++]);
	}
	atomic_store_explicit(&cq->head, head, memory_order_relaxed);
	soft_unlock(&cq->lock);
	return got;
}

void soft_cq_purge(struct soft_cq *cq, uint32_t qp_num)
{
	soft_fault_forget(cq, qp_num, false);
	soft_batch_forget(cq, qp_num, false);
	soft_lock(&cq->lock);
	uint32_t head = atomic_load_explicit(&cq->head, memory_order_relaxed), keep = head;
	uint32_t tail = atomic_load_explicit(&cq->tail, memory_order_relaxed);
	for (; head != tail; head++)
		if (cq->ring[head & cq->mask].wc.qp_num != qp_num)
			cq->ring[keep++ & cq->mask] = cq->ring[head & cq->mask];
	atomic_store_explicit(&cq->tail, keep, memory_order_relaxed);
	soft_unlock(&cq->lock);
}

/* ---- arming ---------------------------------------------------------------------------------------- */

int soft_req_notify_cq(struct ibv_cq *ibcq, int solicited_only)
{
	struct soft_cq *cq = to_cq(ibcq);
	uint64_t want = solicited_only ? SOFT_ARM_SOLICITED : SOFT_ARM_ANY;

	if (!ibcq->channel)
		return EINVAL;
	soft_lock(&cq->lock);
	uint64_t armed = atomic_load_explicit(cq->armed, memory_order_relaxed), next;
	do
		next = ((armed & SOFT_ARM_WANTED) > want ? armed : (armed & ~(uint64_t)SOFT_ARM_WANTED) | want) +
		       SOFT_ARM_NUMBER;
	while (!atomic_compare_exchange_weak(cq->armed, &armed, next));
	soft_unlock(&cq->lock);
	/* Time asleep is no time of empty polls: from here on the timer looks after peers that do not acknowledge. */
	if (atomic_load_explicit(&cq->idle_since, memory_order_relaxed))
		atomic_store_explicit(&cq->idle_since, 0, memory_order_relaxed);
	/* See door.h: a peer that rang before it could see `armed` has left a bit that we see now. */
	soft_cq_progress(cq);
	if (atomic_load(&cq->waiting))
		soft_timer_want(soft_now_ns() + SOFT_STALL_NS);
	if (atomic_load_explicit(&soft_pollers, memory_order_relaxed))
		soft_fabrics.net->sleep();
	if (soft_fault(SOFT_FAULT_SPURIOUS))
		soft_chan_wake(to_chan(ibcq->channel));
	return 0;
}

bool soft_cq_rearm(struct soft_cq *cq)
{
	uint64_t armed = atomic_load_explicit(cq->armed, memory_order_relaxed);

	do
		if (!(armed & SOFT_ARM_WANTED))
			return false;
	while (!atomic_compare_exchange_weak(cq->armed, &armed, armed + SOFT_ARM_NUMBER));
	return true;
}

/* ---- QPs and doors of a CQ -------------------------------------------------------------------------- */

bool soft_cq_door_add(struct soft_cq *cq, struct soft_door *door)
{
	int found = -1;

	soft_lock(&cq->slot_lock);
	uint32_t n = atomic_load(&cq->ndoors);
	for (uint32_t i = 0; i < n; i++) {
		struct soft_door *other = atomic_load(&cq->doors[i]);
		if (other == door) {
			soft_unlock(&cq->slot_lock);
			return true;
		}
		if (!other && found < 0)
			found = (int)i;
	}
	if (found < 0 && n < SOFT_MAX_DOORS)
		found = (int)n;
	if (found >= 0) {
		atomic_store(&cq->doors[found], door);
		if ((uint32_t)found == n)
			atomic_store(&cq->ndoors, n + 1);
	}
	soft_unlock(&cq->slot_lock);
	return found >= 0;
}

void soft_cq_door_remove(struct soft_cq *cq, struct soft_door *door)
{
	soft_lock(&cq->slot_lock);
	uint32_t n = atomic_load(&cq->ndoors);
	for (uint32_t i = 0; i < n; i++)
		if (atomic_load(&cq->doors[i]) == door)
			atomic_store(&cq->doors[i], NULL);
	while (n && !atomic_load(&cq->doors[n - 1]))
		n--;
	atomic_store(&cq->ndoors, n);
	soft_unlock(&cq->slot_lock);
}

int soft_cq_slot_get(struct soft_cq *cq, struct soft_qp *qp, bool send)
{
	int found = -1;

	soft_lock(&cq->slot_lock);
	uint32_t used = atomic_load(&cq->slots_used);
	for (uint32_t i = cq->slot_hint; i < used && found < 0; i++)
		if (!atomic_load_explicit(&cq->slots[i], memory_order_relaxed))
			found = (int)i;
	if (found < 0 && used < SOFT_DOOR_BITS)
		found = (int)used;
	if (found >= 0) {
		atomic_store(&cq->slots[found], (struct soft_qp *)((uintptr_t)qp | (send ? SOFT_SLOT_SEND : 0)));
		cq->slot_hint = (uint32_t)found + 1;
		if ((uint32_t)found == used)
			atomic_store(&cq->slots_used, used + 1);
	}
	soft_unlock(&cq->slot_lock);
	return found;
}

void soft_cq_slot_put(struct soft_cq *cq, uint32_t slot)
{
	soft_cq_cool(cq, slot);
	soft_lock(&cq->slot_lock);
	atomic_store(&cq->slots[slot], NULL);
	if (slot < cq->slot_hint)
		cq->slot_hint = slot;
	soft_unlock(&cq->slot_lock);
}

/* ---- destruction ------------------------------------------------------------------------------------ */

struct soft_cq *soft_cq_pin(uint32_t index)
{
	if (!atomic_load_explicit(&soft_proc.cqs[index], memory_order_relaxed))
		return NULL;
	soft_lock(&soft_proc.cq_lock);
	struct soft_cq *cq = atomic_load(&soft_proc.cqs[index]);
	if (cq)
		atomic_fetch_add(&cq->pins, 1);
	soft_unlock(&soft_proc.cq_lock);
	return cq;
}

void soft_cq_unpin(struct soft_cq *cq)
{
	atomic_fetch_sub(&cq->pins, 1);
}

static void wait_unpinned(struct soft_cq *cq)
{
	while (atomic_load(&cq->pins))
		sched_yield();
}

void soft_cq_unpublish(struct soft_cq *cq)
{
	soft_lock(&soft_proc.cq_lock);
	atomic_store(&soft_proc.cqs[cq->index], NULL);
	soft_unlock(&soft_proc.cq_lock);
	atomic_fetch_and(cq->armed, ~(uint64_t)SOFT_ARM_WANTED);
	soft_fault_forget(cq, 0, true);
	soft_batch_forget(cq, 0, true);
	wait_unpinned(cq);
}

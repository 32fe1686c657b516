/*
 * Functions that the files of the core share.
 */
#ifndef SOFTDEV_CORE_INTERNAL_H
#define SOFTDEV_CORE_INTERNAL_H

#include "core/core.h"

/* ---- thread.c, slot.c: soft_proc.lock held ---------------------------------------------------------- */

int soft_thread_start(void);
void soft_thread_stop(void);
/* Claims a slot by binding its sockets. 0 or errno. */
int soft_slot_claim(void);
/* Removes what the socket's end does not remove. */
void soft_slot_leave(void);
/* In the child, after fork(). */
void soft_slot_forget(void);

/* ---- clock.c ---------------------------------------------------------------------------------------- */

/* The progress thread: whether it is asked to look at all timers, and that it has done so. */
bool soft_clock_asks(unsigned *round);
void soft_clock_gone(unsigned round);
/* In the child, after fork(). */
void soft_clock_after_fork(void);

/* ---- draw.c: soft_proc.lock held -------------------------------------------------------------------- */

struct soft_draw {
	uint16_t *ring; /* `count` entries: the number there, exclusive-or its place, so that all of them begin as 0 */
	uint32_t count, ahead;
	uint32_t at;
	bool begun;
};
/* The next number below count, chosen by `random` (soft_random()). It may be in use: the caller then draws again. */
uint32_t soft_draw(struct soft_draw *draw, uint32_t random);

/* ---- gid.c ------------------------------------------------------------------------------------------ */

/* The progress thread: whether an epoll event is of a table that changes; reads it. */
bool soft_gids_changed(const void *what);
/* In the child, after fork(). */
void soft_gids_after_fork(void);

/* ---- attach.c ----------------------------------------------------------------------------------------- */

/* Loads the recorder into this process, which writes into that directory. Returns 0 or errno; the answer says why. */
int soft_attach(const char *directory, char *answer, size_t size);

/* ---- control.c ---------------------------------------------------------------------------------------- */

/* The socket for faults by hand; the epoll set is there. */
void soft_control_open(void);
void soft_control_close(void);
/* The progress thread: whether an epoll event is of that socket; serves it. */
bool soft_control_event(const void *what);

/* ---- windows.c -------------------------------------------------------------------------------------- */

/* SEND_WITH_INV and LOCAL_INV: returns an enum ibv_wc_status for the requesting side. Under a QP lock. */
int soft_key_invalidate(struct soft_qp *qp, uint32_t key, bool remote);
int soft_mw_bind(struct soft_qp *qp, struct ibv_mw *mw, const struct ibv_mw_bind_info *info, uint32_t rkey);

/* ---- cq.c, progress.c ------------------------------------------------------------------------------- */

/* True if a door has a bit besides those in `hot`, which the caller checks anyway. */
static inline bool soft_cq_announced(struct soft_cq *cq, uint64_t hot)
{
	uint32_t n = atomic_load_explicit(&cq->ndoors, memory_order_acquire);

	if (soft_unlikely(atomic_load_explicit(&cq->rung, memory_order_relaxed)))
		return true;
	for (uint32_t i = 0; i < n; i++) {
		struct soft_door *door = atomic_load_explicit(&cq->doors[i], memory_order_relaxed);
		if (door && soft_door_any(door, hot))
			return true;
	}
	return false;
}
/*
 * Adds an entry and wakes an armed channel, at once or, as the personality has it, together with others. Of a receive:
 * sender is NULL.
 */
void soft_cq_add(struct soft_cq *cq, const struct ibv_wc *wc, bool solicited, struct soft_qp *sender, uint32_t sent);
/* The same, at once. */
void soft_cq_show(struct soft_cq *cq, const struct ibv_wc *wc, bool solicited, struct soft_qp *sender, uint32_t sent);
/* soft_cq_add(), unless a fault prevents it. solicited: counts for solicited-only arming (errors always do). */
void soft_cq_push(struct soft_cq *cq, const struct ibv_wc *wc, bool solicited);
/* The same for a work request: whoever polls it frees the entries of that send queue before `sent`. */
void soft_cq_push_sent(struct soft_cq *cq, const struct ibv_wc *wc, struct soft_qp *sender, uint32_t sent);
/* Entry of soft_cq.slots: a QP and, in the lowest bit, the side that the door bit stands for. */
#define SOFT_SLOT_SEND ((uintptr_t)1)
/* Checks the hot lanes only. */
void soft_cq_visit_hot(struct soft_cq *cq);
/* Ends the hot lanes of that slot: senders ring again. Records published before are still in the lane. */
void soft_cq_cool(struct soft_cq *cq, uint32_t slot);
/* Fails the QPs of a CQ that has overrun. */
void soft_cq_break(struct soft_cq *cq);
/* Kicks the peers whose acknowledgements are overdue. */
void soft_cq_idle(struct soft_cq *cq);
/* Removes the entries of a QP that is being destroyed from a CQ. */
void soft_cq_purge(struct soft_cq *cq, uint32_t qp_num);

/* ---- batch.c ---------------------------------------------------------------------------------------- */

/* False: it is to be shown at once. The queue has a batch. */
bool soft_batch_takes(struct soft_cq *cq, const struct ibv_wc *wc, bool solicited, struct soft_qp *sender,
		      uint32_t sent);
/* Drops those of a queue pair (of all: cq only), which goes away. */
void soft_batch_forget(struct soft_cq *cq, uint32_t qp_num, bool all);
/* Shows those whose time has come. No lock held. */
void soft_batch_release(void);

/* ---- rq.c: rq_lock held ----------------------------------------------------------------------------- */

/* Completes all receives with a flush error. */
void soft_rq_flush(struct soft_qp *qp);
/* Releases the slot of qp->current, after its completion. */
void soft_rq_release(struct soft_qp *qp);

/* ---- post_check.c ------------------------------------------------------------------------------------ */

/* 0, an errno, or the status that it will fail with, negative. sq_lock held. */
int soft_post_check(const struct soft_qp *qp, const struct ibv_send_wr *wr, uint64_t length);

/* ---- requester.c ------------------------------------------------------------------------------------ */

/* sq_lock held. */
void soft_sq_flush(struct soft_qp *qp);
/* The deadline has expired; takes sq_lock itself. */
void soft_sq_timeout(struct soft_qp *qp, struct soft_after *after);

#endif

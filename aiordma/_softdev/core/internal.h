/*
 * What the files of the core offer one another only.
 */
#ifndef AIORDMA_SOFT_CORE_INTERNAL_H
#define AIORDMA_SOFT_CORE_INTERNAL_H

#include "core/core.h"

/* ---- thread.c, slot.c: soft_proc.lock held ---------------------------------------------------------- */

int soft_thread_start(void);
void soft_thread_stop(void);
/* Claims a slot: binds its socket. 0 or errno. */
int soft_slot_claim(void);

/* ---- windows.c -------------------------------------------------------------------------------------- */

/* SEND_WITH_INV and LOCAL_INV: an enum ibv_wc_status for the side that asked. Under a QP lock. */
int soft_key_invalidate(struct soft_qp *qp, uint32_t key, bool remote);
int soft_mw_bind(struct soft_qp *qp, struct ibv_mw *mw, const struct ibv_mw_bind_info *info, uint32_t rkey);

/* ---- cq.c, progress.c ------------------------------------------------------------------------------- */

/* Adds an entry and fires an armed channel. solicited: counts for solicited-only arming (errors always do). */
void soft_cq_push(struct soft_cq *cq, const struct ibv_wc *wc, bool solicited);
/* Entry of soft_cq.slots: a QP and, in the lowest bit, which of its sides the door bit stands for. */
#define SOFT_SLOT_SEND ((uintptr_t)1)
/* The hot lanes only. */
void soft_cq_visit_hot(struct soft_cq *cq);
/* Senders to that slot ring again. What they published before shows in the lane. */
void soft_cq_cool(struct soft_cq *cq, uint32_t slot);
/* Fails the QPs of a CQ that has overrun. */
void soft_cq_break(struct soft_cq *cq);
/* Kicks the peers whose acknowledgements are overdue. */
void soft_cq_idle(struct soft_cq *cq);
/* Drops what a QP that is being destroyed left in a CQ. */
void soft_cq_purge(struct soft_cq *cq, uint32_t qp_num);

/* ---- rq.c: rq_lock held ----------------------------------------------------------------------------- */

/* Completes all receives with a flush error. */
void soft_rq_flush(struct soft_qp *qp);
/* Gives qp->current's slot back, after its completion. */
void soft_rq_release(struct soft_qp *qp);

/* ---- requester.c ------------------------------------------------------------------------------------ */

/* sq_lock held. */
void soft_sq_flush(struct soft_qp *qp);
/* The deadline has come: takes sq_lock itself. */
void soft_sq_timeout(struct soft_qp *qp, struct soft_after *after);

#endif

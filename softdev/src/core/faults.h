/*
 * Faults on purpose: which there are at a time, and what they do. Part of the core's contract.
 *
 * A fault is a request in words (fault_words.c): what happens, when it begins, and how long it lasts. Those of the plan
 * in SOFTDEV_FAULTS, of softdev_faults() and softdev_fault(), and of `softdev fault PID` (control.c) stand in one table
 * (faults.c), by the device's clock (clock.c). Probabilities are drawn in base/faults.c; what happens to queue pairs is
 * in fault_qp.c, and to completions in fault_cq.c.
 *
 * Locks: the table's is outermost. What the engine asks while it holds locks (soft_fault_stops() and those below it)
 * reads atomic variables only.
 */
#ifndef SOFTDEV_FAULTS_H
#define SOFTDEV_FAULTS_H

#include "core/objects.h"
#include "core/path.h"

enum { SOFT_FAULT_BYTES = 1024, SOFT_FAULT_ANSWER = 8192 };

/* What the faults of this moment come to, beside probabilities. */
struct soft_fault_state {
	atomic_uint cut;        /* bit n: the port of device n is down, and nothing passes */
	_Atomic(uint64_t) gids; /* bit n: entry n of the GID tables is gone */
	atomic_uint mtu;        /* enum ibv_mtu of the link; 0: as it is */
	_Atomic(uint64_t) slow; /* ns between two messages of a queue pair; 0: none */
	_Atomic(uint64_t) late; /* ns that a late completion takes */
	atomic_uint held;       /* completions that are late */
};
extern struct soft_fault_state soft_fault_state;

/* ---- faults.c ---------------------------------------------------------------------------------------- */

/* Reads the plan in the environment, once. */
void soft_faults_read(void);
/* The progress thread: its timer went off, or it has begun. No lock held. */
void soft_faults_tick(void);
/* fork(): before anything else, and after it, in the parent and in the child. */
void soft_faults_before_fork(void);
void soft_faults_after_fork(void);

/* ---- fault_qp.c -------------------------------------------------------------------------------------- */

/* Before a work request begins or goes on, sq_lock held. True: not now, or not at all, as *run and its status say. */
bool soft_fault_stops(struct soft_qp *qp, struct soft_wqe *wqe, enum soft_run *run);
/* The same where the link is cut, here or at the destination. */
enum soft_run soft_fault_cut_run(struct soft_qp *qp, struct soft_wqe *wqe);
/* Whether the queue pair's port is down. One of its locks held. */
bool soft_fault_is_cut(const struct soft_qp *qp);
/* Whether it takes no message now, rq_lock held; it is looked at again when it does. */
bool soft_fault_is_deaf(struct soft_qp *qp);
/* It has taken some. rq_lock held. */
void soft_fault_took(struct soft_qp *qp);
/* Looks at the queue pair that found no receive, which there may be, before long. */
void soft_fault_look_again(struct soft_cq *cq, uint32_t slot);
/* Ports of these devices went down, or came up again: tells the peers. No lock held. */
void soft_fault_cut(unsigned devices, bool down);
/* Ends a queue pair as a card does that has lost it. 0: one of those that are connected. No lock held. False: none. */
bool soft_fault_kill(uint32_t number, uint64_t random);
/* Whether there is one, now. */
bool soft_fault_may_kill(uint32_t number);
/* Writes the queue pairs of this process. Returns the bytes, at most size - 1. */
size_t soft_fault_list_qps(char *to, size_t size);

/* ---- fault_cq.c -------------------------------------------------------------------------------------- */

/* Before a completion is added. True: it is lost, or comes later. *twice: it is to be added two times. */
bool soft_fault_takes(struct soft_cq *cq, const struct ibv_wc *wc, bool solicited, struct soft_qp *sender,
		      uint32_t sent, bool *twice);
/* Adds those whose time has come. No lock held. */
void soft_fault_release(void);
/* Drops those of a queue pair (of all: cq only), which goes away. */
void soft_fault_forget(const struct soft_cq *cq, uint32_t qp_num, bool all);

#endif

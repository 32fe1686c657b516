/*
 * Completions that are lost, come late, or come twice.
 *
 * A late one is overtaken by none of its queue: a card adds entries in the order in which it makes them.
 */
#include <stdlib.h>

#include "core/internal.h"

struct late {
	struct late *next;
	struct soft_cq *cq;
	struct soft_qp *sender;
	struct ibv_wc wc;
	uint64_t due;
	uint32_t sent;
	bool solicited;
};

/* Outermost: one thread at a time takes late ones to their queues, so that none is overtaken. */
static pthread_mutex_t releasing = PTHREAD_MUTEX_INITIALIZER;
/* Innermost. */
static struct soft_lock lock;
static struct late *first, **last = &first;

/* When the last one of that queue is due; 0: there is none. */
static uint64_t before(const struct soft_cq *cq)
{
	uint64_t due = 0;

	for (const struct late *one = first; one; one = one->next)
		if (one->cq == cq)
			due = one->due;
	return due;
}

/* False: there is no memory, and it comes at once. */
static bool put_off(struct soft_cq *cq, const struct ibv_wc *wc, bool solicited, struct soft_qp *sender, uint32_t sent,
		    uint64_t due)
{
	struct late *one = malloc(sizeof(*one));

	if (!one)
		return false;
	*one = (struct late){ .cq = cq, .sender = sender, .wc = *wc, .due = due, .sent = sent, .solicited = solicited };
	*last = one;
	last = &one->next;
	atomic_fetch_add(&soft_fault_state.held, 1);
	return true;
}

bool soft_fault_takes(struct soft_cq *cq, const struct ibv_wc *wc, bool solicited, struct soft_qp *sender,
		      uint32_t sent, bool *twice)
{
	bool taken = false;
	uint64_t due = 0;

	*twice = false;
	if (soft_fault_hit(SOFT_FAULT_CQE_LOST))
		return true;
	const bool late = soft_fault_hit(SOFT_FAULT_CQE_LATE);
	if (late || atomic_load(&soft_fault_state.held)) {
		soft_lock(&lock);
		due = before(cq);
		if (late) {
			const uint64_t own = soft_clock_ns() + atomic_load(&soft_fault_state.late);
			due = due > own ? due : own;
		}
		taken = due && put_off(cq, wc, solicited, sender, sent, due);
		soft_unlock(&lock);
	}
	if (taken)
		soft_clock_want(due);
	else
		*twice = soft_fault_hit(SOFT_FAULT_CQE_TWICE);
	return taken;
}

/* The first that is due, whose queue cannot go away before soft_cq_unpin(). The caller frees it. */
static struct late *take_due(uint64_t now)
{
	struct late *found;

	soft_lock(&lock);
	struct late **at = &first;
	while (*at && (*at)->due > now)
		at = &(*at)->next;
	found = *at;
	if (found) {
		*at = found->next;
		if (!found->next)
			last = at;
		atomic_fetch_add(&found->cq->pins, 1);
	}
	soft_unlock(&lock);
	return found;
}

void soft_fault_release(void)
{
	struct late *one;

	if (!atomic_load(&soft_fault_state.held))
		return;
	pthread_mutex_lock(&releasing);
	while ((one = take_due(soft_clock_ns()))) {
		soft_cq_add(one->cq, &one->wc, one->solicited, one->sender, one->sent);
		atomic_fetch_sub(&soft_fault_state.held, 1);
		soft_cq_unpin(one->cq);
		free(one);
	}
	pthread_mutex_unlock(&releasing);
	soft_lock(&lock);
	const uint64_t next = first ? first->due : UINT64_MAX;
	soft_unlock(&lock);
	soft_clock_want(next);
}

void soft_fault_forget(const struct soft_cq *cq, uint32_t qp_num, bool all)
{
	if (!atomic_load(&soft_fault_state.held))
		return;
	pthread_mutex_lock(&releasing); /* none is between the list and the queue */
	soft_lock(&lock);
	for (struct late **at = &first; *at;) {
		struct late *one = *at;

		if (one->cq != cq || !(all || one->wc.qp_num == qp_num)) {
			at = &one->next;
			continue;
		}
		*at = one->next;
		atomic_fetch_sub(&soft_fault_state.held, 1);
		free(one);
	}
	for (last = &first; *last; last = &(*last)->next)
		;
	soft_unlock(&lock);
	pthread_mutex_unlock(&releasing);
}

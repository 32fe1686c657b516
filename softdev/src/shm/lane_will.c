/*
 * What the requester's end of a lane says for the case that its process is killed: what it holds, a note, and a will.
 */
#include <string.h>

#include "shm/lane.h"

/* What is held may be more than what settled, or was left: in this order, before the program goes on. */
void soft_seg_say(struct soft_seg *seg, uint32_t holds)
{
	if (holds != SOFT_HOLDS_NOTHING) {
		atomic_store_explicit(&seg->settled_at, 0, memory_order_relaxed);
		atomic_store_explicit(&seg->will, 0, memory_order_relaxed);
	}
	atomic_store_explicit(&seg->holds, holds, memory_order_release);
}

/* Either soft_out_say_first() finds what was said before, or the lane is found here. */
static bool has_lane(const struct soft_qp *qp)
{
	if (soft_likely(qp->out))
		return true;
	atomic_thread_fence(memory_order_seq_cst);
	return qp->out;
}

void soft_out_say(struct soft_qp *qp)
{
	if (has_lane(qp))
		soft_seg_say(qp->out->seg, atomic_load_explicit(&qp->holds, memory_order_relaxed));
}

void soft_out_note(struct soft_qp *qp)
{
	if (has_lane(qp))
		atomic_store_explicit(&qp->out->seg->note, atomic_load_explicit(&qp->note, memory_order_relaxed),
				      memory_order_release);
}

void soft_out_will(struct soft_qp *qp, const void *message, uint32_t length, uint32_t imm)
{
	struct soft_out *o = qp->out;

	/* It follows all that is posted, as the tail has it: that must be published. */
	if (!o || o->waiting || qp->unsent || qp->sq_next != qp->sq_tail)
		return;
	o->will ^= 1;
	struct soft_will *will = &o->seg->wills[o->will];
	will->length = length;
	will->imm = imm;
	memcpy(will->message, message, length);
	atomic_store_explicit(&o->seg->will, o->tail + 1 + o->will, memory_order_release);
}

/* The lane is new: the thread that posts may say something else meanwhile, and not have seen the lane. */
void soft_out_say_first(struct soft_qp *qp)
{
	uint32_t holds;
	uint64_t note;

	atomic_thread_fence(memory_order_seq_cst);
	do {
		holds = atomic_load(&qp->holds);
		note = atomic_load(&qp->note);
		soft_seg_say(qp->out->seg, holds == SOFT_HOLDS_LAST ? SOFT_HOLDS_SOME : holds);
		atomic_store(&qp->out->seg->note, note);
		atomic_thread_fence(memory_order_seq_cst);
	} while (atomic_load(&qp->holds) != holds || atomic_load(&qp->note) != note);
}

/*
 * What a process leaves to its peers, should it be killed: what it says, and what one that has ended has said.
 */
#include "core/internal.h"

SOFT_EXPORT void softdev_holds(struct ibv_qp *ibqp, int some)
{
	struct soft_qp *qp = to_qp(ibqp);

	const uint32_t says = !some ? SOFT_HOLDS_NOTHING : some == 2 ? SOFT_HOLDS_LAST : SOFT_HOLDS_SOME;

	/* Before the lane is there, the thread that makes it takes this from here (soft_out_say()). */
	atomic_store_explicit(&qp->holds, says, memory_order_release);
	if (says != SOFT_HOLDS_LAST && qp->path->say)
		qp->path->say(qp);
}

SOFT_EXPORT void softdev_will(struct ibv_qp *ibqp, const void *message, uint32_t length, uint32_t imm_data)
{
	struct soft_qp *qp = to_qp(ibqp);

	if (length > SOFTDEV_WILL_BYTES || !qp->path->will)
		return;
	soft_lock(&qp->sq_lock);
	qp->path->will(qp, message, length, imm_data);
	soft_unlock(&qp->sq_lock);
}

SOFT_EXPORT void softdev_expect(struct ibv_qp *ibqp, uint32_t rkey)
{
	struct soft_qp *qp = to_qp(ibqp);

	soft_lock(&qp->sq_lock);
	qp->expected = rkey;
	if (qp->path->expect)
		qp->path->expect(qp, rkey);
	soft_unlock(&qp->sq_lock);
}

SOFT_EXPORT int softdev_reached(struct ibv_qp *ibqp)
{
	struct soft_qp *qp = to_qp(ibqp);

	if (!soft_is(ibqp->context))
		return 1;
	soft_lock(&qp->sq_lock);
	const bool reached = !qp->path->reached || qp->path->reached(qp);
	soft_unlock(&qp->sq_lock);
	return reached;
}

SOFT_EXPORT void softdev_note(struct ibv_qp *ibqp, uint64_t number)
{
	struct soft_qp *qp = to_qp(ibqp);

	atomic_store_explicit(&qp->note, number, memory_order_release);
	if (qp->path->note)
		qp->path->note(qp);
}

SOFT_EXPORT uint64_t softdev_left_note(struct ibv_qp *ibqp)
{
	return soft_is(ibqp->context) ? atomic_load(&to_qp(ibqp)->left_note) : 0;
}

SOFT_EXPORT int softdev_left_whole(struct ibv_qp *ibqp)
{
	struct soft_qp *qp = to_qp(ibqp);

	if (!soft_is(ibqp->context))
		return 0;
	if (atomic_load(&qp->left_whole))
		return 1;
	/* A path that says it is one whose end shows. */
	return qp->path->say && soft_receives(soft_state(qp)) ? -1 : 0;
}

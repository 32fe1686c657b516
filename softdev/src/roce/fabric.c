/*
 * The RoCE fabric of the core: the table of operations for the process. The table for a queue pair is in qp.c.
 */
#include "roce/internal.h"

static bool caught_up; /* since the timer went off; progress thread */

static bool event(void *what, uint32_t events, struct soft_after *after)
{
	(void)events, (void)after;
	if (!soft_roce_is_socket(what))
		return false;
	soft_roce_progress(what);
	return true;
}

static void timer(struct soft_qp *qp, uint64_t now, struct soft_after *after)
{
	const uint64_t due = atomic_load(&qp->roce_due_ns);

	if (!due)
		return;
	if (due > now) { /* postponed, as each packet does, or another timer went off */
		soft_clock_want(due);
		return;
	}
	/* This process may have stood still: packets that peers sent meanwhile are older than the deadlines. */
	if (!caught_up)
		soft_roce_catch_up();
	caught_up = true;
	soft_roce_timer(qp, after);
}

static void tick(void)
{
	caught_up = false;
	soft_roce_tick();
}

static void close_all(struct soft_after *after)
{
	(void)after;
	soft_roce_close();
}

const struct soft_fabric_ops soft_roce_fabric = {
	.event = event,
	.timer = timer,
	.tick = tick,
	.catch_up = soft_roce_catch_up,
	.close = close_all,
	.poll = soft_roce_poll,
	.sleep = soft_roce_rewatch,
	.send_datagram = soft_roce_ud_send,
	.expect_datagrams = soft_roce_ud_expect,
	.fork_child = soft_roce_after_fork,
};

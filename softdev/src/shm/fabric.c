/*
 * Shared memory as seen by the core: the two tables of operations.
 */
#include <string.h>
#include <unistd.h>

#include "shm/unix_link.h"

struct soft_shm soft_shm = { .links_lock = PTHREAD_MUTEX_INITIALIZER };

/* ---- per QP ----------------------------------------------------------------------------------------- */

static void connected(struct soft_qp *qp, struct soft_after *after)
{
	(void)after;
	soft_service(qp, SOFT_SERVICE_CONNECT | SOFT_SERVICE_READY);
}

/* Without a lane, work requests wait in this process. */
static bool reached(const struct soft_qp *qp)
{
	return qp->out;
}

const struct soft_path_ops soft_shm_path = {
	.run = soft_out_run,
	.early = soft_out_early,
	.push = soft_out_flush,
	.collect = soft_out_collect,
	.kick = soft_out_kick,
	.flushed = soft_out_idle,
	.say = soft_out_say,
	.note = soft_out_note,
	.will = soft_out_will,
	.expect = soft_out_expect,
	.reached = reached,
	.may_send = soft_out_settings,
	.receive = soft_in_progress,
	.last_look = soft_in_last_look,
	.close = soft_in_close,
	.rights_changed = soft_in_rights_changed,
	.cut = soft_in_cut,
	.connected = connected,
	.drop = soft_lanes_drop,
};

/* ---- per process ------------------------------------------------------------------------------------ */

static void timer(struct soft_qp *qp, uint64_t now, struct soft_after *after)
{
	(void)now;
	if (atomic_load(&qp->rnr_deadline_ns))
		soft_in_timeout(qp, after);
	soft_lock(&soft_shm.service_lock);
	bool redial = qp->service & SOFT_SERVICE_REDIAL;
	qp->service &= ~(uint32_t)SOFT_SERVICE_REDIAL;
	soft_unlock(&soft_shm.service_lock);
	if (redial)
		soft_service(qp, SOFT_SERVICE_CONNECT);
}

static void close_all(struct soft_after *after)
{
	soft_ud_close();
	while (soft_shm.links)
		soft_link_lost(soft_shm.links, after);
}

static void fork_prepare(void)
{
	pthread_mutex_lock(&soft_shm.links_lock);
}

static void fork_parent(void)
{
	pthread_mutex_unlock(&soft_shm.links_lock);
}

/* Close sockets; otherwise peers would not notice the parent's death while the child lives. */
static void fork_child(void)
{
	soft_links_close_fds();
	pthread_mutex_unlock(&soft_shm.links_lock); /* locked by this thread, before the fork */
	memset(&soft_shm, 0, sizeof(soft_shm));
	soft_shm.links_lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}

const struct soft_fabric_ops soft_shm_fabric = {
	.event = soft_link_event,
	.service = soft_service_run,
	.timer = timer,
	.close = close_all,
	.send_datagram = soft_ud_send,
	.take_datagrams = soft_ud_progress,
	.close_datagrams = soft_ud_leave,
	.chan_gone = soft_links_chan_gone,
	.all_outside = soft_all_outside,
	.fork_prepare = fork_prepare,
	.fork_parent = fork_parent,
	.fork_child = fork_child,
};

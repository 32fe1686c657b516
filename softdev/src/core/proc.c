/*
 * Per-process state: tables, contexts, and their cleanup in a forked child.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "core/internal.h"

struct soft_fabrics soft_fabrics;
atomic_uint soft_pollers;

struct soft_proc soft_proc = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.listen_fd = -1,
	.file_fd = -1,
	.kick_fd = -1,
	.timer_fd = -1,
	.epoll_fd = -1,
	.published_fd = -1,
};

void soft_kick_self(void)
{
	uint64_t one = 1;

	if (soft_proc.kick_fd >= 0 && write(soft_proc.kick_fd, &one, sizeof(one)) < 0) {
		/* EAGAIN: the counter is at its maximum, so the thread is being woken already */
	}
}

static atomic_int shortage, peer_shortage;

void soft_shortage(int err, bool peer)
{
	atomic_store(peer ? &peer_shortage : &shortage, err);
}

SOFT_EXPORT int softdev_shortage(int peer)
{
	return atomic_exchange(peer ? &peer_shortage : &shortage, 0);
}

static void set_timer(uint64_t when_ns)
{
	struct itimerspec spec = { .it_value = { .tv_sec = (time_t)(when_ns / 1000000000u),
						 .tv_nsec = (long)(when_ns % 1000000000u) } };

	timerfd_settime(soft_proc.timer_fd, TFD_TIMER_ABSTIME, &spec, NULL);
}

void soft_timer_want(uint64_t when_ns)
{
	uint64_t set = atomic_load(&soft_proc.timer_ns);

	do {
		if (set && when_ns >= set)
			return;
	} while (!atomic_compare_exchange_weak(&soft_proc.timer_ns, &set, when_ns));
	/*
	 * A thread that wanted an earlier time meanwhile may have set its timer before we set ours; the last one sees
	 * both.
	 */
	do {
		set = when_ns;
		set_timer(set);
		when_ns = atomic_load(&soft_proc.timer_ns);
	} while (when_ns && when_ns < set);
}

/* Operations of a context inherited over fork(): the parent's memory and rings must not be used. */
static int dead_poll(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	(void)cq, (void)n, (void)wc;
	errno = EIO;
	return -1;
}
static int dead_notify(struct ibv_cq *cq, int solicited_only)
{
	(void)cq, (void)solicited_only;
	return EIO;
}
static int dead_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	(void)qp;
	*bad = wr;
	return EIO;
}
static int dead_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	(void)qp;
	*bad = wr;
	return EIO;
}
static int dead_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	(void)srq;
	*bad = wr;
	return EIO;
}

static void close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

static void shm_release(void)
{
	if (soft_proc.published)
		munmap(soft_proc.published, sizeof(*soft_proc.published));
	soft_proc.published = NULL;
	close_fd(&soft_proc.published_fd);
}

static void atfork_prepare(void)
{
	soft_faults_before_fork();
	pthread_mutex_lock(&soft_proc.lock);
	if (soft_fabrics.host->fork_prepare)
		soft_fabrics.host->fork_prepare();
	if (soft_fabrics.net->fork_prepare)
		soft_fabrics.net->fork_prepare();
}
static void atfork_parent(void)
{
	if (soft_fabrics.net->fork_parent)
		soft_fabrics.net->fork_parent();
	if (soft_fabrics.host->fork_parent)
		soft_fabrics.host->fork_parent();
	pthread_mutex_unlock(&soft_proc.lock);
	soft_faults_after_fork();
}

/*
 * The child keeps nothing of the device. It closes sockets (otherwise peers would not notice the parent's death while
 * the child lives) and unmaps the published segments, and every context answers EIO. What the parent allocated stays
 * allocated, because other threads of the parent may have been in the middle of any operation.
 */
static void atfork_child(void)
{
	struct soft_ctx *ctx = soft_proc.contexts;

	for (; ctx; ctx = ctx->next) {
		struct ibv_context_ops *ops = &ctx->v.context.ops;

		atomic_store(&ctx->dead, true);
		ops->poll_cq = dead_poll;
		ops->req_notify_cq = dead_notify;
		ops->post_send = dead_post_send;
		ops->post_recv = dead_post_recv;
		ops->post_srq_recv = dead_post_srq_recv;
	}
	soft_fabrics.host->fork_child();
	soft_fabrics.net->fork_child();
	soft_gids_after_fork();
	soft_clock_after_fork();
	soft_slot_forget();
	soft_control_close();
	close_fd(&soft_proc.listen_fd);
	close_fd(&soft_proc.file_fd);
	close_fd(&soft_proc.kick_fd);
	close_fd(&soft_proc.timer_fd);
	close_fd(&soft_proc.epoll_fd);
	close_fd(&soft_proc.published_fd);
	pthread_mutex_unlock(&soft_proc.lock); /* locked by this thread, before the fork */
	memset(&soft_proc, 0, sizeof(soft_proc));
	soft_proc.listen_fd = soft_proc.file_fd = soft_proc.kick_fd = soft_proc.timer_fd = -1;
	soft_proc.epoll_fd = soft_proc.published_fd = -1;
	soft_proc.lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	soft_faults_after_fork();
}

static const struct soft_fabrics *_Atomic offered; /* identical for all contexts */

static void first_use(void)
{
	soft_fabrics = *atomic_load(&offered);
	pthread_atfork(atfork_prepare, atfork_parent, atfork_child);
	soft_faults_read();
}

static int publish(void)
{
	void *map;
	int fd = soft_memfd_create("softdev-published", sizeof(struct soft_published), &map), err;

	if (fd < 0)
		return errno;
	soft_proc.published = map;
	soft_proc.published_fd = fd;
	err = soft_memfd_share(fd, false);
	if (err != EINVAL)
		return err;
	/*
	 * Before Linux 5.1 a segment cannot be closed to new writers. Peers get a read-only descriptor then, which a
	 * hostile one can open anew for writing; without /proc they get this one.
	 */
	int read_only = soft_memfd_read_only(fd);
	if (read_only >= 0) {
		close(fd);
		soft_proc.published_fd = read_only;
	}
	return 0;
}

static int proc_open(void)
{
	int err = publish();

	if (!err)
		err = soft_thread_start();
	if (err)
		shm_release();
	return err;
}

int soft_ctx_init(struct soft_ctx *ctx, const struct soft_fabrics *fabrics)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	int err = 0;

	atomic_store(&offered, fabrics);
	pthread_once(&once, first_use);
	pthread_mutex_lock(&soft_proc.lock);
	if (!soft_proc.nctx)
		err = proc_open();
	if (!err) {
		ctx->next = soft_proc.contexts;
		soft_proc.contexts = ctx;
		soft_proc.nctx++;
	}
	pthread_mutex_unlock(&soft_proc.lock);
	if (!err)
		soft_faults_tick(); /* those of the plan: the timer runs now */
	return err;
}

/*
 * A program may close a device and leave objects behind (the kernel would destroy them): no lookup may find them any
 * more. Their memory leaks, as with libibverbs.
 */
static void abandon(struct soft_ctx *ctx)
{
	for (uint32_t i = 0; i < atomic_load(&soft_proc.qp_used); i++) {
		struct soft_qp *qp = atomic_load(&soft_proc.qps[i]);
		if (qp && atomic_load(&qp->number) && qp->qp.context == &ctx->v.context) {
			soft_qp_reset(qp);
			atomic_store(&qp->number, 0);
		}
	}
	for (uint32_t i = 0; i < atomic_load(&soft_proc.cq_places); i++) {
		struct soft_cq *cq = atomic_load(&soft_proc.cqs[i]);
		if (cq && cq->cq.context == &ctx->v.context)
			soft_cq_unpublish(cq);
	}
	for (uint32_t i = 0; i < SOFT_MAX_MR; i++) {
		struct soft_region *r = atomic_load(&soft_proc.keys[i]);
		if (r && r->pd && r->pd->pd.context == &ctx->v.context)
			soft_key_withdraw(i);
	}
	soft_quiesce(NULL);
}

int soft_ctx_fini(struct soft_ctx *ctx)
{
	struct soft_ctx **link;
	bool last = false;

	if (atomic_load(&ctx->dead))
		return 0;
	if (atomic_load(&ctx->objects))
		abandon(ctx);
	pthread_mutex_lock(&soft_proc.lock);
	for (link = &soft_proc.contexts; *link && *link != ctx; link = &(*link)->next)
		;
	if (*link) {
		*link = ctx->next;
		last = --soft_proc.nctx == 0;
	}
	if (last) {
		soft_thread_stop();
		shm_release();
	}
	pthread_mutex_unlock(&soft_proc.lock);
	return 0;
}

void soft_ctx_announce(const struct ibv_device *device, enum ibv_event_type type)
{
	/* The last context waits for the progress thread, which may be here, and there is none any more to be told. */
	while (pthread_mutex_trylock(&soft_proc.lock)) {
		if (atomic_load(&soft_proc.stop))
			return;
		sched_yield();
	}
	for (struct soft_ctx *ctx = soft_proc.contexts; ctx; ctx = ctx->next) {
		if (ctx->v.context.device == device)
			soft_async_push(ctx, type, (void *)(uintptr_t)(type == IBV_EVENT_DEVICE_FATAL ? 0 : 1));
	}
	pthread_mutex_unlock(&soft_proc.lock);
}

SOFT_EXPORT int softdev_is(struct ibv_context *context)
{
	return soft_is(context);
}

/*
 * The progress thread: sleeps until a peer kicks it, a link has input, or a timer expires. It makes progress where no
 * application thread polls: messages whose sender waits, timeouts, connections.
 */
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "core/internal.h"

void soft_run_doors(void)
{
	for (uint32_t i = 0; i < atomic_load(&soft_proc.cq_places); i++) {
		struct soft_cq *cq = soft_cq_pin(i);
		if (!cq)
			continue;
		if (soft_cq_announced(cq, 0))
			soft_cq_progress(cq);
		if (atomic_exchange(&cq->broken, false))
			soft_cq_break(cq);
		soft_cq_unpin(cq);
	}
}

/* Kicks peers that owe an acknowledgement to a sleeping thread. True: some still do. */
static bool run_stalls(void)
{
	bool again = false;

	for (uint32_t i = 0; i < atomic_load(&soft_proc.cq_places); i++) {
		struct soft_cq *cq = soft_cq_pin(i);
		if (!cq)
			continue;
		if (atomic_load(&cq->waiting)) {
			soft_cq_idle(cq);
			again |= soft_cq_armed(cq);
		}
		soft_cq_unpin(cq);
	}
	return again;
}

static void run_timers(struct soft_after *after)
{
	static const uint64_t longest = 64 * (uint64_t)SOFT_STALL_NS;
	static uint64_t pause;
	const uint64_t now = soft_now_ns(), clock = soft_clock_ns();

	atomic_store(&soft_proc.timer_ns, 0);
	for (uint32_t i = 0; i < atomic_load(&soft_proc.qp_used); i++) {
		struct soft_qp *qp = atomic_load(&soft_proc.qps[i]);
		if (!qp || !atomic_load_explicit(&qp->number, memory_order_relaxed))
			continue;
		if (atomic_load(&qp->deadline_ns))
			soft_sq_timeout(qp, after);
		soft_fabrics.host->timer(qp, now, after);
		soft_fabrics.net->timer(qp, clock, after);
	}
	soft_faults_tick();
	soft_run_doors();
	soft_fabrics.net->tick();
	if (run_stalls()) {
		pause = pause && pause < longest ? pause * 2 : pause ? longest : SOFT_STALL_NS;
		soft_timer_want(now + pause);
	} else {
		pause = 0;
	}
}

static void drain(int fd)
{
	uint64_t count;

	while (read(fd, &count, sizeof(count)) == (ssize_t)sizeof(count) && fd == soft_proc.timer_fd)
		;
}

static void *thread_main(void *unused)
{
	struct epoll_event events[64];

	(void)unused;
	pthread_setname_np(pthread_self(), "softdev");
	while (!atomic_load(&soft_proc.stop)) {
		int n = epoll_wait(soft_proc.epoll_fd, events, 64, -1);
		for (int i = 0; i < n; i++) {
			struct soft_after after = { 0 };
			void *what = events[i].data.ptr;

			if (what == &soft_proc.kick_fd) {
				drain(soft_proc.kick_fd);
				soft_fabrics.host->service(&after);
				soft_run_doors();
			} else if (what == &soft_proc.timer_fd) {
				drain(soft_proc.timer_fd);
				run_timers(&after);
				soft_fabrics.host->service(&after);
			} else if (soft_control_event(what) || soft_gids_changed(what)) {
				continue;
			} else if (!soft_fabrics.net->event(what, events[i].events, &after)) {
				soft_fabrics.host->event(what, events[i].events, &after);
			}
			soft_after_run(&after);
		}
		unsigned round;
		if (soft_clock_asks(&round)) {
			struct soft_after after = { 0 };
			run_timers(&after);
			soft_after_run(&after);
			soft_clock_gone(round);
		}
	}
	return NULL;
}

static int watch(int *fd)
{
	struct epoll_event event = { .events = EPOLLIN, .data.ptr = fd };

	return *fd < 0 || epoll_ctl(soft_proc.epoll_fd, EPOLL_CTL_ADD, *fd, &event) ? errno : 0;
}

static void close_fds(void)
{
	int *fds[] = { &soft_proc.listen_fd, &soft_proc.file_fd, &soft_proc.kick_fd, &soft_proc.timer_fd,
		       &soft_proc.epoll_fd };

	soft_slot_leave();
	soft_control_close();
	for (unsigned i = 0; i < sizeof(fds) / sizeof(*fds); i++) {
		if (*fds[i] >= 0)
			close(*fds[i]);
		*fds[i] = -1;
	}
	soft_proc.slot = 0;
}

int soft_thread_start(void)
{
	sigset_t all, before;
	int err;

	soft_proc.epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	soft_proc.kick_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	soft_proc.timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	err = soft_proc.epoll_fd < 0 || soft_proc.kick_fd < 0 || soft_proc.timer_fd < 0 ? errno : 0;
	if (!err)
		err = soft_slot_claim();
	if (!err)
		err = watch(&soft_proc.kick_fd);
	if (!err)
		err = watch(&soft_proc.timer_fd);
	if (!err && soft_proc.listen_fd >= 0)
		err = watch(&soft_proc.listen_fd);
	if (!err && soft_proc.file_fd >= 0)
		err = watch(&soft_proc.file_fd);
	if (!err) {
		soft_control_open();
		atomic_store(&soft_proc.stop, false);
		atomic_store(&soft_proc.timer_ns, 0);
		/* Signals belong to the application's threads. */
		sigfillset(&all);
		sigdelset(&all, SIGSEGV); /* base/guard.h: blocked, they would end the program */
		sigdelset(&all, SIGBUS);
		pthread_sigmask(SIG_SETMASK, &all, &before);
		err = pthread_create(&soft_proc.thread, NULL, thread_main, NULL);
		pthread_sigmask(SIG_SETMASK, &before, NULL);
	}
	if (err)
		close_fds();
	return err;
}

void soft_thread_stop(void)
{
	struct soft_after after = { 0 };

	atomic_store(&soft_proc.stop, true);
	soft_kick_self();
	pthread_join(soft_proc.thread, NULL);
	soft_fabrics.net->close(&after);
	soft_fabrics.host->close(&after);
	soft_after_run(&after);
	close_fds();
}

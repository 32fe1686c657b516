/*
 * The connection manager's thread: receives messages and retransmits unanswered ones. It starts with the first
 * identifier or event channel and never ends.
 */
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include "cm/internal.h"

struct cm soft_cm = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.acknowledged = PTHREAD_COND_INITIALIZER,
	.bus_fd = -1,
	.kick_fd = -1,
	.epoll_fd = -1,
};

enum { MESSAGES = 64 }; /* limit for one socket before the others get their turn */

uint32_t cm_random(void)
{
	uint32_t value = 0;

	if (getrandom(&value, sizeof(value), GRND_NONBLOCK) != sizeof(value))
		value = (uint32_t)(soft_now_ns() * 2654435761u);
	return value;
}

void cm_kick(void)
{
	const uint64_t one = 1;

	/* EAGAIN: a wake-up is pending already. */
	if (write(soft_cm.kick_fd, &one, sizeof(one)) < 0 && errno != EAGAIN)
		return;
}

bool cm_watch(int fd)
{
	struct epoll_event event = { .events = EPOLLIN, .data.fd = fd };

	return !epoll_ctl(soft_cm.epoll_fd, EPOLL_CTL_ADD, fd, &event);
}

int cm_want_net(void)
{
	if (soft_cm.net || soft_roce_mode() == ROCE_OFF)
		return 0;
	const int err = soft_mad_open();
	soft_cm.net = !err;
	return err;
}

/* ---- thread ----------------------------------------------------------------------------------------- */

/* Since epoll reported it, the socket may have been closed and its number reused. */
static bool is_ours(int fd)
{
	if (fd == soft_cm.bus_fd)
		return true;
	for (const struct cm_id *id = soft_cm.ids; id; id = id->next)
		if (id->listen_fd == fd)
			return true;
	return false;
}

static void take_messages(int fd)
{
	uint8_t mad[CM_MAD_BYTES];
	struct cm_peer from;
	size_t size;

	for (int i = 0; i < MESSAGES && is_ours(fd) && cm_bus_receive(fd, &from, mad, &size); i++)
		if (size)
			cm_engine_receive(&soft_cm.engine, &from, mad, size, soft_now_ns());
}

static int wait_ms(uint64_t next, uint64_t now)
{
	if (!next)
		return -1;
	if (next <= now)
		return 0;
	const uint64_t ms = (next - now + 999999) / 1000000;
	return ms < 60000 ? (int)ms : 60000;
}

static void *thread_main(void *unused)
{
	struct epoll_event events[16];
	int timeout = 0;

	(void)unused;
	pthread_setname_np(pthread_self(), "aiordma-cm");
	for (;;) {
		const int n = epoll_wait(soft_cm.epoll_fd, events, 16, timeout);
		uint64_t count;

		cm_lock();
		for (int i = 0; i < n; i++) {
			if (events[i].data.fd != soft_cm.kick_fd)
				take_messages(events[i].data.fd);
			else if (read(soft_cm.kick_fd, &count, sizeof(count)) < 0 && errno != EAGAIN)
				count = 0;
		}
		const uint64_t now = soft_now_ns();
		timeout = wait_ms(cm_engine_tick(&soft_cm.engine, now), now);
		cm_unlock();
	}
	return NULL;
}

/* ---- starting --------------------------------------------------------------------------------------- */

static void close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

static void stop(void)
{
	close_fd(&soft_cm.bus_fd);
	close_fd(&soft_cm.kick_fd);
	close_fd(&soft_cm.epoll_fd);
}

static void atfork_prepare(void)
{
	cm_lock();
}

/* A name stays taken while any process holds its socket, so the child closes all of them. */
static void atfork_child(void)
{
	for (struct cm_id *id = soft_cm.ids; id; id = id->next) {
		close_fd(&id->port_fd);
		close_fd(&id->listen_fd);
	}
	stop();
	cm_bus_after_fork();
	soft_cm.running = soft_cm.net = false;
	soft_cm.generation++;
	soft_cm.context = NULL; /* the parent's: the device has closed it for us */
	soft_cm.pd = NULL;
	soft_cm.ids = NULL;
	memset(&soft_cm.engine, 0, sizeof(soft_cm.engine));
	pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
	memcpy(&soft_cm.lock, &fresh, sizeof(fresh));
}

static void register_fork(void)
{
	pthread_atfork(atfork_prepare, cm_unlock, atfork_child);
}

static int open_device(void)
{
	if (soft_cm.context)
		return 0;
	soft_cm.context = soft_open_device(&soft_devices[0]);
	if (!soft_cm.context)
		return errno;
	soft_cm.pd = ibv_alloc_pd(soft_cm.context);
	return soft_cm.pd ? 0 : errno;
}

static int start_thread(void)
{
	pthread_attr_t detached;
	sigset_t all, before;
	pthread_t thread;

	if (pthread_attr_init(&detached))
		return ENOMEM;
	pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
	/* Signals belong to the application's threads. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int err = pthread_create(&thread, &detached, thread_main, NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&detached);
	return err;
}

static int start(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct cm_engine *e = &soft_cm.engine;
	int err = open_device();

	if (err)
		return err;
	pthread_once(&once, register_fork); /* after the device's own: the outer lock is taken first */
	e->calls = &cm_calls;
	e->guid = be64toh(soft_get_device_guid(&soft_devices[0]));
	e->id_prefix = soft_proc.slot << CM_ID_BITS;
	e->id_mask = (1u << CM_ID_BITS) - 1;
	e->next_id = cm_random();
	e->tid_prefix = (uint64_t)cm_random() << 32;
	soft_cm.bus_fd = cm_bus_bind_process();
	soft_cm.kick_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	soft_cm.epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (soft_cm.bus_fd < 0 || soft_cm.kick_fd < 0 || soft_cm.epoll_fd < 0 || !cm_watch(soft_cm.bus_fd) ||
	    !cm_watch(soft_cm.kick_fd))
		err = errno;
	return err ? err : start_thread();
}

int cm_start(void)
{
	int err = 0;

	cm_lock();
	if (!soft_cm.running) {
		err = start();
		soft_cm.running = !err;
		if (err)
			stop();
	}
	cm_unlock();
	return err;
}

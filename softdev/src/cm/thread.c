/*
 * The connection manager's thread: receives messages and retransmits unanswered ones. It starts with the first
 * identifier or event channel and never ends.
 */
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "cm/internal.h"
#include "cm/outbox.h"

struct cm soft_cm = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.acknowledged = PTHREAD_COND_INITIALIZER,
	.bus = { { -1, -1 } },
	.kick_fd = -1,
	.epoll_fd = -1,
};

enum {
	MESSAGES = 64, /* limit for one socket before the others get their turn */
	EVENTS = 16,
};

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

bool cm_watch_name(const struct cm_bus_name *name)
{
	for (int place = 0; place < CM_PLACES; place++)
		if (name->fd[place] >= 0 && !cm_watch(name->fd[place]))
			return false;
	return true;
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
	if (cm_bus_has(&soft_cm.bus, fd))
		return true;
	for (const struct cm_id *id = soft_cm.ids; id; id = id->next)
		if (cm_bus_has(&id->listen, fd))
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
			cm_engine_receive(&soft_cm.engine, &from, mad, size, soft_clock_ns());
}

/* Hosts that do not let a request in say so to a descriptor of roce. False: it is none. */
static bool take_refusals(int fd)
{
	uint8_t remote[16];
	bool refused;

	if (!soft_mad_is_knocker(fd))
		return false;
	/* Its turn comes again if there are more: whom it has knocked at decides how many. */
	for (int i = 0; i < 64 && soft_mad_refusal(fd, remote, &refused); i++)
		cm_engine_refused(&soft_cm.engine, remote, refused, soft_clock_ns());
	return true;
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

/* Does what is due. Returns for how long there is nothing: milliseconds, -1: until a message comes, or the clock moves. */
static int tick(void)
{
	const uint64_t now = soft_clock_ns(), next = cm_engine_tick(&soft_cm.engine, now);

	if (next && soft_clock_is_driven())
		soft_clock_want(next);
	/* Also by a clock that is given back now: its last look at us comes next. */
	return soft_clock_is_driven() ? -1 : wait_ms(next, now);
}

/* Does what epoll has reported. Lock held. */
static void handle(const struct epoll_event *events, int n)
{
	uint64_t count;

	for (int i = 0; i < n; i++) {
		const int fd = events[i].data.fd;

		if (fd != soft_cm.kick_fd && !cm_outbox_go_on(fd) && !take_refusals(fd))
			take_messages(fd);
		else if (fd == soft_cm.kick_fd && read(fd, &count, sizeof(count)) < 0 && errno != EAGAIN)
			count = 0;
	}
}

/*
 * Does what the thread would do next: it may not have run since these messages came, to the process or to a listener.
 * Limited, for whoever sends faster than they are taken. Lock held.
 */
static void handle_what_has_come(void)
{
	enum { ROUNDS = 64 };
	struct epoll_event events[EVENTS];

	for (int round = 0; round < ROUNDS; round++) {
		const int n = epoll_wait(soft_cm.epoll_fd, events, EVENTS, 0);

		if (n <= 0)
			return;
		handle(events, n);
	}
}

/*
 * What has come is older than the time now. What is due now asks, and who answers in this process does so now. The thread
 * waits by this clock from now on, or does no longer.
 */
static void clock_moved(void)
{
	cm_lock();
	if (soft_cm.running) {
		handle_what_has_come();
		tick();
		handle_what_has_come();
		tick();
		cm_kick();
	}
	cm_unlock();
}

/* ---- the end of the process ------------------------------------------------------------------------- */

enum { EXIT_MS = 200 };
static atomic_bool runs, leaving, left; /* left: all is said, and sent */
static bool parted;

/* Messages that wait get their answers; then each peer hears, once, that its connection has ended. */
static void part(void)
{
	handle_what_has_come();
	for (struct cm_id *id = soft_cm.ids; id; id = id->next)
		if (id->conn)
			cm_conn_disconnect(&soft_cm.engine, id->conn, soft_clock_ns());
	for (struct cm_id *id = soft_cm.ids; id; id = id->next) {
		cm_bus_release(&id->port);
		cm_bus_release(&id->listen);
	}
	cm_bus_release(&soft_cm.bus);
	parted = true;
}

/*
 * exit(), or the end of main(): the kernel disconnects the ids of a process that ends, and peers count on it. Our thread
 * does so, since this one may hold a lock (exit() in a signal handler); so the wait has a limit, too.
 */
__attribute__((destructor)) static void part_at_exit(void)
{
	const uint64_t until = soft_now_ns() + EXIT_MS * UINT64_C(1000000), one = 1;

	if (!atomic_load(&runs))
		return;
	atomic_store(&leaving, true);
	if (write(soft_cm.kick_fd, &one, sizeof(one)) < 0)
		return;
	while (!atomic_load(&left) && soft_now_ns() < until)
		usleep(50);
}

static void *thread_main(void *unused)
{
	struct epoll_event events[EVENTS];
	int timeout = 0;

	(void)unused;
	pthread_setname_np(pthread_self(), "softdev-cm");
	for (;;) {
		const int n = epoll_wait(soft_cm.epoll_fd, events, EVENTS, timeout);

		cm_lock();
		handle(events, n);
		if (atomic_load(&leaving) && !parted)
			part();
		if (parted && cm_outbox_is_empty())
			atomic_store(&left, true);
		timeout = tick();
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
	cm_outbox_watch(-1);
	cm_bus_forget(&soft_cm.bus);
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
		cm_bus_forget(&id->port);
		cm_bus_forget(&id->listen);
	}
	stop();
	cm_outbox_after_fork();
	atomic_store(&runs, false);
	parted = false;
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
	e->next_id = soft_random();
	e->tid_prefix = (uint64_t)soft_random() << 32;
	err = cm_bus_bind_process(&soft_cm.bus);
	if (err)
		return err;
	soft_cm.kick_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	soft_cm.epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (soft_cm.kick_fd < 0 || soft_cm.epoll_fd < 0 || !cm_watch_name(&soft_cm.bus) || !cm_watch(soft_cm.kick_fd))
		err = errno;
	if (err)
		return err;
	cm_outbox_watch(soft_cm.epoll_fd);
	soft_clock_followed(clock_moved);
	return start_thread();
}

int cm_start(void)
{
	int err = 0;

	cm_lock();
	if (!soft_cm.running) {
		err = start();
		soft_cm.running = !err;
		atomic_store(&runs, !err);
		if (err) {
			cm_bus_release(&soft_cm.bus);
			stop();
		}
	}
	cm_unlock();
	return err;
}

/*
 * Ownership of port 4791: one process per address has it, and when that process ends, in whatever way, another live
 * process takes it over. Otherwise peers that know no other port would no longer get through.
 *
 * The owner listens at a name (a Unix socket without a file), and the others connect to it. No process accepts or
 * sends: the closed connection signals that the owner has ended. Names belong to the network namespace, as ports do.
 */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/un.h>
#include <unistd.h>

#include "roce/port.h"

/* The owner of the port may be starting or ending, or be a foreign program: retries for a while, with doubling
 * pauses. */
enum { FIRST_PAUSE_NS = 1000000, TRIES = 9 };

/* soft_roce_ports.lock */
static struct guard {
	int listening, watching;
	unsigned tries;
	uint64_t retry_at; /* 0: none */
} guards[ROCE_FAMILIES] = { { -1, -1, 0, 0 }, { -1, -1, 0, 0 } };
static atomic_bool retries; /* some guard has retry_at set */

static socklen_t name_of(int family, struct sockaddr_un *to)
{
	memset(to, 0, sizeof(*to));
	to->sun_family = AF_UNIX;
	/* Begins with a zero byte: no file. */
	const int n = snprintf(to->sun_path + 1, sizeof(to->sun_path) - 1, SOFT_WIRE_NAME ".%d.ipv%d", ROCE_PORT,
			       family == ROCE_IPV4 ? 4 : 6);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

static void shut(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

/* A socket that listens at the name, or is connected to it. -1: none at the moment. */
static int meet(int family, bool listening)
{
	struct sockaddr_un name;
	const socklen_t length = name_of(family, &name);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -1;
	if (listening ? bind(fd, (struct sockaddr *)&name, length) || listen(fd, SOMAXCONN) :
			connect(fd, (struct sockaddr *)&name, length))
		shut(&fd);
	return fd;
}

static void again(struct guard *g)
{
	if (g->tries == TRIES)
		return;
	g->retry_at = soft_now_ns() + ((uint64_t)FIRST_PAUSE_NS << g->tries++);
	atomic_store(&retries, true);
	soft_timer_want(g->retry_at);
}

static void take_place(int family)
{
	struct guard *g = &guards[family];

	g->retry_at = 0;
	soft_roce_front_open(family);
	if (soft_roce_ports.front[family].fd >= 0) {
		shut(&g->watching);
		if (g->listening < 0)
			g->listening = meet(family, true);
		if (g->listening < 0)
			again(g);
		return;
	}
	if (g->watching >= 0)
		return;
	struct epoll_event event = { .events = EPOLLRDHUP, .data.ptr = g };
	g->watching = meet(family, false);
	if (g->watching >= 0 && epoll_ctl(soft_proc.epoll_fd, EPOLL_CTL_ADD, g->watching, &event))
		shut(&g->watching);
	if (g->watching < 0)
		again(g);
}

void soft_roce_front(void)
{
	for (int family = ROCE_IPV4; family <= ROCE_IPV6; family++) {
		guards[family].tries = 0;
		take_place(family);
	}
}

void soft_roce_front_close(void)
{
	for (int family = ROCE_IPV4; family <= ROCE_IPV6; family++) {
		shut(&guards[family].watching);
		shut(&guards[family].listening);
		guards[family].retry_at = 0;
	}
}

bool soft_roce_front_is(const void *what)
{
	return what == &guards[ROCE_IPV4] || what == &guards[ROCE_IPV6];
}

void soft_roce_front_ended(const void *what)
{
	const int family = what == &guards[ROCE_IPV4] ? ROCE_IPV4 : ROCE_IPV6;

	pthread_mutex_lock(&soft_roce_ports.lock);
	if (guards[family].watching >= 0) {
		shut(&guards[family].watching);
		guards[family].tries = 0;
		take_place(family);
	}
	pthread_mutex_unlock(&soft_roce_ports.lock);
}

void soft_roce_front_tick(void)
{
	if (!atomic_load_explicit(&retries, memory_order_relaxed))
		return;
	pthread_mutex_lock(&soft_roce_ports.lock);
	const uint64_t now = soft_now_ns();
	atomic_store(&retries, false);
	for (int family = ROCE_IPV4; family <= ROCE_IPV6; family++) {
		struct guard *g = &guards[family];
		if (g->retry_at && g->retry_at <= now) {
			take_place(family);
		} else if (g->retry_at) {
			atomic_store(&retries, true);
			soft_timer_want(g->retry_at);
		}
	}
	pthread_mutex_unlock(&soft_roce_ports.lock);
}

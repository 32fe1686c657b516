/*
 * Unix links: sockets (SOCK_SEQPACKET) between processes of one user. They
 * transfer requests and descriptors, never data, and report the end of a peer at once.
 *
 * Both sides check the peer's credentials and reject a process of another user (core/slot.c).
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shm/unix_link.h"

/* Answers that a peer has not read, with their descriptors, which the kernel counts for the user: a few dozen. */
enum { UNREAD_BYTES = 16 * 1024 };

SOFT_EXPORT unsigned softdev_layout(void)
{
	return SOFT_LINK_MAGIC;
}

static struct soft_link *link_make(int fd, bool dialled, uint32_t slot, pid_t pid)
{
	struct soft_link *link = calloc(1, sizeof(*link));
	struct epoll_event event = { .events = EPOLLIN | EPOLLRDHUP, .data.ptr = link };

	if (!link || epoll_ctl(soft_proc.epoll_fd, EPOLL_CTL_ADD, fd, &event)) {
		int err = link ? errno : ENOMEM;
		free(link);
		close(fd);
		errno = err;
		return NULL;
	}
	if (!dialled)
		(void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &(int){ UNREAD_BYTES }, sizeof(int));
	link->fd = fd;
	link->dialled = dialled;
	link->slot = slot;
	link->pid = pid;
	link->queue_tail = &link->queue;
	atomic_store(&link->refs, 1);
	pthread_mutex_lock(&soft_shm.links_lock);
	link->next = soft_shm.links;
	soft_shm.links = link;
	pthread_mutex_unlock(&soft_shm.links_lock);
	return link;
}

/* False: no memory or descriptors for this peer's doors. */
static bool hello(struct soft_link *link)
{
	struct soft_message msg = { .type = SOFT_HELLO, .slot = soft_proc.slot };
	int fds[] = { soft_doors_make(link), -1 };

	if (fds[0] < 0)
		return false;
	fds[1] = fcntl(soft_proc.published_fd, F_DUPFD_CLOEXEC, 0);
	if (fds[1] < 0) {
		int err = errno;
		close(fds[0]);
		errno = err;
		return false;
	}
	soft_link_send(link, &msg, fds, 2);
	return true;
}

/*
 * One process has one link in each direction, or two while it opens its devices anew; many would take descriptors, and
 * a process can take many slots.
 */
enum {
	LINKS_OF_ONE = 8,
	LINKS_OF_STRANGERS = 256, /* all processes of other PID namespaces, which cannot be told apart */
};

static bool too_many(pid_t pid, bool dialled)
{
	unsigned n = 0;

	for (struct soft_link *link = soft_shm.links; link; link = link->next)
		n += link->dialled == dialled && link->pid == pid;
	if (!pid)
		return !dialled && n >= LINKS_OF_STRANGERS;
	return n >= LINKS_OF_ONE;
}

struct soft_link *soft_link_dial(uint32_t slot)
{
	struct soft_link *link;
	pid_t pid = 0;

	for (link = soft_shm.links; link; link = link->next)
		if (link->dialled && link->slot == slot && !link->dead)
			return link;
	int fd = soft_slot_connect(slot, &pid);
	if (fd < 0)
		return NULL;
	if (too_many(pid, true)) {
		close(fd);
		errno = ECONNREFUSED;
		return NULL;
	}
	link = link_make(fd, true, slot, pid);
	if (link && !hello(link)) {
		struct soft_after after = { 0 };
		int err = errno;
		soft_link_lost(link, &after);
		errno = err;
		return NULL;
	}
	return link;
}

/* Messages of one link, or new links, before others have their turn: however many peers send, they do not stop this
 * thread. */
enum { TURN = 32 };

static void accept_some(int listen_fd)
{
	pid_t pid;
	int fd;

	for (unsigned n = 0; n < TURN && (fd = soft_slot_accept(listen_fd, &pid)) >= 0; n++) {
		if (too_many(pid, false))
			close(fd);
		else
			link_make(fd, false, 0, pid);
	}
}

void soft_link_kick(struct soft_link *link)
{
	if (send(link->fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
		/* EAGAIN: the peer has much to read, and then looks at its doors; EPIPE: it is gone */
	}
}

void soft_link_release(struct soft_link *link)
{
	if (atomic_fetch_sub(&link->refs, 1) != 1)
		return;
	soft_maps_drop(link);
	soft_events_drop(link);
	if (link->doors)
		munmap(link->doors, sizeof(*link->doors));
	if (link->published)
		munmap((void *)link->published, sizeof(*link->published));
	close(link->fd);
	free(link);
}

static void packet_free(struct soft_packet *packet)
{
	for (unsigned i = 0; i < packet->nfds; i++)
		close(packet->fds[i]);
	free(packet);
}

void soft_link_lost(struct soft_link *link, struct soft_after *after)
{
	struct soft_link **at;
	struct soft_packet *packet;

	link->dead = true;
	pthread_mutex_lock(&soft_shm.links_lock);
	for (at = &soft_shm.links; *at != link; at = &(*at)->next)
		;
	*at = link->next;
	soft_bells_unwatch(link);
	pthread_mutex_unlock(&soft_shm.links_lock);
	/* Closed with the last reference: a thread may be about to kick the peer. */
	epoll_ctl(soft_proc.epoll_fd, EPOLL_CTL_DEL, link->fd, NULL);
	shutdown(link->fd, SHUT_RDWR);
	while ((packet = link->queue)) {
		link->queue = packet->next;
		packet_free(packet);
	}
	link->queue_tail = &link->queue;
	soft_attach_forget(link);
	soft_ud_lost(link);
	for (uint32_t i = 0; i < atomic_load(&soft_proc.qp_used); i++) {
		struct soft_qp *qp = atomic_load(&soft_proc.qps[i]);
		if (qp)
			soft_lane_lost(qp, link, after);
		if (qp)
			soft_attach_unanswered(qp, link);
	}
	soft_lanes_sweep();
	soft_bells_drop(link);
	soft_doors_drop(link);
	soft_link_release(link);
}

void soft_links_close_fds(void)
{
	for (struct soft_link *link = soft_shm.links; link; link = link->next) {
		close(link->fd);
		for (struct soft_bell *bell = link->bells; bell; bell = bell->next)
			close(bell->fd);
	}
}

/* ---- packets ---------------------------------------------------------------------------------------- */

/* 1: sent; 0: not now (link->stalled: although the socket has room); -1: the link failed. */
static int send_now(struct soft_link *link, const struct soft_message *msg, const int *fds, unsigned nfds)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int) * SOFT_PACKET_FDS)];
		struct cmsghdr align;
	} control;
	struct iovec iov = { .iov_base = (void *)msg, .iov_len = sizeof(*msg) };
	struct msghdr header = { .msg_iov = &iov, .msg_iovlen = 1 };

	if (nfds) {
		memset(&control, 0, sizeof(control));
		header.msg_control = control.bytes;
		header.msg_controllen = CMSG_SPACE(sizeof(int) * nfds);
		struct cmsghdr *cmsg = CMSG_FIRSTHDR(&header);
		cmsg->cmsg_level = SOL_SOCKET;
		cmsg->cmsg_type = SCM_RIGHTS;
		cmsg->cmsg_len = CMSG_LEN(sizeof(int) * nfds);
		memcpy(CMSG_DATA(cmsg), fds, sizeof(int) * nfds);
	}
	if (sendmsg(link->fd, &header, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof(*msg))
		return 1;
	/* ETOOMANYREFS: the user has too many descriptors in flight, perhaps of other processes. */
	link->stalled = errno == ENOBUFS || errno == ETOOMANYREFS;
	return errno == EAGAIN || link->stalled ? 0 : -1;
}

/*
 * Of a peer that does not read its answers, no question is read: each answer would be kept, with its descriptors. What
 * a peer answers is read always, or two processes that have much to ask would wait for each other.
 */
static bool may_read(const struct soft_link *link)
{
	return link->dialled || !link->queue;
}

/* Until a link is tried again that lacks something else than room in its socket, which would say so. */
enum { STALLED_NS = 5000000 };

static void watch(struct soft_link *link)
{
	struct epoll_event event = { .data.ptr = link };

	event.events = (may_read(link) ? EPOLLIN | EPOLLRDHUP : 0) | (link->queue && !link->stalled ? EPOLLOUT : 0);
	epoll_ctl(soft_proc.epoll_fd, EPOLL_CTL_MOD, link->fd, &event);
	if (link->stalled) {
		soft_shm.stalled = true;
		soft_timer_want(soft_now_ns() + STALLED_NS);
	}
}

void soft_links_retry(void)
{
	if (!soft_shm.stalled)
		return;
	soft_shm.stalled = false;
	for (struct soft_link *link = soft_shm.links; link; link = link->next)
		if (link->stalled) {
			link->stalled = false;
			watch(link);
		}
}

/* What waits to be sent over one link: a process asks once for each queue pair, and a few times for memory. */
enum { MOST_QUEUED = 2 * SOFT_MAX_QP };

static struct soft_packet *enqueue(struct soft_link *link)
{
	struct soft_packet *packet = link->nqueue < MOST_QUEUED ? calloc(1, sizeof(*packet)) : NULL;

	if (!packet)
		return NULL;
	*link->queue_tail = packet;
	link->queue_tail = &packet->next;
	link->nqueue++;
	return packet;
}

void soft_link_send(struct soft_link *link, struct soft_message *msg, const int *fds, unsigned nfds)
{
	struct soft_packet *packet;
	unsigned n = 0;
	int sent = 0;

	while (n < nfds && fds[n] >= 0)
		n++;
	msg->magic = SOFT_LINK_MAGIC;
	if (!link->queue)
		sent = send_now(link, msg, fds, n);
	if (!sent && (packet = enqueue(link))) {
		packet->msg = *msg;
		packet->nfds = n;
		for (unsigned i = 0; i < n; i++)
			packet->fds[i] = fds[i];
		if (link->nqueue == 1)
			watch(link);
		return;
	}
	/* A failed socket reports itself as readable at its end. So does one that a message is missing on. */
	if (!sent)
		shutdown(link->fd, SHUT_RDWR);
	for (unsigned i = 0; i < n; i++)
		close(fds[i]);
}

static bool write_queued(struct soft_link *link)
{
	struct soft_packet *packet;

	while ((packet = link->queue)) {
		int sent = send_now(link, &packet->msg, packet->fds, packet->nfds);
		if (!sent && link->stalled)
			watch(link);
		if (sent <= 0)
			return sent == 0;
		link->queue = packet->next;
		link->nqueue--;
		packet_free(packet);
	}
	link->queue_tail = &link->queue;
	if (link->held)
		soft_attach_grant_held(link);
	watch(link);
	return true;
}

/*
 * A process that dials names its slot itself. The name of the slot's socket belongs to one process: the one that
 * answers there must be the one that dialled, or it could take the lanes of another. (Processes of other PID
 * namespaces have no number here, and are not told apart.) Most programs need the link in that direction, too.
 */
static bool owns_slot(const struct soft_link *link, uint32_t slot)
{
	const struct soft_link *back = slot < SOFT_MAX_SLOT ? soft_link_dial(slot) : NULL;

	return back && back->pid == link->pid;
}

static bool greeted(struct soft_link *link, const struct soft_message *msg, int *fds, struct soft_after *after)
{
	if (link->ready || fds[0] < 0 || fds[1] < 0 || (link->dialled && msg->slot != link->slot))
		return false;
	link->doors = soft_memfd_map(fds[0], sizeof(struct soft_doors), PROT_READ | PROT_WRITE);
	if (link->doors)
		link->published = soft_memfd_map(fds[1], sizeof(struct soft_published), PROT_READ);
	if (!link->published) {
		if (errno != EINVAL)
			soft_attach_none(link, errno, after);
		return false;
	}
	link->slot = msg->slot;
	link->ready = true;
	errno = 0;
	if (link->dialled || (hello(link) && owns_slot(link, msg->slot)))
		return true;
	if (soft_is_shortage(errno))
		soft_attach_none(link, errno, after);
	return false;
}

static void close_all(int *fds)
{
	for (unsigned i = 0; i < SOFT_PACKET_FDS; i++) {
		if (fds[i] >= 0)
			close(fds[i]);
		fds[i] = -1;
	}
}

/* 1: a packet; 2: a kick; 0: none now; -1: end or malformed. *lost: there were no descriptors left to take its own. */
static int receive(struct soft_link *link, struct soft_message *msg, int *fds, bool *lost)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int) * SOFT_PACKET_FDS)];
		struct cmsghdr align;
	} control;
	struct iovec iov = { .iov_base = msg, .iov_len = sizeof(*msg) };
	struct msghdr header = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control.bytes)
	};
	ssize_t n = recvmsg(link->fd, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

	for (unsigned i = 0; i < SOFT_PACKET_FDS; i++)
		fds[i] = -1;
	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -1;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&header); c; c = CMSG_NXTHDR(&header, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		size_t got = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		memcpy(fds, CMSG_DATA(c), (got < SOFT_PACKET_FDS ? got : SOFT_PACKET_FDS) * sizeof(int));
	}
	/* The kernel cuts off what does not fit into the table of descriptors, too; too many are the peer's fault. */
	*lost = (header.msg_flags & MSG_CTRUNC) && fds[SOFT_PACKET_FDS - 1] < 0;
	if (n == 1) {
		close_all(fds);
		return 2;
	}
	if (n != (ssize_t)sizeof(*msg) || msg->magic != SOFT_LINK_MAGIC || (header.msg_flags & MSG_TRUNC) ||
	    ((header.msg_flags & MSG_CTRUNC) && !*lost)) {
		close_all(fds);
		return -1;
	}
	return 1;
}

enum read { READ_ALL, READ_MORE, READ_END };

static enum read read_some(struct soft_link *link, struct soft_after *after)
{
	struct soft_message msg;
	int fds[SOFT_PACKET_FDS], got;
	bool lost;

	for (unsigned n = 0; n < TURN; n++) {
		bool ok;

		if (!may_read(link) || !(got = receive(link, &msg, fds, &lost)))
			return READ_ALL;
		if (got < 0)
			return READ_END;
		if (got == 2)
			continue;
		if (lost)
			close_all(fds);
		if (lost)
			ok = soft_attach_incomplete(link, &msg, after);
		else if (msg.type == SOFT_HELLO)
			ok = greeted(link, &msg, fds, after);
		else
			ok = (link->ready || msg.type == SOFT_REFUSED) && soft_attach_message(link, &msg, fds, after);
		close_all(fds);
		if (!ok)
			return READ_END;
	}
	return READ_MORE;
}

static bool link_alive(const struct soft_link *wanted)
{
	for (const struct soft_link *link = soft_shm.links; link; link = link->next)
		if (link == wanted)
			return true;
	return false;
}

bool soft_link_event(void *what, uint32_t events, struct soft_after *after)
{
	struct soft_link *link = what;

	if (what == &soft_proc.listen_fd || what == &soft_proc.file_fd) {
		accept_some(*(int *)what);
		return true;
	}
	/* An event before this one may have closed the link. */
	if (!link_alive(link))
		return false;
	/* Data before the end: answers sent before the peer exited still count. */
	const enum read read = read_some(link, after);
	const bool ended = read == READ_ALL && (events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP));
	if (read == READ_END || ended || ((events & EPOLLOUT) && !write_queued(link)))
		soft_link_lost(link, after);
	soft_run_doors(); /* for a kick, also one that did not fit */
	return true;
}

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

/* One process has one link to this one, or two while it opens its devices anew; many would take descriptors. */
enum { LINKS_OF_ONE = 8 };

static bool too_many(pid_t pid)
{
	unsigned n = 0;

	for (struct soft_link *link = soft_shm.links; link; link = link->next)
		n += !link->dialled && link->pid == pid;
	return pid && n >= LINKS_OF_ONE;
}

static void accept_all(int listen_fd)
{
	pid_t pid;
	int fd;

	while ((fd = soft_slot_accept(listen_fd, &pid)) >= 0) {
		if (too_many(pid))
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
	soft_attach_forget(link);
	soft_ud_lost(link);
	for (uint32_t i = 0; i < atomic_load(&soft_proc.qp_used); i++) {
		struct soft_qp *qp = atomic_load(&soft_proc.qps[i]);
		if (qp)
			soft_lane_lost(qp, link, after);
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

/* 1: sent; 0: the socket is full; -1: the link failed. */
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
	/* ETOOMANYREFS: too many descriptors in flight; the peer must read some first. */
	return errno == EAGAIN || errno == ENOBUFS || errno == ETOOMANYREFS ? 0 : -1;
}

static void want_write(struct soft_link *link, bool want)
{
	struct epoll_event event = { .events = EPOLLIN | EPOLLRDHUP | (want ? EPOLLOUT : 0), .data.ptr = link };

	epoll_ctl(soft_proc.epoll_fd, EPOLL_CTL_MOD, link->fd, &event);
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
	if (!sent && (packet = calloc(1, sizeof(*packet)))) {
		packet->msg = *msg;
		packet->nfds = n;
		for (unsigned i = 0; i < n; i++)
			packet->fds[i] = fds[i];
		*link->queue_tail = packet;
		link->queue_tail = &packet->next;
		want_write(link, true);
		return;
	}
	/* A failed socket reports itself as readable at its end. */
	for (unsigned i = 0; i < n; i++)
		close(fds[i]);
}

static bool write_queued(struct soft_link *link)
{
	struct soft_packet *packet;

	while ((packet = link->queue)) {
		int sent = send_now(link, &packet->msg, packet->fds, packet->nfds);
		if (sent <= 0)
			return sent == 0;
		link->queue = packet->next;
		packet_free(packet);
	}
	link->queue_tail = &link->queue;
	want_write(link, false);
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

static bool read_all(struct soft_link *link, struct soft_after *after)
{
	struct soft_message msg;
	int fds[SOFT_PACKET_FDS], got;
	bool lost;

	while ((got = receive(link, &msg, fds, &lost)) > 0) {
		bool ok;

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
			return false;
	}
	return got == 0;
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
		accept_all(*(int *)what);
		return true;
	}
	/* An event before this one may have closed the link. */
	if (!link_alive(link))
		return false;
	/* Data before the end: answers sent before the peer exited still count. */
	if (!read_all(link, after) || (events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP)) ||
	    ((events & EPOLLOUT) && !write_queued(link)))
		soft_link_lost(link, after);
	soft_run_doors(); /* for a kick, also one that did not fit */
	return true;
}

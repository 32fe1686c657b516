/*
 * Unix links: sockets (SOCK_SEQPACKET, abstract names carrying user and slot) between processes of one user. They
 * transfer requests and descriptors, never data, and report the end of a peer at once.
 *
 * Any process may bind any abstract name, so both sides check the peer's credentials and reject a process of another
 * user.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "shm/unix_link.h"

static bool same_user(int fd, pid_t *pid)
{
	struct ucred peer;
	socklen_t length = sizeof(peer);

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) || peer.uid != getuid())
		return false;
	*pid = peer.pid;
	return true;
}

static struct soft_link *link_make(int fd, bool dialled, uint32_t slot, pid_t pid)
{
	struct soft_link *link = calloc(1, sizeof(*link));
	struct epoll_event event = { .events = EPOLLIN | EPOLLRDHUP, .data.ptr = link };

	if (!link || epoll_ctl(soft_proc.epoll_fd, EPOLL_CTL_ADD, fd, &event)) {
		free(link);
		close(fd);
		return NULL;
	}
	link->fd = fd;
	link->dialled = dialled;
	link->slot = slot;
	link->pid = pid;
	link->kick_fd = -1;
	link->queue_tail = &link->queue;
	atomic_store(&link->refs, 1);
	pthread_mutex_lock(&soft_shm.links_lock);
	link->next = soft_shm.links;
	soft_shm.links = link;
	pthread_mutex_unlock(&soft_shm.links_lock);
	return link;
}

static void hello(struct soft_link *link)
{
	struct soft_message msg = { .type = SOFT_HELLO, .slot = soft_proc.slot };
	const int fds[] = { soft_proc.doors_fd, soft_proc.keys_ro_fd, soft_proc.kick_fd };

	soft_link_send(link, &msg, fds, 3, -1);
}

struct soft_link *soft_link_dial(uint32_t slot)
{
	struct sockaddr_un address;
	struct soft_link *link;
	pid_t pid = 0;

	for (link = soft_shm.links; link; link = link->next)
		if (link->dialled && link->slot == slot && !link->dead)
			return link;
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return NULL;
	socklen_t length = soft_slot_address(slot, &address);
	if (connect(fd, (struct sockaddr *)&address, length) || !same_user(fd, &pid)) {
		close(fd);
		return NULL;
	}
	link = link_make(fd, true, slot, pid);
	if (link)
		hello(link);
	return link;
}

static void accept_all(void)
{
	for (;;) {
		int fd = accept4(soft_proc.listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (fd < 0)
			return;
		pid_t pid;
		if (same_user(fd, &pid))
			link_make(fd, false, 0, pid);
		else
			close(fd);
	}
}

void soft_link_kick(struct soft_link *link)
{
	uint64_t one = 1;

	if (link->kick_fd >= 0 && write(link->kick_fd, &one, sizeof(one)) < 0) {
		/* EAGAIN: a wake-up is pending already */
	}
}

void soft_link_release(struct soft_link *link)
{
	if (atomic_fetch_sub(&link->refs, 1) != 1)
		return;
	soft_maps_drop(link);
	if (link->doors)
		munmap(link->doors, sizeof(*link->doors));
	if (link->keys)
		munmap((void *)link->keys, sizeof(*link->keys));
	if (link->kick_fd >= 0)
		close(link->kick_fd);
	free(link);
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
	close(link->fd);
	pthread_mutex_unlock(&soft_shm.links_lock);
	while ((packet = link->queue)) {
		link->queue = packet->next;
		if (packet->close_fd >= 0)
			close(packet->close_fd);
		free(packet);
	}
	soft_attach_forget(link);
	soft_ud_lost(link);
	for (uint32_t i = 0; i < atomic_load(&soft_proc.qp_used); i++) {
		struct soft_qp *qp = atomic_load(&soft_proc.qps[i]);
		if (qp)
			soft_lane_lost(qp, link, after);
	}
	soft_link_release(link);
}

void soft_links_close_fds(void)
{
	for (struct soft_link *link = soft_shm.links; link; link = link->next) {
		close(link->fd);
		if (link->kick_fd >= 0)
			close(link->kick_fd);
	}
}

/* ---- events of the peer ----------------------------------------------------------------------------- */

struct soft_event *soft_event_get(struct soft_link *link, uint64_t id, int fd)
{
	struct soft_event *event;

	soft_lock(&link->lock);
	for (event = link->events; event && event->id != id; event = event->next)
		;
	if (event) {
		event->refs++;
		close(fd);
	} else if ((event = malloc(sizeof(*event)))) {
		*event = (struct soft_event){ .id = id, .fd = fd, .refs = 1, .next = link->events };
		link->events = event;
	} else {
		close(fd);
	}
	soft_unlock(&link->lock);
	return event;
}

void soft_event_release(struct soft_link *link, struct soft_event *event)
{
	if (!event)
		return;
	soft_lock(&link->lock);
	if (--event->refs == 0) {
		struct soft_event **at = &link->events;
		while (*at != event)
			at = &(*at)->next;
		*at = event->next;
		close(event->fd);
		free(event);
	}
	soft_unlock(&link->lock);
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

void soft_link_send(struct soft_link *link, struct soft_message *msg, const int *fds, unsigned nfds, int close_fd)
{
	int sent = 0;

	msg->magic = SOFT_LINK_MAGIC;
	if (!link->queue)
		sent = send_now(link, msg, fds, nfds);
	if (!sent) {
		struct soft_packet *packet = calloc(1, sizeof(*packet));
		if (packet) {
			packet->msg = *msg;
			packet->nfds = nfds;
			for (unsigned i = 0; i < nfds; i++)
				packet->fds[i] = fds[i];
			packet->close_fd = close_fd;
			*link->queue_tail = packet;
			link->queue_tail = &packet->next;
			want_write(link, true);
			return;
		}
	}
	/* A failed socket reports itself as readable at its end. */
	if (close_fd >= 0)
		close(close_fd);
}

static bool write_queued(struct soft_link *link)
{
	struct soft_packet *packet;

	while ((packet = link->queue)) {
		int sent = send_now(link, &packet->msg, packet->fds, packet->nfds);
		if (sent <= 0)
			return sent == 0;
		link->queue = packet->next;
		if (packet->close_fd >= 0)
			close(packet->close_fd);
		free(packet);
	}
	link->queue_tail = &link->queue;
	want_write(link, false);
	return true;
}

static bool greeted(struct soft_link *link, const struct soft_message *msg, int *fds)
{
	if (link->ready || fds[0] < 0 || fds[1] < 0 || fds[2] < 0 || (link->dialled && msg->slot != link->slot))
		return false;
	/* Writing to the descriptor that the peer passed as its kick must not block us. */
	int flags = fcntl(fds[2], F_GETFL);
	if (flags < 0 || !(flags & O_NONBLOCK))
		return false;
	link->doors = soft_memfd_map(fds[0], sizeof(struct soft_doors), PROT_READ | PROT_WRITE);
	link->keys = soft_memfd_map(fds[1], sizeof(struct soft_keys), PROT_READ);
	if (!link->doors || !link->keys)
		return false;
	link->slot = msg->slot;
	link->kick_fd = fds[2];
	fds[2] = -1;
	link->ready = true;
	if (!link->dialled)
		hello(link);
	return true;
}

static void close_all(int *fds)
{
	for (unsigned i = 0; i < SOFT_PACKET_FDS; i++)
		if (fds[i] >= 0)
			close(fds[i]);
}

/* 1: a packet; 0: none now; -1: end or malformed. */
static int receive(struct soft_link *link, struct soft_message *msg, int *fds)
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
	if (n != (ssize_t)sizeof(*msg) || msg->magic != SOFT_LINK_MAGIC ||
	    (header.msg_flags & (MSG_TRUNC | MSG_CTRUNC))) {
		close_all(fds);
		return -1;
	}
	return 1;
}

static bool read_all(struct soft_link *link, struct soft_after *after)
{
	struct soft_message msg;
	int fds[SOFT_PACKET_FDS], got;

	while ((got = receive(link, &msg, fds)) > 0) {
		bool ok;

		if (msg.type == SOFT_HELLO)
			ok = greeted(link, &msg, fds);
		else
			ok = link->ready && soft_attach_message(link, &msg, fds, after);
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

	if (what == &soft_proc.listen_fd) {
		accept_all();
		return true;
	}
	/* An event before this one may have closed the link. */
	if (!link_alive(link))
		return false;
	/* Data before the end: answers sent before the peer exited still count. */
	if (!read_all(link, after) || (events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP)) ||
	    ((events & EPOLLOUT) && !write_queued(link)))
		soft_link_lost(link, after);
	return true;
}

/*
 * Messages on their way to other processes of this host. The kernel lets ten of them wait in a socket
 * (net.unix.max_dgram_qlen), so a program that connects to another two hundred times at once fills the queue, and the
 * answers fill its own. What does not fit waits here: a retransmission would come a quarter of a second later, to the same
 * full queue.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cm/outbox.h"

enum { MOST = 1 << 14 }; /* messages: of processes that are stopped, and never read them */

struct message {
	struct message *next;
	size_t size;
	uint8_t bytes[CM_OUTBOX_BYTES];
};

/* All that waits for one name, in order. */
struct box {
	struct box *next;
	struct sockaddr_un name;
	socklen_t length;
	int fd; /* connected to it: writable when the socket of that name has room */
	struct message *first, **last;
};

static struct {
	pthread_mutex_t lock; /* innermost */
	int sender, epoll_fd;
	struct box *boxes;
	unsigned waiting;
} out = { .lock = PTHREAD_MUTEX_INITIALIZER, .sender = -1, .epoll_fd = -1 };

static int make_socket(void)
{
	return socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

static bool is_full(int error)
{
	return error == EAGAIN || error == ENOBUFS || error == ENOMEM;
}

/* ---- boxes; the lock is held ------------------------------------------------------------------------ */

static struct box *find(const struct sockaddr_un *name, socklen_t length)
{
	struct box *box = out.boxes;

	while (box && (box->length != length || memcmp(&box->name, name, length) != 0))
		box = box->next;
	return box;
}

static void discard(struct box *box)
{
	struct box **at = &out.boxes;

	while (*at != box)
		at = &(*at)->next;
	*at = box->next;
	while (box->first) {
		struct message *next = box->first->next;

		free(box->first);
		box->first = next;
		out.waiting--;
	}
	close(box->fd); /* which takes it from the epoll descriptor */
	free(box);
}

static struct box *make(const struct sockaddr_un *name, socklen_t length)
{
	struct box *box = calloc(1, sizeof(*box));
	struct epoll_event event = { .events = EPOLLOUT };

	if (!box)
		return NULL;
	memcpy(&box->name, name, length);
	box->length = length;
	box->last = &box->first;
	box->fd = event.data.fd = make_socket();
	if (box->fd < 0 || connect(box->fd, (const struct sockaddr *)name, length) ||
	    epoll_ctl(out.epoll_fd, EPOLL_CTL_ADD, box->fd, &event)) {
		if (box->fd >= 0)
			close(box->fd);
		free(box);
		return NULL;
	}
	box->next = out.boxes;
	out.boxes = box;
	return box;
}

/* False: lost. */
static bool keep(struct box *box, const void *bytes, size_t size)
{
	struct message *message = out.waiting < MOST && size <= CM_OUTBOX_BYTES ? calloc(1, sizeof(*message)) : NULL;

	if (!message)
		return false;
	message->size = size;
	memcpy(message->bytes, bytes, size);
	*box->last = message;
	box->last = &message->next;
	out.waiting++;
	return true;
}

/* Sends what there is room for. */
static void empty(struct box *box)
{
	while (box->first) {
		struct message *message = box->first;

		if (send(box->fd, message->bytes, message->size, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
			if (errno == EINTR)
				continue;
			if (is_full(errno))
				return;
			break; /* that process has ended */
		}
		box->first = message->next;
		if (!box->first)
			box->last = &box->first;
		free(message);
		out.waiting--;
	}
	discard(box);
}

/* ---- calls ------------------------------------------------------------------------------------------ */

static bool send_or_keep(const struct sockaddr_un *name, socklen_t length, const void *message, size_t size)
{
	struct box *box = out.boxes ? find(name, length) : NULL;
	ssize_t sent;

	if (box) {
		keep(box, message, size);
		return true;
	}
	if (out.sender < 0)
		out.sender = make_socket();
	do
		sent = sendto(out.sender, message, size, MSG_DONTWAIT | MSG_NOSIGNAL, (const struct sockaddr *)name,
			      length);
	while (sent < 0 && errno == EINTR);
	if (sent >= 0)
		return true;
	if (!is_full(errno))
		return errno != ECONNREFUSED && errno != ENOENT;
	box = make(name, length);
	if (box && !keep(box, message, size))
		discard(box);
	return true;
}

bool cm_outbox_send(const struct sockaddr_un *name, socklen_t length, const void *message, size_t size)
{
	pthread_mutex_lock(&out.lock);
	const bool there = send_or_keep(name, length, message, size);
	pthread_mutex_unlock(&out.lock);
	return there;
}

bool cm_outbox_go_on(int fd)
{
	pthread_mutex_lock(&out.lock);
	struct box *box = out.boxes;
	while (box && box->fd != fd)
		box = box->next;
	if (box)
		empty(box);
	pthread_mutex_unlock(&out.lock);
	return box;
}

bool cm_outbox_is_empty(void)
{
	pthread_mutex_lock(&out.lock);
	const bool is_empty = !out.boxes;
	pthread_mutex_unlock(&out.lock);
	return is_empty;
}

void cm_outbox_watch(int epoll_fd)
{
	pthread_mutex_lock(&out.lock);
	out.epoll_fd = epoll_fd;
	pthread_mutex_unlock(&out.lock);
}

void cm_outbox_after_fork(void)
{
	pthread_mutex_init(&out.lock, NULL); /* a thread that does not exist here may hold it */
	while (out.boxes) {
		/* The parent's epoll descriptor has the same entry, which ends with the parent's descriptor. */
		discard(out.boxes);
	}
	if (out.sender >= 0)
		close(out.sender);
	out.sender = out.epoll_fd = -1;
	out.waiting = 0;
}

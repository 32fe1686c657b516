/*
 * What one peer may ring: its doors, and its bell for each completion channel. Both belong to its link.
 *
 * A bell is a pipe: the channel's set watches its end, the peer writes a byte into the other. The owner of the channel
 * never reads, and its set is edge-triggered; a peer that finds its pipe full empties it itself. The peer opens the
 * pipe anew: the flags of that open file are its own, so that no peer can make its write block, and as it can read, too,
 * the end of the other process is no SIGPIPE.
 *
 * Polls read doors without a lock, so door memory stays mapped for ever: when a link ends, zeroes of this process take
 * its place, and a later link gets the address again, with memory that the earlier peer does not know.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shm/unix_link.h"

#ifdef __SANITIZE_THREAD__
/* Its own mmap() counts as a write of the first bytes; but a thread that rings there meanwhile is what this is for. */
#define mmap(...) ((void *)syscall(SYS_mmap, __VA_ARGS__))
#endif

/* ---- doors ------------------------------------------------------------------------------------------ */

int soft_doors_make(struct soft_link *link)
{
	void *map, *at;
	int fd;

	if (!soft_shm.npool && soft_shm.nlinks_doors == SOFT_MAX_DOORS) {
		errno = ENOSPC;
		return -1;
	}
	fd = soft_memfd_create("softdev-doors", sizeof(struct soft_doors), &map);
	if (fd < 0)
		return -1;
	soft_memfd_share(fd, true);
	if (soft_shm.npool) {
		at = soft_shm.pool[soft_shm.npool - 1];
		if (mremap(map, sizeof(struct soft_doors), sizeof(struct soft_doors), MREMAP_MAYMOVE | MREMAP_FIXED,
			   at) == MAP_FAILED) {
			int err = errno;
			munmap(map, sizeof(struct soft_doors));
			close(fd);
			errno = err;
			return -1;
		}
		map = at;
		soft_shm.npool--;
	} else {
		soft_shm.nlinks_doors++;
	}
	link->here = map;
	return fd;
}

void soft_doors_drop(struct soft_link *link)
{
	struct soft_doors *doors = link->here;

	if (!doors)
		return;
	link->here = NULL;
	for (uint32_t i = 0; i < atomic_load(&soft_proc.cq_places); i++) {
		struct soft_cq *cq = soft_cq_pin(i);
		if (!cq)
			continue;
		soft_cq_door_remove(cq, &doors->cq[i]);
		soft_cq_unpin(cq);
	}
	/* If there is no memory for that, the address is not used again. */
	const int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE;
	if (mmap(doors, sizeof(*doors), PROT_READ | PROT_WRITE, how, -1, 0L) != MAP_FAILED)
		soft_shm.pool[soft_shm.npool++] = doors;
}

/* ---- bells ------------------------------------------------------------------------------------------ */

int soft_bell_give(struct soft_link *link, struct soft_cq *cq, struct soft_message *msg, int *fd)
{
	struct soft_chan *chan = cq->cq.channel ? to_chan(cq->cq.channel) : NULL;
	struct epoll_event event = { .events = EPOLLIN | EPOLLET };
	struct soft_bell *bell;
	int pipe[2];

	*fd = -1;
	msg->event_id = chan ? chan->id : SOFT_NO_EVENT;
	msg->bell = 0;
	if (!chan)
		return 0;
	for (bell = link->bells; bell; bell = bell->next)
		if (bell->chan == chan->id) {
			msg->bell = bell->number; /* the peer has it, or will */
			return 0;
		}
	if (pipe2(pipe, O_CLOEXEC | O_NONBLOCK))
		return errno;
	fcntl(pipe[0], F_SETPIPE_SZ, 4096); /* the kernel limits the sum for a user; more is of no use */
	bell = malloc(sizeof(*bell));
	if (!bell || epoll_ctl(chan->chan.fd, EPOLL_CTL_ADD, pipe[0], &event)) {
		int err = bell ? errno : ENOMEM;
		free(bell);
		close(pipe[0]);
		close(pipe[1]);
		return err;
	}
	msg->bell = ++link->nbells;
	*bell = (struct soft_bell){
		.chan = chan->id, .number = msg->bell, .set = chan->chan.fd, .fd = pipe[0], .next = link->bells
	};
	pthread_mutex_lock(&soft_shm.links_lock);
	link->bells = bell;
	pthread_mutex_unlock(&soft_shm.links_lock);
	*fd = pipe[1];
	return 0;
}

bool soft_bell_take(struct soft_link *link, uint64_t chan, uint64_t number)
{
	for (struct soft_bell **at = &link->bells, *bell; (bell = *at); at = &bell->next) {
		if (bell->chan != chan || (number && bell->number != number))
			continue;
		pthread_mutex_lock(&soft_shm.links_lock);
		*at = bell->next;
		pthread_mutex_unlock(&soft_shm.links_lock);
		close(bell->fd);
		free(bell);
		return true;
	}
	return false;
}

void soft_bells_unwatch(struct soft_link *link)
{
	/* A forked child may have the descriptor, too: closing it here would not end the watch. */
	for (struct soft_bell *bell = link->bells; bell; bell = bell->next)
		if (bell->set >= 0)
			epoll_ctl(bell->set, EPOLL_CTL_DEL, bell->fd, NULL);
}

void soft_bells_drop(struct soft_link *link)
{
	struct soft_bell *bell;

	while ((bell = link->bells)) {
		link->bells = bell->next;
		close(bell->fd);
		free(bell);
	}
}

void soft_bells_forget(uint64_t chan)
{
	pthread_mutex_lock(&soft_shm.links_lock);
	for (struct soft_link *link = soft_shm.links; link; link = link->next)
		for (struct soft_bell *bell = link->bells; bell; bell = bell->next)
			if (bell->chan == chan)
				bell->set = -1;
	pthread_mutex_unlock(&soft_shm.links_lock);
}

/* ---- the peer's ------------------------------------------------------------------------------------- */

/* Descriptors for the channels of one peer: on a link, and on all links of its process. */
enum { EVENTS_OF_LINK = 256, EVENTS_OF_ONE = 2 * EVENTS_OF_LINK };

static unsigned events_of(const struct soft_link *peer)
{
	unsigned n = 0;

	for (struct soft_link *link = soft_shm.links; link; link = link->next) {
		if (!soft_same_process(link, peer))
			continue;
		soft_lock(&link->lock);
		for (const struct soft_event *event = link->events; event; event = event->next)
			n++;
		soft_unlock(&link->lock);
	}
	return n;
}

/*
 * An open file of our own for the pipe. Its path says that it is one: any other call could have to wait for the file
 * system that a hostile peer's descriptor is from.
 */
static int reopen(int fd)
{
	char path[48], what[8] = "";

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	ssize_t n = readlink(path, what, sizeof(what) - 1);
	if (n < 0)
		return -1;
	if (strncmp(what, "pipe:[", 6) != 0) {
		errno = EINVAL;
		return -1;
	}
	return open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
}

static void unlink_event(struct soft_link *link, struct soft_event *event)
{
	struct soft_event **at = &link->events;

	while (*at != event)
		at = &(*at)->next;
	*at = event->next;
	close(event->fd);
	free(event);
}

/*
 * Forgets the oldest bell that no lane uses, and tells the peer, who gives it anew if it uses that channel again. There
 * are programs that never destroy their channels (valkey-server, which destroys a connection's CQ before its QP).
 */
static bool forget_idle(struct soft_link *link)
{
	struct soft_message msg = { .type = SOFT_REFUSED, .src_qpn = UINT32_MAX, .dst_qpn = UINT32_MAX };
	struct soft_event *idle = NULL;

	msg.qp_type = IBV_QPT_RC;
	msg.error = EMFILE;
	soft_lock(&link->lock);
	for (struct soft_event *event = link->events; event; event = event->next)
		if (!event->refs)
			idle = event;
	if (idle) {
		msg.event_id = idle->id;
		unlink_event(link, idle);
	}
	soft_unlock(&link->lock);
	if (idle)
		soft_link_send(link, &msg, NULL, 0);
	return idle != NULL;
}

struct soft_event *soft_event_get(struct soft_link *link, uint64_t id, int fd)
{
	struct soft_event *event, *made;
	unsigned n = 0;

	soft_lock(&link->lock);
	for (event = link->events; event && event->id != id; event = event->next)
		n++;
	if (event)
		event->refs++;
	soft_unlock(&link->lock);
	if (event)
		return event;
	/* Without a descriptor: the message that had it was incomplete, and this one was on its way already. */
	errno = EMFILE;
	if (fd < 0 || ((n >= EVENTS_OF_LINK || events_of(link) >= EVENTS_OF_ONE) && !forget_idle(link)))
		return NULL;
	errno = EINVAL;
	int own = reopen(fd);
	if (own < 0)
		return NULL;
	made = malloc(sizeof(*made));
	if (!made) {
		close(own);
		errno = ENOMEM;
		return NULL;
	}
	*made = (struct soft_event){ .id = id, .fd = own, .refs = 1 };
	soft_lock(&link->lock); /* only this thread adds some */
	made->next = link->events;
	link->events = made;
	soft_unlock(&link->lock);
	return made;
}

bool soft_event_known(struct soft_link *link, uint64_t id)
{
	struct soft_event *event;

	soft_lock(&link->lock);
	for (event = link->events; event && event->id != id; event = event->next)
		;
	soft_unlock(&link->lock);
	return event != NULL;
}

void soft_event_release(struct soft_link *link, struct soft_event *event)
{
	if (!event)
		return;
	soft_lock(&link->lock);
	if (--event->refs == 0 && event->gone)
		unlink_event(link, event);
	soft_unlock(&link->lock);
}

void soft_event_gone(struct soft_link *link, uint64_t id)
{
	struct soft_event *event;

	soft_lock(&link->lock);
	for (event = link->events; event && event->id != id; event = event->next)
		;
	if (event && !event->refs)
		unlink_event(link, event);
	else if (event)
		event->gone = true;
	soft_unlock(&link->lock);
}

void soft_events_drop(struct soft_link *link)
{
	while (link->events)
		unlink_event(link, link->events);
}

void soft_door_fire(struct soft_door *door, const _Atomic(uint64_t) *arming, const struct soft_event *event,
		    bool solicited)
{
	uint64_t armed = atomic_load(arming);

	if (!(armed & (solicited ? SOFT_ARM_WANTED : SOFT_ARM_ANY)))
		return;
	if (atomic_load_explicit(&door->fired, memory_order_relaxed) == armed ||
	    atomic_exchange(&door->fired, armed) == armed)
		return;
	if (event && !soft_fault(SOFT_FAULT_EVENT) && write(event->fd, "", 1) < 0 && errno == EAGAIN) {
		char full[4096];
		/* Not without end: the peer may fill it faster. */
		for (int i = 0; i < 16 && read(event->fd, full, sizeof(full)) == (ssize_t)sizeof(full); i++)
			;
		if (write(event->fd, "", 1) < 0) {
			/* EAGAIN: the peer fills it itself; it wakes only itself by that */
		}
	}
}

/*
 * Completion channels. The program's descriptor is an epoll set, readable while an event may be waiting: one queued
 * here (wake_fd), or one that a peer process announced by its bell. Only taking the records shows whether such an
 * announcement produced a completion.
 *
 * Each peer has a bell of its own, a pipe whose other end it holds (shm/bell.c). No descriptor is shared by
 * peers, so none can take the wake-up of another, and none can make a write of this process block. The set is
 * edge-triggered: taking from it is one system call, and what woke it is not read.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "verbs/internal.h"

/* 0, or -1 with errno. */
static int open_fds(struct soft_chan *chan)
{
	struct epoll_event event = { .events = EPOLLIN | EPOLLET };

	chan->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (chan->wake_fd < 0)
		return -1;
	chan->chan.fd = epoll_create1(EPOLL_CLOEXEC);
	if (chan->chan.fd >= 0 && !epoll_ctl(chan->chan.fd, EPOLL_CTL_ADD, chan->wake_fd, &event))
		return 0;
	int err = errno;
	if (chan->chan.fd >= 0)
		close(chan->chan.fd);
	close(chan->wake_fd);
	errno = err;
	return -1;
}

SOFT_EXPORT struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
	if (!soft_is(context))
		return REAL(ibv_create_comp_channel, "IBVERBS_1.0")(context);
	if (!soft_usable(to_ctx(context)))
		return NULL;
	struct soft_chan *chan = calloc(1, sizeof(*chan));
	if (!chan)
		return NULL;
	chan->chan.context = context;
	if (open_fds(chan)) {
		free(chan);
		return NULL;
	}
	static _Atomic(uint64_t) ids;
	chan->id = atomic_fetch_add(&ids, 1) + 1;
	chan->tail = &chan->head;
	atomic_fetch_add(&to_ctx(context)->objects, 1);
	return &chan->chan;
}

SOFT_EXPORT int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
	if (!soft_is(channel->context))
		return REAL(ibv_destroy_comp_channel, "IBVERBS_1.0")(channel);
	struct soft_ctx *ctx = to_ctx(channel->context);

	if (!soft_usable(ctx))
		return EIO;
	if (channel->refcnt)
		return EBUSY;
	if (soft_fabrics.host->chan_gone)
		soft_fabrics.host->chan_gone(to_chan(channel)->id);
	close(channel->fd);
	close(to_chan(channel)->wake_fd);
	atomic_fetch_sub(&ctx->objects, 1);
	free(to_chan(channel));
	return 0;
}

void soft_chan_join(struct soft_cq *cq)
{
	struct soft_chan *chan = to_chan(cq->cq.channel);

	soft_lock(&chan->lock);
	cq->chan_next = chan->members;
	chan->members = cq;
	chan->chan.refcnt++;
	soft_unlock(&chan->lock);
}

enum { TAKEN_AT_ONCE = 16 };

/* Clears the readiness of a channel whose last event was dropped. */
static void quieten(struct soft_chan *chan)
{
	struct epoll_event events[TAKEN_AT_ONCE];
	struct soft_cq *cq;

	if (epoll_wait(chan->chan.fd, events, TAKEN_AT_ONCE, 0) <= 0)
		return;
	/* Peers may have rung for other CQs of the channel: a look too many does no harm. */
	soft_lock(&chan->lock);
	bool more = chan->head != NULL;
	for (cq = chan->members; cq && !more; cq = cq->chan_next)
		more = soft_cq_armed(cq);
	soft_unlock(&chan->lock);
	if (more)
		soft_chan_wake(chan);
}

void soft_chan_leave(struct soft_cq *cq)
{
	struct soft_chan *chan = to_chan(cq->cq.channel);
	struct soft_cq **link;

	/* Only the end of an arming queues an event, under this lock: a thread that still looks at the CQ queues none. */
	soft_lock(&chan->lock);
	atomic_fetch_and(cq->armed, ~(uint64_t)SOFT_ARM_WANTED);
	for (link = &chan->members; *link != cq; link = &(*link)->chan_next)
		;
	*link = cq->chan_next;
	if (cq->events_queued) {
		for (link = &chan->head; *link != cq; link = &(*link)->event_next)
			;
		*link = cq->event_next;
		if (!*link)
			chan->tail = link;
		cq->events_queued = 0;
	}
	const unsigned delivered = cq->events_delivered; /* no more from here on */
	soft_unlock(&chan->lock);
	quieten(chan);

	/* Delivered events must be acknowledged before the CQ is destroyed. */
	pthread_mutex_lock(&cq->cq.mutex);
	while (cq->cq.comp_events_completed != delivered)
		pthread_cond_wait(&cq->cq.cond, &cq->cq.mutex);
	pthread_mutex_unlock(&cq->cq.mutex);
}

void soft_chan_let_go(struct ibv_comp_channel *channel)
{
	struct soft_chan *chan = to_chan(channel);

	soft_lock(&chan->lock);
	chan->chan.refcnt--;
	soft_unlock(&chan->lock);
}

/*
 * Takes one queued event. The fd stays readable while more are queued. It counts as delivered under the lock under which
 * it leaves the queue: the CQ goes only when the caller of ibv_get_cq_event() has acknowledged it.
 */
static struct soft_cq *take_queued(struct soft_chan *chan)
{
	soft_lock(&chan->lock);
	struct soft_cq *cq = chan->head;
	if (cq) {
		chan->head = cq->event_next;
		if (!chan->head)
			chan->tail = &chan->head;
		if (--cq->events_queued) { /* several events of one CQ: back to the end of the queue */
			cq->event_next = NULL;
			*chan->tail = cq;
			chan->tail = &cq->event_next;
		}
		if (chan->head)
			soft_chan_wake(chan);
		cq->events_delivered++;
	}
	soft_unlock(&chan->lock);
	return cq;
}

/*
 * Turns announcements of other processes into queued events, where there is a completion. Which CQ a peer rang for is
 * not known, so all that are armed get a new number before their doors are read (core/door.h).
 */
static void take_announced(struct soft_chan *chan)
{
	struct soft_cq *cq;

	soft_lock(&chan->lock);
	const uint64_t round = ++chan->round;
	soft_unlock(&chan->lock);
	soft_chan_taking = chan;
	do {
		soft_lock(&chan->lock);
		/* A later round of another thread covers this one, too. */
		for (cq = chan->members; cq; cq = cq->chan_next) {
			if (cq->round >= round)
				continue;
			cq->round = round;
			if (!soft_cq_rearm(cq))
				continue;
			atomic_fetch_add(&cq->pins, 1);
			break;
		}
		soft_unlock(&chan->lock);
		if (cq) {
			soft_cq_progress(cq);
			atomic_fetch_sub(&cq->pins, 1);
		}
	} while (cq);
	soft_chan_taking = NULL;
}

/*
 * The program saw a readable descriptor, and no completion was behind it: what came was the beginning of a message, say.
 * There must be an event all the same, as programs rely on it. An event for an empty CQ is legal.
 */
static void spend_arming(struct soft_chan *chan)
{
	struct soft_cq *cq;

	soft_lock(&chan->lock);
	for (cq = chan->members; cq && !soft_cq_armed(cq); cq = cq->chan_next)
		;
	if (cq)
		atomic_fetch_add(&cq->pins, 1);
	soft_unlock(&chan->lock);
	if (!cq)
		return;
	soft_chan_taking = chan;
	soft_cq_spend(cq);
	soft_chan_taking = NULL;
	atomic_fetch_sub(&cq->pins, 1);
}

/* A signal interrupted a wait: whether the kernel would have gone on waiting, had the wait been a read. */
static bool restarts(void)
{
	for (int signal = 1; signal < NSIG; signal++) {
		struct sigaction action;

		if (!sigaction(signal, NULL, &action) && action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN &&
		    !(action.sa_flags & SA_RESTART))
			return false;
	}
	return true;
}

/*
 * Takes what made the set readable. O_NONBLOCK on it decides whether this blocks. -1 with errno. A program hardly
 * changes its mind, so one that waited blocks at once the next time, and another asks for the flag only in vain.
 */
static int wait_readable(struct soft_chan *chan)
{
	struct epoll_event events[TAKEN_AT_ONCE];
	int n = 0, flags = 0;

	if (!atomic_load_explicit(&chan->blocks, memory_order_relaxed))
		n = epoll_wait(chan->chan.fd, events, TAKEN_AT_ONCE, 0);
	if (n)
		return n < 0 ? -1 : 0;
	flags = fcntl(chan->chan.fd, F_GETFL);
	if (flags < 0)
		return -1;
	atomic_store_explicit(&chan->blocks, !(flags & O_NONBLOCK), memory_order_relaxed);
	do
		n = epoll_wait(chan->chan.fd, events, TAKEN_AT_ONCE, flags & O_NONBLOCK ? 0 : -1);
	while (n < 0 && errno == EINTR && restarts());
	if (!n)
		errno = EAGAIN;
	return n > 0 ? 0 : -1;
}

SOFT_EXPORT int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)
{
	if (!soft_is(channel->context))
		return REAL(ibv_get_cq_event, "IBVERBS_1.1")(channel, cq, cq_context);
	struct soft_chan *chan = to_chan(channel);
	struct soft_cq *got;

	if (!soft_usable(to_ctx(channel->context)))
		return -1;
	do {
		if (wait_readable(chan)) /* the caller handles an interrupted or empty wait */
			return -1;
		take_announced(chan);
		got = take_queued(chan);
		/* One that blocks waits for the completion: perftest posts for each event, and its queue has one entry. */
		if (!got && fcntl(channel->fd, F_GETFL) & O_NONBLOCK) {
			spend_arming(chan);
			got = take_queued(chan);
		}
	} while (!got);
	*cq = &got->cq;
	*cq_context = got->cq.cq_context;
	return 0;
}

SOFT_EXPORT void ibv_ack_cq_events(struct ibv_cq *ibcq, unsigned int n)
{
	if (!soft_is(ibcq->context)) {
		REAL(ibv_ack_cq_events, "IBVERBS_1.1")(ibcq, n);
		return;
	}
	pthread_mutex_lock(&ibcq->mutex);
	ibcq->comp_events_completed += n;
	pthread_cond_signal(&ibcq->cond);
	pthread_mutex_unlock(&ibcq->mutex);
}

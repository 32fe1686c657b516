/*
 * Completion channels. The eventfd is readable while an event may be waiting: one queued here, or one that another
 * process announced by writing the eventfd (door.armed has SOFT_ARM_FIRED then). Only taking the records shows whether
 * such an announcement produced a completion.
 */
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include "verbs/internal.h"

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
	chan->chan.fd = eventfd(0, EFD_CLOEXEC);
	if (chan->chan.fd < 0) {
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
	close(channel->fd);
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

/* Clears the readiness of a channel whose last event was dropped. The fd may be a blocking one. */
static void quieten(struct soft_chan *chan)
{
	uint64_t count;
	struct iovec iov = { .iov_base = &count, .iov_len = sizeof(count) };
	struct soft_cq *cq;

	if (preadv2(chan->chan.fd, &iov, 1, -1, RWF_NOWAIT) < 0)
		return; /* nothing to read, or an older kernel: then the next reader finds nothing */
	/* Other CQs of the channel may have announced events meanwhile. */
	soft_lock(&chan->lock);
	bool more = chan->head != NULL;
	for (cq = chan->members; cq && !more; cq = cq->chan_next)
		more = atomic_load(&cq->door->armed) & SOFT_ARM_FIRED;
	soft_unlock(&chan->lock);
	if (more)
		soft_chan_wake(chan);
}

void soft_chan_leave(struct soft_cq *cq)
{
	struct soft_chan *chan = to_chan(cq->cq.channel);
	struct soft_cq **link;

	soft_lock(&chan->lock);
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
	chan->chan.refcnt--;
	soft_unlock(&chan->lock);
	quieten(chan);

	/* Delivered events must be acknowledged before the CQ is destroyed. */
	pthread_mutex_lock(&cq->cq.mutex);
	while (cq->cq.comp_events_completed != cq->events_delivered)
		pthread_cond_wait(&cq->cq.cond, &cq->cq.mutex);
	pthread_mutex_unlock(&cq->cq.mutex);
}

/* Takes one queued event. The fd stays readable while more are queued. */
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
		atomic_fetch_add(&cq->pins, 1);
	}
	soft_unlock(&chan->lock);
	if (cq) {
		pthread_mutex_lock(&cq->cq.mutex);
		cq->events_delivered++;
		pthread_mutex_unlock(&cq->cq.mutex);
		atomic_fetch_sub(&cq->pins, 1);
	}
	return cq;
}

/* Turns announcements of other processes into queued events, where there is a completion. */
static void take_fired(struct soft_chan *chan)
{
	struct soft_cq *cq;

	do {
		soft_lock(&chan->lock);
		for (cq = chan->members; cq; cq = cq->chan_next) {
			if (!(atomic_load(&cq->door->armed) & SOFT_ARM_FIRED))
				continue;
			/* Rearmed before the door is read: a record published from here on is announced again. */
			atomic_fetch_and(&cq->door->armed, ~(uint32_t)SOFT_ARM_FIRED);
			atomic_fetch_add(&cq->pins, 1);
			break;
		}
		soft_unlock(&chan->lock);
		if (cq) {
			soft_cq_progress(cq);
			atomic_fetch_sub(&cq->pins, 1);
		}
	} while (cq);
}

SOFT_EXPORT int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)
{
	if (!soft_is(channel->context))
		return REAL(ibv_get_cq_event, "IBVERBS_1.1")(channel, cq, cq_context);
	struct soft_chan *chan = to_chan(channel);
	struct soft_cq *got;
	uint64_t count;

	if (!soft_usable(to_ctx(channel->context)))
		return -1;
	do {
		/* O_NONBLOCK on the fd decides whether this blocks; the caller handles an interrupted or empty read. */
		if (read(channel->fd, &count, sizeof(count)) != (ssize_t)sizeof(count))
			return -1;
		take_fired(chan);
		got = take_queued(chan);
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

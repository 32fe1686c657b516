/*
 * Event channels and the delivery of events.
 */
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "cm/internal.h"

/* ---- channels --------------------------------------------------------------------------------------- */

struct rdma_event_channel *soft_rdma_create_event_channel(void)
{
	int err = cm_start();
	struct cm_channel *channel = err ? NULL : calloc(1, sizeof(*channel));

	if (!channel) {
		errno = err ? err : ENOMEM;
		return NULL;
	}
	/* As with the kernel's channels, O_NONBLOCK on the descriptor decides whether reading blocks. */
	channel->channel.fd = eventfd(0, EFD_CLOEXEC);
	if (channel->channel.fd < 0) {
		free(channel);
		return NULL;
	}
	channel->tail = &channel->head;
	return &channel->channel;
}

/*
 * The ids of the channel were destroyed before, and their events with them.
 *
 * Programs such as rping have a thread that only waits for events, and destroy the channel once that thread has handled
 * the last one. With the kernel's channels the thread is waiting again by then, and the end of the channel does not
 * reach it. Here destruction was so quick that the thread found the channel gone and ended the program with an error.
 * So the thread gets time to return to its wait.
 */
void soft_rdma_destroy_event_channel(struct rdma_event_channel *channel)
{
	struct cm_channel *ours = to_channel(channel);
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += 100 * 1000 * 1000;
	until.tv_sec += until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;
	cm_lock();
	while (ours->has_reader && !pthread_equal(ours->reader, pthread_self()) && !ours->readers)
		if (pthread_cond_clockwait(&soft_cm.acknowledged, &soft_cm.lock, CLOCK_MONOTONIC, &until))
			break;
	const bool in_use = ours->readers > 0;
	cm_unlock();
	if (in_use)
		return; /* as the kernel's file, it lives until the waiting threads have left */
	close(channel->fd);
	free(ours);
}

/* Both change under the lock only: the descriptor is readable exactly while events are queued. */
static void mark_filled(const struct cm_channel *channel)
{
	const uint64_t one = 1;
	ssize_t n;

	do
		n = write(channel->channel.fd, &one, sizeof(one));
	while (n < 0 && errno == EINTR);
}

static void mark_empty(const struct cm_channel *channel)
{
	uint64_t count;
	ssize_t n;

	do
		n = read(channel->channel.fd, &count, sizeof(count));
	while (n < 0 && errno == EINTR);
}

/* ---- events ----------------------------------------------------------------------------------------- */

struct cm_event *cm_event_make(struct cm_id *id, enum rdma_cm_event_type type, int status)
{
	struct cm_event *event = calloc(1, sizeof(*event));

	if (!event)
		return NULL;
	event->owner = id;
	event->event.id = &id->id;
	event->event.event = type;
	event->event.status = status;
	return event;
}

void cm_event_data(struct cm_event *event, const uint8_t *data, size_t length)
{
	memcpy(event->private_data, data, length);
	/* Same offset in both members of the union. */
	event->event.param.conn.private_data = length ? event->private_data : NULL;
	event->event.param.conn.private_data_len = (uint8_t)length;
}

void cm_event_push(struct cm_event *event)
{
	struct cm_channel *channel = to_channel(event->owner->id.channel);

	if (!channel->head)
		mark_filled(channel);
	event->next = NULL;
	*channel->tail = event;
	channel->tail = &event->next;
}

/* Takes the events of an id off its channel: those that it waits for and those about it. */
static struct cm_event *unqueue(struct cm_id *id)
{
	struct cm_channel *channel = to_channel(id->id.channel);
	struct cm_event *taken = NULL, **taken_tail = &taken;
	const bool filled = channel->head;
	struct cm_event **at = &channel->head;

	while (*at) {
		struct cm_event *event = *at;

		if (event->owner == id || event->event.id == &id->id) {
			*at = event->next;
			event->next = NULL;
			*taken_tail = event;
			taken_tail = &event->next;
		} else {
			at = &event->next;
		}
	}
	channel->tail = at;
	if (filled && !channel->head)
		mark_empty(channel);
	return taken;
}

/* The id that it is about is nobody's yet, and shares the listener's channel. */
static bool asks_for_child(const struct cm_event *event)
{
	return event->event.event == RDMA_CM_EVENT_CONNECT_REQUEST && event->event.id != &event->owner->id;
}

void cm_events_drop(struct cm_id *id)
{
	struct cm_event *event = unqueue(id), *next;

	for (; event; event = next) {
		next = event->next;
		if (asks_for_child(event)) {
			cm_events_drop(to_id(event->event.id)); /* what has become of the request meanwhile */
			cm_id_free(to_id(event->event.id));
		}
		free(event);
	}
}

void cm_events_move(struct cm_id *id, struct cm_channel *to)
{
	struct cm_event *event = unqueue(id), *next;

	id->id.channel = &to->channel;
	for (; event; event = next) {
		next = event->next;
		struct cm_id *const child = asks_for_child(event) ? to_id(event->event.id) : NULL;
		cm_event_push(event);
		if (child && child->id.channel != &to->channel)
			cm_events_move(child, to); /* behind it */
	}
}

/* ---- functions that the program calls --------------------------------------------------------------- */

static struct cm_event *take(struct cm_channel *channel)
{
	struct cm_event *event;

	cm_lock();
	event = channel->head;
	if (event) {
		channel->head = event->next;
		if (!channel->head) {
			channel->tail = &channel->head;
			mark_empty(channel);
		}
		event->owner->delivered++;
		if (event->event.event == RDMA_CM_EVENT_DISCONNECTED)
			event->owner->ended = true;
	}
	cm_unlock();
	return event;
}

/* Steps that librdmacm performs for the program before it delivers the event. */
static void digest(struct cm_event *event)
{
	struct cm_id *id = event->owner;
	int err;

	switch (event->event.event) {
	case RDMA_CM_EVENT_CONNECT_RESPONSE:
		if (!cm_qp_of(id))
			break;
		err = cm_answer_response(id);
		event->event.event = err ? RDMA_CM_EVENT_CONNECT_ERROR : RDMA_CM_EVENT_ESTABLISHED;
		event->event.status = -err;
		break;
	case RDMA_CM_EVENT_REJECTED:
		cm_qp_error(id);
		break;
	default:
		break;
	}
}

/* NULL with errno: no event, and the channel is non-blocking or waiting failed. */
static struct cm_event *await_event(struct cm_channel *channel)
{
	struct cm_event *taken;

	while (!(taken = take(channel))) {
		struct pollfd readable = { .fd = channel->channel.fd, .events = POLLIN };
		const int flags = fcntl(readable.fd, F_GETFL);

		if (flags >= 0 && flags & O_NONBLOCK)
			errno = EAGAIN;
		if (flags < 0 || flags & O_NONBLOCK || poll(&readable, 1, -1) < 0)
			return NULL;
	}
	return taken;
}

int soft_rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event)
{
	struct cm_channel *ours = to_channel(channel);

	if (!event)
		return cm_fail(EINVAL);
	cm_lock();
	ours->reader = pthread_self();
	ours->has_reader = true;
	ours->readers++;
	pthread_cond_broadcast(&soft_cm.acknowledged);
	cm_unlock();
	struct cm_event *taken = await_event(ours);

	cm_lock();
	ours->readers--;
	cm_unlock();
	if (!taken)
		return -1;
	digest(taken);
	*event = &taken->event;
	return 0;
}

int soft_rdma_ack_cm_event(struct rdma_cm_event *event)
{
	if (!event)
		return cm_fail(EINVAL);
	struct cm_event *ours = soft_container_of(event, struct cm_event, event);

	cm_lock();
	ours->owner->acknowledged++;
	pthread_cond_broadcast(&soft_cm.acknowledged);
	cm_unlock();
	free(ours);
	return 0;
}

int cm_complete(struct cm_id *id)
{
	if (!id->sync)
		return 0;
	if (id->id.event) {
		soft_rdma_ack_cm_event(id->id.event);
		id->id.event = NULL;
	}
	if (soft_rdma_get_cm_event(id->id.channel, &id->id.event))
		return -1;
	const int status = id->id.event->status;
	if (!status)
		return 0;
	return cm_fail(id->id.event->event == RDMA_CM_EVENT_REJECTED ? ECONNREFUSED : status < 0 ? -status : EIO);
}

const char *soft_rdma_event_str(enum rdma_cm_event_type event)
{
	static const char *const names[] = {
		[RDMA_CM_EVENT_ADDR_RESOLVED] = "RDMA_CM_EVENT_ADDR_RESOLVED",
		[RDMA_CM_EVENT_ADDR_ERROR] = "RDMA_CM_EVENT_ADDR_ERROR",
		[RDMA_CM_EVENT_ROUTE_RESOLVED] = "RDMA_CM_EVENT_ROUTE_RESOLVED",
		[RDMA_CM_EVENT_ROUTE_ERROR] = "RDMA_CM_EVENT_ROUTE_ERROR",
		[RDMA_CM_EVENT_CONNECT_REQUEST] = "RDMA_CM_EVENT_CONNECT_REQUEST",
		[RDMA_CM_EVENT_CONNECT_RESPONSE] = "RDMA_CM_EVENT_CONNECT_RESPONSE",
		[RDMA_CM_EVENT_CONNECT_ERROR] = "RDMA_CM_EVENT_CONNECT_ERROR",
		[RDMA_CM_EVENT_UNREACHABLE] = "RDMA_CM_EVENT_UNREACHABLE",
		[RDMA_CM_EVENT_REJECTED] = "RDMA_CM_EVENT_REJECTED",
		[RDMA_CM_EVENT_ESTABLISHED] = "RDMA_CM_EVENT_ESTABLISHED",
		[RDMA_CM_EVENT_DISCONNECTED] = "RDMA_CM_EVENT_DISCONNECTED",
		[RDMA_CM_EVENT_DEVICE_REMOVAL] = "RDMA_CM_EVENT_DEVICE_REMOVAL",
		[RDMA_CM_EVENT_MULTICAST_JOIN] = "RDMA_CM_EVENT_MULTICAST_JOIN",
		[RDMA_CM_EVENT_MULTICAST_ERROR] = "RDMA_CM_EVENT_MULTICAST_ERROR",
		[RDMA_CM_EVENT_ADDR_CHANGE] = "RDMA_CM_EVENT_ADDR_CHANGE",
		[RDMA_CM_EVENT_TIMEWAIT_EXIT] = "RDMA_CM_EVENT_TIMEWAIT_EXIT",
	};

	return (unsigned)event < sizeof(names) / sizeof(*names) ? names[event] : "UNKNOWN EVENT";
}

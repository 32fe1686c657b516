/*
 * Asynchronous events: the queue behind ibv_get_async_event(), acknowledgement, and waiting at destruction.
 */
#include "core/core.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum affiliation { OF_PORT, OF_QP, OF_CQ, OF_SRQ };

struct soft_event {
	struct soft_event *next;
	struct ibv_async_event event;
};

/* Number of events of an object that the application got; kept from the first one until the object is destroyed. */
struct soft_async_count {
	struct soft_async_count *next;
	const void *object;
	enum affiliation of;
	uint32_t got;
};

/*
 * The context's async_fd is an eventfd whose count is nonzero exactly while the queue is not empty; both change under
 * the lock only.
 */
struct soft_async {
	pthread_mutex_t lock;
	struct soft_event *head, **tail;
	struct soft_async_count *counts;
};

int soft_async_init(struct soft_ctx *ctx)
{
	struct soft_async *async = calloc(1, sizeof *async);
	int fd = async ? eventfd(0, EFD_CLOEXEC) : -1;

	if (fd < 0) {
		free(async);
		return async ? errno : ENOMEM;
	}
	pthread_mutex_init(&async->lock, NULL);
	async->tail = &async->head;
	ctx->async = async;
	ctx->v.context.async_fd = fd;
	return 0;
}

void soft_async_fini(struct soft_ctx *ctx)
{
	struct soft_async *async = ctx->async;

	while (async->head) {
		struct soft_event *event = async->head;

		async->head = event->next;
		free(event);
	}
	while (async->counts) {
		struct soft_async_count *count = async->counts;

		async->counts = count->next;
		free(count);
	}
	pthread_mutex_destroy(&async->lock);
	close(ctx->v.context.async_fd);
	free(async);
}

static enum affiliation affiliation(enum ibv_event_type type)
{
	switch (type) {
	case IBV_EVENT_CQ_ERR:
		return OF_CQ;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_PATH_MIG:
	case IBV_EVENT_PATH_MIG_ERR:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		return OF_QP;
	case IBV_EVENT_SRQ_ERR:
	case IBV_EVENT_SRQ_LIMIT_REACHED:
		return OF_SRQ;
	default:
		return OF_PORT;
	}
}

/* The object that an event belongs to; NULL for events of a port or of the whole device. */
static void *object_of(const struct ibv_async_event *event)
{
	switch (affiliation(event->event_type)) {
	case OF_QP:
		return event->element.qp;
	case OF_CQ:
		return event->element.cq;
	case OF_SRQ:
		return event->element.srq;
	default:
		return NULL;
	}
}

struct ibv_context *soft_event_context(const struct ibv_async_event *event)
{
	switch (affiliation(event->event_type)) {
	case OF_QP:
		return event->element.qp->context;
	case OF_CQ:
		return event->element.cq->context;
	case OF_SRQ:
		return event->element.srq->context;
	default:
		return NULL;
	}
}

static void mark_filled(const struct soft_ctx *ctx)
{
	ssize_t n;

	do
		n = write(ctx->v.context.async_fd, &(uint64_t){ 1 }, sizeof(uint64_t));
	while (n < 0 && errno == EINTR);
}

/* Never blocks: the caller holds the lock and has just emptied a queue whose eventfd was set. */
static void mark_empty(const struct soft_ctx *ctx)
{
	uint64_t count;
	ssize_t n;

	do
		n = read(ctx->v.context.async_fd, &count, sizeof count);
	while (n < 0 && errno == EINTR);
}

/* Without memory the event is lost; the program can still query the state that it reports. */
void soft_async_push(struct soft_ctx *ctx, enum ibv_event_type type, void *element)
{
	struct soft_async *async = ctx->async;
	struct soft_event *queued = calloc(1, sizeof *queued);

	if (!queued)
		return;
	queued->event.event_type = type;
	switch (affiliation(type)) {
	case OF_QP:
		queued->event.element.qp = element;
		break;
	case OF_CQ:
		queued->event.element.cq = element;
		break;
	case OF_SRQ:
		queued->event.element.srq = element;
		break;
	case OF_PORT:
		queued->event.element.port_num = (int)(intptr_t)element;
		break;
	}
	pthread_mutex_lock(&async->lock);
	if (!async->head)
		mark_filled(ctx);
	*async->tail = queued;
	async->tail = &queued->next;
	pthread_mutex_unlock(&async->lock);
}

/* Counts one more event that the application got for the object; false when there is no memory for the count. */
static bool count_got(struct soft_async *async, const struct ibv_async_event *event)
{
	const void *object = object_of(event);
	struct soft_async_count *known = async->counts;

	if (!object)
		return true;
	while (known && known->object != object)
		known = known->next;
	if (!known) {
		known = malloc(sizeof *known);
		if (!known)
			return false;
		*known = (struct soft_async_count){ .next = async->counts,
						    .object = object,
						    .of = affiliation(event->event_type) };
		async->counts = known;
	}
	known->got++;
	return true;
}

/* 0, EAGAIN when the queue is empty, or ENOMEM (the event stays queued). */
static int take(struct soft_ctx *ctx, struct ibv_async_event *event)
{
	struct soft_async *async = ctx->async;
	struct soft_event *first;
	int error = 0;

	pthread_mutex_lock(&async->lock);
	first = async->head;
	if (!first) {
		error = EAGAIN;
	} else if (!count_got(async, &first->event)) {
		error = ENOMEM;
	} else {
		async->head = first->next;
		if (!async->head) {
			async->tail = &async->head;
			mark_empty(ctx);
		}
	}
	pthread_mutex_unlock(&async->lock);
	if (!error) {
		*event = first->event;
		free(first);
	}
	return error;
}

int soft_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
	struct soft_ctx *ctx = to_ctx(context);
	int error;

	while ((error = take(ctx, event)) == EAGAIN) {
		struct pollfd readable = { .fd = context->async_fd, .events = POLLIN };

		/* O_NONBLOCK on the descriptor, set by the application, decides whether to wait. */
		if (fcntl(context->async_fd, F_GETFL) & O_NONBLOCK)
			break;
		if (poll(&readable, 1, -1) < 0) {
			error = errno;
			break;
		}
	}
	if (!error)
		return 0;
	errno = error;
	return -1;
}

static void acknowledge(pthread_mutex_t *mutex, pthread_cond_t *cond, uint32_t *completed)
{
	pthread_mutex_lock(mutex);
	++*completed;
	pthread_cond_broadcast(cond);
	pthread_mutex_unlock(mutex);
}

void soft_ack_async_event(struct ibv_async_event *event)
{
	switch (affiliation(event->event_type)) {
	case OF_QP: {
		struct ibv_qp *qp = event->element.qp;

		acknowledge(&qp->mutex, &qp->cond, &qp->events_completed);
		break;
	}
	case OF_CQ: {
		struct ibv_cq *cq = event->element.cq;

		acknowledge(&cq->mutex, &cq->cond, &cq->async_events_completed);
		break;
	}
	case OF_SRQ: {
		struct ibv_srq *srq = event->element.srq;

		acknowledge(&srq->mutex, &srq->cond, &srq->events_completed);
		break;
	}
	case OF_PORT:
		break;
	}
}

/* Drops queued events of the object and returns its count; NULL when the application got none of its events. */
static struct soft_async_count *drop(struct soft_ctx *ctx, const void *object)
{
	struct soft_async *async = ctx->async;
	struct soft_async_count *count = NULL;

	pthread_mutex_lock(&async->lock);
	bool filled = async->head;
	struct soft_event **link = &async->head;
	while (*link) {
		struct soft_event *event = *link;

		if (object_of(&event->event) == object) {
			*link = event->next;
			free(event);
		} else {
			link = &event->next;
		}
	}
	async->tail = link;
	if (filled && !async->head)
		mark_empty(ctx);
	for (struct soft_async_count **known = &async->counts; *known; known = &(*known)->next) {
		if ((*known)->object == object) {
			count = *known;
			*known = count->next;
			break;
		}
	}
	pthread_mutex_unlock(&async->lock);
	return count;
}

static void wait_acknowledged(pthread_mutex_t *mutex, pthread_cond_t *cond, uint32_t *completed, uint32_t got)
{
	pthread_mutex_lock(mutex);
	while (*completed != got)
		pthread_cond_wait(cond, mutex);
	*completed = 0;
	pthread_mutex_unlock(mutex);
}

void soft_async_forget(struct soft_ctx *ctx, void *element)
{
	struct soft_async_count *count = drop(ctx, element);

	if (!count)
		return;
	switch (count->of) {
	case OF_QP: {
		struct ibv_qp *qp = element;

		wait_acknowledged(&qp->mutex, &qp->cond, &qp->events_completed, count->got);
		break;
	}
	case OF_CQ: {
		struct ibv_cq *cq = element;

		wait_acknowledged(&cq->mutex, &cq->cond, &cq->async_events_completed, count->got);
		break;
	}
	case OF_SRQ: {
		struct ibv_srq *srq = element;

		wait_acknowledged(&srq->mutex, &srq->cond, &srq->events_completed, count->got);
		break;
	}
	case OF_PORT:
		break;
	}
	free(count);
}

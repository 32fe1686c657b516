/*
 * Completion queues: creation, resizing and destruction.
 */
#include <stdlib.h>
#include <string.h>

#include "verbs/internal.h"

/* Some more entries than requested, as NICs do: programs rely on it (perftest with a depth of 1). */
static uint32_t entries_for(uint32_t cqe)
{
	const uint32_t least = 64;

	cqe += soft_personality()->cqe_less_one;
	return cqe <= least ? least : UINT32_C(1) << (32 - __builtin_clz(cqe - 1));
}

/* What the program is told that it has got. The ring may be larger, as a program must not count on more. */
static int shown(uint32_t cqe, uint32_t size)
{
	const struct soft_personality *are = soft_personality();
	uint32_t told = 1;

	while (told < are->min_cqe || told < cqe + are->cqe_less_one)
		told *= 2;
	told = told < size ? told : size;
	told = told < are->max_cqe ? told : are->max_cqe;
	return (int)(are->cqe_less_one && told > cqe ? told - 1 : told);
}

static void cq_free(struct soft_cq *cq)
{
	free(cq->ring);
	free(cq->slots);
	free(cq->doors);
	free(cq->own);
	free(cq->batch);
	free(cq);
}

/* They are taken in turns, and more of them when none is free. SOFT_MAX_CQ: none is left. soft_proc.lock held. */
static uint32_t free_place(void)
{
	uint32_t places = atomic_load(&soft_proc.cq_places);

	for (uint32_t n = 0; n < places; n++) {
		const uint32_t i = soft_proc.cq_cursor = (soft_proc.cq_cursor + 1) % places;
		if (!atomic_load(&soft_proc.cqs[i]))
			return i;
	}
	if (places == SOFT_MAX_CQ)
		return SOFT_MAX_CQ;
	soft_proc.cq_cursor = places;
	places = places ? 2 * places : SOFT_FIRST_CQS;
	atomic_store(&soft_proc.cq_places, places < SOFT_MAX_CQ ? places : SOFT_MAX_CQ);
	return soft_proc.cq_cursor;
}

struct soft_cq *soft_cq_create(struct soft_ctx *ctx, uint32_t cqe, void *cq_context, struct ibv_comp_channel *channel,
			       uint32_t comp_vector, uint64_t wc_flags, uint32_t flags)
{
	struct soft_cq *cq;

	if (!cqe || cqe > soft_personality()->max_cqe || comp_vector >= (uint32_t)ctx->v.context.num_comp_vectors ||
	    (channel && channel->context != &ctx->v.context)) {
		errno = EINVAL;
		return NULL;
	}
	cq = aligned_alloc(SOFT_CACHE_LINE, sizeof(*cq));
	if (!cq)
		return NULL;
	memset(cq, 0, sizeof(*cq));
	uint32_t size = entries_for(cqe);
	cq->mask = size - 1;
	cq->ring = malloc(size * sizeof(*cq->ring));
	cq->slots = calloc(SOFT_DOOR_BITS, sizeof(*cq->slots));
	cq->doors = calloc(SOFT_MAX_DOORS, sizeof(*cq->doors));
	cq->own = aligned_alloc(SOFT_CACHE_LINE, sizeof(*cq->own));
	if (cq->own)
		memset(cq->own, 0, sizeof(*cq->own));
	cq->cq.context = &ctx->v.context;
	cq->cq.channel = channel;
	cq->cq.cq_context = cq_context;
	cq->cq.cqe = shown(cqe, size);
	cq->wc_flags = wc_flags;
	cq->timestamps =
		wc_flags & (IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK);
	cq->ignore_overrun = flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
	cq->single_threaded = flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED;
	pthread_mutex_init(&cq->cq.mutex, NULL);
	pthread_cond_init(&cq->cq.cond, NULL);

	pthread_mutex_lock(&soft_proc.lock);
	const bool whole = cq->ring && cq->slots && cq->doors && cq->own;
	const uint32_t i = whole ? free_place() : SOFT_MAX_CQ;
	if (i < SOFT_MAX_CQ) {
		cq->index = cq->cq.handle = i;
		cq->batch = soft_batch_new(i);
		cq->armed = &soft_proc.published->cq[i].armed;
		atomic_fetch_and(cq->armed, ~(uint64_t)SOFT_ARM_WANTED); /* the number goes on */
		atomic_store(&soft_proc.cqs[i], cq);
	}
	pthread_mutex_unlock(&soft_proc.lock);
	if (i == SOFT_MAX_CQ) {
		cq_free(cq);
		errno = ENOMEM;
		return NULL;
	}
	if (channel)
		soft_chan_join(cq);
	atomic_fetch_add(&ctx->objects, 1);
	return cq;
}

SOFT_EXPORT struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context,
					 struct ibv_comp_channel *channel, int comp_vector)
{
	if (!soft_is(context))
		return REAL(ibv_create_cq, "IBVERBS_1.1")(context, cqe, cq_context, channel, comp_vector);
	if (!soft_usable(to_ctx(context)))
		return NULL;
	if (cqe < 0) {
		errno = EINVAL;
		return NULL;
	}
	struct soft_cq *cq =
		soft_cq_create(to_ctx(context), (uint32_t)cqe, cq_context, channel, (uint32_t)comp_vector, 0, 0);
	return cq ? &cq->cq : NULL;
}

SOFT_EXPORT int ibv_resize_cq(struct ibv_cq *ibcq, int cqe)
{
	if (!soft_is(ibcq->context))
		return REAL(ibv_resize_cq, "IBVERBS_1.1")(ibcq, cqe);
	struct soft_cq *cq = to_cq(ibcq);

	if (!soft_usable(to_ctx(ibcq->context)))
		return EIO;
	if (cqe <= 0 || (uint32_t)cqe > soft_personality()->max_cqe)
		return EINVAL;
	uint32_t size = entries_for((uint32_t)cqe);
	struct soft_cqe *ring = malloc(size * sizeof(*ring)), *old = ring;
	int err = 0;

	if (!ring)
		return ENOMEM;
	soft_lock(&cq->lock);
	uint32_t head = atomic_load_explicit(&cq->head, memory_order_relaxed);
	uint32_t n = atomic_load_explicit(&cq->tail, memory_order_relaxed) - head;
	if (n > (uint32_t)cqe) { /* also where the ring would hold them */
		err = EINVAL;
	} else {
		for (uint32_t i = 0; i < n; i++)
			ring[(head + i) & (size - 1)] = cq->ring[(head + i) & cq->mask];
		old = cq->ring;
		cq->ring = ring;
		cq->mask = size - 1;
		ibcq->cqe = shown((uint32_t)cqe, size);
	}
	soft_unlock(&cq->lock);
	free(old);
	return err;
}

SOFT_EXPORT int ibv_destroy_cq(struct ibv_cq *ibcq)
{
	if (!soft_is(ibcq->context))
		return REAL(ibv_destroy_cq, "IBVERBS_1.1")(ibcq);
	struct soft_cq *cq = to_cq(ibcq);
	struct soft_ctx *ctx = to_ctx(ibcq->context);

	if (!soft_usable(ctx))
		return EIO;
	if (atomic_load(&cq->users))
		return EBUSY;
	if (ibcq->channel)
		soft_chan_leave(cq);
	soft_async_forget(ctx, ibcq);
	soft_cq_unpublish(cq);
	/* The channel may go now: no thread is with this CQ any more. */
	if (ibcq->channel)
		soft_chan_let_go(ibcq->channel);
	pthread_cond_destroy(&ibcq->cond);
	pthread_mutex_destroy(&ibcq->mutex);
	atomic_fetch_sub(&ctx->objects, 1);
	cq_free(cq);
	return 0;
}

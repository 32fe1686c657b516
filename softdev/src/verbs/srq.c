/*
 * Shared receive queues: creation, changes, queries and destruction.
 */
#include <stdlib.h>
#include <string.h>

#include "verbs/internal.h"

static struct soft_srq *srq_create(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
	static atomic_uint numbers;
	const struct soft_personality *most = soft_personality();
	struct soft_srq *srq;

	if (!most->max_srq) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	if (attr->attr.max_wr == 0 || attr->attr.max_wr > most->max_srq_wr || attr->attr.max_sge > most->max_srq_sge) {
		errno = EINVAL;
		return NULL;
	}
	srq = calloc(1, sizeof(*srq));
	if (!srq || soft_rq_init(&srq->rq, attr->attr.max_wr, attr->attr.max_sge ? attr->attr.max_sge : 1)) {
		free(srq);
		errno = ENOMEM;
		return NULL;
	}
	srq->number = atomic_fetch_add(&numbers, 1) + 1;
	srq->srq.context = pd->context;
	srq->srq.srq_context = attr->srq_context;
	srq->srq.pd = pd;
	srq->srq.handle = srq->number;
	pthread_mutex_init(&srq->srq.mutex, NULL);
	pthread_cond_init(&srq->srq.cond, NULL);
	attr->attr.max_sge = srq->rq.max_sge;
	atomic_fetch_add(&to_pd(pd)->refs, 1);
	return srq;
}

SOFT_EXPORT struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
	if (!soft_is(pd->context))
		return REAL(ibv_create_srq, "IBVERBS_1.1")(pd, attr);
	if (!soft_usable(to_ctx(pd->context)))
		return NULL;
	struct soft_srq *srq = srq_create(pd, attr);
	return srq ? &srq->srq : NULL;
}

SOFT_EXPORT int ibv_modify_srq(struct ibv_srq *ibsrq, struct ibv_srq_attr *attr, int mask)
{
	if (!soft_is(ibsrq->context))
		return REAL(ibv_modify_srq, "IBVERBS_1.1")(ibsrq, attr, mask);
	struct soft_srq *srq = to_srq(ibsrq);
	struct soft_rq wider = srq->rq;
	int err = 0;

	if (!soft_usable(to_ctx(ibsrq->context)))
		return EIO;
	if ((mask & ~(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT)) ||
	    ((mask & IBV_SRQ_MAX_WR) && (!attr->max_wr || attr->max_wr > soft_personality()->max_srq_wr)))
		return EINVAL;
	char *unused = NULL;
	if (mask & IBV_SRQ_MAX_WR) {
		if (soft_rq_init(&wider, attr->max_wr, srq->rq.max_sge))
			return ENOMEM;
		unused = wider.wqes;
	}
	bool below = false;
	soft_lock(&srq->lock);
	uint32_t posted = srq->rq.tail - srq->rq.head;
	uint32_t limit = mask & IBV_SRQ_MAX_WR ? attr->max_wr : srq->rq.limit;
	if (posted > limit || ((mask & IBV_SRQ_LIMIT) && attr->srq_limit > limit)) {
		err = EINVAL;
	} else if (mask & IBV_SRQ_MAX_WR) {
		for (uint32_t i = 0; i < posted; i++)
			memcpy(soft_rq_at(&wider, i), soft_rq_at(&srq->rq, srq->rq.head + i), wider.stride);
		wider.tail = posted;
		unused = srq->rq.wqes;
		srq->rq = wider;
	}
	if (!err && (mask & IBV_SRQ_LIMIT)) {
		below = attr->srq_limit && posted < attr->srq_limit;
		srq->srq_limit = below ? 0 : attr->srq_limit;
	}
	soft_unlock(&srq->lock);
	free(unused);
	if (below)
		soft_async_push(to_ctx(ibsrq->context), IBV_EVENT_SRQ_LIMIT_REACHED, ibsrq);
	return err;
}

SOFT_EXPORT int ibv_query_srq(struct ibv_srq *ibsrq, struct ibv_srq_attr *attr)
{
	if (!soft_is(ibsrq->context))
		return REAL(ibv_query_srq, "IBVERBS_1.1")(ibsrq, attr);
	struct soft_srq *srq = to_srq(ibsrq);

	if (!soft_usable(to_ctx(ibsrq->context)))
		return EIO;
	soft_lock(&srq->lock);
	attr->max_wr = srq->rq.limit;
	attr->max_sge = srq->rq.max_sge;
	attr->srq_limit = srq->srq_limit;
	soft_unlock(&srq->lock);
	return 0;
}

SOFT_EXPORT int ibv_destroy_srq(struct ibv_srq *ibsrq)
{
	if (!soft_is(ibsrq->context))
		return REAL(ibv_destroy_srq, "IBVERBS_1.1")(ibsrq);
	struct soft_srq *srq = to_srq(ibsrq);

	if (!soft_usable(to_ctx(ibsrq->context)))
		return EIO;
	if (atomic_load(&srq->users))
		return EBUSY;
	soft_async_forget(to_ctx(ibsrq->context), ibsrq);
	atomic_fetch_sub(&to_pd(ibsrq->pd)->refs, 1);
	pthread_cond_destroy(&ibsrq->cond);
	pthread_mutex_destroy(&ibsrq->mutex);
	soft_rq_free(&srq->rq);
	free(srq);
	return 0;
}

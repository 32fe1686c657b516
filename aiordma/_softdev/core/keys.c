/*
 * The table of keys: the memory that each opens, and the access it allows.
 */
#include "core/internal.h"

struct soft_pd *soft_pd_root(struct soft_pd *pd)
{
	return pd->parent ? pd->parent : pd;
}

int soft_key_reserve(uint32_t *index)
{
	/* A reserved entry has a region that no key matches. */
	static struct soft_region reserved;
	int err = ENOMEM;

	pthread_mutex_lock(&soft_proc.lock);
	for (uint32_t n = 0; n < SOFT_MAX_MR; n++) {
		/*
		 * Round robin: a key just released stays invalid for long. Index 0 stays free, so key 0 opens nothing.
		 */
		uint32_t i = soft_proc.key_cursor = (soft_proc.key_cursor + 1) % SOFT_MAX_MR;
		if (i && !atomic_load(&soft_proc.keys[i])) {
			atomic_store(&soft_proc.keys[i], &reserved);
			*index = i;
			err = 0;
			break;
		}
	}
	pthread_mutex_unlock(&soft_proc.lock);
	return err;
}

void soft_key_unreserve(uint32_t index)
{
	atomic_store(&soft_proc.keys[index], NULL);
}

void soft_key_publish(uint32_t index, struct soft_region *region)
{
	static _Atomic(uint64_t) serials;

	region->serial = atomic_fetch_add(&serials, 1) + 1;
	atomic_store(&soft_proc.keys[index], region);
	atomic_store(&soft_proc.keys_shm->serial[index], region->serial);
}

void soft_key_withdraw(uint32_t index)
{
	static struct soft_region withdrawn;

	atomic_store(&soft_proc.keys_shm->serial[index], 0);
	atomic_store(&soft_proc.keys[index], &withdrawn);
}

char *soft_local_addr(struct soft_pd *pd, uint32_t lkey, uint64_t addr, uint64_t length, uint32_t access)
{
	struct soft_region *r = soft_key_find(lkey);

	if (soft_unlikely(!r || r->pd != soft_pd_root(pd) || !soft_region_covers(r, addr, length)))
		return NULL;
	if (soft_unlikely((r->access & access) != access || r->window))
		return NULL;
	return r->host + (addr - r->base);
}

char *soft_remote_addr(struct soft_qp *qp, uint32_t rkey, uint64_t addr, uint64_t length, uint32_t access)
{
	static char nothing[1];

	if (!length)
		return nothing;
	struct soft_region *r = soft_key_find(rkey);

	if (!r || r->pd != soft_pd_root(to_pd(qp->qp.pd)) || !soft_region_covers(r, addr, length))
		return NULL;
	if ((r->access & access) != access || (r->qp_num && r->qp_num != qp->qp.qp_num))
		return NULL;
	return r->host + (addr - r->base);
}

/* Every access happens under a QP lock, so after passing through all of them no earlier access is left. */
void soft_quiesce(void)
{
	for (uint32_t i = 0; i < SOFT_MAX_QP; i++) {
		struct soft_qp *qp = atomic_load(&soft_proc.qps[i]);
		if (!qp)
			continue;
		soft_lock(&qp->sq_lock);
		soft_unlock(&qp->sq_lock);
		soft_lock(&qp->rq_lock);
		if (qp->path->quiesce)
			qp->path->quiesce(qp);
		soft_unlock(&qp->rq_lock);
	}
}

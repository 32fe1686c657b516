/*
 * The table of keys: the memory that each opens, and the access it allows.
 */
#include "core/internal.h"

struct soft_pd *soft_pd_root(struct soft_pd *pd)
{
	return pd->parent ? pd->parent : pd;
}

/* Keys that are made one after the other stay near each other in the table, for the processor's caches. */
enum { KEYS = SOFT_MAX_MR - 1, KEYS_AHEAD = 1 << 12, DRAWS = 256 };

int soft_key_reserve(uint32_t *key)
{
	/* A reserved entry has a region that no key matches. */
	static struct soft_region reserved;
	static uint16_t ring[KEYS];
	static struct soft_draw draw = { .ring = ring, .count = KEYS, .ahead = KEYS_AHEAD };
	uint32_t random = 0;
	int err = ENOMEM;

	pthread_mutex_lock(&soft_proc.lock);
	for (uint32_t n = 0; n < DRAWS + KEYS; n++) {
		random = n < DRAWS ? soft_random() : random;
		/* Index 0 stays free, so key 0 opens nothing. At last, the first that is free. */
		const uint32_t i = 1 + (n < DRAWS ? soft_draw(&draw, random) : n - DRAWS);
		if (!atomic_load(&soft_proc.keys[i])) {
			atomic_store(&soft_proc.keys[i], &reserved);
			*key = (random & 0xff000000) | i << 8 | (random >> 16 & 0xff);
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

static uint64_t new_serial(void)
{
	static _Atomic(uint64_t) serials;

	return atomic_fetch_add(&serials, 1) + 1;
}

void soft_key_publish(uint32_t index, struct soft_region *region)
{
	atomic_store(&region->serial, new_serial());
	atomic_store(&soft_proc.keys[index], region);
	atomic_store(&soft_proc.published->serial[index], atomic_load(&region->serial));
}

void soft_key_renew(uint32_t index, struct soft_region *region)
{
	uint64_t old = atomic_load(&region->serial), serial = new_serial();

	atomic_store(&region->serial, serial);
	/* Another thread may have withdrawn it meanwhile. */
	atomic_compare_exchange_strong(&soft_proc.published->serial[index], &old, serial);
}

void soft_key_withdraw(uint32_t index)
{
	static struct soft_region withdrawn;

	atomic_store(&soft_proc.published->serial[index], 0);
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

/* Every access of this process happens under a QP lock: after passing through all of them, no earlier one is left. */
bool soft_quiesce(struct soft_region *region)
{
	for (uint32_t i = 0; i < SOFT_MAX_QP; i++) {
		struct soft_qp *qp = atomic_load(&soft_proc.qps[i]);
		if (!qp)
			continue;
		soft_lock(&qp->sq_lock);
		soft_unlock(&qp->sq_lock);
		soft_lock(&qp->rq_lock);
		soft_unlock(&qp->rq_lock);
	}
	return !soft_fabrics.host->all_outside || soft_fabrics.host->all_outside(region);
}

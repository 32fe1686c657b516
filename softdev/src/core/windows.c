/*
 * Memory windows and invalidation of keys. A binding is a region of its own that never changes once published; the next
 * binding makes a new one, and destroying the window frees all of them, after a quiesce.
 */
#include <stdlib.h>

#include "core/internal.h"

static uint32_t index_of(const struct soft_mw *mw)
{
	return mw->stem & (SOFT_MAX_MR - 1);
}

void soft_mw_enter(struct soft_mw *mw)
{
	atomic_store(&soft_proc.mws[index_of(mw)], mw);
}

void soft_mw_leave(struct soft_mw *mw)
{
	atomic_store(&soft_proc.mws[index_of(mw)], NULL);
}

static struct soft_mw *mw_find(uint32_t key)
{
	return atomic_load(&soft_proc.mws[soft_key_index(key)]);
}

/* Invalidates the binding; a quiesce or destroying the window frees it. mw->lock held. */
void soft_mw_unbind(struct soft_mw *mw)
{
	if (!mw->bound)
		return;
	soft_key_withdraw(index_of(mw));
	mw->bound->older = mw->retired;
	mw->retired = mw->bound;
	mw->bound = NULL;
	atomic_fetch_sub(&mw->mr->windows, 1);
	mw->mr = NULL;
}

int soft_mw_bind(struct soft_qp *qp, struct ibv_mw *ibmw, const struct ibv_mw_bind_info *info, uint32_t rkey)
{
	const unsigned writes = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
	/* Local access depends on the region, but programs pass the flag anyway. */
	const unsigned all = writes | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE;
	struct soft_mw *mw = to_mw(ibmw);
	struct soft_region *r = NULL;
	int status = 0;

	if (ibmw->pd != qp->qp.pd || rkey >> 8 != mw->stem)
		return IBV_WC_MW_BIND_ERR;
	soft_lock(&mw->lock);
	if (ibmw->type == IBV_MW_TYPE_2 && mw->bound)
		status = IBV_WC_MW_BIND_ERR; /* type 2: invalidated first */
	if (!status && info->length) {
		struct soft_mr *mr = info->mr ? to_mr(info->mr) : NULL;
		if (!mr || mr->region.pd != soft_pd_root(to_pd(qp->qp.pd)) ||
		    !(mr->region.access & IBV_ACCESS_MW_BIND) || (info->mw_access_flags & ~all) ||
		    !soft_region_covers(&mr->region, info->addr, info->length) ||
		    ((info->mw_access_flags & writes) && !(mr->region.access & IBV_ACCESS_LOCAL_WRITE))) {
			status = IBV_WC_MW_BIND_ERR;
		} else {
			r = calloc(1, sizeof(*r));
			status = r ? 0 : IBV_WC_GENERAL_ERR;
		}
	} else if (!status && ibmw->type == IBV_MW_TYPE_2) {
		status = IBV_WC_MW_BIND_ERR;
	}
	if (!status) {
		soft_mw_unbind(mw);
		ibmw->rkey = rkey;
	}
	if (r) {
		mw->mr = to_mr(info->mr);
		r->key = rkey;
		r->access = info->mw_access_flags;
		r->base = info->mw_access_flags & IBV_ACCESS_ZERO_BASED ? 0 : info->addr;
		r->length = info->length;
		r->host = mw->mr->region.host + (info->addr - mw->mr->region.base);
		r->pd = mw->mr->region.pd;
		r->qp_num = ibmw->type == IBV_MW_TYPE_2 ? qp->qp.qp_num : 0;
		r->window = true;
		atomic_fetch_add(&mw->mr->windows, 1);
		mw->bound = r;
		soft_key_publish(index_of(mw), r);
	}
	soft_unlock(&mw->lock);
	return status;
}

int soft_key_invalidate(struct soft_qp *qp, uint32_t key, bool remote)
{
	const int refused = remote ? IBV_WC_REM_ACCESS_ERR : IBV_WC_LOC_PROT_ERR;
	struct soft_mw *mw = mw_find(key);
	int status = refused;

	/* Only type 2 windows can be invalidated: memory regions made by ibv_reg_mr never can (IBTA 10.6.5). */
	if (!mw)
		return status;
	soft_lock(&mw->lock);
	if (mw->bound && mw->mw.type == IBV_MW_TYPE_2 && mw->bound->key == key && mw->bound->qp_num == qp->qp.qp_num) {
		soft_mw_unbind(mw);
		status = 0;
	}
	soft_unlock(&mw->lock);
	return status;
}

/*
 * Memory windows: allocation, and binding through the verbs. core/windows.c implements the bindings.
 */
#include <stdlib.h>

#include "verbs/internal.h"

struct ibv_mw *soft_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
	struct soft_mw *mw;
	uint32_t key;
	int err;

	if (!soft_usable(to_ctx(pd->context)))
		return NULL;
	if (type != IBV_MW_TYPE_1 && type != IBV_MW_TYPE_2) {
		errno = EINVAL;
		return NULL;
	}
	if (!soft_personality()->max_mw) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	mw = calloc(1, sizeof(*mw));
	if (!mw)
		return NULL;
	err = soft_key_reserve(&key);
	if (err) {
		free(mw);
		errno = err;
		return NULL;
	}
	mw->mw.context = pd->context;
	mw->mw.pd = pd;
	mw->mw.type = type;
	mw->mw.handle = soft_key_index(key);
	mw->mw.rkey = key;
	mw->stem = key >> 8;
	soft_mw_enter(mw);
	atomic_fetch_add(&to_pd(pd)->refs, 1);
	return &mw->mw;
}

int soft_dealloc_mw(struct ibv_mw *ibmw)
{
	struct soft_mw *mw = to_mw(ibmw);

	if (!soft_usable(to_ctx(ibmw->context)))
		return EIO;
	soft_mw_leave(mw);
	soft_lock(&mw->lock);
	soft_mw_unbind(mw);
	soft_unlock(&mw->lock);
	soft_quiesce(NULL);
	soft_key_unreserve(ibmw->handle);
	while (mw->retired) {
		struct soft_region *r = mw->retired;
		mw->retired = r->older;
		free(r);
	}
	atomic_fetch_sub(&to_pd(ibmw->pd)->refs, 1);
	free(mw);
	return 0;
}

int soft_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind)
{
	struct ibv_send_wr *bad, wr = {
		.wr_id = bind->wr_id,
		.opcode = IBV_WR_BIND_MW,
		.send_flags = bind->send_flags,
		.bind_mw = { .mw = mw, .rkey = ibv_inc_rkey(mw->rkey), .bind_info = bind->bind_info },
	};

	if (!soft_usable(to_ctx(qp->context)))
		return EIO;
	return soft_post_send(qp, &wr, &bad);
}

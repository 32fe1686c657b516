/*
 * Functions that the files of the verbs folder share.
 */
#ifndef SOFTDEV_VERBS_INTERNAL_H
#define SOFTDEV_VERBS_INTERNAL_H

#include "roce/roce.h"
#include "shm/shm.h"
#include "verbs/verbs.h"

/* ---- pd_mr.c, parent.c ------------------------------------------------------------------------------ */

struct soft_pd *soft_pd_create(struct soft_ctx *ctx, struct soft_pd *parent);
/* A memory region of memory that is there. NULL with errno. */
struct ibv_mr *soft_mr_create(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned access);
struct ibv_td *soft_alloc_td(struct ibv_context *context, struct ibv_td_init_attr *attr);
int soft_dealloc_td(struct ibv_td *td);
struct ibv_pd *soft_alloc_parent_domain(struct ibv_context *context, struct ibv_parent_domain_init_attr *attr);

/* ---- mw.c ------------------------------------------------------------------------------------------- */

struct ibv_mw *soft_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type);
int soft_dealloc_mw(struct ibv_mw *mw);
int soft_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind);

/* ---- chan.c ----------------------------------------------------------------------------------------- */

void soft_chan_join(struct soft_cq *cq);
/* Ends the CQ's arming, removes it from the channel's lists, and waits until all its delivered events are acknowledged. */
void soft_chan_leave(struct soft_cq *cq);
/* The CQ that has left the channel needs it no longer. */
void soft_chan_let_go(struct ibv_comp_channel *channel);

/* ---- cq.c, cq_ex.c ---------------------------------------------------------------------------------- */

/* flags: enum ibv_create_cq_attr_flags. NULL with errno. Used by ibv_create_cq and ibv_create_cq_ex. */
struct soft_cq *soft_cq_create(struct soft_ctx *ctx, uint32_t cqe, void *cq_context, struct ibv_comp_channel *channel,
			       uint32_t comp_vector, uint64_t wc_flags, uint32_t flags);
struct ibv_cq_ex *soft_create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr);

/* ---- qp.c, qp_ex.c ---------------------------------------------------------------------------------- */

/* For ibv_create_qp and ibv_create_qp_ex; attr->cap is set to the actual values. NULL with errno. */
struct soft_qp *soft_qp_create(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
/* Before a QP is destroyed: frees its ibv_wr_* state. */
void soft_ex_free(struct soft_qp *qp);

#endif

/*
 * The QP state machine: its transitions, and the attributes that each requires and allows (IBTA 11.2.5.2).
 */
#include <string.h>

#include "verbs/internal.h"

enum {
	PATH = IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE,
	STATES = IBV_QPS_ERR + 1,
};

struct transition {
	bool valid;
	int required, optional;
};

static const struct transition rc[STATES][STATES] = {
	[IBV_QPS_RESET][IBV_QPS_INIT] = { true, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0 },
	[IBV_QPS_INIT][IBV_QPS_INIT] = { true, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS },
	[IBV_QPS_INIT][IBV_QPS_RTR] = { true,
					IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
					PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX },
	[IBV_QPS_RTR][IBV_QPS_RTS] = { true,
				       IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
					       IBV_QP_MAX_QP_RD_ATOMIC,
				       PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_RATE_LIMIT },
	[IBV_QPS_RTS][IBV_QPS_RTS] = { true, 0, PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_RATE_LIMIT },
	[IBV_QPS_RTS][IBV_QPS_SQD] = { true, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY },
	[IBV_QPS_SQD][IBV_QPS_RTS] = { true, 0, PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_RATE_LIMIT },
	[IBV_QPS_SQD][IBV_QPS_SQD] = { true, 0,
				       PATH | IBV_QP_AV | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
					       IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC |
					       IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_MIN_RNR_TIMER |
					       IBV_QP_PORT },
};

static const struct transition uc[STATES][STATES] = {
	[IBV_QPS_RESET][IBV_QPS_INIT] = { true, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0 },
	[IBV_QPS_INIT][IBV_QPS_INIT] = { true, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS },
	[IBV_QPS_INIT][IBV_QPS_RTR] = { true, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN,
					PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX },
	[IBV_QPS_RTR][IBV_QPS_RTS] = { true, IBV_QP_SQ_PSN, PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_RATE_LIMIT },
	[IBV_QPS_RTS][IBV_QPS_RTS] = { true, 0, PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_RATE_LIMIT },
	[IBV_QPS_RTS][IBV_QPS_SQD] = { true, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY },
	[IBV_QPS_SQD][IBV_QPS_RTS] = { true, 0, PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_RATE_LIMIT },
	[IBV_QPS_SQD][IBV_QPS_SQD] = { true, 0, PATH | IBV_QP_AV | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX },
	[IBV_QPS_SQE][IBV_QPS_RTS] = { true, 0, IBV_QP_ACCESS_FLAGS | IBV_QP_RATE_LIMIT },
};

static const struct transition ud[STATES][STATES] = {
	[IBV_QPS_RESET][IBV_QPS_INIT] = { true, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY, 0 },
	[IBV_QPS_INIT][IBV_QPS_INIT] = { true, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY },
	[IBV_QPS_INIT][IBV_QPS_RTR] = { true, 0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY },
	[IBV_QPS_RTR][IBV_QPS_RTS] = { true, IBV_QP_SQ_PSN, IBV_QP_QKEY | IBV_QP_RATE_LIMIT },
	[IBV_QPS_RTS][IBV_QPS_RTS] = { true, 0, IBV_QP_QKEY | IBV_QP_RATE_LIMIT },
	[IBV_QPS_RTS][IBV_QPS_SQD] = { true, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY },
	[IBV_QPS_SQD][IBV_QPS_RTS] = { true, 0, IBV_QP_QKEY | IBV_QP_RATE_LIMIT },
	[IBV_QPS_SQD][IBV_QPS_SQD] = { true, 0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY },
	[IBV_QPS_SQE][IBV_QPS_RTS] = { true, 0, IBV_QP_QKEY | IBV_QP_RATE_LIMIT },
};

static struct transition find(enum ibv_qp_type type, enum ibv_qp_state from, enum ibv_qp_state to)
{
	if (to == IBV_QPS_ERR || to == IBV_QPS_RESET)
		return (struct transition){ .valid = true };
	switch (type) {
	case IBV_QPT_RC:
		return rc[from][to];
	case IBV_QPT_UC:
		return uc[from][to];
	default:
		return ud[from][to];
	}
}

static bool values_ok(const struct ibv_qp_attr *a, int mask)
{
	if ((mask & IBV_QP_PORT) && a->port_num != 1)
		return false;
	if ((mask & IBV_QP_PKEY_INDEX) && a->pkey_index != 0)
		return false;
	if ((mask & IBV_QP_PATH_MTU) && (a->path_mtu < IBV_MTU_256 || a->path_mtu > IBV_MTU_4096))
		return false;
	if ((mask & IBV_QP_TIMEOUT) && a->timeout > 31)
		return false;
	if ((mask & IBV_QP_RETRY_CNT) && a->retry_cnt > 7)
		return false;
	if ((mask & IBV_QP_RNR_RETRY) && a->rnr_retry > 7)
		return false;
	if ((mask & IBV_QP_MIN_RNR_TIMER) && a->min_rnr_timer > 31)
		return false;
	if ((mask & IBV_QP_DEST_QPN) && a->dest_qp_num > 0xffffff)
		return false;
	if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) && a->max_rd_atomic > soft_personality()->max_rd_atomic)
		return false;
	if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) && a->max_dest_rd_atomic > soft_personality()->max_rd_atomic)
		return false;
	return true;
}

/* With RoCE switched off, only destinations on this host exist. */
static int address_check(struct soft_qp *qp, const struct ibv_ah_attr *ah)
{
	struct soft_ctx *ctx = to_ctx(qp->qp.context);
	union ibv_gid gid;

	if (ah->port_num != 1)
		return EINVAL;
	if (!soft_port_is_up(&ctx->v.context))
		return ENETDOWN;
	if (!ah->is_global)
		return 0; /* no GID at all: this host */
	if (!soft_gid_get(ctx, ah->grh.sgid_index, &gid))
		return EINVAL;
	return soft_roce_mode() != ROCE_OFF || soft_gid_is_local(ctx, &ah->grh.dgid) ? 0 : ENETUNREACH;
}

/* Of a connected queue pair: its path, and the peer's knowledge of it, are made once. */
static bool same_way(const struct ibv_ah_attr *a, const struct ibv_ah_attr *b)
{
	if (a->is_global != b->is_global)
		return false;
	return !a->is_global ||
	       (!memcmp(&a->grh.dgid, &b->grh.dgid, sizeof(a->grh.dgid)) && a->grh.sgid_index == b->grh.sgid_index &&
		a->grh.traffic_class == b->grh.traffic_class);
}

static void take_values(struct soft_qp *qp, const struct ibv_qp_attr *from, int mask)
{
	struct ibv_qp_attr *to = &qp->attr;

#define TAKE(bit, field)                                                                                               \
	if (mask & (bit))                                                                                              \
	to->field = from->field
	TAKE(IBV_QP_ACCESS_FLAGS, qp_access_flags);
	TAKE(IBV_QP_PKEY_INDEX, pkey_index);
	TAKE(IBV_QP_PORT, port_num);
	TAKE(IBV_QP_QKEY, qkey);
	TAKE(IBV_QP_AV, ah_attr);
	TAKE(IBV_QP_PATH_MTU, path_mtu);
	TAKE(IBV_QP_TIMEOUT, timeout);
	TAKE(IBV_QP_RETRY_CNT, retry_cnt);
	TAKE(IBV_QP_RNR_RETRY, rnr_retry);
	TAKE(IBV_QP_RQ_PSN, rq_psn);
	TAKE(IBV_QP_SQ_PSN, sq_psn);
	TAKE(IBV_QP_MAX_QP_RD_ATOMIC, max_rd_atomic);
	TAKE(IBV_QP_MAX_DEST_RD_ATOMIC, max_dest_rd_atomic);
	TAKE(IBV_QP_MIN_RNR_TIMER, min_rnr_timer);
	TAKE(IBV_QP_PATH_MIG_STATE, path_mig_state);
	TAKE(IBV_QP_DEST_QPN, dest_qp_num);
	TAKE(IBV_QP_RATE_LIMIT, rate_limit);
	TAKE(IBV_QP_ALT_PATH, alt_ah_attr);
	TAKE(IBV_QP_ALT_PATH, alt_pkey_index);
	TAKE(IBV_QP_ALT_PATH, alt_port_num);
	TAKE(IBV_QP_ALT_PATH, alt_timeout);
#undef TAKE
}

/* Starts the work of a transition, after the attributes are set. */
static void entered(struct soft_qp *qp, enum ibv_qp_state from, enum ibv_qp_state to, int mask)
{
	struct soft_after after = { 0 };
	const struct soft_path_ops *path = qp->path; /* changes only with the state */

	if (from == IBV_QPS_INIT && to == IBV_QPS_RTR && path->connected)
		path->connected(qp, &after);
	if ((mask & (IBV_QP_ACCESS_FLAGS | IBV_QP_MAX_DEST_RD_ATOMIC)) && from >= IBV_QPS_RTR && path->rights_changed) {
		soft_lock(&qp->rq_lock);
		path->rights_changed(qp);
		soft_unlock(&qp->rq_lock);
	}
	if (to == IBV_QPS_RTS) {
		soft_lock(&qp->sq_lock);
		if (path->may_send)
			path->may_send(qp, from == IBV_QPS_RTR);
		soft_sq_pump(qp, &after);
		soft_unlock(&qp->sq_lock);
	} else if (to == IBV_QPS_SQD) {
		soft_lock(&qp->sq_lock);
		soft_sq_retire(qp, &after);
		soft_unlock(&qp->sq_lock);
	}
	soft_after_run(&after);
}

/* 0, or errno if there is no such transition or its attributes are wrong. */
static int check(struct soft_qp *qp, enum ibv_qp_state from, enum ibv_qp_state to, const struct ibv_qp_attr *attr,
		 int mask)
{
	if ((unsigned)to >= STATES || ((mask & IBV_QP_CUR_STATE) && attr->cur_qp_state != from))
		return EINVAL;
	const struct transition t = find(qp->qp.qp_type, from, to);
	const int given = mask & ~(IBV_QP_STATE | IBV_QP_CUR_STATE);
	if (!t.valid || (given & t.required) != t.required || (given & ~(t.required | t.optional)))
		return EINVAL;
	if (!values_ok(attr, mask))
		return EINVAL;
	if ((mask & IBV_QP_AV) && from == IBV_QPS_SQD && !same_way(&attr->ah_attr, &qp->attr.ah_attr))
		return EINVAL;
	return mask & IBV_QP_AV ? address_check(qp, &attr->ah_attr) : 0;
}

static void fail(struct soft_qp *qp, enum ibv_qp_state from)
{
	struct soft_after after = { 0 };

	if (from == IBV_QPS_RESET)
		soft_qp_set_state(qp, IBV_QPS_INIT); /* it leaves RESET, where an error has no effect */
	soft_qp_last_look(qp);
	soft_qp_error(qp, &after);
	soft_after_run(&after);
}

int soft_qp_modify(struct soft_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	const enum ibv_qp_state from = (enum ibv_qp_state)soft_state(qp);
	const enum ibv_qp_state to = mask & IBV_QP_STATE ? attr->qp_state : from;
	int err = check(qp, from, to, attr, mask);

	if (err)
		return err;
	if (to == IBV_QPS_RESET) {
		soft_qp_reset(qp);
		return 0;
	}
	if (to == IBV_QPS_ERR) {
		fail(qp, from);
		return 0;
	}
	struct soft_roce *roce = NULL;
	if (from == IBV_QPS_INIT && to == IBV_QPS_RTR && qp->qp.qp_type != IBV_QPT_UD &&
	    soft_roce_wanted(to_ctx(qp->qp.context), &attr->ah_attr)) {
		roce = soft_roce_make(qp, attr, &err);
		if (!roce)
			return err;
	}
	soft_lock(&qp->sq_lock);
	soft_lock(&qp->rq_lock);
	/* The QP may have failed meanwhile. */
	err = soft_state(qp) == (uint32_t)from ? 0 : EINVAL;
	if (!err) {
		take_values(qp, attr, mask);
		qp->allowed = soft_ops_now(qp);
		if (mask & IBV_QP_DEST_QPN) {
			qp->remote = roce || attr->dest_qp_num >> SOFT_QPN_INDEX_BITS != soft_proc.slot;
			qp->path = qp->remote ? &soft_shm_path : &soft_local_path;
		}
		if (roce) {
			soft_roce_join(qp, roce);
			qp->attr.path_mtu = soft_roce_path_mtu(roce);
			roce = NULL;
		}
		if (to == IBV_QPS_SQD && from == IBV_QPS_RTS) {
			qp->attr.sq_draining = 1;
			qp->attr.en_sqd_async_notify =
				mask & IBV_QP_EN_SQD_ASYNC_NOTIFY ? attr->en_sqd_async_notify : 0;
		}
		soft_qp_set_state(qp, to);
	}
	soft_unlock(&qp->rq_lock);
	soft_unlock(&qp->sq_lock);
	soft_roce_discard(roce);
	if (!err)
		entered(qp, from, to, mask);
	return err;
}

/*
 * Queue pairs of identifiers: creation with defaults, and their state transitions.
 */
#include <stdlib.h>
#include <string.h>

#include "cm/internal.h"

enum { RNR_TIMER = 0 /* 655.36 ms, as the kernel's cm.c (cm_init_qp_rtr_attr) gives */ };

void cm_path(const struct cm_id *id, struct ibv_ah_attr *ah)
{
	memset(ah, 0, sizeof(*ah));
	ah->is_global = 1;
	ah->port_num = 1;
	ah->grh.sgid_index = id->sgid_index;
	ah->grh.hop_limit = 64;
	ah->grh.traffic_class = id->tos;
	memcpy(ah->grh.dgid.raw, id->peer.remote, 16);
}

/* ---- states ----------------------------------------------------------------------------------------- */

static void to_init(const struct cm_id *id, struct ibv_qp_attr *attr, int *mask)
{
	attr->port_num = 1;
	attr->pkey_index = 0;
	*mask = IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX;
	if (id->id.qp_type == IBV_QPT_UD) {
		attr->qkey = RDMA_UDP_QKEY;
		*mask |= IBV_QP_QKEY;
	} else {
		attr->qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
		*mask |= IBV_QP_ACCESS_FLAGS;
	}
}

static void to_rtr(const struct cm_id *id, struct ibv_qp_attr *attr, int *mask)
{
	*mask = IBV_QP_STATE;
	if (id->id.qp_type == IBV_QPT_UD)
		return;
	cm_path(id, &attr->ah_attr);
	attr->path_mtu = id->mtu;
	attr->dest_qp_num = id->remote_qpn;
	attr->rq_psn = id->rq_psn;
	*mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	if (id->id.qp_type != IBV_QPT_RC)
		return;
	attr->max_dest_rd_atomic = id->responder_resources;
	attr->min_rnr_timer = RNR_TIMER;
	*mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
}

static void to_rts(const struct cm_id *id, struct ibv_qp_attr *attr, int *mask)
{
	attr->sq_psn = id->id.qp_type == IBV_QPT_UD ? 0 : id->sq_psn;
	*mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
	if (id->id.qp_type != IBV_QPT_RC)
		return;
	attr->timeout = id->ack_timeout;
	attr->retry_cnt = id->retry_count;
	attr->rnr_retry = id->rnr_retry_count;
	attr->max_rd_atomic = id->initiator_depth;
	*mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
}

static int fill(const struct cm_id *id, struct ibv_qp_attr *attr, int *mask)
{
	switch (attr->qp_state) {
	case IBV_QPS_INIT:
		to_init(id, attr, mask);
		return 0;
	case IBV_QPS_RTR:
		to_rtr(id, attr, mask);
		return 0;
	case IBV_QPS_RTS:
		to_rts(id, attr, mask);
		return 0;
	default:
		return EINVAL;
	}
}

int soft_rdma_init_qp_attr(struct rdma_cm_id *rdma_id, struct ibv_qp_attr *attr, int *mask)
{
	struct cm_id *id = to_id(rdma_id);

	if (!cm_is_here(id))
		return cm_fail(EIO);
	if (!rdma_id->verbs)
		return cm_fail(EINVAL);
	cm_lock();
	int err = fill(id, attr, mask);
	cm_unlock();
	return err ? cm_fail(err) : 0;
}

struct soft_qp *cm_qp_of(const struct cm_id *id)
{
	if (id->id.qp)
		return to_qp(id->id.qp);
	return id->own_qpn ? soft_qp_find(id->own_qpn) : NULL;
}

static int modify(struct cm_id *id, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = { .qp_state = state };
	struct soft_qp *qp;
	int mask;

	cm_lock();
	int err = fill(id, &attr, &mask);
	qp = cm_qp_of(id);
	cm_unlock();
	if (!err && !qp)
		err = EINVAL;
	return err ? err : soft_qp_modify(qp, &attr, mask);
}

int cm_qp_connect(struct cm_id *id)
{
	int err = modify(id, IBV_QPS_RTR);

	return err ? err : modify(id, IBV_QPS_RTS);
}

void cm_qp_error(struct cm_id *id)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct soft_qp *qp = cm_qp_of(id);

	if (qp)
		soft_qp_modify(qp, &attr, IBV_QP_STATE);
}

/* ---- creation --------------------------------------------------------------------------------------- */

static struct ibv_cq *make_cq(struct rdma_cm_id *id, uint32_t size, struct ibv_comp_channel **channel)
{
	*channel = ibv_create_comp_channel(id->verbs);
	if (!*channel)
		return NULL;
	struct ibv_cq *cq = ibv_create_cq(id->verbs, size ? (int)size : 1, id, *channel, 0);
	if (!cq) {
		ibv_destroy_comp_channel(*channel);
		*channel = NULL;
	}
	return cq;
}

static void drop_cq(struct ibv_cq **cq, struct ibv_comp_channel **channel)
{
	if (*cq)
		ibv_destroy_cq(*cq);
	if (*channel)
		ibv_destroy_comp_channel(*channel);
	*cq = NULL;
	*channel = NULL;
}

/* Only CQs created here have a channel in the id. */
static void drop_cqs(struct rdma_cm_id *id)
{
	if (id->recv_cq_channel)
		drop_cq(&id->recv_cq, &id->recv_cq_channel);
	if (id->send_cq_channel)
		drop_cq(&id->send_cq, &id->send_cq_channel);
	id->recv_cq = id->send_cq = NULL;
}

static int make_cqs(struct rdma_cm_id *id, struct ibv_qp_init_attr_ex *attr)
{
	if (attr->recv_cq)
		id->recv_cq = attr->recv_cq;
	else if (!id->recv_cq)
		id->recv_cq = make_cq(id, attr->cap.max_recv_wr, &id->recv_cq_channel);
	if (attr->send_cq)
		id->send_cq = attr->send_cq;
	else if (id->recv_cq)
		id->send_cq = make_cq(id, attr->cap.max_send_wr, &id->send_cq_channel);
	if (id->send_cq && id->recv_cq) {
		attr->send_cq = id->send_cq;
		attr->recv_cq = id->recv_cq;
		return 0;
	}
	int err = errno;
	drop_cqs(id);
	return err;
}

/* Datagrams need no peer: the queue pair can send at once. */
static int start_qp(struct cm_id *id)
{
	int err = modify(id, IBV_QPS_INIT);

	return err || id->id.qp_type != IBV_QPT_UD ? err : cm_qp_connect(id);
}

int soft_rdma_create_qp_ex(struct rdma_cm_id *rdma_id, struct ibv_qp_init_attr_ex *attr)
{
	struct cm_id *id = to_id(rdma_id);
	int err;

	if (!cm_is_here(id))
		return cm_fail(EIO);
	if (!rdma_id->verbs || rdma_id->qp)
		return cm_fail(EINVAL);
	if (!(attr->comp_mask & IBV_QP_INIT_ATTR_PD) || !attr->pd) {
		attr->comp_mask |= IBV_QP_INIT_ATTR_PD;
		attr->pd = rdma_id->pd;
	}
	if (attr->pd->context != rdma_id->verbs)
		return cm_fail(EINVAL);
	if (!attr->srq)
		attr->srq = rdma_id->srq;
	err = make_cqs(rdma_id, attr);
	if (err)
		return cm_fail(err);
	struct ibv_qp *qp = soft_create_qp_ex(rdma_id->verbs, attr);
	if (!qp) {
		err = errno;
		drop_cqs(rdma_id);
		return cm_fail(err);
	}
	cm_lock();
	rdma_id->qp = qp;
	rdma_id->pd = attr->pd;
	rdma_id->qp_type = attr->qp_type;
	cm_unlock();
	err = start_qp(id);
	if (err) {
		soft_rdma_destroy_qp(rdma_id);
		return cm_fail(err);
	}
	return 0;
}

int soft_rdma_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct ibv_qp_init_attr_ex all = {
		.qp_context = attr->qp_context,
		.send_cq = attr->send_cq,
		.recv_cq = attr->recv_cq,
		.srq = attr->srq,
		.cap = attr->cap,
		.qp_type = attr->qp_type,
		.sq_sig_all = attr->sq_sig_all,
		.comp_mask = IBV_QP_INIT_ATTR_PD,
		.pd = pd,
	};

	if (soft_rdma_create_qp_ex(id, &all))
		return -1;
	attr->cap = all.cap;
	return 0;
}

void soft_rdma_destroy_qp(struct rdma_cm_id *id)
{
	struct ibv_qp *qp;

	cm_lock();
	qp = id->qp;
	id->qp = NULL;
	cm_unlock();
	if (qp)
		ibv_destroy_qp(qp);
	drop_cqs(id);
}

/* ---- shared receive queues -------------------------------------------------------------------------- */

int soft_rdma_create_srq_ex(struct rdma_cm_id *id, struct ibv_srq_init_attr_ex *attr)
{
	const bool basic = !(attr->comp_mask & IBV_SRQ_INIT_ATTR_TYPE) || attr->srq_type == IBV_SRQT_BASIC;
	struct ibv_srq_init_attr plain = { .srq_context = attr->srq_context, .attr = attr->attr };

	if (!id->verbs || id->srq)
		return cm_fail(EINVAL);
	if (!basic)
		return cm_fail(EOPNOTSUPP);
	if (!(attr->comp_mask & IBV_SRQ_INIT_ATTR_PD) || !attr->pd) {
		attr->comp_mask |= IBV_SRQ_INIT_ATTR_PD;
		attr->pd = id->pd;
	}
	if (attr->pd->context != id->verbs)
		return cm_fail(EINVAL);
	id->srq = ibv_create_srq(attr->pd, &plain);
	if (!id->srq)
		return -1;
	attr->attr = plain.attr;
	id->pd = attr->pd;
	return 0;
}

int soft_rdma_create_srq(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
	struct ibv_srq_init_attr_ex all = {
		.srq_context = attr->srq_context,
		.attr = attr->attr,
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD,
		.srq_type = IBV_SRQT_BASIC,
		.pd = pd,
	};

	if (soft_rdma_create_srq_ex(id, &all))
		return -1;
	attr->attr = all.attr;
	return 0;
}

void soft_rdma_destroy_srq(struct rdma_cm_id *id)
{
	if (id->srq)
		ibv_destroy_srq(id->srq);
	id->srq = NULL;
}

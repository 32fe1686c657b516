/*
 * What posting checks: which operations a queue pair takes, now and at all, and what a work request is refused with.
 */
#include <string.h>

#include "core/internal.h"

#define BIT(op) (1u << (op))
enum {
	RC_OPS = BIT(IBV_WR_SEND) | BIT(IBV_WR_SEND_WITH_IMM) | BIT(IBV_WR_SEND_WITH_INV) | BIT(IBV_WR_RDMA_WRITE) |
		 BIT(IBV_WR_RDMA_WRITE_WITH_IMM) | BIT(IBV_WR_RDMA_READ) | BIT(IBV_WR_ATOMIC_CMP_AND_SWP) |
		 BIT(IBV_WR_ATOMIC_FETCH_AND_ADD) | BIT(IBV_WR_LOCAL_INV) | BIT(IBV_WR_BIND_MW),
	UC_OPS = BIT(IBV_WR_SEND) | BIT(IBV_WR_SEND_WITH_IMM) | BIT(IBV_WR_RDMA_WRITE) |
		 BIT(IBV_WR_RDMA_WRITE_WITH_IMM) | BIT(IBV_WR_LOCAL_INV) | BIT(IBV_WR_BIND_MW),
	UD_OPS = BIT(IBV_WR_SEND) | BIT(IBV_WR_SEND_WITH_IMM),
	ATOMIC_OPS = BIT(IBV_WR_ATOMIC_CMP_AND_SWP) | BIT(IBV_WR_ATOMIC_FETCH_AND_ADD),
	FETCH_OPS = ATOMIC_OPS | BIT(IBV_WR_RDMA_READ),
	IMM_OPS = BIT(IBV_WR_SEND_WITH_IMM) | BIT(IBV_WR_RDMA_WRITE_WITH_IMM),
	INLINE_OPS = BIT(IBV_WR_SEND) | BIT(IBV_WR_SEND_WITH_IMM) | BIT(IBV_WR_SEND_WITH_INV) | BIT(IBV_WR_RDMA_WRITE) |
		     BIT(IBV_WR_RDMA_WRITE_WITH_IMM)
};

static bool has_op(uint32_t set, uint8_t opcode)
{
	return set & BIT(opcode);
}

uint32_t soft_ops_allowed(enum ibv_qp_type type)
{
	const struct soft_personality *are = soft_personality();
	uint32_t ops = type == IBV_QPT_RC ? RC_OPS : type == IBV_QPT_UC ? UC_OPS : UD_OPS;

	if (!are->immediate)
		ops &= ~(uint32_t)IMM_OPS;
	if (!strcmp(are->atomics, "none"))
		ops &= ~(uint32_t)ATOMIC_OPS;
	return ops;
}

uint32_t soft_ops_now(const struct soft_qp *qp)
{
	uint32_t ops = soft_ops_allowed(qp->qp.qp_type);

	if (soft_personality()->signaled_only)
		return 0;
	if (soft_iwarp())
		ops &= ~(uint32_t)BIT(IBV_WR_RDMA_READ);
	return qp->attr.max_rd_atomic || qp->qp.qp_type != IBV_QPT_RC ? ops : ops & ~(uint32_t)FETCH_OPS;
}

/* iWARP: the answer to a READ is a write by the peer. */
static bool may_land(const struct ibv_send_wr *wr)
{
	for (int i = 0; i < wr->num_sge; i++) {
		const struct soft_region *r = soft_key_find(wr->sg_list[i].lkey);
		if (r && !(r->access & IBV_ACCESS_REMOTE_WRITE))
			return false;
	}
	return true;
}

/* READs and atomics of a queue pair that may have none in flight. */
static bool has_no_depth(const struct soft_qp *qp, uint8_t opcode)
{
	return has_op(FETCH_OPS, opcode) && !qp->attr.max_rd_atomic;
}

/* A request that soft_ops_now() does not have: as check() answers, the way the personality takes it. */
static int unusual(const struct soft_qp *qp, const struct ibv_send_wr *wr)
{
	enum { FLAGS = IBV_SEND_SIGNALED | IBV_SEND_INLINE };
	const struct soft_personality *are = soft_personality();

	if ((unsigned)wr->opcode > 31 || !has_op(soft_ops_allowed(qp->qp.qp_type), (uint8_t)wr->opcode))
		return EINVAL;
	if (wr->opcode == IBV_WR_RDMA_READ && soft_iwarp() && !may_land(wr))
		return -IBV_WC_LOC_PROT_ERR;
	if (has_no_depth(qp, (uint8_t)wr->opcode) && strcmp(are->no_reads, "one") != 0)
		return strcmp(are->no_reads, "never") ? EINVAL : -SOFT_WC_NEVER;
	if (are->signaled_only &&
	    (wr->send_flags & ~(unsigned)FLAGS || !(wr->send_flags & IBV_SEND_SIGNALED || qp->sq_sig_all)))
		return EINVAL;
	return 0;
}

int soft_error_returned(int err)
{
	return soft_personality()->negative_errors ? -err : err;
}

/*
 * What a message fails with that has packets of another length than the destination takes: it refuses them. Those of a
 * READ are its own, and have other sequence numbers than the requester waits for.
 */
static enum ibv_wc_status wrong_mtu(uint8_t opcode)
{
	return opcode == IBV_WR_RDMA_READ ? IBV_WC_RETRY_EXC_ERR : IBV_WC_REM_INV_REQ_ERR;
}

void soft_sq_mtu(struct soft_qp *qp, enum ibv_mtu theirs)
{
	const enum ibv_mtu ours = qp->attr.path_mtu;

	/* A peer's word: what is no MTU says nothing. */
	if (theirs < IBV_MTU_256 || theirs > IBV_MTU_4096 || theirs == ours || qp->qp.qp_type != IBV_QPT_RC)
		return;
	qp->longest = 128u << (theirs < ours ? theirs : ours);
	for (uint32_t i = qp->sq_next; i != qp->sq_tail; i++) {
		struct soft_wqe *wqe = soft_sq_at(qp, i);
		if (wqe->length > qp->longest && wqe->status == IBV_WC_SUCCESS)
			wqe->status = (uint8_t)wrong_mtu(wqe->opcode);
	}
}

int soft_post_check(const struct soft_qp *qp, const struct ibv_send_wr *wr, uint64_t length)
{
	if (soft_unlikely((unsigned)wr->opcode > 31 || !has_op(qp->allowed, (uint8_t)wr->opcode))) {
		int err = unusual(qp, wr);
		if (err)
			return err;
	}
	if (soft_unlikely(length > qp->longest))
		return length > SOFT_MAX_MSG ? EINVAL : -(int)wrong_mtu((uint8_t)wr->opcode);
	if (wr->send_flags & IBV_SEND_INLINE) {
		if (soft_unlikely(length > qp->cap.max_inline_data))
			return (int)soft_personality()->inline_error;
		if (soft_unlikely(!has_op(INLINE_OPS, (uint8_t)wr->opcode)))
			return EINVAL;
	}
	if (soft_unlikely(has_op(ATOMIC_OPS, (uint8_t)wr->opcode) && length != 8))
		return EINVAL;
	return 0;
}

static int refuses(struct soft_qp *qp, const struct ibv_send_wr *wr, size_t count)
{
	if (soft_state(qp) < IBV_QPS_RTS)
		return 0; /* posting refuses the first, and of what may not be posted yet there is no more to say */
	if (!soft_sq_has_room(qp, count))
		return ENOMEM;
	for (; wr; wr = wr->next) {
		uint64_t length = 0;

		if (wr->num_sge < 0 || (uint32_t)wr->num_sge > qp->cap.max_send_sge)
			return (int)soft_personality()->sge_error;
		const bool bare = wr->opcode == IBV_WR_BIND_MW || wr->opcode == IBV_WR_LOCAL_INV;
		for (int i = 0; i < wr->num_sge && !bare; i++)
			length += wr->sg_list[i].length;
		const int found = soft_post_check(qp, wr, length);
		if (found > 0)
			return found;
	}
	return 0;
}

int soft_post_refuses(struct soft_qp *qp, const struct ibv_send_wr *wr, size_t count)
{
	soft_lock(&qp->sq_lock);
	const int err = refuses(qp, wr, count);
	soft_unlock(&qp->sq_lock);
	return err;
}

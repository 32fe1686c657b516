/*
 * The responder's side of every operation, for every path: run by a requester of the same process, by the process that
 * takes records from a lane, or for received packets. The responder's rq_lock is held.
 */
#include <string.h>

#include "core/internal.h"

static _Atomic(uint64_t) rnr_count;

void soft_count_rnr(void)
{
	atomic_fetch_add_explicit(&rnr_count, 1, memory_order_relaxed);
}

SOFT_EXPORT uint64_t softdev_rnr(void)
{
	return atomic_load_explicit(&rnr_count, memory_order_relaxed);
}

/*
 * A class C error (IBTA 9.9.3): the requester gets a NAK, the responder's QP goes to ERR. With UC, which has no NAK, the
 * message is lost, and both go on (class D).
 */
static int refuse(struct soft_qp *qp, int status, struct soft_after *after)
{
	static const enum ibv_event_type events[] = {
		[IBV_WC_REM_ACCESS_ERR] = IBV_EVENT_QP_ACCESS_ERR,
		[IBV_WC_REM_INV_REQ_ERR] = IBV_EVENT_QP_REQ_ERR,
		[IBV_WC_REM_OP_ERR] = IBV_EVENT_QP_FATAL,
	};

	if (qp->qp.qp_type == IBV_QPT_UC)
		return status;
	soft_async_push(to_ctx(qp->qp.context), events[status], &qp->qp);
	soft_after_fail(after, qp);
	return status;
}

/* The receive has room for them. */
__attribute__((always_inline)) static inline int place(struct soft_qp *qp, uint32_t offset, const char *from,
						       uint32_t n, struct soft_after *after)
{
	const struct soft_rwqe *wqe = qp->current;
	struct soft_pd *pd = qp->srq ? to_pd(qp->srq->srq.pd) : to_pd(qp->qp.pd);

	for (uint32_t i = 0; n; i++) {
		const struct ibv_sge *sge = &wqe->sge[i];
		if (offset >= sge->length) {
			offset -= sge->length;
			continue;
		}
		uint32_t part = sge->length - offset < n ? sge->length - offset : n;
		char *to = soft_local_addr(pd, sge->lkey, sge->addr, sge->length, IBV_ACCESS_LOCAL_WRITE);
		if (soft_unlikely(!to)) {
			soft_rx_receive_error(qp, IBV_WC_LOC_PROT_ERR, after);
			return IBV_WC_REM_OP_ERR;
		}
		if (soft_unlikely(!soft_guard_copy(to + offset, from, part))) {
			soft_rx_receive_error(qp, IBV_WC_LOC_PROT_ERR, after);
			return IBV_WC_REM_OP_ERR;
		}
		from += part;
		n -= part;
		offset = 0;
	}
	return 0;
}

__attribute__((noinline)) static int place_loosely(struct soft_qp *qp, uint32_t offset, const char *from, uint32_t n,
						   struct soft_after *after)
{
	struct soft_order order;
	uint32_t at, part;
	int status = 0;

	soft_order_begin(&order, qp, n);
	while (!status && soft_order_next(&order, &at, &part))
		status = place(qp, offset + at, from + at, part, after);
	return status;
}

int soft_rx_place(struct soft_qp *qp, uint32_t offset, const char *from, uint32_t n, struct soft_after *after)
{
	const struct soft_rwqe *wqe = qp->current;

	if (soft_unlikely(offset > wqe->length || n > wqe->length - offset)) {
		soft_rx_receive_error(qp, IBV_WC_LOC_LEN_ERR, after);
		return IBV_WC_REM_INV_REQ_ERR;
	}
	if (soft_unlikely(soft_unordered) && soft_is_loose_list(wqe->sge, wqe->num_sge))
		return place_loosely(qp, offset, from, n, after);
	return place(qp, offset, from, n, after);
}

int soft_rx_receive_done(struct soft_qp *qp, const struct soft_rx *rx, struct soft_after *after)
{
	struct ibv_wc wc = {
		.wr_id = qp->current->wr_id,
		.status = IBV_WC_SUCCESS,
		.opcode = IBV_WC_RECV,
		.byte_len = rx->length,
		.qp_num = qp->qp.qp_num,
		.src_qp = rx->src_qp,
		.wc_flags = rx->grh ? IBV_WC_GRH : 0,
		.sl = rx->grh ? rx->sl : qp->attr.ah_attr.sl,
	};

	switch (rx->opcode) {
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		wc.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
		/* fall through */
	case IBV_WR_SEND_WITH_IMM:
		wc.wc_flags |= IBV_WC_WITH_IMM;
		wc.imm_data = rx->imm;
		break;
	case IBV_WR_SEND_WITH_INV:
		if (soft_key_invalidate(qp, rx->imm, true)) {
			soft_rx_receive_error(qp, IBV_WC_LOC_PROT_ERR, after);
			return IBV_WC_REM_ACCESS_ERR;
		}
		wc.wc_flags |= IBV_WC_WITH_INV;
		wc.invalidated_rkey = rx->imm;
		break;
	}
	soft_rq_release(qp);
	if (rx->acked)
		atomic_store_explicit(rx->acked, rx->ack, memory_order_release);
	soft_cq_push(to_cq(qp->qp.recv_cq), &wc, rx->solicited);
	return 0;
}

void soft_rx_receive_error(struct soft_qp *qp, enum ibv_wc_status status, struct soft_after *after)
{
	struct ibv_wc wc = {
		.wr_id = qp->current->wr_id,
		.status = status,
		.opcode = IBV_WC_RECV,
		.qp_num = qp->qp.qp_num,
	};

	soft_rq_release(qp);
	qp->ended_in = atomic_load(&qp->life) + 1;
	soft_cq_push(to_cq(qp->qp.recv_cq), &wc, true);
	soft_after_fail(after, qp);
}

char *soft_rx_remote(struct soft_qp *qp, uint8_t opcode, uint32_t rkey, uint64_t addr, uint32_t length, int *status,
		     struct soft_after *after)
{
	bool atomic = opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
	bool read = opcode == IBV_WR_RDMA_READ;
	uint32_t access = atomic ? IBV_ACCESS_REMOTE_ATOMIC : read ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE;
	char *at;

	if (!(qp->attr.qp_access_flags & access) || ((atomic || read) && !qp->attr.max_dest_rd_atomic)) {
		*status = refuse(qp, IBV_WC_REM_INV_REQ_ERR, after);
		return NULL;
	}
	at = soft_remote_addr(qp, rkey, addr, length, access);
	if (!at) {
		*status = refuse(qp, IBV_WC_REM_ACCESS_ERR, after);
		return NULL;
	}
	if (atomic && ((uintptr_t)at & 7 || addr & 7)) {
		*status = refuse(qp, IBV_WC_REM_INV_REQ_ERR, after);
		return NULL;
	}
	return at;
}

/*
 * The application orders one-sided accesses itself, by means that no sanitizer sees (a message over a socket, a flag in
 * the memory itself). ThreadSanitizer must not report them as races of the device.
 */
#ifdef __SANITIZE_THREAD__
__attribute__((no_sanitize("thread"))) static void copy(char *to, const char *from, uint64_t n)
{
	volatile char *t = to;
	const volatile char *f = from;

	if (to <= from || to >= from + n)
		for (uint64_t i = 0; i < n; i++)
			t[i] = f[i];
	else
		while (n--)
			t[n] = f[n];
}

__attribute__((noinline, no_sanitize("thread"))) bool soft_rx_copy(char *to, const char *from, uint64_t n)
{
	return SOFT_GUARDED(copy(to, from, n));
}
#else
bool soft_rx_copy(char *to, const char *from, uint64_t n)
{
	return !n || soft_guard_copy(to, from, n); /* an empty piece may have no address */
}
#endif

__attribute__((no_sanitize("thread"))) static uint64_t atomic(uint8_t opcode, char *at, uint64_t compare_add,
							      uint64_t swap)
{
	uint64_t *word = (uint64_t *)(void *)at;

	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
		return __atomic_fetch_add(word, compare_add, __ATOMIC_SEQ_CST);
	/* On a mismatch the builtin stores the value found in compare_add; otherwise that was the old value. */
	__atomic_compare_exchange_n(word, &compare_add, swap, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
	return compare_add;
}

__attribute__((noinline, no_sanitize("thread"))) bool soft_rx_atomic(uint8_t opcode, char *at, uint64_t compare_add,
								     uint64_t swap, uint64_t *old)
{
	return SOFT_GUARDED(*old = atomic(opcode, at, compare_add, swap));
}

int soft_rx_missing(struct soft_qp *qp, struct soft_after *after)
{
	return refuse(qp, IBV_WC_REM_OP_ERR, after);
}

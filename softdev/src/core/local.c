/*
 * The path between two QPs of one process: the requester runs the responder's side, under the responder's rq_lock.
 */
#include <string.h>

#include "core/internal.h"

struct piece {
	char *addr;
	uint32_t length;
};

/* The WR's buffers as host addresses; false: a local key forbids the access. */
static bool resolve(struct soft_qp *qp, const struct soft_wqe *wqe, uint32_t access, struct piece *out)
{
	for (uint32_t i = 0; i < wqe->num_sge; i++) {
		const struct ibv_sge *sge = &wqe->sge[i];
		out[i].length = sge->length;
		if (wqe->flags & IBV_SEND_INLINE)
			out[i].addr = (char *)(uintptr_t)sge->addr;
		else if (!sge->length)
			out[i].addr = NULL;
		else
			out[i].addr = soft_local_addr(to_pd(qp->qp.pd), sge->lkey, sge->addr, sge->length, access);
		if (!out[i].addr && sge->length)
			return false;
	}
	return true;
}

/* A SEND, in any order. 0, or a status. */
__attribute__((noinline)) static int place_loosely(struct soft_qp *b, const struct soft_wqe *wqe,
						   const struct piece *pieces, struct soft_after *after)
{
	struct soft_order order;
	uint32_t offset, left;
	int status;

	soft_order_begin(&order, b, wqe->length);
	while (soft_order_next(&order, &offset, &left)) {
		uint32_t skip = offset;
		for (uint32_t i = 0; i < wqe->num_sge && left; i++) {
			/* resolve() has filled num_sge of them, which the analyser cannot see. */
			/* NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult) */
			if (skip >= pieces[i].length) {
				skip -= pieces[i].length;
				continue;
			}
			const uint32_t part = pieces[i].length - skip < left ? pieces[i].length - skip : left;
			status = soft_rx_place(b, offset, pieces[i].addr + skip, part, after);
			if (status)
				return status;
			offset += part;
			left -= part;
			skip = 0;
		}
	}
	return 0;
}

static int receive(struct soft_qp *b, const struct soft_qp *a, const struct soft_wqe *wqe, const struct piece *pieces,
		   struct soft_after *after)
{
	struct soft_rx rx = {
		.opcode = wqe->opcode,
		.solicited = wqe->flags & IBV_SEND_SOLICITED,
		.imm = wqe->imm,
		.src_qp = a->qp.qp_num,
		.length = wqe->length,
	};
	uint32_t offset = 0;
	int status = 0;

	if (wqe->opcode != IBV_WR_RDMA_WRITE_WITH_IMM) {
		if (soft_unlikely(wqe->length > b->current->length)) {
			soft_rx_receive_error(b, IBV_WC_LOC_LEN_ERR, after);
			return IBV_WC_REM_INV_REQ_ERR;
		}
		if (soft_unlikely(soft_unordered) && soft_is_loose_list(b->current->sge, b->current->num_sge)) {
			status = place_loosely(b, wqe, pieces, after);
			return status ? status : soft_rx_receive_done(b, &rx, after);
		}
		for (uint32_t i = 0; i < wqe->num_sge && !status; i++) {
			/*
			 * resolve() has filled num_sge of them and nothing changes them meanwhile, which the analyser
			 * cannot see.
			 */
			/* NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage) */
			status = soft_rx_place(b, offset, pieces[i].addr, pieces[i].length, after);
			offset += pieces[i].length;
		}
	}
	return status ? status : soft_rx_receive_done(b, &rx, after);
}

/* Copies the next n bytes of a READ or WRITE; at: of its first byte in the peer's memory. 0, or a status. */
static int copy(struct soft_qp *b, struct soft_wqe *wqe, const struct piece *pieces, char *at, uint32_t n,
		struct soft_after *after)
{
	const bool read = wqe->opcode == IBV_WR_RDMA_READ;
	uint32_t skip = wqe->offset;

	at += wqe->offset;
	wqe->offset += n;
	for (uint32_t i = 0; i < wqe->num_sge && n; i++) {
		if (skip >= pieces[i].length) {
			skip -= pieces[i].length;
			continue;
		}
		uint32_t part = pieces[i].length - skip < n ? pieces[i].length - skip : n;
		char *own = pieces[i].addr + skip;
		if (soft_unlikely(!soft_rx_copy(read ? own : at, read ? at : own, part)))
			return soft_guard_probe(own, part, read) ? soft_rx_missing(b, after) : IBV_WC_LOC_PROT_ERR;
		at += part;
		n -= part;
		skip = 0;
	}
	return 0;
}

/* The next n bytes of a READ or WRITE, in any order. */
static int scatter(struct soft_qp *qp, struct soft_qp *b, struct soft_wqe *wqe, const struct piece *pieces, char *at,
		   uint32_t n, struct soft_after *after)
{
	const uint32_t begin = wqe->offset;
	struct soft_order order;
	uint32_t offset, part;
	int status = 0;

	soft_order_begin(&order, qp, n);
	while (!status && soft_order_next(&order, &offset, &part)) {
		wqe->offset = begin + offset;
		status = copy(b, wqe, pieces, at, part, after);
	}
	wqe->offset = begin + n;
	return status;
}

/* A READ or WRITE, of its next n bytes, or an atomic. */
static int reach(struct soft_qp *qp, struct soft_qp *b, struct soft_wqe *wqe, const struct piece *pieces, uint32_t n,
		 struct soft_after *after)
{
	int status = 0;
	char *at = soft_rx_remote(b, wqe->opcode, wqe->rkey, wqe->raddr, wqe->length, &status, after);

	if (!at)
		return status;
	if (wqe->opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wqe->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		uint64_t old;
		if (!soft_rx_atomic(wqe->opcode, at, wqe->atomic.compare_add, wqe->atomic.swap, &old))
			return soft_rx_missing(b, after);
		const char *from = (const char *)&old;
		for (uint32_t i = 0; i < wqe->num_sge; i++) {
			if (!soft_rx_copy(pieces[i].addr, from, pieces[i].length))
				return IBV_WC_LOC_PROT_ERR;
			from += pieces[i].length;
		}
		return 0;
	}
	if (soft_unlikely(soft_unordered) &&
	    (wqe->opcode == IBV_WR_RDMA_READ ? soft_is_loose_list(wqe->sge, wqe->num_sge) : soft_is_loose(wqe->rkey)))
		return scatter(qp, b, wqe, pieces, at, n, after);
	return copy(b, wqe, pieces, at, n, after);
}

static enum soft_run absent(struct soft_qp *qp, struct soft_wqe *wqe)
{
	if (qp->qp.qp_type == IBV_QPT_UC)
		return SOFT_RUN_DONE; /* unreliable: no error is reported */
	if (qp->met) {
		wqe->status = IBV_WC_RETRY_EXC_ERR;
		return SOFT_RUN_DONE;
	}
	qp->wait = SOFT_WAIT_PEER;
	return SOFT_RUN_WAIT;
}

/*
 * The first time. A card that expects other sequence numbers takes nothing: the requester repeats it, in vain. False: so
 * does this one.
 */
static bool agree(struct soft_qp *qp, const struct soft_qp *b)
{
	enum { PSN = 0xffffff };

	if (qp->qp.qp_type == IBV_QPT_RC && ((qp->attr.sq_psn ^ b->attr.rq_psn) & PSN))
		return false;
	soft_sq_mtu(qp, b->attr.path_mtu);
	qp->met = true;
	return true;
}

static enum soft_run run(struct soft_qp *qp, struct soft_wqe *wqe, struct soft_after *after)
{
	struct soft_qp *b = soft_qp_find(qp->attr.dest_qp_num);
	bool reliable = qp->qp.qp_type == IBV_QPT_RC;
	bool fetch = wqe->opcode == IBV_WR_RDMA_READ || wqe->opcode == IBV_WR_ATOMIC_CMP_AND_SWP ||
		     wqe->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
	struct piece pieces[SOFT_MAX_SGE];
	int status = 0;

	if (!resolve(qp, wqe, fetch ? IBV_ACCESS_LOCAL_WRITE : 0, pieces)) {
		wqe->status = IBV_WC_LOC_PROT_ERR;
		return SOFT_RUN_DONE;
	}
	if (!b)
		return absent(qp, wqe);
	soft_lock(&b->rq_lock);
	if (!soft_takes(b) || b->attr.dest_qp_num != qp->qp.qp_num || b->qp.qp_type != qp->qp.qp_type) {
		soft_unlock(&b->rq_lock);
		return absent(qp, wqe);
	}
	if (soft_unlikely(atomic_load_explicit(&soft_faults_on, memory_order_relaxed)) && soft_fault_is_cut(b)) {
		soft_unlock(&b->rq_lock);
		return soft_fault_cut_run(qp, wqe);
	}
	if (soft_unlikely(!qp->met)) {
		const bool agreed = agree(qp, b);
		if (!agreed || wqe->status != IBV_WC_SUCCESS) {
			soft_unlock(&b->rq_lock);
			return agreed ? SOFT_RUN_DONE : absent(qp, wqe);
		}
	}
	bool one_sided = wqe->opcode == IBV_WR_RDMA_WRITE || wqe->opcode == IBV_WR_RDMA_WRITE_WITH_IMM || fetch;
	bool receives = wqe->opcode != IBV_WR_RDMA_WRITE && !fetch;
	if (soft_unlikely(one_sided && wqe->length - wqe->offset > SOFT_TURN_BYTES)) {
		status = reach(qp, b, wqe, pieces, SOFT_TURN_BYTES, after);
		soft_unlock(&b->rq_lock);
		if (!status)
			return soft_sq_yield(qp);
		if (reliable)
			wqe->status = (uint8_t)status;
		return SOFT_RUN_DONE;
	}
	if (receives && !b->current && !soft_rq_take(b)) {
		uint8_t timer = b->attr.min_rnr_timer;
		soft_unlock(&b->rq_lock);
		if (!reliable)
			return SOFT_RUN_DONE;
		soft_count_rnr();
		if (!qp->attr.rnr_retry) {
			wqe->status = IBV_WC_RNR_RETRY_EXC_ERR;
			return SOFT_RUN_DONE;
		}
		qp->wait = SOFT_WAIT_RNR;
		qp->rnr_timer = timer;
		if (soft_unlikely(atomic_load_explicit(&soft_faults_on, memory_order_relaxed)))
			soft_fault_look_again(to_cq(qp->qp.send_cq), qp->send_slot); /* there may be a receive */
		return SOFT_RUN_WAIT;
	}
	if (one_sided)
		status = reach(qp, b, wqe, pieces, wqe->length - wqe->offset, after);
	if (receives) {
		if (!status)
			status = receive(b, qp, wqe, pieces, after);
		else
			soft_rq_put_back(b);
	}
	soft_unlock(&b->rq_lock);
	if (reliable)
		wqe->status = (uint8_t)status;
	return SOFT_RUN_DONE;
}

static void early(struct soft_qp *qp, struct soft_wqe *wqe)
{
	struct soft_qp *b = soft_qp_find(qp->attr.dest_qp_num);

	if (!b || !soft_is_loose(wqe->rkey))
		return;
	soft_lock(&b->rq_lock);
	if (soft_receives(soft_state(b)) && b->attr.dest_qp_num == qp->qp.qp_num && b->qp.qp_type == qp->qp.qp_type &&
	    b->attr.qp_access_flags & IBV_ACCESS_REMOTE_WRITE) {
		char *at = soft_remote_addr(b, wqe->rkey, wqe->raddr, wqe->length, IBV_ACCESS_REMOTE_WRITE);
		struct soft_order order;
		uint32_t offset, part;

		soft_order_begin(&order, qp, wqe->length);
		while (at && soft_order_next(&order, &offset, &part))
			if (!soft_wqe_gather(qp, wqe, offset, at + offset, part))
				break;
	}
	soft_unlock(&b->rq_lock);
}

/* A requester of this process may be waiting for this QP to become ready. */
static void connected(struct soft_qp *qp, struct soft_after *after)
{
	struct soft_qp *peer = soft_qp_find(qp->attr.dest_qp_num);

	if (peer)
		soft_after_pump(after, peer);
}

const struct soft_path_ops soft_local_path = { .run = run, .early = early, .connected = connected };

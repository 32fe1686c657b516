/*
 * Send queues: posting, running in order, completing in order.
 */
#include <stdlib.h>
#include <string.h>

#include "core/internal.h"

static const enum ibv_wc_opcode wc_opcodes[] = {
	[IBV_WR_RDMA_WRITE] = IBV_WC_RDMA_WRITE,
	[IBV_WR_RDMA_WRITE_WITH_IMM] = IBV_WC_RDMA_WRITE,
	[IBV_WR_SEND] = IBV_WC_SEND,
	[IBV_WR_SEND_WITH_IMM] = IBV_WC_SEND,
	[IBV_WR_RDMA_READ] = IBV_WC_RDMA_READ,
	[IBV_WR_ATOMIC_CMP_AND_SWP] = IBV_WC_COMP_SWAP,
	[IBV_WR_ATOMIC_FETCH_AND_ADD] = IBV_WC_FETCH_ADD,
	[IBV_WR_LOCAL_INV] = IBV_WC_LOCAL_INV,
	[IBV_WR_BIND_MW] = IBV_WC_BIND_MW,
	[IBV_WR_SEND_WITH_INV] = IBV_WC_SEND,
};

/* ---- work deferred until no lock is held ----------------------------------------------------------- */

void soft_after_fail(struct soft_after *after, struct soft_qp *qp)
{
	if (soft_state(qp) == IBV_QPS_RESET)
		return; /* the last life's lanes are being dropped */
	/* Before it is queued, or known to be: who takes it from that list sees this. */
	atomic_store(&qp->fail_life, atomic_load(&qp->life));
	if (atomic_exchange(&qp->fail_queued, true))
		return;
	qp->after_fail = after->fail;
	after->fail = qp;
}

void soft_after_pump(struct soft_after *after, struct soft_qp *qp)
{
	if (atomic_exchange(&qp->pump_queued, true))
		return;
	qp->after_pump = after->pump;
	after->pump = qp;
}

void soft_after_run_slow(struct soft_after *after)
{
	while (after->fail || after->pump) {
		struct soft_qp *qp = after->fail;
		if (qp) {
			after->fail = qp->after_fail;
			atomic_store(&qp->fail_queued, false);
			soft_qp_fail(qp, after);
			continue;
		}
		qp = after->pump;
		after->pump = qp->after_pump;
		atomic_store(&qp->pump_queued, false);
		soft_lock(&qp->sq_lock);
		if (qp->sq_next != qp->sq_tail)
			soft_sq_pump(qp, after);
		soft_unlock(&qp->sq_lock);
	}
}

/* ---- payload -------------------------------------------------------------------------------------- */

bool soft_wqe_gather(struct soft_qp *qp, const struct soft_wqe *wqe, uint32_t offset, char *to, uint32_t n)
{
	for (uint32_t i = 0; n; i++) {
		const struct ibv_sge *sge = &wqe->sge[i];
		if (offset >= sge->length) {
			offset -= sge->length;
			continue;
		}
		uint32_t part = sge->length - offset < n ? sge->length - offset : n;
		const char *from = wqe->flags & IBV_SEND_INLINE ?
					   (const char *)(uintptr_t)sge->addr :
					   soft_local_addr(to_pd(qp->qp.pd), sge->lkey, sge->addr, sge->length, 0);
		if (soft_unlikely(!from))
			return false;
		if (soft_unlikely(!soft_guard_copy(to, from + offset, part)))
			return false;
		to += part;
		n -= part;
		offset = 0;
	}
	return true;
}

__attribute__((always_inline)) static inline bool scatter(struct soft_qp *qp, const struct soft_wqe *wqe,
							  uint32_t offset, const char *from, uint32_t n)
{
	for (uint32_t i = 0; n; i++) {
		const struct ibv_sge *sge = &wqe->sge[i];
		if (offset >= sge->length) {
			offset -= sge->length;
			continue;
		}
		uint32_t part = sge->length - offset < n ? sge->length - offset : n;
		char *to = soft_local_addr(to_pd(qp->qp.pd), sge->lkey, sge->addr, sge->length, IBV_ACCESS_LOCAL_WRITE);
		if (soft_unlikely(!to))
			return false;
		if (soft_unlikely(!soft_guard_copy(to + offset, from, part)))
			return false;
		from += part;
		n -= part;
		offset = 0;
	}
	return true;
}

__attribute__((noinline)) static bool scatter_loosely(struct soft_qp *qp, const struct soft_wqe *wqe, uint32_t offset,
						      const char *from, uint32_t n)
{
	struct soft_order order;
	uint32_t at, part;

	soft_order_begin(&order, qp, n);
	while (soft_order_next(&order, &at, &part))
		if (!scatter(qp, wqe, offset + at, from + at, part))
			return false;
	return true;
}

bool soft_wqe_scatter(struct soft_qp *qp, const struct soft_wqe *wqe, uint32_t offset, const char *from, uint32_t n)
{
	if (soft_unlikely(soft_unordered) && soft_is_loose_list(wqe->sge, wqe->num_sge))
		return scatter_loosely(qp, wqe, offset, from, n);
	return scatter(qp, wqe, offset, from, n);
}

bool soft_wqe_keep(struct soft_qp *qp, struct soft_wqe *wqe)
{
	struct ibv_sge *own = qp->sq_sge + (size_t)(wqe - qp->sq) * qp->cap.max_send_sge;

	if (wqe->sge == own || !wqe->num_sge)
		return true;
	if (wqe->flags & IBV_SEND_INLINE) {
		char *copy = malloc(wqe->length ? wqe->length : 1);
		if (!copy || !soft_wqe_gather(qp, wqe, 0, copy, wqe->length)) {
			free(copy);
			return false;
		}
		own[0] = (struct ibv_sge){ .addr = (uintptr_t)copy, .length = wqe->length };
		wqe->inline_copy = copy;
		wqe->num_sge = 1;
	} else {
		memcpy(own, wqe->sge, wqe->num_sge * sizeof(*own));
	}
	wqe->sge = own;
	return true;
}

/* ---- waiting -------------------------------------------------------------------------------------- */

uint64_t soft_retry_ns(const struct soft_qp *qp)
{
	return (UINT64_C(4096) << qp->attr.timeout) * (qp->attr.retry_cnt + 1u);
}

/* Absolute deadline of a wait for the destination that begins now; 0: none. */
static uint64_t retry_deadline(const struct soft_qp *qp)
{
	if (!qp->attr.timeout)
		return 0;
	return soft_clock_ns() + soft_retry_ns(qp);
}

uint64_t soft_rnr_ns(uint8_t rnr_retry, uint8_t min_rnr_timer)
{
	/* IBTA table 45, in units of 10 us; 0 stands for 655.36 ms. */
	static const uint32_t timers[32] = { 65536, 1,    2,    3,    4,    6,     8,     12,    16,    24,   32,
					     48,    64,   96,   128,  192,  256,   384,   512,   768,   1024, 1536,
					     2048,  3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152 };

	return UINT64_C(10000) * timers[min_rnr_timer & 31] * rnr_retry;
}

enum { DATAGRAM_NS = 100000, DATAGRAM_TRIES = 200 };

static void wait_begin(struct soft_qp *qp)
{
	uint64_t when = 0;

	if (qp->waited_wqe == qp->sq_next && qp->waited == qp->wait)
		return; /* continues */
	qp->tries = 0;
	qp->silent_ns = 0;
	qp->waited_wqe = qp->sq_next;
	qp->waited = qp->wait;
	if (qp->wait == SOFT_WAIT_PEER)
		when = retry_deadline(qp);
	else if (qp->wait == SOFT_WAIT_DATAGRAM)
		when = soft_clock_ns() + DATAGRAM_NS;
	else if (qp->wait == SOFT_WAIT_RNR && qp->attr.rnr_retry != 7)
		when = soft_clock_ns() + soft_rnr_ns(qp->attr.rnr_retry, qp->rnr_timer);
	atomic_store(&qp->deadline_ns, when);
	if (when)
		soft_clock_want(when);
}

static void wait_end(struct soft_qp *qp)
{
	if (soft_unlikely(qp->waited)) {
		qp->waited = SOFT_RUN;
		atomic_store(&qp->deadline_ns, 0);
	}
	qp->wait = SOFT_RUN;
}

/* A datagram is retried after a tenth of a millisecond, and dropped after twenty tries. */
static void datagram_timeout(struct soft_qp *qp, struct soft_after *after)
{
	if (++qp->tries < DATAGRAM_TRIES) {
		uint64_t when = soft_clock_ns() + DATAGRAM_NS;
		atomic_store(&qp->deadline_ns, when);
		soft_clock_want(when);
		return;
	}
	wait_end(qp);
	struct soft_wqe *wqe = soft_sq_at(qp, qp->sq_next++);
	wqe->state = SOFT_WQE_DONE;
	soft_sq_pump(qp, after);
}

/*
 * An adapter answers at once whether the destination exists; a process answers when it next runs. A live process that
 * has not answered counts as present, however long its host pauses it, up to a limit. Destinations in this process are
 * known directly.
 */
static bool may_answer_yet(struct soft_qp *qp)
{
	static const uint64_t longest_ns = 10000000000;

	if (!qp->remote || qp->heard || qp->silent_ns >= longest_ns ||
	    !soft_slot_answers(qp->attr.dest_qp_num >> SOFT_QPN_INDEX_BITS))
		return false;
	const uint64_t now = soft_clock_ns(), when = retry_deadline(qp);
	qp->silent_ns += when - now;
	atomic_store(&qp->deadline_ns, when);
	soft_clock_want(when);
	return true;
}

void soft_sq_heard(struct soft_qp *qp)
{
	qp->heard = true;
	if (qp->waited == SOFT_WAIT_PEER) {
		const uint64_t when = retry_deadline(qp);
		atomic_store(&qp->deadline_ns, when);
		if (when)
			soft_clock_want(when);
	}
}

enum soft_run soft_sq_yield(struct soft_qp *qp)
{
	qp->wait = SOFT_WAIT_TURN;
	soft_again(to_cq(qp->qp.send_cq), qp->send_slot);
	return SOFT_RUN_WAIT;
}

void soft_sq_timeout(struct soft_qp *qp, struct soft_after *after)
{
	uint64_t when;

	soft_lock(&qp->sq_lock);
	when = atomic_load(&qp->deadline_ns);
	if (when && when <= soft_clock_ns() && qp->sq_next != qp->sq_tail) {
		soft_sq_pump(qp, after);
		if (qp->wait == SOFT_WAIT_DATAGRAM)
			datagram_timeout(qp, after);
		else if (qp->wait == SOFT_WAIT_RNR || (qp->wait == SOFT_WAIT_PEER && !may_answer_yet(qp))) {
			struct soft_wqe *wqe = soft_sq_at(qp, qp->sq_next);
			wqe->status = qp->wait == SOFT_WAIT_RNR ? IBV_WC_RNR_RETRY_EXC_ERR : IBV_WC_RETRY_EXC_ERR;
			soft_sq_pump(qp, after); /* fails by its status, runs nothing */
		}
	} else if (when) {
		soft_clock_want(when);
	}
	soft_unlock(&qp->sq_lock);
}

/* ---- completing ----------------------------------------------------------------------------------- */

/* The WR at that place of the send queue. */
static void complete(struct soft_qp *qp, uint32_t at, enum ibv_wc_status status)
{
	struct soft_wqe *wqe = soft_sq_at(qp, at);

	if (soft_unlikely(wqe->inline_copy)) {
		free(wqe->inline_copy);
		wqe->inline_copy = NULL;
	}
	if (status == IBV_WC_SUCCESS && !(wqe->flags & IBV_SEND_SIGNALED))
		return;
	struct ibv_wc wc = {
		.wr_id = wqe->wr_id,
		.status = status,
		.opcode = wc_opcodes[wqe->opcode],
		.byte_len = wqe->length,
		.qp_num = qp->qp.qp_num,
	};
	soft_cq_push_sent(to_cq(qp->qp.send_cq), &wc, qp, at + 1);
}

void soft_sq_flush(struct soft_qp *qp)
{
	for (; qp->sq_head != qp->sq_tail; qp->sq_head++)
		complete(qp, qp->sq_head, IBV_WC_WR_FLUSH_ERR);
	qp->sq_next = qp->sq_tail;
	wait_end(qp);
	if (qp->path->flushed)
		qp->path->flushed(qp);
}

void soft_sq_retire(struct soft_qp *qp, struct soft_after *after)
{
	if (qp->path->count_acked)
		qp->path->count_acked(qp);
	const uint64_t acked = qp->acked;

	while (qp->sq_head != qp->sq_next) {
		struct soft_wqe *wqe = soft_sq_at(qp, qp->sq_head);
		/*
		 * msn: messages that the peer must have carried out first. A WR that the peer refused is the next one.
		 */
		if (wqe->msn > acked && !(wqe->status != IBV_WC_SUCCESS && wqe->state == SOFT_WQE_SENT))
			break;
		if (wqe->answered && wqe->offset < wqe->length && wqe->status == IBV_WC_SUCCESS)
			break;
		complete(qp, qp->sq_head++, wqe->status);
		if (soft_unlikely(wqe->status != IBV_WC_SUCCESS)) {
			/* RC stops completely; UC and UD keep receiving (IBTA 10.3.1.7, SQE). */
			bool all = qp->qp.qp_type == IBV_QPT_RC;
			soft_qp_set_state(qp, all ? IBV_QPS_ERR : IBV_QPS_SQE);
			soft_sq_flush(qp);
			if (all)
				soft_after_fail(after, qp);
			return;
		}
	}
	const bool drains = soft_state(qp) == IBV_QPS_SQD && qp->attr.sq_draining && qp->sq_head == qp->sq_next;
	/* A message of which a part is carried out goes on, whatever the state. */
	if (soft_likely(!drains) || (qp->sq_next != qp->sq_tail && soft_sq_at(qp, qp->sq_next)->offset))
		return;
	qp->attr.sq_draining = 0;
	if (qp->attr.en_sqd_async_notify)
		soft_async_push(to_ctx(qp->qp.context), IBV_EVENT_SQ_DRAINED, &qp->qp);
}

/* ---- running -------------------------------------------------------------------------------------- */

static bool fetches_pending(struct soft_qp *qp)
{
	for (uint32_t i = qp->sq_head; i != qp->sq_next; i++) {
		const struct soft_wqe *wqe = soft_sq_at(qp, i);
		if (wqe->answered && wqe->offset < wqe->length)
			return true;
	}
	return false;
}

static enum soft_run carry_out(struct soft_qp *qp, struct soft_wqe *wqe, struct soft_after *after)
{
	if (soft_unlikely(wqe->status != IBV_WC_SUCCESS)) {
		if (wqe->status != SOFT_WC_NEVER)
			return SOFT_RUN_DONE;
		qp->wait = SOFT_WAIT_DEPTH;
		return SOFT_RUN_WAIT;
	}
	enum soft_run stopped;
	if (soft_unlikely(atomic_load_explicit(&soft_faults_on, memory_order_relaxed)) &&
	    soft_fault_stops(qp, wqe, &stopped))
		return stopped;
	if (soft_unlikely((wqe->flags & IBV_SEND_FENCE) && fetches_pending(qp))) {
		qp->wait = SOFT_WAIT_FENCE;
		return SOFT_RUN_WAIT;
	}
	if (soft_unlikely(wqe->opcode == IBV_WR_LOCAL_INV)) {
		wqe->status = (uint8_t)soft_key_invalidate(qp, wqe->imm, false);
		return SOFT_RUN_DONE;
	}
	if (soft_unlikely(wqe->opcode == IBV_WR_BIND_MW)) {
		wqe->status = (uint8_t)soft_mw_bind(qp, wqe->bind.mw, &wqe->bind.info, wqe->rkey);
		return SOFT_RUN_DONE;
	}
	return qp->path->run(qp, wqe, after);
}

/* The same; records the outcome and advances sq_next. */
static enum soft_run run(struct soft_qp *qp, struct soft_wqe *wqe, struct soft_after *after)
{
	enum soft_run r = carry_out(qp, wqe, after);

	if (soft_unlikely(r == SOFT_RUN_WAIT))
		return r;
	wait_end(qp);
	if (r == SOFT_RUN_SENT) {
		wqe->state = SOFT_WQE_SENT;
		if (wqe->answered)
			soft_wqe_keep(qp, wqe); /* the response address; never inline, so it cannot fail */
	} else {
		wqe->state = SOFT_WQE_DONE;
		wqe->msn = qp->issued;
	}
	qp->sq_next++;
	if (soft_unlikely(wqe->status != IBV_WC_SUCCESS))
		qp->wait = SOFT_WAIT_ERROR;
	return r;
}

void soft_sq_pump(struct soft_qp *qp, struct soft_after *after)
{
	while (qp->sq_next != qp->sq_tail && qp->wait != SOFT_WAIT_ERROR) {
		struct soft_wqe *wqe = soft_sq_at(qp, qp->sq_next);
		uint32_t state = soft_state(qp);

		/* Draining: what has begun continues. */
		if (soft_unlikely(state != IBV_QPS_RTS && !(state == IBV_QPS_SQD && wqe->offset)))
			break;
		if (soft_unlikely(run(qp, wqe, after) == SOFT_RUN_WAIT)) {
			if (soft_wqe_keep(qp, wqe)) {
				wait_begin(qp);
				break;
			}
			wqe->status = IBV_WC_LOC_PROT_ERR;
		}
	}
	if (qp->path->push)
		qp->path->push(qp);
	soft_sq_retire(qp, after);
}

/* ---- posting -------------------------------------------------------------------------------------- */

static void fill(struct soft_qp *qp, struct soft_wqe *wqe, const struct ibv_send_wr *wr, uint32_t length,
		 uint8_t status)
{
	wqe->wr_id = wr->wr_id;
	wqe->msn = 0;
	wqe->sge = wr->sg_list;
	wqe->length = length;
	wqe->offset = 0;
	wqe->imm = wr->imm_data;
	wqe->num_sge = (uint16_t)wr->num_sge;
	wqe->opcode = (uint8_t)wr->opcode;
	wqe->flags = (uint8_t)(wr->send_flags | (qp->sq_sig_all ? IBV_SEND_SIGNALED : 0));
	wqe->state = SOFT_WQE_POSTED;
	wqe->status = status;
	wqe->answered = wqe->placed = wqe->direct = false;
	if (qp->qp.qp_type == IBV_QPT_UD) {
		wqe->ud.ah = to_ah(wr->wr.ud.ah);
		wqe->ud.qpn = wr->wr.ud.remote_qpn;
		wqe->ud.qkey = wr->wr.ud.remote_qkey;
		return;
	}
	wqe->raddr = wr->wr.rdma.remote_addr;
	wqe->rkey = wr->wr.rdma.rkey;
	if (wqe->opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wqe->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wqe->raddr = wr->wr.atomic.remote_addr;
		wqe->rkey = wr->wr.atomic.rkey;
		wqe->atomic.compare_add = wr->wr.atomic.compare_add;
		wqe->atomic.swap = wr->wr.atomic.swap;
	} else if (wqe->opcode == IBV_WR_BIND_MW) {
		wqe->bind.mw = wr->bind_mw.mw;
		wqe->bind.info = wr->bind_mw.bind_info;
		wqe->rkey = wr->bind_mw.rkey;
	}
}

static int post_one(struct soft_qp *qp, const struct ibv_send_wr *wr, struct soft_after *after)
{
	uint32_t state = soft_state(qp);
	uint64_t length = 0;

	if (soft_unlikely(state < IBV_QPS_RTS))
		return (int)soft_personality()->early_error;
	if (soft_unlikely(wr->num_sge < 0 || (uint32_t)wr->num_sge > qp->cap.max_send_sge))
		return (int)soft_personality()->sge_error;
	if (soft_unlikely(!soft_sq_has_room(qp, 1)))
		return ENOMEM;
	bool bare = wr->opcode == IBV_WR_BIND_MW || wr->opcode == IBV_WR_LOCAL_INV;
	for (int i = 0; i < wr->num_sge && !bare; i++)
		length += wr->sg_list[i].length;
	const int found = soft_post_check(qp, wr, length);
	if (soft_unlikely(found > 0))
		return found;

	struct soft_wqe *wqe = soft_sq_at(qp, qp->sq_tail);
	fill(qp, wqe, wr, (uint32_t)length, (uint8_t)-found);
	if (bare)
		wqe->num_sge = 0;
	qp->sq_tail++;
	bool write = wqe->opcode == IBV_WR_RDMA_WRITE || wqe->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
	if (soft_unlikely(state == IBV_QPS_ERR || state == IBV_QPS_SQE)) {
		if (soft_personality()->late_error) {
			qp->sq_tail--;
			return (int)soft_personality()->late_error;
		}
		qp->astray += write;
		complete(qp, qp->sq_tail - 1, IBV_WC_WR_FLUSH_ERR);
		qp->sq_head = qp->sq_next = qp->sq_tail;
		return 0;
	}
	if (soft_unlikely(qp->wait == SOFT_WAIT_DATAGRAM)) {
		if (!soft_wqe_keep(qp, wqe)) {
			qp->sq_tail--;
			return ENOMEM;
		}
		soft_sq_pump(qp, after);
		return 0;
	}
	if (soft_likely(qp->sq_next + 1 == qp->sq_tail && state == IBV_QPS_RTS && qp->wait == SOFT_RUN)) {
		enum soft_run r = run(qp, wqe, after);
		if (soft_likely(r == SOFT_RUN_SENT)) {
			qp->astray += write;
			return 0;
		}
		if (r == SOFT_RUN_DONE) {
			qp->astray += write && wqe->status != IBV_WC_SUCCESS;
			soft_sq_retire(qp, after);
			return 0;
		}
		wait_begin(qp);
	}
	qp->astray += write;
	if (soft_unlikely(!soft_wqe_keep(qp, wqe))) {
		qp->sq_tail--;
		return ENOMEM;
	}
	return 0;
}

SOFT_EXPORT const volatile uint64_t *softdev_astray(struct ibv_qp *ibqp)
{
	return soft_is(ibqp->context) ? &to_qp(ibqp)->astray : NULL;
}

/* The next of several is placed first, perhaps. */
static void place_early(struct soft_qp *qp, const struct ibv_send_wr *wr)
{
	struct soft_wqe wqe = { 0 };
	uint64_t length = 0;

	if (wr->opcode != IBV_WR_RDMA_WRITE || !qp->path->early || soft_state(qp) != IBV_QPS_RTS ||
	    qp->wait != SOFT_RUN || qp->sq_next != qp->sq_tail || wr->num_sge < 0 ||
	    (uint32_t)wr->num_sge > qp->cap.max_send_sge)
		return;
	for (int i = 0; i < wr->num_sge; i++)
		length += wr->sg_list[i].length;
	if (!length || soft_post_check(qp, wr, length) || !soft_order_early(qp))
		return;
	fill(qp, &wqe, wr, (uint32_t)length, IBV_WC_SUCCESS);
	qp->path->early(qp, &wqe);
}

int soft_post_send(struct ibv_qp *ibqp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct soft_qp *qp = to_qp(ibqp);
	struct soft_after after = { 0 };
	int err = 0;

	soft_lock(&qp->sq_lock);
	for (; wr; wr = wr->next) {
		if (wr->next && soft_unlikely(soft_unordered))
			place_early(qp, wr->next);
		err = post_one(qp, wr, &after);
		if (soft_unlikely(err)) {
			*bad = wr;
			break;
		}
	}
	if (soft_unlikely(err))
		err = soft_error_returned(err);
	if (qp->unsent) {
		const bool last = atomic_load_explicit(&qp->holds, memory_order_relaxed) == SOFT_HOLDS_LAST;
		if (soft_unlikely(last))
			qp->settles = !err;
		if (qp->path->push(qp))
			soft_sq_retire(qp, &after);
		if (soft_unlikely(last))
			qp->settles = false;
	}
	soft_unlock(&qp->sq_lock);
	soft_after_run(&after);
	return err;
}

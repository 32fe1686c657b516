/*
 * The requester's end of a lane: requests go into the ring or, for mapped memory, directly to their destination
 * (lane_direct.c); acknowledgements and response data come back.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shm/lane.h"

#define REQ_MASK ((uint64_t)SOFT_REQ_RING - 1)
#define RESP_MASK ((uint64_t)SOFT_RESP_RING - 1)

static uint32_t align(uint32_t n)
{
	return (n + SOFT_RECORD_ALIGN - 1) & ~(uint32_t)(SOFT_RECORD_ALIGN - 1);
}

/* ---- notification of acknowledgements -------------------------------------------------------------- */

static void count(struct soft_qp *qp)
{
	struct soft_cq *cq = to_cq(qp->qp.send_cq);

	if (qp->out->counted)
		return;
	qp->out->counted = true;
	atomic_fetch_add_explicit(&cq->waiting, 1, memory_order_relaxed);
	/* A thread may already sleep on this CQ and poll no more: then the timer has to check the peer. */
	if (atomic_load_explicit(cq->armed, memory_order_relaxed) & SOFT_ARM_WANTED)
		soft_timer_want(soft_now_ns() + SOFT_STALL_NS);
}

static void uncount(struct soft_qp *qp)
{
	if (!qp->out->counted)
		return;
	qp->out->counted = false;
	atomic_fetch_sub_explicit(&to_cq(qp->qp.send_cq)->waiting, 1, memory_order_release); /* see complete_sends() */
}

void soft_out_idle(struct soft_qp *qp)
{
	if (qp->out)
		uncount(qp);
}

/* ---- the request ring ------------------------------------------------------------------------------- */

static bool has_room(struct soft_out *o, uint32_t need)
{
	if (soft_likely(o->tail + need - o->head <= SOFT_REQ_RING))
		return true;
	uint64_t head = atomic_load_explicit(&o->seg->head, memory_order_acquire);
	if (head > o->tail || o->tail - head > SOFT_REQ_RING) {
		o->dead = true;
		return false;
	}
	o->head = head;
	return o->tail + need - head <= SOFT_REQ_RING;
}

/* Reserves contiguous space for a record. NULL: ring full; the responder rings when there is room. */
static char *reserve(struct soft_out *o, uint32_t bytes)
{
	uint32_t size = align(bytes), left = SOFT_REQ_RING - (uint32_t)(o->tail & REQ_MASK);
	uint32_t need = left < size ? left + size : size;

	if (soft_unlikely(!has_room(o, need))) {
		atomic_store(&o->seg->blocked, 1);
		if (!has_room(o, need))
			return NULL;
		atomic_store_explicit(&o->seg->blocked, 0, memory_order_relaxed);
	}
	if (soft_unlikely(left < size)) {
		struct soft_rec *pad = (struct soft_rec *)(void *)(o->seg->req + (o->tail & REQ_MASK));
		*pad = (struct soft_rec){ .op = SOFT_OP_PAD };
		o->tail += left; /* published with the record that follows */
	}
	return (char *)o->seg->req + (o->tail & REQ_MASK);
}

/* soft_out_flush() publishes it: once for all WRs of a post. */
static void publish(struct soft_qp *qp, uint32_t bytes)
{
	qp->out->tail += align(bytes);
	qp->unsent = true;
}

/* Called for the message whose last record is about to be published. */
static void number(struct soft_qp *qp, struct soft_wqe *wqe)
{
	struct soft_out *o = qp->out;

	wqe->msn = ++qp->issued;
	struct soft_cq *cq = to_cq(qp->qp.send_cq);
	if (!atomic_load_explicit(&cq->unacked, memory_order_relaxed))
		atomic_store_explicit(&cq->unacked, true, memory_order_relaxed);
	if ((wqe->flags & IBV_SEND_SIGNALED) || wqe->answered) {
		o->wanted = wqe->msn;
		atomic_store_explicit(&o->seg->want_ack, wqe->msn, memory_order_relaxed);
		count(qp);
	}
}

/* Delay until a full ring is checked again without a signal from the responder. */
enum { ROOM_NS = 1000000 };

static enum soft_run wait_room(struct soft_qp *qp, struct soft_wqe *wqe)
{
	if (qp->out->dead) {
		wqe->status = IBV_WC_FATAL_ERR;
		return SOFT_RUN_DONE;
	}
	qp->wait = SOFT_WAIT_ROOM;
	count(qp);
	/* Nothing is complete yet, so no event wakes a sleeping responder. */
	if (qp->out->asleep || (atomic_load(qp->out->armed) & SOFT_ARM_WANTED))
		soft_out_kick(qp);
	soft_timer_want(soft_now_ns() + ROOM_NS);
	return SOFT_RUN_WAIT;
}

static uint8_t message_flags(const struct soft_wqe *wqe)
{
	uint8_t flags = wqe->flags & IBV_SEND_SOLICITED ? SOFT_REC_SOLICITED : 0;

	if (wqe->opcode == IBV_WR_SEND_WITH_IMM || wqe->opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
		flags |= SOFT_REC_IMM;
	else if (wqe->opcode == IBV_WR_SEND_WITH_INV)
		flags |= SOFT_REC_INV;
	return flags;
}

/* The message produces a completion at the responder. */
static void will_fire(struct soft_out *o, const struct soft_wqe *wqe)
{
	o->fire = true;
	o->solicited |= wqe->flags & IBV_SEND_SOLICITED;
}

/* SEND, and WRITE to unmapped memory: payload through the ring, in pieces. */
static enum soft_run stream(struct soft_qp *qp, struct soft_wqe *wqe, bool write)
{
	struct soft_out *o = qp->out;
	const uint32_t head = sizeof(struct soft_rec) + (write ? sizeof(struct soft_reth) : 0);
	const uint32_t begin = wqe->offset;

	do {
		if (soft_unlikely(wqe->offset - begin > SOFT_TURN_BYTES))
			return soft_sq_yield(qp);
		uint32_t n = wqe->length - wqe->offset;
		bool last = n <= SOFT_FRAGMENT;
		if (!last)
			n = SOFT_FRAGMENT;
		uint64_t before = o->tail;
		char *at = reserve(o, head + n);
		if (soft_unlikely(!at))
			return wait_room(qp, wqe);
		struct soft_rec *rec = (struct soft_rec *)(void *)at;
		rec->length = n;
		rec->op = write ? SOFT_OP_WRITE : SOFT_OP_SEND;
		rec->flags = (uint8_t)((wqe->offset ? 0 : SOFT_REC_FIRST) | (last ? SOFT_REC_LAST : 0) |
				       (write ? SOFT_REC_REMOTE : 0) | message_flags(wqe));
		rec->imm = wqe->imm;
		rec->total = wqe->length;
		if (write) {
			struct soft_reth *reth = (struct soft_reth *)(void *)(at + sizeof(*rec));
			reth->addr = wqe->raddr + wqe->offset;
			reth->rkey = wqe->rkey;
		}
		if (soft_unlikely(!soft_wqe_gather(qp, wqe, wqe->offset, at + head, n))) {
			o->tail = before;
			wqe->status = IBV_WC_LOC_PROT_ERR;
			return SOFT_RUN_DONE;
		}
		if (last)
			number(qp, wqe);
		publish(qp, head + n);
		if (!last) /* the responder may start */
			atomic_store_explicit(&o->seg->tail, o->tail, memory_order_release);
		wqe->offset += n;
	} while (wqe->offset < wqe->length);
	if (write)
		o->staged = wqe->msn;
	if (!write || wqe->opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
		will_fire(o, wqe);
	return SOFT_RUN_SENT;
}

/* READ and atomics carried out by the responder. */
static enum soft_run fetch(struct soft_qp *qp, struct soft_wqe *wqe)
{
	struct soft_out *o = qp->out;
	const uint32_t bytes = sizeof(struct soft_rec) + sizeof(struct soft_reth);
	char *at = reserve(o, bytes);

	if (!at)
		return wait_room(qp, wqe);
	*(struct soft_rec *)(void *)at = (struct soft_rec){
		.op = wqe->opcode == IBV_WR_RDMA_READ          ? SOFT_OP_READ :
		      wqe->opcode == IBV_WR_ATOMIC_CMP_AND_SWP ? SOFT_OP_COMPARE_SWAP :
								 SOFT_OP_FETCH_ADD,
		.flags = SOFT_REC_FIRST | SOFT_REC_LAST | SOFT_REC_REMOTE,
		.total = wqe->length,
	};
	struct soft_reth *reth = (struct soft_reth *)(void *)(at + sizeof(struct soft_rec));
	reth->addr = wqe->raddr;
	reth->rkey = wqe->rkey;
	if (wqe->opcode != IBV_WR_RDMA_READ) {
		reth->compare_add = wqe->atomic.compare_add;
		reth->swap = wqe->atomic.swap;
	}
	wqe->answered = true;
	number(qp, wqe);
	o->staged = wqe->msn;
	publish(qp, bytes);
	o->now |= o->asleep && wqe->msn % 64;
	return SOFT_RUN_SENT;
}

/* The immediate of a WRITE whose data has already been written. */
static enum soft_run immediate(struct soft_qp *qp, struct soft_wqe *wqe)
{
	struct soft_out *o = qp->out;
	struct soft_rec *rec = (struct soft_rec *)(void *)reserve(o, sizeof(*rec));

	if (!rec)
		return wait_room(qp, wqe);
	*rec = (struct soft_rec){
		.op = SOFT_OP_IMM,
		.flags = (uint8_t)(SOFT_REC_FIRST | SOFT_REC_LAST | message_flags(wqe)),
		.imm = wqe->imm,
		.total = wqe->length,
	};
	number(qp, wqe);
	publish(qp, sizeof(*rec));
	will_fire(o, wqe);
	return SOFT_RUN_SENT;
}

/* ---- after a direct access --------------------------------------------------------------------------- */

/* Part of a long WR is done, and the rest has to wait for its turn. */
static enum soft_run direct_more(struct soft_qp *qp, struct soft_wqe *wqe)
{
	wqe->direct = true;
	wqe->offset += SOFT_TURN_BYTES;
	return soft_sq_yield(qp);
}

/* Whether what is staged is acknowledged now. If not, the responder rings when it is. */
static bool staged_acked(struct soft_qp *qp)
{
	struct soft_out *o = qp->out;

	if (o->wanted < o->staged)
		o->wanted = o->staged;
	/* Full barrier between `want_ack` and `acked`, see lane.h. */
	atomic_store(&o->seg->want_ack, o->wanted);
	count(qp);
	return soft_out_collect_acks(qp) && o->staged <= qp->acked;
}

/* ---- faults: the peer's port is down ------------------------------------------------------------------ */

/* What has not begun waits for its port, as a card repeats its packets. */
static enum soft_run wait_for_port(struct soft_qp *qp)
{
	if (qp->qp.qp_type != IBV_QPT_RC)
		return SOFT_RUN_DONE; /* lost */
	qp->heard = true;             /* the peer's process lives, and will not answer */
	qp->wait = SOFT_WAIT_PEER;
	return SOFT_RUN_WAIT;
}

/* Whether what is in flight has waited for as long. */
static bool waited_in_vain(struct soft_qp *qp)
{
	struct soft_out *o = qp->out;

	if (soft_likely(!atomic_load_explicit(&o->seg->cut, memory_order_relaxed)) || qp->acked == qp->issued ||
	    !qp->attr.timeout) {
		o->cut_until = 0;
		return false;
	}
	const uint64_t now = soft_now_ns();
	if (!o->cut_until)
		o->cut_until = now + soft_retry_ns(qp);
	if (now >= o->cut_until)
		return true;
	soft_cq_ring(to_cq(qp->qp.send_cq), qp->send_slot);
	soft_timer_want(o->cut_until);
	return false;
}

/* ---- one work request -------------------------------------------------------------------------------- */

static bool read_acks(struct soft_qp *qp);

static enum soft_run run(struct soft_qp *qp, struct soft_wqe *wqe)
{
	struct soft_out *o = qp->out;
	uint32_t access;

	if (soft_unlikely(atomic_load_explicit(&o->seg->cut, memory_order_relaxed)))
		return wait_for_port(qp);
	if (soft_unlikely(o->dead || !atomic_load_explicit(&o->seg->gate, memory_order_relaxed))) {
		if (qp->qp.qp_type == IBV_QPT_RC)
			wqe->status = IBV_WC_RETRY_EXC_ERR;
		else if (read_acks(qp))
			uncount(qp); /* it may have waited for room */
		return SOFT_RUN_DONE;
	}
	switch (wqe->opcode) {
	case IBV_WR_SEND:
	case IBV_WR_SEND_WITH_IMM:
	case IBV_WR_SEND_WITH_INV:
		return stream(qp, wqe, false);
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		access = IBV_ACCESS_REMOTE_WRITE;
		break;
	case IBV_WR_RDMA_READ:
		access = IBV_ACCESS_REMOTE_READ;
		break;
	default:
		access = IBV_ACCESS_REMOTE_ATOMIC;
	}
	/* A WRITE started in the ring continues there; one written directly waits for room for its immediate. */
	enum soft_direct done = wqe->offset && !wqe->direct ? SOFT_DIRECT_NO :
				wqe->placed                 ? SOFT_DIRECT_DONE :
							      soft_out_direct(qp, wqe, access);
	if (soft_unlikely(done == SOFT_DIRECT_LATER) && staged_acked(qp))
		done = soft_out_direct(qp, wqe, access);
	switch (done) {
	case SOFT_DIRECT_MORE:
		return direct_more(qp, wqe);
	case SOFT_DIRECT_LATER:
		qp->wait = SOFT_WAIT_STAGED;
		return SOFT_RUN_WAIT;
	case SOFT_DIRECT_LOST:
		wqe->status = IBV_WC_RETRY_EXC_ERR;
		return SOFT_RUN_DONE;
	case SOFT_DIRECT_PROT:
		wqe->status = IBV_WC_LOC_PROT_ERR;
		return SOFT_RUN_DONE;
	case SOFT_DIRECT_DONE:
		if (wqe->opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
			wqe->placed = true;
			return immediate(qp, wqe);
		}
		if ((wqe->flags & IBV_SEND_SIGNALED) && qp->issued > qp->acked) {
			/* Completes after the messages before it; see lane.h for the order. */
			o->wanted = qp->issued;
			atomic_store(&o->seg->want_ack, qp->issued);
			count(qp);
			soft_out_collect_acks(qp);
		}
		return SOFT_RUN_DONE;
	case SOFT_DIRECT_NO:
		/* If the owner has closed the memory in the middle, it gets all of it again, and decides. */
		if (soft_unlikely(wqe->direct))
			wqe->offset = 0;
		wqe->direct = false;
		break;
	}
	return access == IBV_ACCESS_REMOTE_WRITE ? stream(qp, wqe, true) : fetch(qp, wqe);
}

enum soft_run soft_out_run(struct soft_qp *qp, struct soft_wqe *wqe, struct soft_after *after)
{
	(void)after;
	if (soft_unlikely(!qp->out)) {
		if (qp->refused)
			soft_service(qp, SOFT_SERVICE_CONNECT);
		qp->wait = SOFT_WAIT_PEER;
		return SOFT_RUN_WAIT;
	}
	enum soft_run r = run(qp, wqe);
	if (soft_unlikely(r == SOFT_RUN_WAIT) && !qp->out->waiting) {
		qp->out->waiting = true;
		atomic_store(&qp->out->seg->run_at, 0);
		atomic_store(&qp->out->seg->waiting, 1);
	}
	return r;
}

/* ---- waking the responder --------------------------------------------------------------------------- */

bool soft_out_flush(struct soft_qp *qp)
{
	struct soft_out *o = qp->out;

	if (!o)
		return false;
	const bool settles = soft_unlikely(qp->settles) && qp->sq_next == qp->sq_tail;
	if (settles)
		atomic_store(&o->seg->settled_at, o->tail);
	if (soft_unlikely(o->waiting) && qp->sq_next == qp->sq_tail) {
		atomic_store(&o->seg->run_at, o->tail);
		atomic_store(&o->seg->tail, o->tail);
		atomic_store(&o->seg->waiting, 0);
		o->waiting = false;
	}
	if (!qp->unsent)
		return false;
	/* A lane whose bit is set is checked anyway; progress.c explains why this store is seq_cst. */
	atomic_store(&o->seg->tail, o->tail);
	if (settles) {
		/* Published, and said, before the bell: who hears it may end this process. */
		atomic_store_explicit(&qp->holds, SOFT_HOLDS_NOTHING, memory_order_relaxed);
		soft_seg_say(o->seg, SOFT_HOLDS_NOTHING);
	}
	if (o->bit >= 64 || !(atomic_load(&o->door->near) & UINT64_C(1) << o->bit))
		soft_door_ring(o->door, o->bit);
	if (o->fire)
		soft_door_fire(o->door, o->armed, o->event, o->solicited);
	qp->unsent = o->fire = o->solicited = false;
	if (soft_unlikely(o->now)) {
		/* The caller waits for an answer, and no thread polled for the last one: kick now. */
		o->now = false;
		o->kicked = qp->issued;
		soft_link_kick(o->link);
	}
	return false;
}

bool soft_out_kick(struct soft_qp *qp)
{
	struct soft_out *o = qp->out;

	if (!o || o->dead)
		return false;
	if (qp->wait == SOFT_WAIT_ROOM) {
		o->asleep = true;
		soft_out_flush(qp);
		soft_link_kick(o->link);
		return true;
	}
	/* Still counted as waiting: nothing is completed here, and the answer must wait until it is (complete_sends()). */
	if (!read_acks(qp) || qp->acked == qp->issued)
		return false;
	if (o->kicked < qp->issued) {
		o->kicked = qp->issued;
		o->asleep = true;
		soft_link_kick(o->link);
	}
	return true;
}

/* ---- acknowledgements and responses ------------------------------------------------------------------ */

/* What a UC sender has on its way is lost, and so of no more concern to it. */
static bool is_lost(const struct soft_out *o)
{
	return o->dead || !atomic_load(&o->seg->gate) || atomic_load(&o->seg->nak) || atomic_load(&o->seg->cut);
}

static bool read_acks(struct soft_qp *qp)
{
	struct soft_out *o = qp->out;
	uint64_t acked = atomic_load(&o->seg->acked);

	if (soft_unlikely(qp->qp.qp_type == IBV_QPT_UC)) /* acked < qp->acked: the peer's port is up again */
		acked = is_lost(o) ? qp->issued : acked < qp->acked ? qp->acked : acked;
	if (soft_unlikely(acked < qp->acked || acked > qp->issued)) {
		o->dead = true;
		return false;
	}
	if (acked > o->kicked)
		o->asleep = false; /* the acknowledgement came without a kick */
	qp->acked = acked;
	return true;
}

/* The caller completes what is acknowledged, before it gives sq_lock away. */
bool soft_out_collect_acks(struct soft_qp *qp)
{
	if (!read_acks(qp))
		return false;
	if (qp->acked >= qp->out->wanted && qp->wait != SOFT_WAIT_ROOM)
		uncount(qp);
	return true;
}

static struct soft_wqe *first_unanswered(struct soft_qp *qp)
{
	for (uint32_t i = qp->sq_head; i != qp->sq_next; i++) {
		struct soft_wqe *wqe = soft_sq_at(qp, i);
		if (wqe->answered && wqe->offset < wqe->length)
			return wqe;
	}
	return NULL;
}

/* False: the responder violated the protocol. */
static bool take_responses(struct soft_qp *qp)
{
	struct soft_out *o = qp->out;
	uint64_t tail = atomic_load_explicit(&o->seg->resp_tail, memory_order_acquire);

	if (soft_likely(tail == o->resp_head))
		return true;
	if (tail < o->resp_head || tail - o->resp_head > SOFT_RESP_RING || tail % SOFT_RECORD_ALIGN)
		return false;
	while (o->resp_head != tail) {
		uint32_t at = (uint32_t)(o->resp_head & RESP_MASK), left = SOFT_RESP_RING - at;
		struct soft_rec rec;

		memcpy(&rec, o->seg->resp + at, sizeof(rec));
		if (rec.op == SOFT_OP_PAD) {
			if (left > tail - o->resp_head)
				return false;
			o->resp_head += left;
			continue;
		}
		struct soft_wqe *wqe = first_unanswered(qp);
		if (tail - o->resp_head < left)
			left = (uint32_t)(tail - o->resp_head);
		if (rec.op != SOFT_OP_DATA || rec.length > SOFT_FRAGMENT || align(sizeof(rec) + rec.length) > left ||
		    !wqe || rec.imm != wqe->offset || rec.length > wqe->length - wqe->offset || !rec.length)
			return false;
		if (wqe->status == IBV_WC_SUCCESS &&
		    !soft_wqe_scatter(qp, wqe, wqe->offset, (const char *)o->seg->resp + at + sizeof(rec), rec.length))
			wqe->status = IBV_WC_LOC_PROT_ERR;
		wqe->offset += rec.length;
		o->resp_head += align(sizeof(rec) + rec.length);
	}
	atomic_store(&o->seg->resp_head, o->resp_head);
	if (atomic_load(&o->seg->resp_blocked)) {
		soft_door_ring(o->door, o->bit);
		if (o->asleep || (atomic_load(o->armed) & SOFT_ARM_WANTED))
			soft_link_kick(o->link);
	}
	return true;
}

/* The first unanswered request fails; what follows is flushed. */
static void fail_first(struct soft_qp *qp, enum ibv_wc_status status, struct soft_after *after)
{
	struct soft_out *o = qp->out;

	for (uint32_t i = qp->sq_head; i != qp->sq_next; i++) {
		struct soft_wqe *wqe = soft_sq_at(qp, i);
		if (wqe->state == SOFT_WQE_SENT && wqe->msn > qp->acked && wqe->status == IBV_WC_SUCCESS) {
			wqe->status = (uint8_t)status;
			return;
		}
	}
	if (o->dead)
		soft_after_fail(after, qp);
}

bool soft_out_collect(struct soft_qp *qp, struct soft_after *after)
{
	struct soft_out *o = qp->out;

	if (!o)
		return false;
	/* Read before `acked`: acknowledgements from before the lane was closed count. */
	uint32_t gate = atomic_load(&o->seg->gate);
	uint32_t nak = atomic_load(&o->seg->nak);

	/* In this order: once a READ is acknowledged, all its data is in the ring. */
	if (!soft_out_collect_acks(qp) || !take_responses(qp)) {
		o->dead = true;
		fail_first(qp, IBV_WC_FATAL_ERR, after);
	} else if (qp->qp.qp_type == IBV_QPT_UC) {
		; /* it hears nothing of its peer */
	} else if (nak) {
		bool known = nak == IBV_WC_REM_ACCESS_ERR || nak == IBV_WC_REM_INV_REQ_ERR ||
			     nak == IBV_WC_REM_OP_ERR || nak == IBV_WC_RNR_RETRY_EXC_ERR;
		fail_first(qp, known ? (enum ibv_wc_status)nak : IBV_WC_FATAL_ERR, after);
	} else if (!gate || o->dead || waited_in_vain(qp)) {
		fail_first(qp, IBV_WC_RETRY_EXC_ERR, after);
	}
	soft_sq_retire(qp, after);
	return true;
}

void soft_out_free(struct soft_qp *qp)
{
	struct soft_out *o = qp->out;

	if (!o)
		return;
	uncount(qp);
	atomic_store(&o->seg->detached, 1);
	soft_door_ring(o->door, o->bit);
	munmap(o->seg, sizeof(*o->seg));
	soft_event_release(o->link, o->event);
	soft_link_release(o->link);
	free(o);
	qp->out = NULL;
	qp->issued = qp->acked = 0;
	qp->unsent = false;
}

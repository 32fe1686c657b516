/*
 * The responder's end of a lane: takes records out of the request ring, in order, and carries them out. It runs in the
 * thread that finds the door bit: a poll of the receive CQ, ibv_get_cq_event, a post_recv that a message waited for, or
 * the progress thread when the requester has kicked it.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "shm/lane.h"

#define REQ_MASK ((uint64_t)SOFT_REQ_RING - 1)
#define RESP_MASK ((uint64_t)SOFT_RESP_RING - 1)

enum take { TAKEN, STOP };

static uint32_t align(uint32_t n)
{
	return (n + SOFT_RECORD_ALIGN - 1) & ~(uint32_t)(SOFT_RECORD_ALIGN - 1);
}

static void ring_requester(struct soft_in *in, bool fire)
{
	soft_door_ring(in->door, in->bit);
	if (fire)
		soft_door_fire(in->door, in->armed, in->event, false);
}

/*
 * Refuses the message after those acknowledged; nothing more is accepted. A UC sender is not told: the gate will be closed.
 */
static enum take nak(struct soft_qp *qp, int status)
{
	struct soft_in *in = qp->in;

	in->stopped = true;
	atomic_store(&in->seg->acked, in->acked);
	if (qp->qp.qp_type == IBV_QPT_RC)
		atomic_store(&in->seg->nak, (uint32_t)status);
	ring_requester(in, true);
	return STOP;
}

/* A correct requester never writes such records: this QP fails, nothing else. */
static enum take corrupt(struct soft_qp *qp, struct soft_after *after)
{
	soft_async_push(to_ctx(qp->qp.context), IBV_EVENT_QP_FATAL, &qp->qp);
	soft_after_fail(after, qp);
	return nak(qp, IBV_WC_REM_INV_REQ_ERR);
}

/* Of an unreliable message: the record goes with it, and nothing else. */
static enum take lose(struct soft_in *in, const struct soft_rec *rec)
{
	const bool last = rec->flags & SOFT_REC_LAST;

	in->message = last ? SOFT_IN_NONE : SOFT_IN_LOST;
	in->dropping = false;
	in->acked += last;
	return TAKEN;
}

static enum take refuse(struct soft_qp *qp, const struct soft_rec *rec, int status)
{
	return qp->qp.qp_type == IBV_QPT_UC ? lose(qp->in, rec) : nak(qp, status);
}

/* A record that does not go on with the last message. */
static enum take other_message(struct soft_qp *qp, const struct soft_rec *rec, struct soft_after *after)
{
	return qp->in->message == SOFT_IN_LOST ? lose(qp->in, rec) : corrupt(qp, after);
}

/* A message begins before the last one has ended. Of UC, its sender may have given that up, and it is lost. */
static bool may_begin(struct soft_qp *qp)
{
	if (qp->qp.qp_type != IBV_QPT_UC)
		return false;
	qp->in->message = SOFT_IN_NONE;
	qp->in->dropping = false;
	return true;
}

/* ---- SEND ------------------------------------------------------------------------------------------- */

static enum take not_ready(struct soft_qp *qp)
{
	uint32_t retries = atomic_load_explicit(&qp->in->seg->rnr_retry, memory_order_relaxed);

	soft_count_rnr();
	if (retries == 7)
		return STOP;
	if (!retries || retries > 7) {
		atomic_store(&qp->starved, false);
		return nak(qp, IBV_WC_RNR_RETRY_EXC_ERR);
	}
	if (!atomic_load(&qp->rnr_deadline_ns)) {
		uint64_t when = soft_now_ns() + soft_rnr_ns((uint8_t)retries, qp->attr.min_rnr_timer);
		atomic_store(&qp->rnr_deadline_ns, when);
		soft_timer_want(when);
	}
	return STOP;
}

/* Sets qp->current for the message, unless it is set already. STOP: no receive (RC); dropping (UC). */
static enum take receive_for(struct soft_qp *qp)
{
	if (qp->current || soft_rq_take(qp)) {
		if (soft_unlikely(atomic_load_explicit(&qp->rnr_deadline_ns, memory_order_relaxed)))
			atomic_store(&qp->rnr_deadline_ns, 0);
		return TAKEN;
	}
	if (qp->qp.qp_type == IBV_QPT_UC) {
		atomic_store(&qp->starved, false);
		qp->in->dropping = true;
		return TAKEN;
	}
	return not_ready(qp);
}

static uint8_t wr_opcode(const struct soft_rec *rec, bool write)
{
	if (rec->flags & SOFT_REC_INV)
		return IBV_WR_SEND_WITH_INV;
	if (rec->flags & SOFT_REC_IMM)
		return write ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_SEND_WITH_IMM;
	return write ? IBV_WR_RDMA_WRITE : IBV_WR_SEND;
}

static enum take deliver(struct soft_qp *qp, const struct soft_rec *rec, bool write, struct soft_after *after)
{
	struct soft_in *in = qp->in;
	struct soft_rx rx = {
		.opcode = wr_opcode(rec, write),
		.solicited = rec->flags & SOFT_REC_SOLICITED,
		.imm = rec->imm,
		.src_qp = qp->attr.dest_qp_num,
		.length = in->total,
		/* The program may answer as soon as it sees the completion, and the answer must not overtake this. */
		.acked = soft_unlikely(atomic_load_explicit(&soft_faults_on, memory_order_relaxed)) ? NULL :
												      &in->seg->acked,
		.ack = in->acked + 1,
	};
	int status = in->dropping ? 0 : soft_rx_receive_done(qp, &rx, after);

	in->dropping = false;
	in->message = SOFT_IN_NONE;
	if (soft_unlikely(status))
		return nak(qp, status);
	in->acked++;
	return TAKEN;
}

static enum take take_send(struct soft_qp *qp, const struct soft_rec *rec, const char *payload,
			   struct soft_after *after)
{
	struct soft_in *in = qp->in;

	if (rec->flags & SOFT_REC_FIRST) {
		if (soft_unlikely(in->message != SOFT_IN_NONE) && !may_begin(qp))
			return corrupt(qp, after);
		if (soft_unlikely(receive_for(qp) == STOP))
			return STOP;
		if (soft_unlikely(!in->dropping && rec->total > qp->current->length)) {
			soft_rx_receive_error(qp, IBV_WC_LOC_LEN_ERR, after);
			return nak(qp, IBV_WC_REM_INV_REQ_ERR);
		}
		in->message = SOFT_IN_SEND;
		in->placed = 0;
		in->total = rec->total;
	} else if (soft_unlikely(in->message != SOFT_IN_SEND)) {
		return other_message(qp, rec, after);
	}
	if (soft_unlikely(rec->length > in->total - in->placed))
		return corrupt(qp, after);
	if (!in->dropping && rec->length) {
		int status = soft_rx_place(qp, in->placed, payload, rec->length, after);
		if (soft_unlikely(status)) {
			in->message = SOFT_IN_NONE;
			return nak(qp, status);
		}
	}
	in->placed += rec->length;
	if (!(rec->flags & SOFT_REC_LAST))
		return TAKEN;
	if (soft_unlikely(in->placed != in->total))
		return corrupt(qp, after);
	return deliver(qp, rec, false, after);
}

/* ---- one-sided -------------------------------------------------------------------------------------- */

static enum take take_write(struct soft_qp *qp, const struct soft_rec *rec, const struct soft_reth *reth,
			    const char *payload, struct soft_after *after)
{
	struct soft_in *in = qp->in;
	uint64_t addr = reth->addr;
	int status = 0;
	char *at;

	if (rec->flags & SOFT_REC_FIRST) {
		if (soft_unlikely(in->message != SOFT_IN_NONE) && !may_begin(qp))
			return corrupt(qp, after);
		in->placed = 0;
		in->total = rec->total;
		if (in->total > rec->length &&
		    !soft_rx_remote(qp, IBV_WR_RDMA_WRITE, reth->rkey, addr, in->total, &status, after))
			return refuse(qp, rec, status);
	} else if (in->message != SOFT_IN_WRITE) {
		return other_message(qp, rec, after);
	}
	if (rec->length > in->total - in->placed)
		return corrupt(qp, after);
	bool last = rec->flags & SOFT_REC_LAST, imm = rec->flags & SOFT_REC_IMM;
	/* Before anything is written: if there is no receive, this record is processed again from its beginning. */
	if (last && imm && receive_for(qp) == STOP) {
		return STOP;
	}
	at = soft_rx_remote(qp, IBV_WR_RDMA_WRITE, reth->rkey, addr, rec->length, &status, after);
	if (!at) {
		soft_rq_put_back(qp);
		return refuse(qp, rec, status);
	}
	if (soft_unlikely(!(soft_unordered && rec->length && soft_is_loose(reth->rkey) ?
				    soft_place(qp, at, payload, rec->length) :
				    soft_rx_copy(at, payload, rec->length)))) {
		soft_rq_put_back(qp);
		return refuse(qp, rec, soft_rx_missing(qp, after));
	}
	in->message = SOFT_IN_WRITE;
	in->placed += rec->length;
	if (!last)
		return TAKEN;
	if (in->placed != in->total)
		return corrupt(qp, after);
	if (imm)
		return deliver(qp, rec, true, after);
	in->message = SOFT_IN_NONE;
	in->acked++;
	return TAKEN;
}

/* The data of a direct WRITE has been written; its immediate consumes a receive. */
static enum take take_imm(struct soft_qp *qp, const struct soft_rec *rec, struct soft_after *after)
{
	if (soft_unlikely(qp->in->message != SOFT_IN_NONE) && !may_begin(qp))
		return corrupt(qp, after);
	if (receive_for(qp) == STOP)
		return STOP;
	qp->in->total = rec->total;
	return deliver(qp, rec, true, after);
}

/* Reserves contiguous space in the response ring. NULL: full, and the requester will ring. */
static char *respond(struct soft_in *in, uint32_t bytes)
{
	uint32_t size = align(bytes), left = SOFT_RESP_RING - (uint32_t)(in->resp_tail & RESP_MASK);
	uint32_t need = left < size ? left + size : size;

	for (int attempt = 0;; attempt++) {
		uint64_t head = atomic_load(&in->seg->resp_head);
		if (head >= in->resp_head && head <= in->resp_tail)
			in->resp_head = head; /* an invalid value is ignored; the last valid one stands */
		if (in->resp_tail + need - in->resp_head <= SOFT_RESP_RING)
			break;
		if (attempt)
			return NULL;
		atomic_store(&in->seg->resp_blocked, 1);
	}
	atomic_store_explicit(&in->seg->resp_blocked, 0, memory_order_relaxed);
	if (left < size) {
		*(struct soft_rec *)(void *)(in->seg->resp + (in->resp_tail & RESP_MASK)) =
			(struct soft_rec){ .op = SOFT_OP_PAD };
		in->resp_tail += left;
	}
	return (char *)in->seg->resp + (in->resp_tail & RESP_MASK);
}

static void respond_done(struct soft_in *in, uint32_t offset, uint32_t length, char *at)
{
	*(struct soft_rec *)(void *)at = (struct soft_rec){ .op = SOFT_OP_DATA, .length = length, .imm = offset };
	in->resp_tail += align((uint32_t)sizeof(struct soft_rec) + length);
	atomic_store_explicit(&in->seg->resp_tail, in->resp_tail, memory_order_release);
}

static enum take take_read(struct soft_qp *qp, const struct soft_rec *rec, const struct soft_reth *reth,
			   struct soft_after *after)
{
	struct soft_in *in = qp->in;
	int status = 0;

	/* The peer can change the record while it waits for room. */
	if (in->message != SOFT_IN_NONE && (in->message != SOFT_IN_READ || in->answered > rec->total))
		return corrupt(qp, after);
	/* Looked up at each continuation: the region may have been deregistered while the ring was full. */
	const char *from = soft_rx_remote(qp, IBV_WR_RDMA_READ, reth->rkey, reth->addr, rec->total, &status, after);

	if (!from)
		return nak(qp, status);
	const uint32_t begin = in->answered;
	in->message = SOFT_IN_READ;
	while (in->answered < rec->total) {
		if (soft_unlikely(in->answered - begin > SOFT_TURN_BYTES)) {
			ring_requester(in, false);
			soft_again(to_cq(qp->qp.recv_cq), qp->recv_slot);
			return STOP;
		}
		uint32_t n = rec->total - in->answered < SOFT_FRAGMENT ? rec->total - in->answered : SOFT_FRAGMENT;
		char *at = respond(in, (uint32_t)sizeof(struct soft_rec) + n);
		if (!at) {
			ring_requester(in, false);
			if (atomic_load(in->armed) & SOFT_ARM_WANTED)
				soft_link_kick(in->link);
			return STOP;
		}
		if (soft_unlikely(!soft_rx_copy(at + sizeof(struct soft_rec), from + in->answered, n)))
			return nak(qp, soft_rx_missing(qp, after));
		respond_done(in, in->answered, n, at);
		in->answered += n;
	}
	in->answered = 0;
	in->message = SOFT_IN_NONE;
	in->acked++;
	return TAKEN;
}

static enum take take_atomic(struct soft_qp *qp, const struct soft_rec *rec, const struct soft_reth *reth,
			     struct soft_after *after)
{
	struct soft_in *in = qp->in;
	uint8_t opcode = rec->op == SOFT_OP_FETCH_ADD ? IBV_WR_ATOMIC_FETCH_AND_ADD : IBV_WR_ATOMIC_CMP_AND_SWP;
	int status = 0;

	if (in->message != SOFT_IN_NONE)
		return corrupt(qp, after);
	char *word = soft_rx_remote(qp, opcode, reth->rkey, reth->addr, 8, &status, after);

	if (!word)
		return nak(qp, status);
	char *at = respond(in, (uint32_t)sizeof(struct soft_rec) + 8);
	if (!at)
		return STOP;
	uint64_t old;
	if (!soft_rx_atomic(opcode, word, reth->compare_add, reth->swap, &old))
		return nak(qp, soft_rx_missing(qp, after));
	memcpy(at + sizeof(struct soft_rec), &old, sizeof(old));
	respond_done(in, 0, sizeof(old), at);
	in->acked++;
	return TAKEN;
}

/* ---- the ring --------------------------------------------------------------------------------------- */

/*
 * A record has all flags of `must`, and no other than these and those of `may`. Flags that do not fit would turn one
 * operation into another: a WRITE that invalidates would complete as a SEND, with more bytes than its receive has.
 */
static bool flags_ok(const struct soft_rec *rec, bool reliable)
{
	enum { WHOLE = SOFT_REC_FIRST | SOFT_REC_LAST };
	static const struct {
		uint8_t must, may;
	} rules[] = {
		[SOFT_OP_SEND] = { 0, WHOLE | SOFT_REC_SOLICITED | SOFT_REC_IMM | SOFT_REC_INV },
		[SOFT_OP_WRITE] = { SOFT_REC_REMOTE, WHOLE | SOFT_REC_SOLICITED | SOFT_REC_IMM },
		[SOFT_OP_IMM] = { WHOLE | SOFT_REC_IMM, SOFT_REC_SOLICITED },
		[SOFT_OP_READ] = { WHOLE | SOFT_REC_REMOTE, 0 },
		[SOFT_OP_COMPARE_SWAP] = { WHOLE | SOFT_REC_REMOTE, 0 },
		[SOFT_OP_FETCH_ADD] = { WHOLE | SOFT_REC_REMOTE, 0 },
	};
	const uint8_t both = SOFT_REC_IMM | SOFT_REC_INV;

	if (rec->op < SOFT_OP_SEND || rec->op > SOFT_OP_FETCH_ADD)
		return false;
	if ((rec->flags & both) == both || ((rec->flags & SOFT_REC_INV) && !reliable))
		return false;
	return (rec->flags & rules[rec->op].must) == rules[rec->op].must &&
	       !(rec->flags & ~(rules[rec->op].must | rules[rec->op].may));
}

/* Processes one record at head, of at most `left` bytes. *size: how far to advance. */
static enum take take_one(struct soft_qp *qp, const char *at, uint64_t left, uint32_t *size, struct soft_after *after)
{
	const bool reliable = qp->qp.qp_type == IBV_QPT_RC;
	struct soft_rec rec;
	struct soft_reth reth = { 0 };
	uint32_t head = sizeof(rec);

	memcpy(&rec, at, sizeof(rec));
	if (rec.flags & SOFT_REC_REMOTE)
		head += sizeof(reth);
	if (soft_unlikely(rec.length > SOFT_FRAGMENT || align(head + rec.length) > left || rec.total > SOFT_MAX_MSG ||
			  !flags_ok(&rec, reliable)))
		return corrupt(qp, after);
	*size = align(head + rec.length);
	if (rec.flags & SOFT_REC_REMOTE)
		memcpy(&reth, at + sizeof(rec), sizeof(reth));
	switch (rec.op) {
	case SOFT_OP_SEND:
		return take_send(qp, &rec, at + head, after);
	case SOFT_OP_WRITE:
		return take_write(qp, &rec, &reth, at + head, after);
	case SOFT_OP_IMM:
		return take_imm(qp, &rec, after);
	case SOFT_OP_READ:
		return reliable ? take_read(qp, &rec, &reth, after) : corrupt(qp, after);
	case SOFT_OP_COMPARE_SWAP:
	case SOFT_OP_FETCH_ADD:
		return reliable ? take_atomic(qp, &rec, &reth, after) : corrupt(qp, after);
	default:
		return corrupt(qp, after);
	}
}

/*
 * What the peer sends now may answer what it acknowledged before, and programs free the memory of a request when its
 * answer comes: so the request completes first. The tail was read before. False: another thread has the lock, as it posts
 * or completes, and the answer must wait for it.
 */
static bool complete_sends(struct soft_qp *qp, struct soft_after *after)
{
	/* None waits: but the thread that has counted the last one may not have completed it, as long as it has the lock. */
	if (!atomic_load_explicit(&to_cq(qp->qp.send_cq)->waiting, memory_order_acquire))
		return !atomic_load_explicit(&qp->sq_lock.word, memory_order_acquire);
	if (!soft_trylock(&qp->sq_lock))
		return false;
	if (qp->out && soft_out_collect_acks(qp))
		soft_sq_retire(qp, after);
	soft_unlock(&qp->sq_lock);
	return true;
}

static void take_all(struct soft_qp *qp, bool last, struct soft_after *after)
{
	struct soft_in *in = qp->in;
	/* seq_cst: must not be reordered before the caller's store to `armed` or to a door bit (progress.c). */
	uint64_t tail = atomic_load(&in->seg->tail);

	if (soft_unlikely(tail - in->head > SOFT_REQ_RING || tail % SOFT_RECORD_ALIGN)) {
		corrupt(qp, after);
		return;
	}
	if (in->head != tail && !complete_sends(qp, after) && !last) {
		soft_again_unlocked(to_cq(qp->qp.recv_cq), qp->recv_slot);
		return;
	}
	while (in->head != tail) {
		uint32_t at = (uint32_t)(in->head & REQ_MASK), size = SOFT_REQ_RING - at;
		const char *rec = (const char *)in->seg->req + at;

		if (((const struct soft_rec *)(const void *)rec)->op == SOFT_OP_PAD) {
			if (size > tail - in->head) {
				corrupt(qp, after);
				return;
			}
		} else {
			uint64_t left = tail - in->head < size ? tail - in->head : size;
			if (take_one(qp, rec, left, &size, after) == STOP)
				break;
		}
		in->head += size;
		atomic_store_explicit(&in->seg->head, in->head, memory_order_release);
	}
}

static bool progress(struct soft_qp *qp, bool last, struct soft_after *after)
{
	struct soft_in *in = qp->in;

	if (!in)
		return false;
	uint64_t before, head = in->head;

	if (soft_likely(!in->stopped && soft_receives(soft_state(qp))))
		take_all(qp, last, after);
	if (in->acked != in->published && soft_fault(SOFT_FAULT_DELAY)) {
		soft_cq_ring(to_cq(qp->qp.recv_cq), qp->recv_slot); /* not now: at the next check */
		soft_timer_want(soft_now_ns() + SOFT_STALL_NS);
		return true;
	}
	before = in->published;
	if (in->acked != before) {
		in->published = in->acked;
		/* Full barrier between `acked` and `want_ack`, see lane.h. */
		atomic_store(&in->seg->acked, in->acked);
		if (atomic_load(&in->seg->want_ack) > before)
			ring_requester(in, true);
	}
	/* `head` before `blocked`, as the requester has it: else both would wait. A message that has ended did this above. */
	if (in->head != head && in->published == before)
		atomic_thread_fence(memory_order_seq_cst);
	/* Half a ring at a time, so that a requester waiting for room is not woken for every record. */
	if (soft_unlikely(atomic_load(&in->seg->blocked)) &&
	    atomic_load(&in->seg->tail) - in->head <= SOFT_REQ_RING / 2) {
		atomic_store(&in->seg->blocked, 0);
		ring_requester(in, false);
		if (atomic_load(in->armed) & SOFT_ARM_WANTED)
			soft_link_kick(in->link);
	}
	bool busy = in->head != head;
	if (soft_unlikely(atomic_load_explicit(&in->seg->detached, memory_order_relaxed)) &&
	    (in->stopped || in->head == atomic_load(&in->seg->tail) || !soft_receives(soft_state(qp))))
		soft_in_free(qp);
	return busy;
}

bool soft_in_progress(struct soft_qp *qp, struct soft_after *after)
{
	return progress(qp, false, after);
}

bool soft_in_last_look(struct soft_qp *qp, struct soft_after *after)
{
	return progress(qp, true, after);
}

bool soft_in_will(struct soft_qp *qp, struct soft_after *after)
{
	const struct soft_in *in = qp->in;
	const uint64_t which = atomic_load(&in->seg->will) - in->head - 1;
	struct soft_will will;

	if (which > 1)
		return false;
	memcpy(&will, &in->seg->wills[which], sizeof(will));
	struct soft_rec rec = {
		.length = will.length,
		.op = SOFT_OP_SEND,
		.flags = SOFT_REC_FIRST | SOFT_REC_LAST | SOFT_REC_IMM,
		.imm = will.imm,
		.total = will.length,
	};
	return will.length <= SOFTDEV_WILL_BYTES && soft_receives(soft_state(qp)) &&
	       take_send(qp, &rec, (const char *)will.message, after) == TAKEN;
}

void soft_in_timeout(struct soft_qp *qp, struct soft_after *after)
{
	soft_lock(&qp->rq_lock);
	uint64_t when = atomic_load(&qp->rnr_deadline_ns);
	if (qp->in && when && when <= soft_now_ns()) {
		soft_in_last_look(qp, after);
		if (qp->in && !qp->in->stopped && atomic_load(&qp->rnr_deadline_ns) == when) {
			atomic_store(&qp->rnr_deadline_ns, 0);
			atomic_store(&qp->starved, false);
			nak(qp, IBV_WC_RNR_RETRY_EXC_ERR);
		}
	} else if (when) {
		soft_timer_want(when);
	}
	soft_unlock(&qp->rq_lock);
}

/* ---- closing ---------------------------------------------------------------------------------------- */

void soft_in_rights_changed(struct soft_qp *qp)
{
	if (!qp->in || !qp->in->gate)
		return;
	qp->in->gate += qp->in->gate == UINT32_MAX ? 2 : 1;
	atomic_store(&qp->in->seg->gate, qp->in->gate);
	soft_lane_evict(qp->in);
}

void soft_in_cut(struct soft_qp *qp, bool cut)
{
	if (!qp->in)
		return;
	atomic_store(&qp->in->seg->cut, cut);
	ring_requester(qp->in, true); /* it begins to wait, or goes on */
}

void soft_in_close(struct soft_qp *qp)
{
	struct soft_in *in = qp->in;

	if (!in || !in->gate)
		return;
	in->gate = 0;
	in->stopped = true;
	atomic_store(&in->seg->acked, in->acked);
	atomic_store(&in->seg->gate, 0);
	soft_lane_evict(in);
	ring_requester(in, true);
}

void soft_in_free(struct soft_qp *qp)
{
	struct soft_in *in = qp->in;

	if (!in)
		return;
	soft_in_close(qp);
	soft_event_release(in->link, in->event);
	in->event = NULL;
	soft_lane_close(in);
	qp->in = NULL;
	atomic_store(&qp->rnr_deadline_ns, 0);
}

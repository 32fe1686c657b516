/*
 * RoCE queue pairs: connects work requests, packets, and the requester and responder of rc.h.
 */
#include <string.h>

#include "roce/peer.h"
#include "roce/port.h"

enum {
	FULL_NS = 200000,
	ANSWER_BATCHES = 16, /* at a time */
	LAST_BATCHES = 80,   /* ... if it is the last: the window of a softdev device, in the largest packets */
	LAST_WORDS = 3,
	NO_VERSION = 0x0f,
	HABIT = 16, /* answered messages after which an answer is expected */
};

/* ---- requester: work requests ----------------------------------------------------------------------- */

static bool keys_ok(struct soft_qp *qp, const struct soft_wqe *wqe)
{
	const bool fetch = wqe->opcode == IBV_WR_RDMA_READ || wqe->opcode == IBV_WR_ATOMIC_CMP_AND_SWP ||
			   wqe->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;

	for (uint32_t i = 0; i < wqe->num_sge && !(wqe->flags & IBV_SEND_INLINE); i++)
		if (wqe->sge[i].length && !soft_local_addr(to_pd(qp->qp.pd), wqe->sge[i].lkey, wqe->sge[i].addr,
							   wqe->sge[i].length, fetch ? IBV_ACCESS_LOCAL_WRITE : 0))
			return false;
	return true;
}

static enum soft_run run(struct soft_qp *qp, struct soft_wqe *wqe, struct soft_after *after)
{
	struct soft_roce *w = qp->roce;
	struct roce_message m = {
		.opcode = wqe->opcode,
		.solicited = wqe->flags & IBV_SEND_SOLICITED,
		.fence = wqe->flags & IBV_SEND_FENCE,
		.length = wqe->length,
		.rkey = wqe->rkey,
		.imm = wqe->imm,
		.addr = wqe->raddr,
	};

	(void)after;
	if (wqe->opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wqe->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		m.compare_add = wqe->atomic.compare_add;
		m.swap = wqe->atomic.swap;
	}
	/* It may have to be retransmitted, so the caller's lists and bytes are copied. */
	if (!keys_ok(qp, wqe) || !soft_wqe_keep(qp, wqe)) {
		wqe->status = IBV_WC_LOC_PROT_ERR;
		return SOFT_RUN_DONE;
	}
	w->wqes[roce_ask_post(&w->ask, &m) & w->ask.mask] = wqe;
	wqe->msn = ++qp->issued;
	qp->unsent = true;
	return SOFT_RUN_SENT;
}

/* Also records how a message failed. */
static void count_acked(struct soft_qp *qp)
{
	struct soft_roce *w = qp->roce;

	qp->acked += (uint32_t)(w->ask.head - w->seen);
	w->seen = w->ask.head;
	if (soft_unlikely(w->ask.status && w->ask.head != w->ask.tail)) {
		struct soft_wqe *wqe = w->wqes[w->ask.head & w->ask.mask];
		if (wqe->status == IBV_WC_SUCCESS)
			wqe->status = w->ask.status;
	}
}

static void flushed(struct soft_qp *qp)
{
	struct soft_roce *w = qp->roce;

	roce_ask_flush(&w->ask);
	w->seen = w->ask.head;
	qp->acked = qp->issued;
	w->blocked_until = 0;
	atomic_store(&qp->roce_due_ns, 0);
}

static void set_due(struct soft_qp *qp)
{
	struct soft_roce *w = qp->roce;
	uint64_t due = roce_ask_due(&w->ask);

	const uint64_t answers = atomic_load(&w->answers_until);

	if (w->blocked_until && (!due || w->blocked_until < due))
		due = w->blocked_until;
	if (answers && (!due || answers < due))
		due = answers;
	if (due == atomic_load_explicit(&qp->roce_due_ns, memory_order_relaxed))
		return;
	atomic_store(&qp->roce_due_ns, due);
	if (due)
		soft_clock_want(due);
}

/* Adds one packet to the batch. Returns its place in its run; -1: a local key no longer allows it. */
static int add_request(struct soft_roce *w, struct roce_batch *batch, const struct roce_route *route,
		       const struct roce_request *r)
{
	uint8_t *to = soft_roce_room(batch);
	const uint32_t n = r->packet.payload_length, pad = roce_pad(n);
	size_t size = roce_pack_headers(&r->packet, to);

	if (n && !soft_wqe_gather(w->qp, w->wqes[r->index & w->ask.mask], r->offset, (char *)to + size, n))
		return -1;
	memset(to + size + n, 0, pad);
	return (int)soft_roce_add(batch, route, size + n + pad);
}

/* The region was deregistered while its bytes were being sent. The work requests before it complete first. */
static void forsake(struct soft_roce *w, const struct roce_request *r)
{
	w->wqes[r->index & w->ask.mask]->status = IBV_WC_LOC_PROT_ERR;
	roce_ask_cut(&w->ask, r);
	w->qp->wait = SOFT_WAIT_ERROR;
}

/* 0: the rate allows one more packet; otherwise the time at which it does. */
static uint64_t held_until(struct soft_roce *w, uint64_t now)
{
	uint64_t when = 0;

	soft_lock(&w->rate_lock);
	const bool now_allowed = roce_rate_allows(&w->rate, now, &when);
	soft_unlock(&w->rate_lock);
	if (now_allowed)
		return 0;
	atomic_fetch_add_explicit(&soft_roce_counters.paced, 1, memory_order_relaxed);
	return when;
}

static void count_sent(struct soft_roce *w, uint64_t now, uint32_t payload)
{
	soft_lock(&w->rate_lock);
	roce_rate_sent(&w->rate, now, payload + ROCE_BTH + ROCE_ICRC);
	soft_unlock(&w->rate_lock);
}

static bool may_send(struct soft_roce *w, uint64_t now)
{
	w->blocked_until = held_until(w, now);
	return !w->blocked_until;
}

/* NULL: no record of whether runs arrive is needed. */
static struct roce_runs *runs_of(struct soft_roce *w)
{
	return w->runs[roce_peer_of(w) == ROCE_OURS];
}

/* What may leave in runs now. runs: of w; the next call may return a different record. tries: a trial is possible. */
static enum roce_runs_use runs_use(const struct soft_roce *w, const struct roce_runs *runs, bool tries, uint64_t now)
{
	return w->route.runs ? ROCE_RUNS_ALL : roce_runs_use(runs, w->ask.reliable, tries, now);
}

static void heard(struct soft_roce *w, uint8_t *what)
{
	struct roce_runs *runs = *what ? runs_of(w) : NULL;

	if (soft_unlikely(runs))
		roce_runs_heard(runs, *what, soft_clock_ns());
	*what = ROCE_HEARD_NOTHING;
}

/* Returns its place in its run. */
static unsigned add_answer(struct roce_batch *batch, const struct roce_route *route, const struct roce_packet *p)
{
	uint8_t *to = soft_roce_room(batch);
	const uint32_t n = p->payload_length, pad = roce_pad(n);
	const size_t size = roce_pack_headers(p, to);

	/* It was there when it was asked for. Bytes of nobody, then, of a version of RoCE that tells the peer to drop them:
	 * a wrong checksum would be made right where the packet leaves by itself after all (send.c). */
	if (soft_unlikely(!soft_rx_copy((char *)to + size, (const char *)p->payload, n))) {
		memset(to + size, 0, n);
		to[1] |= NO_VERSION;
	}
	memset(to + size + n, 0, pad);
	return soft_roce_add(batch, route, size + n + pad);
}

static bool only_acknowledges(const struct roce_answer *answer)
{
	return answer->ack_due && !answer->nak_due && !answer->pending;
}

/* If it gets lost, the peer asks again. */
static void add_owed(struct soft_roce *w, struct roce_batch *batch, struct roce_route *route, enum roce_runs_use use)
{
	struct roce_packet p;

	if (!atomic_load_explicit(&w->owes, memory_order_relaxed) || soft_roce_full(batch))
		return;
	soft_lock(&w->qp->rq_lock);
	atomic_store_explicit(&w->owes, false, memory_order_relaxed);
	if (only_acknowledges(&w->answer) && roce_answer_next(&w->answer, &p)) {
		route->runs = w->route.here || (use >= ROCE_RUNS_NEW && !w->answer.alone);
		if (add_answer(batch, route, &p))
			roce_answer_in_run(&w->answer);
	}
	soft_unlock(&w->qp->rq_lock);
}

/* Watches the requests behind the first of the first run just sent. */
static void watch(struct soft_roce *w, const struct roce_request *first, const struct roce_request *last)
{
	if (!w->ask.watch.on && w->ask.trip.smoothed)
		roce_ask_watch(&w->ask, first, last);
}

static bool push(struct soft_qp *qp)
{
	struct soft_roce *w = qp->roce;
	struct roce_batch *batch = NULL;
	struct roce_request requests[ROCE_BATCH];
	struct roce_route route;
	uint64_t now = 0;
	bool more = roce_ask_waits(&w->ask);

	qp->unsent = false;
	if (more && atomic_load_explicit(&w->unanswered, memory_order_relaxed)) {
		atomic_store_explicit(&w->unanswered, false, memory_order_relaxed);
		atomic_fetch_add_explicit(&w->answered, 1, memory_order_relaxed);
	}
	while (more) {
		unsigned n = 0;
		now = now ? now : soft_clock_ns();
		if (w->blocked_until && now < w->blocked_until)
			break;
		w->blocked_until = 0;
		batch = soft_roce_batch();
		if (!batch) {
			w->blocked_until = now + FULL_NS;
			break;
		}
		roce_route_of(w, &route);
		struct roce_runs *runs = runs_of(w);
		const enum roce_runs_use use = runs_use(w, runs, w->ask.trip.smoothed && !w->ask.watch.on, now);
		/*
		 * softdev devices receive an acknowledgement and requests in one piece, and take the acknowledgement
		 * first, which stands behind the requests because a run ends with the shortest packet. For other peers
		 * the kernel would split that into packets: they get the acknowledgement before, since what they have
		 * asked is to complete before the answer that one of the requests may be.
		 */
		const bool together = w->route.here || roce_peer_of(w) == ROCE_OURS;
		if (!together) {
			add_owed(w, batch, &route, use);
			soft_roce_send(batch);
		}
		w->ask.kin = together;
		w->ask.singly = together && w->ask.reliable; /* for what is posted from now on */
		unsigned behind = 0, end = 0;                /* the requests behind the first of a run */
		while (!soft_roce_full(batch) &&
		       (more = may_send(w, now) && roce_ask_next(&w->ask, now, &requests[n]))) {
			route.runs = use == ROCE_RUNS_ALL ||
				     (!requests[n].again && (use == ROCE_RUNS_NEW || (use == ROCE_RUNS_TRY && !end)));
			const int place = add_request(w, batch, &route, &requests[n]);
			if (soft_unlikely(place < 0)) {
				forsake(w, &requests[n]);
				continue;
			}
			count_sent(w, now, requests[n].packet.payload_length);
			if (place == 1 && !end)
				behind = end = n;
			if (place && end == n)
				end++;
			n++;
		}
		if (together)
			add_owed(w, batch, &route, use);
		const unsigned sent = soft_roce_send(batch);
		if (end && use == ROCE_RUNS_TRY)
			roce_runs_tried(runs, now);
		if (end && end <= sent && !batch->split && use != ROCE_RUNS_ALL)
			watch(w, &requests[behind], &requests[end - 1]);
		if (soft_unlikely(sent < n)) {
			roce_ask_unsent(&w->ask, &requests[sent]);
			w->blocked_until = now + FULL_NS;
			break;
		}
	}
	set_due(qp);
	return true; /* without acknowledgements, sent messages are complete; so are failed ones */
}

void soft_roce_timer(struct soft_qp *qp, struct soft_after *after)
{
	soft_lock(&qp->sq_lock);
	if (qp->roce && atomic_load(&qp->roce_due_ns)) {
		roce_ask_timer(&qp->roce->ask, soft_clock_ns());
		heard(qp->roce, &qp->roce->ask.heard);
		atomic_store(&qp->roce_due_ns, 0); /* so that pending work is scheduled again */
	}
	soft_unlock(&qp->sq_lock);
	soft_roce_go_on(qp, false, after);
}

/* ---- responder --------------------------------------------------------------------------------------- */

/*
 * The caller holds rq_lock. paced: READ data keeps to the rate, and other threads get the locks in between, because one
 * request from another kind of device may ask for gigabytes. Not for a queue pair that ends: it has no later turn, and what
 * devices that know no window have asked for beyond one is dropped.
 */
static void answer(struct soft_roce *w, bool paced)
{
	struct roce_packet p;
	struct roce_route route;
	struct roce_runs *runs = runs_of(w);
	uint64_t now = runs && w->answer.pending ? soft_clock_ns() : 0, held = 0;
	unsigned batches = 0;
	enum roce_runs_use use = runs_use(w, runs, w->answer.pending, now);

	while (roce_answer_waits(&w->answer) && !held) {
		if (soft_unlikely(batches++ == (paced ? ANSWER_BATCHES : LAST_BATCHES))) {
			if (paced) {
				held = now ? now : soft_clock_ns();
				break;
			}
			roce_answer_forget(&w->answer);
		}
		struct roce_batch *batch = soft_roce_batch();
		if (!batch)
			break;
		roce_route_of(w, &route);
		while (!soft_roce_full(batch)) {
			/* Packets waiting behind the data must not overtake it. */
			if (w->answer.pending && paced) {
				now = now ? now : soft_clock_ns();
				held = held_until(w, now);
			}
			if (held || !roce_answer_next(&w->answer, &p))
				break;
			route.runs = use == ROCE_RUNS_ALL ||
				     (!w->answer.alone &&
				      (use == ROCE_RUNS_NEW || (use == ROCE_RUNS_TRY && w->answer.given)));
			if (add_answer(batch, &route, &p) && use != ROCE_RUNS_ALL) {
				roce_answer_in_run(&w->answer);
				if (use == ROCE_RUNS_TRY) {
					roce_runs_tried(runs, now);
					use = ROCE_RUNS_NONE;
				}
			}
			if (p.payload_length)
				count_sent(w, now, p.payload_length);
		}
		soft_roce_send(batch);
	}
	atomic_store(&w->answers_until, held);
}

/* ---- packets ---------------------------------------------------------------------------------------- */

/* The caller holds sq_lock for a response, rq_lock for a request. */
static void take(struct soft_roce *w, const struct roce_packet *p, bool response, struct soft_after *after)
{
	if (response) {
		const uint64_t una = w->ask.una;
		roce_ask_take(&w->ask, p, soft_clock_ns());
		heard(w, &w->ask.heard);
		/* At once: a message that comes with it may be the answer to what is complete now. */
		if (w->ask.una != una && !w->ask.status)
			soft_sq_retire(w->qp, after);
		return;
	}
	w->after = after;
	/* Before the program can see what it gets: an answer that leaves at once has the acknowledgement with it. */
	if (p->ack_request && w->answer.reliable)
		atomic_store_explicit(&w->owes, true, memory_order_relaxed);
	roce_answer_take(&w->answer, p);
	heard(w, &w->answer.heard);
	/* The NAK leaves before the user can see why it was sent and close the queue pair. */
	if (soft_unlikely(w->answer.stopped))
		answer(w, false);
	w->after = NULL;
}

/* Learns from where the packet came if it was the next one that this QP expected, or acknowledged what was outstanding.
 * The other packets that are harmless from anybody are handled, too. */
static enum roce_sender take_unproven(struct soft_roce *w, const struct roce_packet *p, const struct roce_inbound *in,
				      bool response, struct soft_after *after)
{
	const uint64_t una = w->ask.una;
	const uint32_t psn = w->answer.psn;

	take(w, p, response, after);
	if (response ? w->ask.una == una : p->psn != psn || w->answer.psn == psn)
		return ROCE_UNPROVEN;
	roce_learn(w, in);
	return ROCE_PROVEN;
}

void soft_roce_take(struct soft_qp *qp, const struct roce_packet *p, const struct roce_inbound *in,
		    struct soft_after *after)
{
	const uint8_t transport = p->opcode & 0xe0;
	const bool response = roce_traits(p->opcode) & ROCE_IS_RESPONSE;
	struct soft_lock *lock = response ? &qp->sq_lock : &qp->rq_lock;

	if (transport == ROCE_UD) {
		soft_roce_ud_take(qp, p, in, after);
		return;
	}
	soft_lock(lock);
	struct soft_roce *w = qp->roce;
	if (w && atomic_load(&qp->number) == p->qpn && soft_receives(soft_state(qp)) &&
	    transport == (qp->qp.qp_type == IBV_QPT_RC ? ROCE_RC : ROCE_UC) &&
	    (transport == ROCE_RC || soft_takes(qp))) {
		enum roce_sender sender = roce_sender_of(w, in);
		if (soft_likely(sender == ROCE_PROVEN))
			take(w, p, response, after);
		else if (sender == ROCE_UNPROVEN)
			sender = take_unproven(w, p, in, response, after);
		if (soft_unlikely((in->tos & ROCE_CE) == ROCE_CE) && p->payload_length && sender == ROCE_PROVEN)
			soft_roce_notify(w);
	}
	soft_unlock(lock);
}

/* The caller holds rq_lock. */
static void answer_for(struct soft_roce *w, struct soft_after *after)
{
	w->after = after;
	answer(w, true);
	w->after = NULL;
	atomic_store_explicit(&w->owes, false, memory_order_relaxed);
}

/*
 * Whether the acknowledgement can wait for an answer. A process that ends without one, or is killed, would never
 * send it, so only where the program has answered each of the last messages.
 */
static bool may_wait(struct soft_roce *w)
{
	if (!w || !only_acknowledges(&w->answer))
		return false;
	if (atomic_load_explicit(&w->unanswered, memory_order_relaxed))
		atomic_store_explicit(&w->answered, 0, memory_order_relaxed);
	const bool waits = atomic_load_explicit(&w->answered, memory_order_relaxed) >= HABIT;
	atomic_store_explicit(&w->unanswered, !waits, memory_order_relaxed);
	return waits;
}

bool soft_roce_go_on(struct soft_qp *qp, bool later, struct soft_after *after)
{
	soft_lock(&qp->rq_lock);
	later = later && may_wait(qp->roce);
	if (later)
		atomic_store_explicit(&qp->roce->owes, true, memory_order_relaxed);
	else if (qp->roce)
		answer_for(qp->roce, after);
	soft_unlock(&qp->rq_lock);
	soft_lock(&qp->sq_lock);
	if (qp->roce && qp->sq_head != qp->sq_tail)
		soft_sq_pump(qp, after);
	else if (qp->roce)
		set_due(qp);
	soft_unlock(&qp->sq_lock);
	return later;
}

bool soft_roce_answer(struct soft_qp *qp, bool wait, struct soft_after *after)
{
	if (wait)
		soft_lock(&qp->rq_lock);
	else if (!soft_trylock(&qp->rq_lock))
		return false;
	if (qp->roce && atomic_load_explicit(&qp->roce->owes, memory_order_relaxed)) {
		atomic_store_explicit(&qp->roce->answered, 0, memory_order_relaxed);
		answer_for(qp->roce, after);
	}
	soft_unlock(&qp->rq_lock);
	return true;
}

/* ---- creation and destruction -------------------------------------------------------------------------- */

void soft_roce_join(struct soft_qp *qp, struct soft_roce *roce)
{
	qp->roce = roce;
	qp->path = &soft_roce_path;
	soft_roce_heat(&roce->route);
	atomic_fetch_add(&soft_pollers, 1);
}

/* Acknowledgements of what was delivered leave all the same, and so does the refusal that has ended it. */
static void stop_answers(struct soft_qp *qp)
{
	struct soft_roce *w = qp->roce;

	roce_answer_forget(&w->answer);
	w->answer.nak_due &= w->answer.stopped;
	atomic_store(&w->answers_until, 0);
}

/* The caller holds both locks. */
static void leave(struct soft_qp *qp)
{
	struct soft_roce *w = qp->roce;

	/*
	 * A message was delivered a moment ago, and its receiver closes at once: the sender still gets an
	 * acknowledgement. Nothing can repeat it later if it gets lost, so it is sent more than once.
	 */
	roce_answer_forget(&w->answer);
	const bool received = w->answer.reliable && w->answer.msn && !w->answer.stopped;
	for (int i = 0; i < (received ? LAST_WORDS : 1); i++) {
		w->answer.ack_due |= received;
		answer(w, false);
	}
	qp->roce = NULL;
	qp->issued = qp->acked = 0;
	qp->unsent = false;
	atomic_store(&qp->roce_due_ns, 0);
	atomic_fetch_sub(&soft_pollers, 1);
	soft_roce_discard(w);
}

static void rights_changed(struct soft_qp *qp)
{
	if (qp->roce && qp->roce->answer.reliable)
		roce_answer_allow(&qp->roce->answer, qp->attr.max_dest_rd_atomic);
}

const struct soft_path_ops soft_roce_path = {
	.run = run,
	.push = push,
	.count_acked = count_acked,
	.flushed = flushed,
	.may_send = soft_roce_rts,
	.close = stop_answers,
	.rights_changed = rights_changed,
	.leave = leave,
	.catch_up = soft_roce_catch_up,
};

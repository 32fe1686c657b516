/*
 * The requester: requests, acknowledgements, retransmission.
 */
#include "roce/request.h"

#include <string.h>

enum {
	ACK_EVERY = 32,
	ACK_MOST = 128,
	REPEAT_LEAST_NS = 4000000, /* before that, the peer may just not have been scheduled */
	REPEAT_MOST_NS = 1000000000,
};

uint64_t roce_rnr_ns(uint8_t code)
{
	static const uint16_t tens_of_us[32] = { 0,    1,    2,    3,    4,    6,     8,     12,    16,    24,   32,
						 48,   64,   96,   128,  192,  256,   384,   512,   768,   1024, 1536,
						 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152 };

	code &= ROCE_AETH_VALUE;
	return UINT64_C(10000) * (code ? tens_of_us[code] : 65536);
}

void roce_ask_start(struct roce_ask *a, uint32_t psn)
{
	a->first_psn = psn;
	a->most = a->most ? a->most : ROCE_WINDOW_FIRST;
	a->window = a->window ? a->window : a->most < ROCE_WINDOW_FIRST ? a->most : ROCE_WINDOW_FIRST;
	a->rnr_retries = a->rnr_retry;
}

uint32_t roce_ask_post(struct roce_ask *a, const struct roce_message *message)
{
	struct roce_message *m = roce_at(a, a->tail);

	*m = *message;
	m->singly = a->singly && m->opcode == IBV_WR_RDMA_WRITE;
	m->first = a->posted;
	m->packets = roce_is_atomic(m) ? 1 : roce_packets(m->length, a->mtu);
	a->posted += m->packets;
	return a->tail++;
}

/* ---- round trips (RFC 6298) ------------------------------------------------------------------------- */

static void measure(struct roce_ask *a, uint64_t took)
{
	const uint64_t off = took > a->trip.smoothed ? took - a->trip.smoothed : a->trip.smoothed - took;

	if (!a->trip.smoothed) {
		a->trip.smoothed = a->trip.least = took ? took : 1;
		a->trip.varies = took / 2;
		return;
	}
	a->trip.varies = (3 * a->trip.varies + off) / 4;
	a->trip.smoothed = (7 * a->trip.smoothed + took) / 8;
	if (took < a->trip.least)
		a->trip.least = took;
}

/* An answer that has not arrived by then will not arrive. */
static uint64_t overdue(const struct roce_ask *a)
{
	return a->trip.smoothed + 4 * a->trip.varies;
}

/* The time from a packet that requests an answer to the next probe; longer each time. 0: not measured yet. */
static uint64_t repeat_after(const struct roce_ask *a)
{
	const uint64_t once = overdue(a) > REPEAT_LEAST_NS ? overdue(a) : REPEAT_LEAST_NS, ns = once << a->repeats;

	return !a->trip.smoothed ? 0 : ns < REPEAT_MOST_NS ? ns : REPEAT_MOST_NS;
}

static void repeat_later(struct roce_ask *a, uint64_t now)
{
	a->repeat_at = a->trip.smoothed ? now + repeat_after(a) : 0;
}

/* ---- sending ---------------------------------------------------------------------------------------- */

static bool may_fetch(const struct roce_ask *a)
{
	return a->fetch_tail - a->fetch_head < a->max_fetches && a->fetch_tail - a->fetch_head < ROCE_FETCHES;
}

/*
 * Some requests wait for the responses to earlier READs and atomics: fenced ones and, unless the peer is a softdev
 * device, READs and WRITEs of no bytes. rxe (6.12) keeps the state of such a request and of an earlier READ in one
 * place, and fails the queue pair when the requester then repeats the READ.
 */
static bool must_wait(const struct roce_ask *a, const struct roce_message *m)
{
	const bool nothing = !m->length && (m->opcode == IBV_WR_RDMA_READ || m->opcode == IBV_WR_RDMA_WRITE ||
					    m->opcode == IBV_WR_RDMA_WRITE_WITH_IMM);

	return a->fetch_head != a->fetch_tail && (m->fence || (nothing && !a->kin));
}

static void sent(struct roce_ask *a, uint32_t packets, bool asked, uint64_t now)
{
	const bool fresh = a->next == a->high;

	a->resent += !fresh;
	a->next += packets;
	if (a->next > a->high)
		a->high = a->next;
	if (!a->reliable) {
		a->una = a->next;
		return;
	}
	if (!a->deadline && a->timeout_ns)
		a->deadline = now + a->timeout_ns;
	if (asked) {
		a->since_request = 0;
		a->asked_at = now;
	}
	if (asked && fresh && !a->trip.sent_at) {
		a->trip.end = a->next;
		a->trip.sent_at = now;
	}
	repeat_later(a, now);
}

/* The message of the last packet sent. */
static uint32_t last_sent(const struct roce_ask *a)
{
	return a->cursor != a->tail && roce_at(a, a->cursor)->first < a->next ? a->cursor : a->cursor - 1;
}

/* Repeats the last packet: the peer acknowledges it, or reports what is missing before it. */
static void probe(struct roce_ask *a, uint64_t now, struct roce_request *out)
{
	roce_request_make(a, last_sent(a), a->next - 1, out);
	out->packet.ack_request = true;
	a->watch.probed |= a->watch.on && a->watch.to == a->next - 1;
	a->probe = false;
	a->probes++;
	repeat_later(a, now);
}

/* Packets between two requests for an acknowledgement: each takes time at both ends, but the window may not run dry. */
static uint32_t ack_every(const struct roce_ask *a)
{
	return a->window / 2 < ACK_EVERY ? ACK_EVERY : a->window / 2 < ACK_MOST ? a->window / 2 : ACK_MOST;
}

bool roce_ask_next(struct roce_ask *a, uint64_t now, struct roce_request *out)
{
	if (a->status || a->rnr_until)
		return false;
	if (a->probe) {
		probe(a, now, out);
		return true;
	}
	if (a->cursor == a->tail || a->next - a->una >= a->window)
		return false;
	const struct roce_message *m = roce_at(a, a->cursor);
	const uint32_t done = (uint32_t)(a->next - m->first);
	const bool fetch = roce_is_fetch(m);
	struct roce_packet *p = &out->packet;

	if ((!done && must_wait(a, m)) || (fetch && !may_fetch(a)))
		return false;
	const uint32_t n = roce_request_make(a, a->cursor, a->next, out);
	if (!fetch) {
		/* Requests one acknowledgement for several packets, but always on the last packet before waiting,
		 * and before the peer seems dead. */
		p->ack_request =
			a->reliable && ((done + 1 == m->packets && a->cursor + 1 == a->tail) ||
					++a->since_request >= ack_every(a) || a->next + 1 - a->una >= a->window ||
					(a->trip.smoothed && now - a->asked_at >= repeat_after(a) / 2));
	} else {
		p->ack_request = true;
		a->fetch_ends[a->fetch_tail++ % ROCE_FETCHES] = a->next + n;
	}
	sent(a, n, p->ack_request, now);
	if (a->next == m->first + m->packets) {
		a->cursor++;
		if (!a->reliable)
			a->head = a->cursor;
	}
	return true;
}

/* Continues sending from `sequence`. */
static void go_to(struct roce_ask *a, uint64_t sequence)
{
	while (a->fetch_tail != a->fetch_head && a->fetch_ends[(a->fetch_tail - 1) % ROCE_FETCHES] > sequence)
		a->fetch_tail--;
	a->next = sequence;
	a->probe = false;
	a->watch.on &= a->watch.to < sequence;
	if (a->trip.end > sequence)
		a->trip.sent_at = 0; /* an answer could belong to either packet */
	while (a->cursor != a->head && roce_at(a, a->cursor - 1)->first + roce_at(a, a->cursor - 1)->packets > sequence)
		a->cursor--;
}

/* The 64-bit PSN of a packet that was just returned. */
static uint64_t sequence_of(const struct roce_ask *a, const struct roce_request *request)
{
	return a->next - (uint64_t)(int64_t)roce_psn_diff(roce_psn_of(a, a->next), request->packet.psn);
}

void roce_ask_unsent(struct roce_ask *a, const struct roce_request *request)
{
	const uint64_t sequence = sequence_of(a, request);

	if (!a->reliable) { /* its message may already count as complete */
		a->una = a->high = a->next = sequence;
		a->head = a->cursor = request->index;
		return;
	}
	if (sequence < a->next) /* else its message was cut off meanwhile */
		go_to(a, sequence);
}

void roce_ask_cut(struct roce_ask *a, const struct roce_request *request)
{
	const uint64_t first = roce_at(a, request->index)->first;

	roce_ask_unsent(a, request);
	a->tail = request->index;
	if (!a->reliable)
		return;
	/* `high` stays: an acknowledgement of the message's beginning is one of those before it. */
	go_to(a, a->una > first ? a->una : first);
	a->probe = a->una < a->next; /* the last of them asked for no acknowledgement, perhaps */
}

/* ---- runs (runs.h) ------------------------------------------------------------------------------ */

void roce_ask_watch(struct roce_ask *a, const struct roce_request *first, const struct roce_request *last)
{
	a->watch.from = sequence_of(a, first);
	a->watch.to = sequence_of(a, last);
	a->watch.on = true;
	a->watch.probed = false;
}

static void hear(struct roce_ask *a, enum roce_heard what)
{
	a->heard = (uint8_t)what;
	a->watch.on = false;
}

/* All packets from una on are about to be retransmitted. */
static void watch_lost(struct roce_ask *a, bool silence)
{
	if (!a->watch.on)
		return;
	if (a->una >= a->watch.from && a->una <= a->watch.to)
		hear(a, ROCE_HEARD_LOST);
	else if (silence && a->una < a->watch.from)
		hear(a, ROCE_HEARD_UNCLEAR);
}

/* ---- acknowledgements ------------------------------------------------------------------------------- */

static void progress(struct roce_ask *a, uint64_t before, uint64_t now)
{
	if (a->una == before)
		return;
	while (a->fetch_head != a->fetch_tail && a->fetch_ends[a->fetch_head % ROCE_FETCHES] <= a->una)
		a->fetch_head++;
	if (a->next < a->una) { /* acknowledged after all, while about to be retransmitted */
		a->next = a->una;
		while (a->cursor != a->tail && roce_at(a, a->cursor)->first + roce_at(a, a->cursor)->packets <= a->next)
			a->cursor++;
	}
	if (a->watch.on && a->una > a->watch.to)
		hear(a, a->watch.probed ? ROCE_HEARD_UNCLEAR : ROCE_HEARD_ARRIVED);
	a->silent_ns = 0;
	a->rnr_retries = a->rnr_retry;
	a->deadline = a->una < a->next && a->timeout_ns ? now + a->timeout_ns : 0;
	if (a->trip.sent_at && a->una >= a->trip.end) {
		measure(a, now - a->trip.sent_at);
		a->trip.sent_at = 0;
	}
	a->repeats = 0;
	a->repeat_at = 0;
	if (a->una < a->next)
		repeat_later(a, now);
	else
		a->probe = false;
	a->grown += (uint32_t)(a->una - before);
	while (a->window < a->most && a->grown >= a->window) {
		a->grown -= a->window;
		a->window++;
	}
	if (a->window == a->most)
		a->grown = 0;
}

/*
 * Completes everything below `end`. False: the response to a READ or atomic below it has not arrived, so it is lost. A
 * READ of no bytes loses nothing.
 */
static bool acknowledge(struct roce_ask *a, uint64_t end, uint64_t now)
{
	const uint64_t before = a->una;
	bool whole = true;

	while (a->head != a->tail && a->una < end) {
		const struct roce_message *m = roce_at(a, a->head);
		if (roce_brings(m)) {
			whole = false;
			break;
		}
		if (end < m->first + m->packets) {
			a->una = end;
			break;
		}
		a->una = m->first + m->packets;
		a->head++;
	}
	progress(a, before, now);
	return whole;
}

static void fail(struct roce_ask *a, enum ibv_wc_status status)
{
	a->status = (uint8_t)status;
	a->deadline = a->rnr_until = a->repeat_at = 0;
}

static void shrink(struct roce_ask *a)
{
	a->window = a->window / 2 > ROCE_WINDOW_LEAST ? a->window / 2 : ROCE_WINDOW_LEAST;
	a->grown = 0;
}

/* silence: no packet reported a loss, but no answer arrives. */
static void go_back(struct roce_ask *a, bool silence, uint64_t now)
{
	watch_lost(a, silence);
	a->rewound = true;
	a->rewound_una = a->una;
	a->rewound_at = now;
	shrink(a);
	go_to(a, a->una);
}

/*
 * Something was lost at una. Goes back only once: more signs of the same loss arrive for about `known` ns, and each
 * would cause another retransmission. Later signs mean that the retransmission was lost, too.
 */
static void lost(struct roce_ask *a, uint64_t known, uint64_t now)
{
	const bool again = a->rewound && a->rewound_una == a->una;

	if (again && (!a->trip.smoothed || now - a->rewound_at < known))
		return;
	if (!again)
		a->deadline = a->timeout_ns ? now + a->timeout_ns : 0;
	go_back(a, !known, now);
}

static void take_nak(struct roce_ask *a, uint8_t code, uint64_t sequence, uint64_t now)
{
	static const enum ibv_wc_status statuses[] = {
		[ROCE_NAK_INVALID_REQUEST] = IBV_WC_REM_INV_REQ_ERR,
		[ROCE_NAK_REMOTE_ACCESS] = IBV_WC_REM_ACCESS_ERR,
		[ROCE_NAK_REMOTE_OPERATION] = IBV_WC_REM_OP_ERR,
		[ROCE_NAK_INVALID_RD] = IBV_WC_REM_INV_RD_REQ_ERR,
	};

	if (code > ROCE_NAK_INVALID_RD)
		return;
	acknowledge(a, sequence, now);
	a->naks++;
	if (code != ROCE_NAK_SEQUENCE)
		fail(a, statuses[code]);
	else if (a->next > a->una)
		lost(a, a->trip.least, now); /* one NAK for each time we go back */
}

static void take_rnr(struct roce_ask *a, uint8_t code, uint64_t sequence, uint64_t now)
{
	if (!acknowledge(a, sequence, now)) {
		lost(a, overdue(a), now);
		return;
	}
	if (a->una != sequence || a->next <= sequence)
		return; /* an old one */
	a->rnr_naks++;
	a->silent_ns = 0; /* the peer lives, and has received everything lost on the way */
	if (a->rnr_retry != 7) {
		if (!a->rnr_retries) {
			fail(a, IBV_WC_RNR_RETRY_EXC_ERR);
			return;
		}
		a->rnr_retries--;
	}
	a->rnr_until = now + roce_rnr_ns(code);
	a->deadline = a->repeat_at = 0;
	go_to(a, sequence);
}

static void take_aeth(struct roce_ask *a, const struct roce_packet *p, uint64_t sequence, uint64_t now)
{
	switch (p->syndrome & ROCE_AETH_KIND) {
	case ROCE_AETH_ACK:
		if (!acknowledge(a, sequence + 1, now))
			lost(a, overdue(a), now);
		break;
	case ROCE_AETH_RNR:
		take_rnr(a, p->syndrome & ROCE_AETH_VALUE, sequence, now);
		break;
	case ROCE_AETH_NAK:
		take_nak(a, p->syndrome & ROCE_AETH_VALUE, sequence, now);
		break;
	default:
		break;
	}
}

/* Data of a READ, or the old value of an atomic, for the packet at `sequence`. */
static void take_answer(struct roce_ask *a, const struct roce_packet *p, uint64_t sequence, uint64_t now)
{
	const bool read = p->opcode != ROCE_ATOMIC_ACKNOWLEDGE;
	const bool has_aeth = roce_traits(p->opcode) & ROCE_HAS_AETH;

	if (has_aeth && (p->syndrome & ROCE_AETH_KIND) != ROCE_AETH_ACK)
		return;
	if (!acknowledge(a, sequence, now) || a->una != sequence) {
		if (a->una < sequence)
			lost(a, overdue(a), now);
		return;
	}
	const struct roce_message *m = roce_at(a, a->head);
	if (a->head == a->tail || !roce_is_fetch(m) || read != (m->opcode == IBV_WR_RDMA_READ))
		return;
	const uint32_t n = (uint32_t)(sequence - m->first), offset = n * a->mtu;
	const uint8_t *from = p->payload;
	uint32_t bytes = sizeof(p->original);
	if (read) {
		bytes = n + 1 == m->packets ? m->length - offset : a->mtu;
		if (p->payload_length != bytes)
			return; /* not what was requested: no known responder sends this */
	} else {
		from = (const uint8_t *)&p->original;
	}
	if (bytes && !a->calls->scatter(a->owner, a->head, read ? offset : 0, from, bytes)) {
		fail(a, IBV_WC_LOC_PROT_ERR);
		return;
	}
	a->una = sequence + 1;
	if (n + 1 == m->packets)
		a->head++;
	progress(a, sequence, now);
}

void roce_ask_take(struct roce_ask *a, const struct roce_packet *p, uint64_t now)
{
	/* Answers below una are outdated; from high on, nothing was sent. */
	const int32_t ahead = roce_psn_diff(p->psn, roce_psn_of(a, a->una));
	const uint64_t sequence = a->una + (uint64_t)(int64_t)ahead;

	if (a->status || !a->reliable || (ahead < 0 && a->una < (uint64_t) - (int64_t)ahead))
		return;
	if (p->opcode == ROCE_ACK) {
		if (ahead >= 0 && sequence < a->high)
			take_aeth(a, p, sequence, now);
	} else if (ahead >= 0 && sequence < a->high) {
		take_answer(a, p, sequence, now);
	}
}

/* ---- time ------------------------------------------------------------------------------------------- */

uint64_t roce_ask_due(const struct roce_ask *a)
{
	if (a->rnr_until)
		return a->rnr_until;
	return a->repeat_at && (!a->deadline || a->repeat_at < a->deadline) ? a->repeat_at : a->deadline;
}

/*
 * No answer for longer than answers take: either the packet that requests one was lost, or the answer was. Resending
 * the last packet shows which (its answer is harmless if the peer is only slow). If that does not help, or if the last
 * packet is a READ or atomic, everything from una on is retransmitted. The queue pair's own timer limits how often this
 * may happen.
 */
static void ask_again(struct roce_ask *a, uint64_t now)
{
	a->repeat_at = 0;
	if (a->una == a->next)
		return;
	a->repeats += a->repeats < 16;
	if (a->repeats % 2 && !roce_is_fetch(roce_at(a, last_sent(a))))
		a->probe = true;
	else
		go_back(a, true, now);
}

/*
 * Another timeout has passed without an answer. Counts timeouts that were processed, not elapsed time: while this
 * process does not run, answers pile up unread.
 */
static bool patient(struct roce_ask *a)
{
	const uint64_t shortest = a->timeout_ns * (a->retry_cnt + 1u);

	a->silent_ns += a->timeout_ns;
	return a->silent_ns < shortest || a->silent_ns < a->calls->patience(a->owner, shortest);
}

void roce_ask_timer(struct roce_ask *a, uint64_t now)
{
	if (a->rnr_until) {
		if (now >= a->rnr_until)
			a->rnr_until = 0;
		return;
	}
	if (a->deadline && now >= a->deadline) {
		a->deadline = 0;
		if (a->una == a->next && a->una == a->high)
			return;
		a->timeouts++;
		a->rewound = false;
		if (patient(a))
			lost(a, 0, now);
		else
			fail(a, IBV_WC_RETRY_EXC_ERR);
	} else if (a->repeat_at && now >= a->repeat_at) {
		ask_again(a, now);
	}
}

void roce_ask_flush(struct roce_ask *a)
{
	a->head = a->cursor = a->tail;
	if (a->reliable)
		a->una = a->next = a->high = a->posted;
	else /* the queue pair goes on */
		a->posted = a->next;
	a->fetch_head = a->fetch_tail;
	a->trip.sent_at = 0;
	a->probe = a->watch.on = false;
	fail(a, IBV_WC_WR_FLUSH_ERR);
}

/*
 * The responder: carries out requests once, in order, and answers them, again if necessary.
 */
#include "roce/rc.h"

#include <string.h>

/* READs and atomics complete by their own responses, which leave before any acknowledgement. */

void roce_answer_start(struct roce_answer *s, uint32_t psn)
{
	s->psn = psn;
	s->ack_psn = roce_psn_add(psn, ROCE_24); /* the one before */
}

static void nak(struct roce_answer *s, uint8_t syndrome, uint32_t psn)
{
	s->nak_due = true;
	s->syndrome = syndrome;
	s->nak_psn = psn;
	s->gap = true; /* packets right behind it are dropped silently */
	s->farther = psn;
}

/* Refuses the request at s->psn; the responder stops. */
static void refuse(struct roce_answer *s, int status, uint32_t psn)
{
	enum roce_nak code = status == IBV_WC_REM_ACCESS_ERR ? ROCE_NAK_REMOTE_ACCESS :
			     status == IBV_WC_REM_OP_ERR     ? ROCE_NAK_REMOTE_OPERATION :
							       ROCE_NAK_INVALID_REQUEST;

	s->stopped = true;
	nak(s, (uint8_t)(ROCE_AETH_NAK | code), psn);
}

static void broken(struct roce_answer *s)
{
	if (!s->reliable) {
		s->in_message = ROCE_MESSAGE_NONE;
		s->dropped++;
		return;
	}
	s->calls->broken(s->owner);
	refuse(s, IBV_WC_REM_INV_REQ_ERR, s->psn);
}

/* A failure of the receiver itself or of a key. */
static void failed(struct roce_answer *s, int status)
{
	if (s->reliable) {
		refuse(s, status, s->psn);
		return;
	}
	s->in_message = ROCE_MESSAGE_NONE;
	s->dropped++;
}

static void done(struct roce_answer *s, uint32_t packets, bool message)
{
	s->psn = roce_psn_add(s->psn, packets);
	s->gap = false;
	if (message)
		s->msn = (s->msn + 1) & ROCE_24;
}

/* ---- SEND and WRITE --------------------------------------------------------------------------------- */

static uint8_t wr_opcode(uint16_t traits)
{
	if (traits & ROCE_IS_WRITE)
		return traits & ROCE_HAS_IMM ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
	return traits & ROCE_HAS_IETH ? IBV_WR_SEND_WITH_INV :
	       traits & ROCE_HAS_IMM  ? IBV_WR_SEND_WITH_IMM :
					IBV_WR_SEND;
}

/* False: no receive. The requester must wait, or (UC) the message is lost. */
static bool receive(struct roce_answer *s)
{
	if (s->calls->receive(s->owner))
		return true;
	if (s->reliable) {
		nak(s, ROCE_AETH_RNR | s->rnr_timer, s->psn);
	} else {
		s->in_message = ROCE_MESSAGE_NONE;
		s->dropped++;
	}
	return false;
}

static bool length_ok(const struct roce_answer *s, uint16_t traits, uint32_t n)
{
	if (!(traits & ROCE_IS_LAST))
		return n == s->mtu;
	return n <= s->mtu && (n || (traits & ROCE_IS_FIRST));
}

/* Writes the bytes of one packet of a WRITE. 0, or a status. */
static int write(struct roce_answer *s, const struct roce_packet *p)
{
	int status = 0;
	char *to =
		s->calls->remote(s->owner, IBV_WR_RDMA_WRITE, s->rkey, s->addr + s->placed, p->payload_length, &status);

	if (!to)
		return status;
	return s->calls->write(s->owner, to, p->payload, p->payload_length);
}

static void take_message(struct roce_answer *s, const struct roce_packet *p, uint16_t traits)
{
	const bool send = traits & ROCE_IS_SEND, first = traits & ROCE_IS_FIRST, last = traits & ROCE_IS_LAST;
	const uint8_t kind = send ? ROCE_MESSAGE_SEND : ROCE_MESSAGE_WRITE, opcode = wr_opcode(traits);
	int status = 0;

	if (first ? s->in_message != ROCE_MESSAGE_NONE : s->in_message != kind) {
		broken(s);
		return;
	}
	if (!length_ok(s, traits, p->payload_length)) {
		broken(s);
		return;
	}
	if (first) {
		s->placed = 0;
		s->total = send ? UINT32_MAX : p->length;
		s->addr = p->addr;
		s->rkey = p->rkey;
		if (!send && !last &&
		    !s->calls->remote(s->owner, IBV_WR_RDMA_WRITE, p->rkey, p->addr, p->length, &status)) {
			failed(s, status);
			return;
		}
	}
	if (p->payload_length > s->total - s->placed || (!send && last && p->payload_length != s->total - s->placed)) {
		broken(s);
		return;
	}
	/* Before anything is written: without a receive, the requester repeats the whole packet. */
	if (send ? first && !receive(s) : last && opcode == IBV_WR_RDMA_WRITE_WITH_IMM && !receive(s))
		return;
	status = send ? p->payload_length ? s->calls->place(s->owner, s->placed, p->payload, p->payload_length) : 0 :
			write(s, p);
	if (status) {
		failed(s, status);
		return;
	}
	s->placed += p->payload_length;
	s->in_message = last ? ROCE_MESSAGE_NONE : kind;
	if (last && opcode != IBV_WR_RDMA_WRITE) {
		const struct roce_delivery delivery = {
			.opcode = opcode,
			.solicited = p->solicited,
			.imm = opcode == IBV_WR_SEND_WITH_INV ? p->invalidate : p->imm,
			.length = s->placed,
		};
		status = s->calls->deliver(s->owner, &delivery);
		if (status) {
			failed(s, status);
			return;
		}
	}
	done(s, 1, last);
	s->ack_psn = p->psn;
	s->ack_msn = s->msn;
	s->ack_due |= s->reliable && p->ack_request;
}

/* ---- READ and atomics ------------------------------------------------------------------------------- */

/* A free entry; NULL: the requester has more outstanding than allowed. */
static struct roce_fetch *keep(struct roce_answer *s)
{
	if (!s->max_fetches)
		return NULL;
	struct roce_fetch *f = &s->fetches[s->fetch_cursor];
	if (f->pending && !f->repeated)
		return NULL;
	/* A requester never has more outstanding than there is room for here, so all of that response has arrived. */
	if (f->in_run && !f->again)
		s->heard = ROCE_HEARD_ARRIVED;
	if (f->pending) /* answered once: a requester that asks for more has it; only a late copy asked again */
		s->pending--;
	s->fetch_cursor = (s->fetch_cursor + 1) % s->max_fetches;
	return f;
}

void roce_answer_allow(struct roce_answer *s, uint32_t fetches)
{
	const uint32_t before = s->max_fetches;

	if (fetches <= before)
		return;
	/* The ring grows behind the newest, so that the oldest come to its beginning. */
	for (; s->fetch_cursor; s->fetch_cursor--) {
		const struct roce_fetch oldest = s->fetches[0];
		memmove(s->fetches, s->fetches + 1, (before - 1) * sizeof(oldest));
		s->fetches[before - 1] = oldest;
	}
	s->fetch_cursor = before;
	s->max_fetches = fetches;
}

static void pend(struct roce_answer *s, struct roce_fetch *f, bool repeated)
{
	if (f->pending)
		return;
	s->pending++;
	f->pending = true;
	f->repeated = repeated;
}

static uint8_t fetch_opcode(const struct roce_packet *p)
{
	return p->opcode == ROCE_READ_REQUEST ? IBV_WR_RDMA_READ :
	       p->opcode == ROCE_FETCH_ADD    ? IBV_WR_ATOMIC_FETCH_AND_ADD :
						IBV_WR_ATOMIC_CMP_AND_SWP;
}

static void take_fetch(struct roce_answer *s, const struct roce_packet *p)
{
	const uint8_t opcode = fetch_opcode(p);
	const bool read = opcode == IBV_WR_RDMA_READ;
	const uint32_t length = read ? p->length : 8;
	int status = 0;
	uint64_t original = 0;

	/* More packets than the PSN space can distinguish: one request may not ask for that many. */
	if (s->in_message || (read && roce_packets(length, s->mtu) > ROCE_24 / 2)) {
		broken(s);
		return;
	}
	char *memory = s->calls->remote(s->owner, opcode, p->rkey, p->addr, length, &status);
	if (!memory) {
		failed(s, status);
		return;
	}
	struct roce_fetch *f = keep(s);
	if (!f) {
		broken(s);
		return;
	}
	if (!read) {
		const bool add = p->opcode == ROCE_FETCH_ADD;
		status = s->calls->atomic(s->owner, opcode, memory, add ? p->swap_add : p->compare,
					  add ? 0 : p->swap_add, &original);
		if (status) {
			failed(s, status);
			return;
		}
	}
	*f = (struct roce_fetch){ .opcode = opcode, .used = true, .psn = p->psn, .addr = p->addr, .rkey = p->rkey };
	f->length = f->to = length;
	f->packets = read ? roce_packets(length, s->mtu) : 1;
	f->original = original;
	done(s, f->packets, true);
	f->msn = s->msn;
	pend(s, f, false);
}

/* ---- duplicates ------------------------------------------------------------------------------------- */

static void repeat_fetch(struct roce_answer *s, const struct roce_packet *p)
{
	const uint8_t opcode = fetch_opcode(p);

	/* The newest first: PSNs come again. */
	for (uint32_t i = 1; i <= s->max_fetches; i++) {
		struct roce_fetch *f = &s->fetches[(s->fetch_cursor + s->max_fetches - i) % s->max_fetches];
		const uint32_t n = (p->psn - f->psn) & ROCE_24;
		const uint64_t offset = (uint64_t)n * s->mtu;

		if (!f->used || f->opcode != opcode || n >= f->packets || (f->length && p->rkey != f->rkey) ||
		    p->addr != f->addr + offset)
			continue;
		if (opcode == IBV_WR_RDMA_READ) {
			if (p->length > f->length - offset)
				return;
			/* The requester has everything before it. */
			if (f->in_run && !f->again)
				s->heard = n ? ROCE_HEARD_LOST : ROCE_HEARD_UNCLEAR;
			f->from = f->at = (uint32_t)offset;
			f->to = (uint32_t)offset + p->length;
		}
		f->again = true;
		pend(s, f, true);
		return;
	}
}

static void take_duplicate(struct roce_answer *s, const struct roce_packet *p, uint16_t traits)
{
	s->duplicates++;
	if (traits & (ROCE_IS_SEND | ROCE_IS_WRITE)) {
		if (s->ack_in_run)
			s->heard = ROCE_HEARD_UNCLEAR;
		s->ack_due = s->ack_again = true;
		s->ack_in_run = false;
	} else {
		repeat_fetch(s, p);
	}
}

/* ---- all requests ----------------------------------------------------------------------------------- */

static void take_unreliable(struct roce_answer *s, const struct roce_packet *p, uint16_t traits)
{
	enum { LATE = 1 << 16 }; /* so many packets behind; farther behind is what comes after a long loss */
	const int32_t ahead = roce_psn_diff(p->psn, s->psn);

	if (!(traits & (ROCE_IS_SEND | ROCE_IS_WRITE))) {
		s->dropped++;
		return;
	}
	if (ahead) {
		if (ahead < 0 && ahead >= -LATE) {
			s->dropped++;
			return;
		}
		/* Packets are missing: their message is lost, and so is the rest of any message begun before the
		 * gap. */
		s->out_of_sequence++;
		s->in_message = ROCE_MESSAGE_NONE;
		s->psn = p->psn;
	}
	if (traits & ROCE_IS_FIRST)
		s->in_message = ROCE_MESSAGE_NONE;
	else if (s->in_message == ROCE_MESSAGE_NONE) {
		s->dropped++;
		done(s, 1, false);
		return;
	}
	const uint32_t before = s->psn;
	take_message(s, p, traits);
	if (s->psn == before)
		done(s, 1, false);
}

void roce_answer_take(struct roce_answer *s, const struct roce_packet *p)
{
	const uint16_t traits = roce_traits(p->opcode);

	if (s->stopped || (traits & ROCE_IS_RESPONSE))
		return;
	if (!s->reliable) {
		take_unreliable(s, p, traits);
		return;
	}
	const int32_t ahead = roce_psn_diff(p->psn, s->psn);
	if (ahead > 0) {
		s->out_of_sequence++;
		/* PSNs fall when the requester goes back: it did, and the packets that should fill the gap were lost
		 * again. */
		if (!s->gap || roce_psn_diff(p->psn, s->farther) <= 0)
			nak(s, ROCE_AETH_NAK | ROCE_NAK_SEQUENCE, s->psn);
		s->farther = p->psn;
	} else if (ahead < 0) {
		take_duplicate(s, p, traits);
	} else {
		/* The missing packet has arrived: a NAK that has not left yet would only cause a useless
		 * retransmission. */
		s->nak_due = false;
		if (traits & (ROCE_IS_SEND | ROCE_IS_WRITE))
			take_message(s, p, traits);
		else
			take_fetch(s, p);
	}
}

/* ---- responses -------------------------------------------------------------------------------------- */

static struct roce_fetch *oldest(struct roce_answer *s)
{
	struct roce_fetch *found = NULL;

	for (uint32_t i = 0; i < s->max_fetches; i++) {
		struct roce_fetch *f = &s->fetches[i];
		if (f->pending && (!found || roce_psn_diff(f->psn, found->psn) < 0))
			found = f;
	}
	return found;
}

static void unpend(struct roce_answer *s, struct roce_fetch *f)
{
	f->pending = false;
	s->pending--;
}

/* False: the memory may no longer be read. */
static bool next_read(struct roce_answer *s, struct roce_fetch *f, struct roce_packet *out)
{
	const uint32_t left = f->to - f->at, n = left < s->mtu ? left : s->mtu;
	const bool first = f->at == f->from, last = n == left;
	int status = 0;
	const uint32_t psn = roce_psn_add(f->psn, f->at / s->mtu);
	const char *from = s->calls->remote(s->owner, IBV_WR_RDMA_READ, f->rkey, f->addr + f->at, n, &status);

	if (!from) {
		unpend(s, f);
		refuse(s, status, psn);
		return false;
	}
	out->opcode = first ? last ? ROCE_READ_ONLY : ROCE_READ_FIRST : last ? ROCE_READ_LAST : ROCE_READ_MIDDLE;
	out->psn = psn;
	out->msn = f->msn;
	out->payload = (const uint8_t *)from;
	out->payload_length = n;
	f->at += n;
	if (last)
		unpend(s, f);
	return true;
}

/* A response acknowledges everything before it. rxe loses track of a READ when older acknowledgements arrive among
 * its responses. */
static bool answered(struct roce_answer *s, const struct roce_packet *out)
{
	if (roce_psn_diff(out->psn, s->ack_psn) > 0)
		s->ack_due = false;
	return true;
}

bool roce_answer_next(struct roce_answer *s, struct roce_packet *out)
{
	memset(out, 0, sizeof(*out));
	out->pkey = ROCE_PKEY;
	out->migrated = true;
	out->qpn = s->qpn;
	out->syndrome = ROCE_AETH_ACK | ROCE_NO_CREDITS;
	struct roce_fetch *f = s->pending ? oldest(s) : NULL;
	s->given = f;
	s->alone = f && f->again;
	if (f && f->opcode == IBV_WR_RDMA_READ) {
		if (next_read(s, f, out))
			return answered(s, out);
	} else if (f) {
		out->opcode = ROCE_ATOMIC_ACKNOWLEDGE;
		out->psn = f->psn;
		out->msn = f->msn;
		out->original = f->original;
		unpend(s, f);
		return answered(s, out);
	}
	if (!s->nak_due && !s->ack_due)
		return false;
	out->opcode = ROCE_ACK;
	s->given = NULL; /* that response may be what is refused */
	s->alone = s->nak_due || s->ack_again;
	s->ack_in_run = false;
	/* Never the PSN of a READ or atomic: rxe would complete it, though its response may be lost. */
	out->msn = s->nak_due ? s->msn : s->ack_msn;
	out->psn = s->nak_due ? s->nak_psn : s->ack_psn;
	if (s->nak_due)
		out->syndrome = s->syndrome;
	/* A NAK acknowledges everything before it. */
	s->nak_due = s->ack_due = s->ack_again = false;
	return true;
}

void roce_answer_forget(struct roce_answer *s)
{
	s->pending = 0;
	for (uint32_t i = 0; i < s->max_fetches; i++)
		s->fetches[i].pending = false;
}

void roce_answer_in_run(struct roce_answer *s)
{
	*(s->given ? &s->given->in_run : &s->ack_in_run) = true;
}

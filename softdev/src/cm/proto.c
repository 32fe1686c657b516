/*
 * The connection manager protocol. An end that receives a repeated message repeats its answer; that, and retransmission
 * of unanswered messages, is the whole of its reliability.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cm/proto.h"

/* ---- table ------------------------------------------------------------------------------------------ */

static struct cm_conn *find(struct cm_engine *e, uint32_t local_id)
{
	struct cm_conn *c = e->conns[local_id % CM_BUCKETS];

	while (c && c->local_id != local_id)
		c = c->next;
	return c;
}

static bool same_peer(const struct cm_conn *c, const struct cm_peer *from)
{
	return c->peer.net == from->net && !memcmp(c->peer.remote, from->remote, 16) &&
	       !memcmp(c->peer.local, from->local, 16);
}

/* A sender that guesses an id must also have the peer's address. */
static struct cm_conn *find_from(struct cm_engine *e, const struct cm_peer *from, const struct cm_mad *mad)
{
	struct cm_conn *c = find(e, mad->remote_id);

	return c && same_peer(c, from) ? c : NULL;
}

struct cm_conn *cm_conn_make(struct cm_engine *e, const struct cm_peer *peer, void *user)
{
	struct cm_conn *c = e->count < CM_CONNECTIONS ? calloc(1, sizeof(*c)) : NULL;

	if (!c)
		return NULL;
	do
		c->local_id = e->id_prefix | (++e->next_id & e->id_mask);
	while (!c->local_id || find(e, c->local_id));
	c->peer = *peer;
	c->user = user;
	c->tid = e->tid_prefix | c->local_id;
	c->next = e->conns[c->local_id % CM_BUCKETS];
	e->conns[c->local_id % CM_BUCKETS] = c;
	e->count++;
	return c;
}

static void conn_free(struct cm_engine *e, struct cm_conn *c)
{
	struct cm_conn **at = &e->conns[c->local_id % CM_BUCKETS];

	while (*at != c)
		at = &(*at)->next;
	*at = c->next;
	e->count--;
	free(c);
}

/* ---- sending ---------------------------------------------------------------------------------------- */

static void event(struct cm_engine *e, struct cm_conn *c, enum cm_event_kind kind, const struct cm_mad *mad)
{
	if (c->user)
		e->calls->event(e->owner, c, kind, mad);
}

static void to_timewait(struct cm_conn *c, uint64_t now)
{
	c->state = CM_TIMEWAIT;
	c->deadline = now + CM_TIMEWAIT_NS;
}

static struct cm_mad reply(const struct cm_conn *c, enum cm_attribute attribute)
{
	return (struct cm_mad){
		.attribute = attribute,
		.tid = c->tid,
		.local_id = c->local_id,
		.remote_id = c->remote_id,
	};
}

static bool send_mad(struct cm_engine *e, const struct cm_conn *c, const struct cm_mad *mad)
{
	uint8_t bytes[CM_MAD_BYTES];

	cm_mad_pack(mad, bytes);
	return e->calls->send(e->owner, &c->peer, bytes);
}

static bool send_last(struct cm_engine *e, struct cm_conn *c)
{
	return !c->has_last || e->calls->send(e->owner, &c->peer, c->last);
}

/* Keeps the message, to send it again when the peer repeats its own. */
static bool send_kept(struct cm_engine *e, struct cm_conn *c, const struct cm_mad *mad)
{
	cm_mad_pack(mad, c->last);
	c->has_last = true;
	return send_last(e, c);
}

/* No process can answer (any more). */
static void no_answer(struct cm_engine *e, struct cm_conn *c, uint64_t now)
{
	const enum cm_state state = c->state;
	struct cm_mad mad = { .attribute = CM_REJ, .reason = CM_REASON_INVALID_ID };

	to_timewait(c, now);
	switch (state) {
	case CM_REQ_SENT:
		mad.reason = CM_REASON_INVALID_SERVICE;
		event(e, c, CM_EVENT_REJECTED, &mad);
		break;
	case CM_REP_SENT:
		event(e, c, CM_EVENT_REJECTED, &mad);
		break;
	case CM_SIDR_REQ_SENT:
		mad.attribute = CM_SIDR_REP;
		mad.reason = CM_SIDR_UNSUPPORTED;
		event(e, c, CM_EVENT_SIDR_REPLY, &mad);
		break;
	default:
		event(e, c, CM_EVENT_DISCONNECTED, NULL);
		break;
	}
}

/*
 * Retransmits until an answer arrives. An absent service counts as absent after the second try only: some servers
 * (perftest) stop listening with the first connection and listen again for the next one, which arrives at the same
 * time.
 */
static void send_repeatedly(struct cm_engine *e, struct cm_conn *c, const struct cm_mad *mad, enum cm_state state,
			    uint64_t now)
{
	c->state = state;
	c->tries = 1;
	c->interval = CM_FIRST_NS;
	c->deadline = now + c->interval;
	if (!send_kept(e, c, mad) && state != CM_REQ_SENT)
		no_answer(e, c, now);
}

/* ---- calls of the user ------------------------------------------------------------------------------ */

void cm_conn_connect(struct cm_engine *e, struct cm_conn *c, struct cm_mad *mad, uint64_t now)
{
	const bool sidr = mad->attribute == CM_SIDR_REQ;

	c->active = true;
	c->local_qpn = mad->qpn;
	mad->local_id = c->local_id;
	mad->tid = c->tid;
	mad->guid = e->guid;
	mad->max_retries = CM_TRIES;
	mad->response_timeout = mad->local_response_timeout = CM_MRA_TIMEOUT;
	send_repeatedly(e, c, mad, sidr ? CM_SIDR_REQ_SENT : CM_REQ_SENT, now);
}

int cm_conn_accept(struct cm_engine *e, struct cm_conn *c, struct cm_mad *mad, uint64_t now)
{
	const bool sidr = mad->attribute == CM_SIDR_REP;

	if (c->state != (sidr ? CM_SIDR_REQ_RCVD : CM_REQ_RCVD))
		return EINVAL;
	c->local_qpn = mad->qpn;
	mad->local_id = c->local_id;
	mad->remote_id = c->remote_id;
	mad->tid = c->tid;
	mad->guid = e->guid;
	if (sidr) {
		to_timewait(c, now); /* there is no connection; the answer may have to be repeated */
		send_kept(e, c, mad);
	} else {
		send_repeatedly(e, c, mad, CM_REP_SENT, now);
	}
	return 0;
}

int cm_conn_reject(struct cm_engine *e, struct cm_conn *c, uint16_t reason, const void *data, uint8_t length,
		   uint64_t now)
{
	struct cm_mad mad = reply(c, c->state == CM_SIDR_REQ_RCVD ? CM_SIDR_REP : CM_REJ);

	switch (c->state) {
	case CM_SIDR_REQ_RCVD:
		reason = CM_SIDR_REJECT;
		break;
	case CM_REQ_RCVD:
		break;
	case CM_REP_RCVD:
		mad.about = CM_ABOUT_REP;
		break;
	case CM_REQ_SENT:
	case CM_REP_SENT:
		mad.about = CM_ABOUT_OTHER;
		break;
	default:
		return EINVAL;
	}
	if (length > cm_private_room(mad.attribute))
		return EINVAL;
	mad.reason = reason;
	mad.private_length = length;
	if (length)
		memcpy(mad.private_data, data, length);
	to_timewait(c, now);
	send_kept(e, c, &mad);
	return 0;
}

/* The connection is there. The kernel disconnects for a process that dies; here each end looks for itself. */
static void to_established(struct cm_conn *c, uint64_t now)
{
	c->state = CM_ESTABLISHED;
	c->deadline = c->peer.net ? 0 : now + CM_WATCH_NS;
}

int cm_conn_establish(struct cm_engine *e, struct cm_conn *c, uint64_t now)
{
	const struct cm_mad mad = reply(c, CM_RTU);

	if (c->state != CM_REP_RCVD)
		return EINVAL;
	to_established(c, now);
	send_kept(e, c, &mad);
	return 0;
}

int cm_conn_disconnect(struct cm_engine *e, struct cm_conn *c, uint64_t now)
{
	struct cm_mad mad = reply(c, CM_DREQ);

	mad.qpn = c->remote_qpn;
	switch (c->state) {
	case CM_REP_SENT:
	case CM_ESTABLISHED:
		send_repeatedly(e, c, &mad, CM_DREQ_SENT, now);
		return 0;
	case CM_DREQ_SENT: /* ended already, by us or by the peer, which has its answer */
	case CM_TIMEWAIT:
		return 0;
	default:
		return EINVAL;
	}
}

void cm_conn_release(struct cm_engine *e, struct cm_conn *c, uint64_t now)
{
	c->user = NULL;
	switch (c->state) {
	case CM_REQ_SENT:
		cm_conn_reject(e, c, CM_REASON_TIMEOUT, NULL, 0, now);
		break;
	case CM_REQ_RCVD:
	case CM_REP_RCVD:
	case CM_REP_SENT:
	case CM_SIDR_REQ_RCVD:
		cm_conn_reject(e, c, CM_REASON_CONSUMER, NULL, 0, now);
		break;
	case CM_ESTABLISHED:
		cm_conn_disconnect(e, c, now);
		break;
	case CM_DREQ_SENT:
	case CM_TIMEWAIT:
		break;
	default:
		conn_free(e, c);
		break;
	}
}

/* ---- received messages ------------------------------------------------------------------------------ */

bool cm_stranger_answer(const struct cm_mad *mad, struct cm_mad *answer)
{
	*answer = (struct cm_mad){ .attribute = CM_REJ, .tid = mad->tid, .remote_id = mad->local_id };
	switch (mad->attribute) {
	case CM_REQ:
		answer->reason = CM_REASON_INVALID_SERVICE;
		return true;
	case CM_REP:
		answer->local_id = mad->remote_id;
		answer->about = CM_ABOUT_REP;
		answer->reason = CM_REASON_INVALID_ID;
		return true;
	case CM_DREQ: /* its DREP was lost, and our state of it is gone */
		answer->attribute = CM_DREP;
		answer->local_id = mad->remote_id;
		return true;
	case CM_SIDR_REQ:
		answer->attribute = CM_SIDR_REP;
		answer->service = mad->service;
		answer->reason = CM_SIDR_UNSUPPORTED;
		return true;
	default:
		return false;
	}
}

static void answer_stranger(struct cm_engine *e, const struct cm_peer *from, const struct cm_mad *mad)
{
	struct cm_mad answer;
	uint8_t bytes[CM_MAD_BYTES];

	if (!cm_stranger_answer(mad, &answer))
		return;
	cm_mad_pack(&answer, bytes);
	e->calls->send(e->owner, from, bytes);
}

static struct cm_conn *find_request(struct cm_engine *e, const struct cm_peer *from, const struct cm_mad *mad)
{
	for (unsigned b = 0; b < CM_BUCKETS; b++)
		for (struct cm_conn *c = e->conns[b]; c; c = c->next)
			if (!c->active && c->remote_id == mad->local_id && c->remote_guid == mad->guid &&
			    c->tid == mad->tid && same_peer(c, from))
				return c;
	return NULL;
}

static void send_mra(struct cm_engine *e, const struct cm_conn *c, enum cm_about about)
{
	struct cm_mad mad = reply(c, CM_MRA);

	mad.about = about;
	mad.service_timeout = CM_MRA_TIMEOUT;
	send_mad(e, c, &mad);
}

static void take_request(struct cm_engine *e, const struct cm_peer *from, const struct cm_mad *mad)
{
	struct cm_conn *c = find_request(e, from, mad);

	if (c) { /* a repetition: the request or the answer was lost, or the user has not answered yet */
		if (c->state == CM_REQ_RCVD)
			send_mra(e, c, CM_ABOUT_REQ);
		else if (c->state == CM_REP_SENT || c->state == CM_TIMEWAIT || c->state == CM_IDLE)
			send_last(e, c);
		return;
	}
	c = cm_conn_make(e, from, NULL);
	if (!c)
		return;
	c->state = mad->attribute == CM_REQ ? CM_REQ_RCVD : CM_SIDR_REQ_RCVD;
	c->remote_id = mad->local_id;
	c->remote_qpn = mad->qpn;
	c->remote_guid = mad->guid;
	c->tid = mad->tid;
	switch (e->calls->request(e->owner, c, mad)) {
	case CM_TAKEN:
		return;
	case CM_NOBODY:
		answer_stranger(e, from, mad);
		break;
	case CM_BUSY:
		break;
	}
	conn_free(e, c);
}

static void take_rep(struct cm_engine *e, struct cm_conn *c, const struct cm_mad *mad)
{
	if (c->state == CM_REQ_SENT) {
		c->state = CM_REP_RCVD;
		c->remote_id = mad->local_id;
		c->remote_qpn = mad->qpn;
		c->deadline = 0;
		c->has_last = false;
		event(e, c, CM_EVENT_RESPONSE, mad);
	} else if (c->active && c->remote_id == mad->local_id) {
		if (c->state == CM_REP_RCVD)
			send_mra(e, c, CM_ABOUT_REP);
		else if (c->state == CM_ESTABLISHED || c->state == CM_TIMEWAIT)
			send_last(e, c);
	}
}

static void take_mra(struct cm_conn *c, const struct cm_mad *mad, uint64_t now)
{
	const enum cm_state expected = mad->about == CM_ABOUT_REQ ? CM_REQ_SENT : CM_REP_SENT;
	const uint64_t more = UINT64_C(4096) << mad->service_timeout;

	if (mad->about == CM_ABOUT_OTHER || c->state != expected || (!c->active && c->remote_id != mad->local_id))
		return;
	c->deadline = now + (more < CM_LONGEST_MRA_NS ? more : CM_LONGEST_MRA_NS);
	c->tries = 1; /* the peer is alive */
}

static void take_rej(struct cm_engine *e, struct cm_conn *c, const struct cm_mad *mad, uint64_t now)
{
	switch (c->state) {
	case CM_REQ_SENT:
		if (mad->reason == CM_REASON_INVALID_SERVICE && c->tries == 1)
			return; /* send_repeatedly() */
		break;
	case CM_REQ_RCVD:
	case CM_REP_SENT:
	case CM_REP_RCVD:
	case CM_ESTABLISHED:
		if (mad->local_id != c->remote_id)
			return;
		break;
	default:
		return;
	}
	const bool was_established = c->state == CM_ESTABLISHED;
	to_timewait(c, now);
	c->has_last = false;
	event(e, c, was_established ? CM_EVENT_DISCONNECTED : CM_EVENT_REJECTED, mad);
}

static void take_dreq(struct cm_engine *e, struct cm_conn *c, const struct cm_mad *mad, uint64_t now)
{
	const struct cm_mad drep = reply(c, CM_DREP);
	const enum cm_state before = c->state;

	if (mad->local_id != c->remote_id || (mad->qpn != c->local_qpn && mad->qpn))
		return;
	switch (before) {
	case CM_REP_SENT: /* its RTU was lost, or is late */
	case CM_ESTABLISHED:
	case CM_DREQ_SENT:
		to_timewait(c, now);
		send_kept(e, c, &drep);
		if (before == CM_REP_SENT)
			event(e, c, CM_EVENT_ESTABLISHED, NULL);
		event(e, c, CM_EVENT_DISCONNECTED, NULL);
		break;
	case CM_TIMEWAIT:
		send_mad(e, c, &drep);
		break;
	default:
		break;
	}
}

static void take_sidr_rep(struct cm_engine *e, struct cm_conn *c, const struct cm_mad *mad, uint64_t now)
{
	if (c->state != CM_SIDR_REQ_SENT)
		return;
	to_timewait(c, now);
	c->has_last = false;
	event(e, c, CM_EVENT_SIDR_REPLY, mad);
}

void cm_engine_receive(struct cm_engine *e, const struct cm_peer *from, const uint8_t *bytes, size_t size, uint64_t now)
{
	struct cm_mad mad;

	if (!cm_mad_parse(bytes, size, &mad))
		return;
	if (mad.attribute == CM_REQ || mad.attribute == CM_SIDR_REQ) {
		take_request(e, from, &mad);
		return;
	}
	struct cm_conn *c = find_from(e, from, &mad);
	if (!c) {
		answer_stranger(e, from, &mad);
		return;
	}
	switch (mad.attribute) {
	case CM_REP:
		take_rep(e, c, &mad);
		break;
	case CM_RTU:
		if (c->state == CM_REP_SENT && c->remote_id == mad.local_id) {
			to_established(c, now);
			c->has_last = false;
			event(e, c, CM_EVENT_ESTABLISHED, &mad);
		}
		break;
	case CM_MRA:
		take_mra(c, &mad, now);
		break;
	case CM_REJ:
		take_rej(e, c, &mad, now);
		break;
	case CM_DREQ:
		take_dreq(e, c, &mad, now);
		break;
	case CM_DREP:
		if (c->state == CM_DREQ_SENT && c->remote_id == mad.local_id) {
			to_timewait(c, now);
			c->has_last = false;
			event(e, c, CM_EVENT_DISCONNECTED, NULL);
		}
		break;
	case CM_SIDR_REP:
		take_sidr_rep(e, c, &mad, now);
		break;
	default:
		break;
	}
}

/* ---- timers ----------------------------------------------------------------------------------------- */

static void give_up(struct cm_engine *e, struct cm_conn *c, uint64_t now)
{
	struct cm_mad rej = reply(c, CM_REJ);
	const enum cm_state state = c->state;

	rej.reason = CM_REASON_TIMEOUT;
	rej.about = state == CM_REP_SENT ? CM_ABOUT_REP : CM_ABOUT_REQ;
	to_timewait(c, now);
	c->has_last = false;
	if (state == CM_REQ_SENT || state == CM_REP_SENT)
		send_mad(e, c, &rej);
	event(e, c, state == CM_DREQ_SENT ? CM_EVENT_DISCONNECTED : CM_EVENT_UNREACHABLE, NULL);
}

static void watch(struct cm_engine *e, struct cm_conn *c, uint64_t now)
{
	if (!e->calls->died(e->owner, c)) {
		c->deadline = now + CM_WATCH_NS;
		return;
	}
	to_timewait(c, now);
	c->has_last = false;
	event(e, c, CM_EVENT_DISCONNECTED, NULL);
}

static bool asks(const struct cm_conn *c)
{
	return c->state == CM_REQ_SENT || c->state == CM_SIDR_REQ_SENT;
}

void cm_engine_refused(struct cm_engine *e, const uint8_t remote[16], bool refused, uint64_t now)
{
	for (unsigned b = 0; b < CM_BUCKETS; b++) {
		for (struct cm_conn *c = e->conns[b]; c; c = c->next) {
			if (!asks(c) || c->tries == 1 || !c->peer.net || memcmp(c->peer.remote, remote, 16) != 0)
				continue;
			if (refused)
				no_answer(e, c, now);
			else
				give_up(e, c, now);
		}
	}
}

/* False: the connection was freed. */
static bool due(struct cm_engine *e, struct cm_conn *c, uint64_t now)
{
	c->deadline = 0;
	if (c->state == CM_ESTABLISHED) {
		watch(e, c, now);
	} else if (c->state == CM_TIMEWAIT) {
		if (!c->user) {
			conn_free(e, c);
			return false;
		}
		c->state = CM_IDLE;
		event(e, c, CM_EVENT_TIMEWAIT_EXIT, NULL);
	} else if (c->tries >= (c->state == CM_DREQ_SENT ? CM_DREQ_TRIES : CM_TRIES)) {
		give_up(e, c, now);
	} else {
		c->tries++;
		c->interval = c->interval * 2 < CM_LONGEST_NS ? c->interval * 2 : CM_LONGEST_NS;
		c->deadline = now + c->interval;
		if (!send_last(e, c))
			no_answer(e, c, now);
		else if (asks(c) && c->peer.net && e->calls->knock)
			e->calls->knock(e->owner, &c->peer);
	}
	return true;
}

uint64_t cm_engine_tick(struct cm_engine *e, uint64_t now)
{
	uint64_t next = 0;

	for (unsigned b = 0; b < CM_BUCKETS; b++) {
		for (struct cm_conn *c = e->conns[b], *after; c; c = after) {
			after = c->next;
			if (c->deadline && c->deadline <= now && !due(e, c, now))
				continue;
			if (c->deadline && (!next || c->deadline < next))
				next = c->deadline;
		}
	}
	return next;
}

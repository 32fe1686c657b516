/*
 * Counts what records say.
 */
#include "trace/meter/meter.h"

#include <infiniband/verbs.h>
#include <stdlib.h>
#include <string.h>

const double meter_latency_bounds[METER_LATENCIES - 1] = { 1e-6,   2.5e-6, 5e-6, 1e-5,   2.5e-5, 5e-5, 1e-4,
							   2.5e-4, 5e-4,   1e-3, 2.5e-3, 5e-3,   1e-2, 2.5e-2,
							   5e-2,   0.1,    0.25, 0.5,    1,      10 };

bool meter_begin(struct meter *m, const struct trace_header *of)
{
	memset(m, 0, sizeof(*m));
	m->pid = of->pid;
	memcpy(m->program, of->program, sizeof(m->program));
	memcpy(m->host, of->host, sizeof(m->host));
	m->peers = calloc(METER_PEERS, sizeof(*m->peers));
	if (!m->peers)
		return false;
	snprintf(m->peers[0].address, sizeof(m->peers[0].address), "unknown");
	snprintf(m->peers[METER_PEERS - 1].address, sizeof(m->peers[0].address), "other");
	m->peer_count = 1;
	return true;
}

void meter_free(struct meter *m)
{
	for (size_t n = 0; n < m->qp_count; n++)
		free(m->qps[n].sent);
	free(m->qps);
	free(m->cqs);
	free(m->peers);
	map_free(&m->by_qp);
	map_free(&m->by_number);
	map_free(&m->by_cq);
	map_free(&m->by_handle);
	memset(m, 0, sizeof(*m));
}

/* ---- room --------------------------------------------------------------------------------------------- */

/* The maps cannot forget: they are made anew. */
static void map_qps(struct meter *m)
{
	map_free(&m->by_qp);
	map_free(&m->by_number);
	for (size_t n = 0; n < m->qp_count; n++) {
		if (m->qps[n].gone)
			continue;
		map_put(&m->by_qp, m->qps[n].object, (uint32_t)n);
		map_put(&m->by_number, key_of(m->qps[n].device, m->qps[n].number), (uint32_t)n);
	}
}

static void map_cqs(struct meter *m)
{
	map_free(&m->by_cq);
	for (size_t n = 0; n < m->cq_count; n++) {
		if (!m->cqs[n].gone)
			map_put(&m->by_cq, m->cqs[n].object, (uint32_t)n);
	}
}

static bool grow(void *list, size_t count, size_t *room, size_t size)
{
	void *array;

	if (count < *room)
		return true;
	memcpy(&array, list, sizeof(array)); /* a pointer of another type */
	const size_t wanted = *room ? *room * 2 : 8;
	array = realloc(array, wanted * size);
	if (!array)
		return false;
	memcpy(list, &array, sizeof(array));
	*room = wanted;
	return true;
}

/* The place of a new queue pair: of the one whose name it has, else a new one, else of the oldest that is gone. */
static struct meter_qp *qp_place(struct meter *m, const struct trace_record *r)
{
	struct meter_qp *at = NULL;

	for (size_t n = 0; n < m->qp_count; n++) {
		struct meter_qp *one = &m->qps[n];
		if (one->number == r->qpn && !strcmp(m->devices[one->device], m->devices[r->device])) {
			at = one;
			break;
		}
		if (m->qp_count == METER_QPS && one->gone && (!at || one->age < at->age))
			at = one;
	}
	if (!at && (m->qp_count == METER_QPS || !grow(&m->qps, m->qp_count, &m->qp_room, sizeof(*m->qps))))
		return NULL;
	if (at)
		free(at->sent);
	else
		at = &m->qps[m->qp_count++];
	memset(at, 0, sizeof(*at));
	return at;
}

static struct meter_cq *cq_place(struct meter *m, const struct trace_record *r)
{
	struct meter_cq *at = NULL;

	for (size_t n = 0; n < m->cq_count; n++) {
		struct meter_cq *one = &m->cqs[n];
		if (one->object == r->object) {
			at = one;
			break;
		}
		if (m->cq_count == METER_CQS && one->gone && (!at || one->age < at->age))
			at = one;
	}
	if (!at && (m->cq_count == METER_CQS || !grow(&m->cqs, m->cq_count, &m->cq_room, sizeof(*m->cqs))))
		return NULL;
	at = at ? at : &m->cqs[m->cq_count++];
	memset(at, 0, sizeof(*at));
	return at;
}

static size_t peer_place(struct meter *m, const struct trace_address *address)
{
	char text[TRACE_ADDRESS_BYTES];

	if (!address->global)
		return 0;
	trace_gid_text(address->dgid, text);
	for (size_t n = 0; n < m->peer_count; n++) {
		if (!strcmp(m->peers[n].address, text))
			return n;
	}
	if (m->peer_count == METER_PEERS - 1)
		return METER_PEERS - 1;
	memcpy(m->peers[m->peer_count].address, text, sizeof(text));
	return m->peer_count++;
}

/* ---- distributions ------------------------------------------------------------------------------------ */

static void latency(struct meter_latencies *to, double seconds)
{
	size_t n = 0;

	while (n < METER_LATENCIES - 1 && seconds > meter_latency_bounds[n])
		n++;
	to->buckets[n]++;
	to->count++;
	to->sum += seconds;
}

static void close_batch(struct meter_batches *of)
{
	size_t n = 0;

	if (!of->open)
		return;
	while (n < METER_BATCHES - 1 && of->open > UINT64_C(1) << n)
		n++;
	of->buckets[n]++;
	of->count++;
	of->sum += of->open;
	of->open = 0;
}

static void batch(struct meter_batches *of, uint8_t place)
{
	if (!place)
		close_batch(of);
	of->open++;
}

/* ---- work requests ------------------------------------------------------------------------------------ */

static struct meter_sent *sent_at(const struct meter_qp *qp, size_t n)
{
	return &qp->sent[(qp->sent_head + n) & (qp->sent_room - 1)];
}

static void drop_sent(struct meter_qp *qp, size_t count)
{
	if (qp->sent_room)
		qp->sent_head = (qp->sent_head + count) & (qp->sent_room - 1);
	qp->sent_count -= count;
}

static void push_sent(struct meter_qp *qp, const struct trace_record *r, bool signalled)
{
	if (qp->sent_count == METER_SENT)
		drop_sent(qp, 1);
	if (qp->sent_count == qp->sent_room) {
		const size_t room = qp->sent_room ? qp->sent_room * 2 : 16;
		struct meter_sent *larger = malloc(room * sizeof(*larger));
		if (!larger)
			return;
		for (size_t n = 0; n < qp->sent_count; n++)
			larger[n] = *sent_at(qp, n);
		free(qp->sent);
		qp->sent = larger;
		qp->sent_room = room;
		qp->sent_head = 0;
	}
	*sent_at(qp, qp->sent_count++) =
		(struct meter_sent){ .wr_id = r->wr.wr_id, .ticks = r->stamp, .signalled = signalled };
}

/* A datagram's peer is that of its address handle. */
static struct meter_traffic *peer_of(struct meter *m, const struct meter_qp *qp, const struct trace_record *r)
{
	const long handle = qp->type == IBV_QPT_UD && r->kind == TRACE_SEND ? map_get(&m->by_handle, r->wr.remote) : -1;

	return &m->peers[handle < 0 ? qp->peer : (size_t)handle].traffic;
}

static void take_send(struct meter *m, const struct trace_record *r)
{
	const long n = map_get(&m->by_qp, r->object);

	if (n < 0)
		return;
	struct meter_qp *qp = &m->qps[n];
	if (!r->wr.place)
		qp->doorbells++;
	if (r->error) {
		qp->refused++;
		return;
	}
	struct meter_traffic *peer = peer_of(m, qp, r);
	qp->traffic.sends++;
	qp->traffic.send_bytes += r->wr.length;
	peer->sends++;
	peer->send_bytes += r->wr.length;
	batch(&qp->posts, r->wr.place);
	push_sent(qp, r, qp->sig_all || r->wr.flags & IBV_SEND_SIGNALED);
}

static void take_recv(struct meter *m, const struct trace_record *r)
{
	const long n = r->qpn ? map_get(&m->by_qp, r->object) : -1;

	if (n < 0)
		return;
	if (r->error)
		m->qps[n].refused++;
	else
		m->qps[n].receives_posted++;
}

/* The n of the request that this completion ends, or the count. */
static size_t find_sent(const struct meter_qp *qp, const struct trace_done *done)
{
	size_t n = 0;

	while (n < qp->sent_count) {
		const struct meter_sent *one = sent_at(qp, n);
		if (one->wr_id == done->wr_id && (one->signalled || done->status))
			break;
		n++;
	}
	return n;
}

static void take_done(struct meter *m, const struct trace_record *r)
{
	const long c = map_get(&m->by_cq, r->object), n = map_get(&m->by_number, key_of(r->device, r->qpn));

	if (c >= 0) {
		m->cqs[c].completions++;
		m->cqs[c].polls += !r->done.place;
		batch(&m->cqs[c].polled, r->done.place);
	}
	if (n < 0)
		return;
	struct meter_qp *qp = &m->qps[n];
	struct meter_traffic *peer = &m->peers[qp->peer].traffic;
	/* Only a completion that has succeeded says whether it is a receive's. */
	bool receive = !r->done.status && r->done.opcode & IBV_WC_RECV;
	if (r->done.status && qp->send_cq != qp->recv_cq)
		receive = r->object == qp->recv_cq;
	const size_t k = receive ? qp->sent_count : find_sent(qp, &r->done);
	if (r->done.status && k == qp->sent_count)
		receive = true;
	if (receive)
		qp->receives_done++;
	if (r->done.status) {
		qp->traffic.errors++;
		peer->errors++;
		qp->statuses[r->done.status < METER_STATUSES ? r->done.status : 0]++;
	} else if (receive) {
		qp->traffic.receives++;
		qp->traffic.receive_bytes += r->done.byte_len;
		peer->receives++;
		peer->receive_bytes += r->done.byte_len;
	}
	if (k == qp->sent_count)
		return;
	if (!r->done.status) {
		const uint64_t posted = sent_at(qp, k)->ticks;
		const double seconds = r->stamp > posted ? (double)(r->stamp - posted) * m->seconds_per_tick : 0;
		latency(&qp->traffic.latencies, seconds);
		latency(&peer->latencies, seconds);
	}
	drop_sent(qp, k + 1);
}

/* ---- objects ------------------------------------------------------------------------------------------ */

static void take_made(struct meter *m, const struct trace_record *r)
{
	struct meter_qp *qp = r->error ? NULL : qp_place(m, r);

	if (r->error)
		return;
	m->qps_made++;
	if (!qp) {
		m->left_out++;
		return;
	}
	*qp = (struct meter_qp){ .object = r->object,
				 .age = ++m->age,
				 .number = r->qpn,
				 .device = r->device,
				 .type = r->qp.type,
				 .sig_all = r->qp.sig_all,
				 .has_srq = r->qp.srq != 0,
				 .send_cq = r->qp.send_cq,
				 .recv_cq = r->qp.recv_cq };
	map_qps(m);
}

static void forget_posted(struct meter_qp *qp)
{
	drop_sent(qp, qp->sent_count);
	qp->receives_done = qp->receives_posted;
}

static void take_qp(struct meter *m, const struct trace_record *r)
{
	const long n = map_get(&m->by_qp, r->object);

	if (n < 0)
		return;
	struct meter_qp *qp = &m->qps[n];
	if (r->kind == TRACE_MODIFY) {
		qp->modify_refused = r->error != 0;
		if (!r->error && r->modify.mask & IBV_QP_STATE) {
			qp->state = r->modify.state;
			if (qp->state == IBV_QPS_RESET)
				forget_posted(qp);
		}
	} else if (r->kind == TRACE_ADDRESS) {
		if (!qp->modify_refused)
			qp->peer = peer_place(m, &r->address);
	} else if (!r->error) {
		forget_posted(qp);
		m->qps_destroyed++;
		qp->gone = true;
		map_qps(m);
	}
}

static void take_address(struct meter *m, const struct trace_record *r)
{
	/* An address handle's has no queue pair. */
	if (r->qpn) {
		take_qp(m, r);
		return;
	}
	if (m->by_handle.count >= METER_HANDLES)
		map_free(&m->by_handle);
	if (r->object)
		map_put(&m->by_handle, r->object, (uint32_t)peer_place(m, &r->address));
}

static void take_cq(struct meter *m, const struct trace_record *r)
{
	const long n = map_get(&m->by_cq, r->object);

	if (r->error)
		return;
	if (r->kind == TRACE_CQ) {
		struct meter_cq *cq = cq_place(m, r);
		if (cq)
			*cq = (struct meter_cq){
				.object = r->object, .age = ++m->age, .device = r->device, .entries = r->cq.cqe
			};
	} else if (n >= 0 && r->kind == TRACE_CQ_RESIZED) {
		m->cqs[n].entries = r->cq.cqe;
	} else if (n >= 0) {
		m->cqs[n].gone = true;
	}
	map_cqs(m);
}

void meter_more_empty(struct meter *m, uint64_t cq, uint64_t polls)
{
	const long n = map_get(&m->by_cq, cq);

	if (n < 0)
		return;
	m->cqs[n].polls += polls;
	m->cqs[n].empty_polls += polls;
}

static void take_cq_use(struct meter *m, const struct trace_record *r)
{
	const long n = map_get(&m->by_cq, r->kind == TRACE_EVENT ? r->event.cq : r->object);

	if (n < 0 || r->error)
		return;
	m->cqs[n].arms += r->kind == TRACE_ARM;
	m->cqs[n].events += r->kind == TRACE_EVENT;
}

void meter_take(struct meter *m, const struct trace_record *r)
{
	m->records++;
	switch (r->kind) {
	case TRACE_DEVICE:
		memcpy(m->devices[r->device], r->opened.name, sizeof(m->devices[0]));
		return;
	case TRACE_QP:
		take_made(m, r);
		return;
	case TRACE_MODIFY:
	case TRACE_QP_GONE:
		take_qp(m, r);
		return;
	case TRACE_ADDRESS:
		take_address(m, r);
		return;
	case TRACE_CQ:
	case TRACE_CQ_RESIZED:
	case TRACE_CQ_GONE:
		take_cq(m, r);
		return;
	case TRACE_ARM:
	case TRACE_EVENT:
		take_cq_use(m, r);
		return;
	case TRACE_EMPTY:
		meter_more_empty(m, r->object, r->empty.count);
		return;
	case TRACE_MR:
		m->registered += !r->error;
		return;
	case TRACE_MR_GONE:
		m->deregistered += !r->error;
		return;
	case TRACE_ASYNC:
		m->events[r->async.type < METER_EVENTS ? r->async.type : METER_EVENTS - 1]++;
		return;
	case TRACE_SEND:
		take_send(m, r);
		return;
	case TRACE_RECV:
		take_recv(m, r);
		return;
	case TRACE_DONE:
		take_done(m, r);
		return;
	default:
		return;
	}
}

void meter_close_batches(struct meter *m)
{
	for (size_t n = 0; n < m->qp_count; n++)
		close_batch(&m->qps[n].posts);
	for (size_t n = 0; n < m->cq_count; n++)
		close_batch(&m->cqs[n].polled);
}

bool meter_tell(struct meter *m, const struct trace_recording *recording)
{
	if (!meter_begin(m, &recording->header))
		return false;
	m->seconds_per_tick = recording->ns_per_tick / 1e9;
	for (size_t i = 0; i < recording->count; i++)
		meter_take(m, &recording->items[i].record);
	for (size_t n = 0; n < 3; n++)
		m->missed += recording->overwritten[n];
	m->lost = recording->header.lost;
	return true;
}

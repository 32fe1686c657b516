/*
 * Datagrams to other processes: one lane from a process to a UD QP, shared by all of the process's UD QPs. There are no
 * acknowledgements: a datagram counts as sent when it is in the ring. When the ring is full, the send queue waits for a
 * moment and then drops the datagram, as a congested network would. A lane not granted yet is waited for longer, once.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shm/unix_link.h"

enum {
	ABSENT_NS = 50000000,
	ANSWER_NS = 1000000000, /* an adapter delivers at once; a process may first have to wait for a CPU */
	REQ_MASK = SOFT_REQ_RING - 1
};

enum out_state { ASKED, READY, ABSENT };

/* soft_shm.ud_lock. */
struct soft_ud_out {
	struct soft_ud_out *next;
	uint32_t qpn;
	enum out_state state;
	uint64_t until;        /* ABSENT: time of the next request */
	uint64_t answer_until; /* ASKED: end of the wait for an answer */
	uint64_t attempt;
	struct soft_link *link;
	struct soft_seg *seg;
	struct soft_door *door;
	const _Atomic(uint64_t) *armed;
	uint32_t bit;
	struct soft_event *event;
	uint64_t tail, head;
};

static uint32_t align(uint32_t n)
{
	return (n + SOFT_RECORD_ALIGN - 1) & ~(uint32_t)(SOFT_RECORD_ALIGN - 1);
}

/* ---- sending ---------------------------------------------------------------------------------------- */

static struct soft_ud_out *find(uint32_t qpn)
{
	struct soft_ud_out *out = soft_shm.ud_out[qpn % SOFT_UD_BUCKETS];

	while (out && out->qpn != qpn)
		out = out->next;
	return out;
}

static void detach(struct soft_ud_out *out)
{
	if (!out->seg)
		return;
	atomic_store(&out->seg->detached, 1);
	munmap(out->seg, sizeof(*out->seg));
	soft_event_release(out->link, out->event);
	soft_link_release(out->link);
	out->seg = NULL;
	out->event = NULL;
}

static void mark_absent(struct soft_ud_out *out)
{
	detach(out);
	out->state = ABSENT;
	out->until = soft_now_ns() + ABSENT_NS;
}

/* Returns the lane to that QP if it is usable now. *hopeless: no such QP. ud_lock held. */
static struct soft_ud_out *usable(struct soft_qp *qp, uint32_t qpn, bool *hopeless)
{
	struct soft_ud_out *out = find(qpn);

	if (soft_likely(out && out->state == READY)) {
		if (soft_likely(atomic_load_explicit(&out->seg->gate, memory_order_relaxed)))
			return out;
		mark_absent(out);
	}
	if (out && out->state == ABSENT) {
		*hopeless = true;
		if (soft_now_ns() < out->until)
			return NULL;
		*hopeless = false;
	} else if (out) {
		*hopeless = soft_now_ns() >= out->answer_until;
		return NULL;
	}
	if (!out) {
		out = calloc(1, sizeof(*out));
		if (!out)
			return NULL;
		out->qpn = qpn;
		out->next = soft_shm.ud_out[qpn % SOFT_UD_BUCKETS];
		soft_shm.ud_out[qpn % SOFT_UD_BUCKETS] = out;
	}
	out->state = ASKED;
	out->until = 0;
	out->answer_until = soft_now_ns() + ANSWER_NS;
	out->attempt++;
	soft_service(qp, SOFT_SERVICE_DATAGRAM);
	return NULL;
}

static char *reserve(struct soft_ud_out *out, uint32_t bytes)
{
	uint32_t size = align(bytes), left = SOFT_REQ_RING - (uint32_t)(out->tail & REQ_MASK);
	uint32_t need = left < size ? left + size : size;

	if (out->tail + need - out->head > SOFT_REQ_RING) {
		uint64_t head = atomic_load_explicit(&out->seg->head, memory_order_acquire);
		if (head > out->tail || out->tail - head > SOFT_REQ_RING) {
			mark_absent(out);
			return NULL;
		}
		out->head = head;
		if (out->tail + need - head > SOFT_REQ_RING)
			return NULL;
	}
	if (left < size) {
		*(struct soft_rec *)(void *)(out->seg->req + (out->tail & REQ_MASK)) =
			(struct soft_rec){ .op = SOFT_OP_PAD };
		out->tail += left;
	}
	return (char *)out->seg->req + (out->tail & REQ_MASK);
}

enum soft_run soft_ud_send(struct soft_qp *qp, struct soft_wqe *wqe, uint32_t qkey, const uint8_t grh[SOFT_GRH_BYTES],
			   const char *payload)
{
	const uint32_t bytes = (uint32_t)(sizeof(struct soft_rec) + sizeof(struct soft_deth)) + wqe->length;
	bool hopeless = false;
	char *at = NULL;

	soft_lock(&soft_shm.ud_lock);
	struct soft_ud_out *out = usable(qp, wqe->ud.qpn, &hopeless);
	if (out)
		at = reserve(out, bytes);
	if (at) {
		struct soft_deth *deth = (struct soft_deth *)(void *)(at + sizeof(struct soft_rec));
		*(struct soft_rec *)(void *)at = (struct soft_rec){
			.length = wqe->length,
			.op = SOFT_OP_SEND,
			.flags = (uint8_t)((wqe->flags & IBV_SEND_SOLICITED ? SOFT_REC_SOLICITED : 0) |
					   (wqe->opcode == IBV_WR_SEND_WITH_IMM ? SOFT_REC_IMM : 0)),
			.imm = wqe->imm,
			.total = wqe->length,
		};
		deth->src_qpn = qp->qp.qp_num;
		deth->qkey = qkey;
		memcpy(deth->grh, grh, SOFT_GRH_BYTES);
		memcpy(deth + 1, payload, wqe->length);
		out->tail += align(bytes);
		atomic_store_explicit(&out->seg->tail, out->tail, memory_order_release);
		soft_door_ring(out->door, out->bit);
		soft_door_fire(out->door, out->armed, out->event, wqe->flags & IBV_SEND_SOLICITED);
	} else if (out && out->seg) {
		soft_link_kick(out->link); /* full: the receiver does not poll */
	}
	soft_unlock(&soft_shm.ud_lock);
	if (at || hopeless)
		return SOFT_RUN_DONE;
	if (!out)
		qp->tries = 0; /* counts tries with a full ring */
	qp->wait = SOFT_WAIT_DATAGRAM;
	return SOFT_RUN_WAIT;
}

/* ---- receiving -------------------------------------------------------------------------------------- */

/* Reads one lane; false: it has ended, or its sender violated the protocol. */
static bool take_lane(struct soft_qp *qp, struct soft_ud_in *in, struct soft_after *after)
{
	bool last = atomic_load(&in->seg->detached);
	uint64_t tail = atomic_load_explicit(&in->seg->tail, memory_order_acquire);

	if (tail - in->head > SOFT_REQ_RING || tail % SOFT_RECORD_ALIGN)
		return false;
	while (in->head != tail) {
		uint32_t at = (uint32_t)(in->head & REQ_MASK), size = SOFT_REQ_RING - at;
		uint64_t left = tail - in->head < size ? tail - in->head : size;
		struct soft_rec rec;
		struct soft_deth deth;

		memcpy(&rec, in->seg->req + at, sizeof(rec));
		if (rec.op != SOFT_OP_PAD) {
			uint32_t head = sizeof(rec) + sizeof(deth);
			if (rec.op != SOFT_OP_SEND || rec.length > SOFT_UD_MTU || align(head + rec.length) > left)
				return false;
			memcpy(&deth, in->seg->req + at + sizeof(rec), sizeof(deth));
			if (deth.src_qpn >> SOFT_QPN_INDEX_BITS != in->link->slot)
				return false; /* another process's queue pair */
			struct soft_rx rx = {
				.opcode = rec.flags & SOFT_REC_IMM ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND,
				.solicited = rec.flags & SOFT_REC_SOLICITED,
				.imm = rec.imm,
				.src_qp = deth.src_qpn,
				.length = rec.length,
			};
			soft_ud_deliver(qp, &rx, deth.qkey, deth.grh, (const char *)in->seg->req + at + head, after);
			size = align(head + rec.length);
		} else if (size > left) {
			return false;
		}
		in->head += size;
		atomic_store_explicit(&in->seg->head, in->head, memory_order_release);
	}
	return !last;
}

static void in_free(struct soft_ud_in *in)
{
	atomic_store(&in->seg->gate, 0);
	munmap(in->seg, sizeof(*in->seg));
	soft_link_release(in->link);
	free(in);
}

void soft_ud_progress(struct soft_qp *qp, struct soft_after *after)
{
	for (struct soft_ud_in **at = &qp->ud_in, *in; (in = *at);) {
		if (take_lane(qp, in, after)) {
			at = &in->next;
		} else {
			*at = in->next;
			in_free(in);
		}
	}
}

void soft_ud_leave(struct soft_qp *qp)
{
	struct soft_ud_in *in;

	while ((in = qp->ud_in)) {
		qp->ud_in = in->next;
		in_free(in);
	}
}

/* ---- links: progress thread ------------------------------------------------------------------------- */

/*
 * Frees the lanes to QPs that are gone, if nothing is sent to them any more. Each new lane has this done, so lanes that
 * are of no use are never more than there were in use at one time. ud_lock held.
 */
static void sweep(void)
{
	const uint64_t now = soft_now_ns();

	for (unsigned b = 0; b < SOFT_UD_BUCKETS; b++) {
		for (struct soft_ud_out **at = &soft_shm.ud_out[b], *out; (out = *at);) {
			bool closed =
				out->state == READY && !atomic_load_explicit(&out->seg->gate, memory_order_relaxed);
			if (!closed && (out->state != ABSENT || now < out->until)) {
				at = &out->next;
				continue;
			}
			*at = out->next;
			detach(out);
			free(out);
		}
	}
}

void soft_ud_ask(void)
{
	struct soft_message msgs[16];
	unsigned n;

	do {
		n = 0;
		soft_lock(&soft_shm.ud_lock);
		sweep();
		for (unsigned b = 0; b < SOFT_UD_BUCKETS; b++) {
			for (struct soft_ud_out *out = soft_shm.ud_out[b]; out && n < 16; out = out->next) {
				if (out->state != ASKED || out->until)
					continue;
				out->until = UINT64_MAX; /* the request is out: do not repeat it */
				msgs[n++] = (struct soft_message){ .type = SOFT_ATTACH,
								   .qp_type = IBV_QPT_UD,
								   .src_qpn = soft_proc.slot << SOFT_QPN_INDEX_BITS,
								   .dst_qpn = out->qpn,
								   .attempt = out->attempt };
			}
		}
		soft_unlock(&soft_shm.ud_lock);
		for (unsigned i = 0; i < n; i++) {
			struct soft_link *link = soft_link_dial(msgs[i].dst_qpn >> SOFT_QPN_INDEX_BITS);
			if (link)
				soft_link_send(link, &msgs[i], NULL, 0);
			else
				soft_ud_absent(&msgs[i]);
		}
	} while (n == 16);
}

/* Takes the lane from the link's peer out of the list; it has one at most. rq_lock held. */
static struct soft_ud_in *unlist(struct soft_qp *qp, const struct soft_link *link)
{
	struct soft_ud_in **at = &qp->ud_in, *in;

	while (*at && (*at)->link != link)
		at = &(*at)->next;
	if ((in = *at))
		*at = in->next;
	return in;
}

/* A process that asks again has left its earlier lane: what that still holds is received. rq_lock held. */
static void replace(struct soft_qp *qp, const struct soft_link *link, struct soft_after *after)
{
	struct soft_ud_in *in = unlist(qp, link), *others;

	if (!in)
		return;
	others = qp->ud_in;
	in->next = NULL;
	qp->ud_in = in;
	soft_ud_progress(qp, after);
	soft_ud_leave(qp);
	qp->ud_in = others;
}

/* Makes the receiver's end and its answer. Returns errno. rq_lock held. */
static int ud_grant(struct soft_qp *qp, struct soft_link *link, struct soft_message *answer, int fds[2])
{
	struct soft_cq *cq = to_cq(qp->qp.recv_cq);
	struct soft_ud_in *in = calloc(1, sizeof(*in));
	int err = in ? soft_bell_give(link, cq, answer, &fds[1]) : ENOMEM;
	void *map;

	if (!err && !soft_cq_door_add(cq, &link->here->cq[cq->index]))
		err = ENOSPC;
	if (!err && (fds[0] = soft_memfd_create("softdev-ud", sizeof(struct soft_seg), &map)) < 0)
		err = errno;
	if (err) {
		free(in);
		if (fds[1] >= 0) {
			close(fds[1]);
			soft_bell_take(link, answer->event_id, answer->bell);
		}
		return err;
	}
	soft_memfd_share(fds[0], true);
	in->seg = map;
	in->link = link;
	atomic_fetch_add(&link->refs, 1);
	atomic_store(&in->seg->gate, 1);
	in->next = qp->ud_in;
	qp->ud_in = in;
	answer->type = SOFT_ATTACHED;
	answer->cq = cq->index;
	answer->bit = qp->recv_slot;
	return 0;
}

bool soft_ud_attach(struct soft_link *link, const struct soft_message *msg, struct soft_after *after)
{
	struct soft_message answer = *msg;
	struct soft_qp *qp = soft_qp_find(msg->dst_qpn);
	int fds[2] = { -1, -1 }, err = 0;

	answer.type = SOFT_ABSENT;
	if (qp) {
		soft_lock(&qp->rq_lock);
		if (atomic_load(&qp->number) == msg->dst_qpn && qp->qp.qp_type == IBV_QPT_UD &&
		    soft_receives(soft_state(qp))) {
			replace(qp, link, after);
			err = ud_grant(qp, link, &answer, fds);
		}
		soft_unlock(&qp->rq_lock);
	}
	if (err)
		soft_shortage(err, false);
	soft_link_send(link, &answer, fds, err ? 0 : 2);
	return true;
}

void soft_ud_given_back(struct soft_qp *qp, const struct soft_link *link)
{
	soft_lock(&qp->rq_lock);
	struct soft_ud_in *in = unlist(qp, link);
	if (in)
		in_free(in);
	soft_unlock(&qp->rq_lock);
}

int soft_ud_attached(struct soft_link *link, const struct soft_message *msg, int fd, struct soft_event *event)
{
	struct soft_seg *seg = soft_memfd_map(fd, sizeof(*seg), PROT_READ | PROT_WRITE);

	if (!seg) {
		const int err = errno;
		soft_event_release(link, event);
		return err;
	}
	soft_lock(&soft_shm.ud_lock);
	struct soft_ud_out *out = find(msg->dst_qpn);
	if (out && out->state == ASKED && out->attempt == msg->attempt) {
		out->state = READY;
		out->until = 0;
		out->seg = seg;
		out->link = link;
		atomic_fetch_add(&link->refs, 1);
		out->door = &link->doors->cq[msg->cq];
		out->armed = &link->published->cq[msg->cq].armed;
		out->bit = msg->bit;
		out->tail = out->head = 0;
		out->event = event;
		event = NULL;
		seg = NULL;
	}
	soft_unlock(&soft_shm.ud_lock);
	soft_event_release(link, event);
	if (seg) {
		atomic_store(&seg->detached, 1);
		munmap(seg, sizeof(*seg));
	}
	return 0;
}

void soft_ud_absent(const struct soft_message *msg)
{
	soft_lock(&soft_shm.ud_lock);
	struct soft_ud_out *out = find(msg->dst_qpn);
	if (out && out->state == ASKED && out->attempt == msg->attempt)
		mark_absent(out);
	soft_unlock(&soft_shm.ud_lock);
}

void soft_ud_lost(const struct soft_link *link)
{
	soft_lock(&soft_shm.ud_lock);
	for (unsigned b = 0; b < SOFT_UD_BUCKETS; b++) {
		for (struct soft_ud_out **at = &soft_shm.ud_out[b], *out; (out = *at);) {
			bool gone = out->qpn >> SOFT_QPN_INDEX_BITS == link->slot && link->dialled;
			if (!gone) {
				at = &out->next;
				continue;
			}
			*at = out->next;
			detach(out);
			free(out);
		}
	}
	soft_unlock(&soft_shm.ud_lock);
	for (uint32_t i = 0; i < atomic_load(&soft_proc.qp_used); i++) {
		struct soft_qp *qp = atomic_load(&soft_proc.qps[i]);
		if (!qp)
			continue;
		soft_lock(&qp->rq_lock);
		for (struct soft_ud_in *in = qp->ud_in; in; in = in->next)
			if (in->link == link) { /* read to its end, then freed */
				atomic_store(&in->seg->detached, 1);
				soft_cq_ring(to_cq(qp->qp.recv_cq), qp->recv_slot);
			}
		soft_unlock(&qp->rq_lock);
	}
}

/* Closes every lane to QPs of other processes when the last context closes. */
void soft_ud_close(void)
{
	for (unsigned b = 0; b < SOFT_UD_BUCKETS; b++) {
		struct soft_ud_out *out;
		while ((out = soft_shm.ud_out[b])) {
			soft_shm.ud_out[b] = out->next;
			detach(out);
			free(out);
		}
	}
}

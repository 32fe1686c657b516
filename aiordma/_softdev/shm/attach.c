/*
 * Requesting, granting and revoking lanes and mappings over Unix links. Runs on the progress thread, except
 * soft_service(), soft_lanes_drop() and soft_links_slab_gone().
 *
 * A requester asks for a lane (ATTACH) when its QP goes to RTR. The responder grants it as soon as its own QP is in RTR
 * with the requester as its destination; an earlier request waits. As with a NIC, work posted meanwhile waits for the
 * retry timeout. If the answer belongs to an attempt that was given up, the requester detaches at once.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shm/unix_link.h"

enum { MAX_EARLY = 1 << 16, REDIAL_NS = 5000000 };

/* ---- service requests ------------------------------------------------------------------------------- */

void soft_service(struct soft_qp *qp, uint32_t what)
{
	soft_lock(&soft_shm.service_lock);
	qp->service |= what;
	bool first = !qp->service_queued;
	if (first) {
		qp->service_queued = true;
		qp->service_next = soft_shm.service;
		soft_shm.service = qp;
	}
	soft_unlock(&soft_shm.service_lock);
	if (first)
		soft_kick_self();
}

void soft_links_slab_gone(uint64_t slab_id)
{
	struct soft_gone *gone = malloc(sizeof(*gone));

	if (!gone)
		return; /* peers keep a mapping of freed memory */
	gone->slab = slab_id;
	soft_lock(&soft_shm.service_lock);
	gone->next = soft_shm.gone;
	soft_shm.gone = gone;
	soft_unlock(&soft_shm.service_lock);
	soft_kick_self();
}

void soft_lanes_drop(struct soft_qp *qp)
{
	soft_lock(&qp->sq_lock);
	atomic_fetch_add(&qp->attempt, 1);
	soft_out_free(qp);
	soft_unlock(&qp->sq_lock);
	soft_lock(&qp->rq_lock);
	soft_in_free(qp);
	soft_unlock(&qp->rq_lock);
}

void soft_lane_lost(struct soft_qp *qp, const struct soft_link *link, struct soft_after *after)
{
	bool lost = false;

	soft_lock(&qp->rq_lock);
	if (qp->in && qp->in->link == link) {
		soft_in_progress(qp, after); /* handles what was sent; may find that the peer left in good order */
		if (qp->in) {
			lost = true;
			soft_in_free(qp);
		}
	}
	soft_unlock(&qp->rq_lock);
	soft_lock(&qp->sq_lock);
	if (qp->out && (lost || qp->out->link == link)) {
		/* A peer that closed its QP before it exited left a closed gate: this requester keeps its state. */
		bool closed = !lost && !atomic_load(&qp->out->seg->gate);
		qp->out->dead = !closed;
		soft_out_collect(qp, after);
		if (qp->sq_next != qp->sq_tail)
			soft_sq_pump(qp, after);
		lost |= !closed;
	} else if (lost && qp->sq_next != qp->sq_tail) {
		/* The lane that it waits for will never be granted. */
		soft_sq_at(qp, qp->sq_next)->status = IBV_WC_RETRY_EXC_ERR;
		soft_sq_pump(qp, after);
	}
	soft_unlock(&qp->sq_lock);
	if (lost)
		soft_after_fail(after, qp);
}

/* ---- requester: requests ---------------------------------------------------------------------------- */

static struct soft_chan *chan_of(struct ibv_cq *cq)
{
	return cq->channel ? to_chan(cq->channel) : NULL;
}

static void ask_attach(struct soft_qp *qp)
{
	struct soft_message msg = { .type = SOFT_ATTACH };
	struct soft_chan *chan = NULL;
	bool wanted;

	soft_lock(&qp->sq_lock);
	wanted = soft_receives(soft_state(qp)) && qp->remote && qp->path == &soft_shm_path && !qp->out;
	if (wanted) {
		msg.src_qpn = qp->qp.qp_num;
		msg.dst_qpn = qp->attr.dest_qp_num;
		msg.qp_type = qp->qp.qp_type;
		msg.attempt = atomic_fetch_add(&qp->attempt, 1) + 1;
		qp->heard = false;
		msg.cq = to_cq(qp->qp.send_cq)->index;
		msg.bit = qp->send_slot;
		msg.rnr_retry = qp->attr.rnr_retry;
		chan = chan_of(qp->qp.send_cq);
		msg.event_id = chan ? chan->id : SOFT_NO_EVENT;
	}
	soft_unlock(&qp->sq_lock);
	if (!wanted)
		return;
	struct soft_link *link = soft_link_dial(msg.dst_qpn >> SOFT_QPN_INDEX_BITS);
	if (link) {
		soft_link_send(link, &msg, chan ? &chan->chan.fd : NULL, chan ? 1 : 0, -1);
		return;
	}
	/* No such process yet: retry when the timer next expires, as long as the QP wants the lane. */
	soft_lock(&soft_shm.service_lock);
	qp->service |= SOFT_SERVICE_REDIAL;
	soft_unlock(&soft_shm.service_lock);
	soft_timer_want(soft_now_ns() + REDIAL_NS);
}

static void ask_resolve(struct soft_qp *qp)
{
	struct soft_message msgs[SOFT_ASKS];
	struct soft_link *link = NULL;
	unsigned n = 0;

	memset(msgs, 0, sizeof(msgs));
	soft_lock(&qp->sq_lock);
	if (qp->out && !qp->out->dead) {
		link = qp->out->link;
		for (; n < qp->out->nasks; n++) {
			msgs[n].type = SOFT_RESOLVE;
			msgs[n].src_qpn = qp->qp.qp_num;
			msgs[n].dst_qpn = qp->attr.dest_qp_num;
			msgs[n].attempt = atomic_load(&qp->attempt);
			msgs[n].rkey = qp->out->asks[n];
		}
		qp->out->nasks = 0;
	}
	soft_unlock(&qp->sq_lock);
	for (unsigned i = 0; link && !link->dead && i < n; i++)
		soft_link_send(link, &msgs[i], NULL, 0, -1);
}

/* ---- responder: grants ------------------------------------------------------------------------------ */

static struct soft_in *make_in(struct soft_link *link, const struct soft_message *msg, int *event_fd, int *seg_fd)
{
	struct soft_in *in = calloc(1, sizeof(*in));
	void *map = NULL;

	*seg_fd = in ? soft_memfd_create("aiordma-soft-lane", sizeof(struct soft_seg), &map) : -1;
	if (*seg_fd < 0) {
		free(in);
		return NULL;
	}
	in->seg = map;
	in->link = link;
	atomic_fetch_add(&link->refs, 1);
	in->door = &link->doors->cq[msg->cq];
	in->bit = msg->bit;
	if (*event_fd >= 0) {
		in->event = soft_event_get(link, msg->event_id, *event_fd);
		*event_fd = -1;
	}
	in->gate = 1;
	atomic_store(&in->seg->gate, in->gate);
	atomic_store(&in->seg->rnr_retry, msg->rnr_retry);
	return in;
}

/* False: this QP is not (yet) the other end of the request. */
static bool grant(struct soft_link *link, const struct soft_message *msg, int *event_fd)
{
	struct soft_message answer = *msg;
	struct soft_qp *qp = soft_qp_find(msg->dst_qpn);
	int fds[2];
	bool ok;

	if (!qp)
		return false;
	soft_lock(&qp->rq_lock);
	ok = atomic_load(&qp->number) == msg->dst_qpn && soft_receives(soft_state(qp)) && qp->remote &&
	     qp->path == &soft_shm_path && qp->attr.dest_qp_num == msg->src_qpn && qp->qp.qp_type == msg->qp_type;
	if (ok) {
		soft_in_free(qp); /* the requester restarted */
		qp->in = make_in(link, msg, event_fd, &fds[0]);
		ok = qp->in != NULL;
	}
	struct soft_cq *cq = to_cq(qp->qp.recv_cq);
	struct soft_chan *chan = ok ? chan_of(&cq->cq) : NULL;
	if (ok) {
		answer.type = SOFT_ATTACHED;
		answer.cq = cq->index;
		answer.bit = qp->recv_slot;
		answer.event_id = chan ? chan->id : SOFT_NO_EVENT;
		fds[1] = chan ? chan->chan.fd : -1;
	}
	soft_unlock(&qp->rq_lock);
	if (ok)
		soft_link_send(link, &answer, fds, chan ? 2 : 1, fds[0]);
	return ok;
}

static bool on_attach(struct soft_link *link, const struct soft_message *msg, int *fds)
{
	struct soft_early *early;

	if (msg->qp_type == IBV_QPT_UD)
		return soft_ud_attach(link, msg);
	if (msg->cq >= SOFT_MAX_CQ || msg->bit >= SOFT_DOOR_BITS || (msg->event_id != SOFT_NO_EVENT) != (fds[0] >= 0) ||
	    msg->src_qpn >> SOFT_QPN_INDEX_BITS != link->slot)
		return false;
	if (grant(link, msg, &fds[0]))
		return true;
	/* A new request of a QP replaces its earlier ones. */
	for (early = link->early; early; early = early->next)
		if (early->msg.src_qpn == msg->src_qpn)
			break;
	if (!early) {
		if (link->nearly == MAX_EARLY || !(early = calloc(1, sizeof(*early))))
			return true; /* the requester times out */
		early->next = link->early;
		link->early = early;
		link->nearly++;
	} else if (early->event_fd >= 0) {
		close(early->event_fd);
	}
	early->msg = *msg;
	early->event_fd = fds[0];
	fds[0] = -1;
	struct soft_message answer = *msg;
	answer.type = SOFT_ABSENT;
	soft_link_send(link, &answer, NULL, 0, -1);
	return true;
}

void soft_attach_forget(struct soft_link *link)
{
	struct soft_early *early;

	while ((early = link->early)) {
		link->early = early->next;
		if (early->event_fd >= 0)
			close(early->event_fd);
		free(early);
	}
	link->nearly = 0;
}

/* The QP is ready: requests that came early can be granted now. */
static void grant_early(uint32_t qpn)
{
	for (struct soft_link *link = soft_shm.links; link; link = link->next) {
		for (struct soft_early **at = &link->early, *early; (early = *at);) {
			if (early->msg.dst_qpn != qpn || !grant(link, &early->msg, &early->event_fd)) {
				at = &early->next;
				continue;
			}
			*at = early->next;
			if (early->event_fd >= 0)
				close(early->event_fd);
			free(early);
			link->nearly--;
		}
	}
}

static bool on_resolve(struct soft_link *link, const struct soft_message *msg)
{
	struct soft_message answer = *msg;
	struct soft_qp *qp = soft_qp_find(msg->dst_qpn);
	int fd = -1;

	answer.type = SOFT_RESOLVED;
	answer.access = 0;
	if (!qp)
		return true;
	/* The lock keeps the region registered, and the slab outlives the region. */
	soft_lock(&qp->rq_lock);
	struct soft_region *r = soft_key_find(msg->rkey);
	if (qp->in && qp->in->link == link && qp->attr.dest_qp_num == msg->src_qpn && r && !r->window &&
	    r->pd == soft_pd_root(to_pd(qp->qp.pd))) {
		uint32_t access = r->access & qp->attr.qp_access_flags &
				  (IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
		bool writes = access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
		fd = !access || !r->slab ? -1 : writes ? r->slab->fd : r->slab->fd_ro;
		if (access && (fd >= 0 || !r->slab)) {
			answer.access = access;
			answer.gate = qp->in->gate;
			answer.base = r->base;
			answer.length = r->length;
			answer.serial = r->serial;
			answer.index = msg->rkey >> 8;
			answer.remote = fd < 0 ? (uintptr_t)r->host : 0;
		}
		if (fd >= 0) {
			answer.slab = r->slab->id;
			answer.slab_offset = (uint64_t)(r->host - r->slab->addr);
			answer.slab_length = r->slab->length;
			/* A duplicate of our own: the slab may be freed before the packet leaves. */
			fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
		}
	}
	soft_unlock(&qp->rq_lock);
	soft_link_send(link, &answer, &fd, fd >= 0 ? 1 : 0, fd);
	return true;
}

/* ---- requester: answers ----------------------------------------------------------------------------- */

/* The answer to an attempt that was given up: closes the responder's end again. */
static void decline(struct soft_link *link, const struct soft_message *msg, struct soft_seg *seg)
{
	atomic_store(&seg->detached, 1);
	soft_door_ring(&link->doors->cq[msg->cq], msg->bit);
	munmap(seg, sizeof(*seg));
	soft_link_kick(link);
}

static bool on_attached(struct soft_link *link, const struct soft_message *msg, int *fds, struct soft_after *after)
{
	struct soft_qp *qp = soft_qp_find(msg->src_qpn);

	if (msg->cq >= SOFT_MAX_CQ || msg->bit >= SOFT_DOOR_BITS || fds[0] < 0 ||
	    (msg->event_id != SOFT_NO_EVENT) != (fds[1] >= 0) || msg->dst_qpn >> SOFT_QPN_INDEX_BITS != link->slot)
		return false;
	if (msg->qp_type == IBV_QPT_UD)
		return soft_ud_attached(link, msg, fds);
	struct soft_seg *seg = soft_memfd_map(fds[0], sizeof(*seg), PROT_READ | PROT_WRITE);
	struct soft_out *out = calloc(1, sizeof(*out));
	if (!seg || !out) {
		free(out);
		if (seg)
			munmap(seg, sizeof(*seg));
		return seg != NULL;
	}
	bool taken = false;
	if (qp) {
		soft_lock(&qp->sq_lock);
		taken = atomic_load(&qp->attempt) == msg->attempt && !qp->out && soft_receives(soft_state(qp)) &&
			qp->attr.dest_qp_num == msg->dst_qpn;
		if (taken) {
			out->seg = seg;
			out->link = link;
			atomic_fetch_add(&link->refs, 1);
			out->door = &link->doors->cq[msg->cq];
			out->bit = msg->bit;
			if (fds[1] >= 0) {
				out->event = soft_event_get(link, msg->event_id, fds[1]);
				fds[1] = -1;
			}
			qp->out = out;
			qp->met = true;
			soft_out_settings(qp, true);
			soft_sq_pump(qp, after);
		}
		soft_unlock(&qp->sq_lock);
	}
	if (!taken) {
		free(out);
		decline(link, msg, seg);
	}
	return true;
}

/* The destination is not ready, and no further answer will come: from now on a retry timeout, as on a network. */
static void on_absent(const struct soft_message *msg)
{
	struct soft_qp *qp = soft_qp_find(msg->src_qpn);

	if (msg->qp_type == IBV_QPT_UD) {
		soft_ud_absent(msg);
		return;
	}
	if (!qp)
		return;
	soft_lock(&qp->sq_lock);
	if (!qp->out && atomic_load(&qp->attempt) == msg->attempt && qp->attr.dest_qp_num == msg->dst_qpn)
		soft_sq_heard(qp);
	soft_unlock(&qp->sq_lock);
}

static const struct soft_map *map_slab(struct soft_link *link, const struct soft_message *msg, int fd)
{
	const bool writes = msg->access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
	struct soft_map *map;

	for (map = link->maps; map; map = map->next)
		if (map->slab == msg->slab && (map->writable || !writes))
			return map;
	map = calloc(1, sizeof(*map));
	if (!map)
		return NULL;
	map->at = soft_memfd_map(fd, msg->slab_length, PROT_READ | (writes ? PROT_WRITE : 0));
	if (!map->at) {
		free(map);
		return NULL;
	}
	map->slab = msg->slab;
	map->length = msg->slab_length;
	map->writable = writes;
	map->next = link->maps;
	link->maps = map;
	return map;
}

static bool on_resolved(struct soft_link *link, const struct soft_message *msg, int fd)
{
	struct soft_qp *qp = soft_qp_find(msg->src_qpn);
	const struct soft_map *map = NULL;

	if (msg->access) {
		if (msg->index >= SOFT_MAX_MR || msg->index != msg->rkey >> 8 || !msg->length ||
		    (fd >= 0 ? !msg->slab_length : !msg->remote))
			return false;
		map = fd >= 0 ? map_slab(link, msg, fd) : NULL;
		if (map && (msg->slab_offset > map->length || msg->length > map->length - msg->slab_offset))
			return false;
	}
	if (!qp)
		return true;
	soft_lock(&qp->sq_lock);
	if (qp->out && qp->out->link == link && atomic_load(&qp->attempt) == msg->attempt) {
		struct soft_reg *r = &qp->out->regs[(msg->rkey >> 8) % SOFT_REGS];
		*r = (struct soft_reg){
			.rkey = msg->rkey,
			.access = msg->access,
			.gate = msg->gate,
			.base = msg->base,
			.length = msg->length,
			.serial = msg->serial,
			.index = msg->index,
			.at = map ? map->at + msg->slab_offset : NULL,
			.map = map,
			.remote = fd < 0 && msg->access ? msg->remote : 0,
		};
	}
	soft_unlock(&qp->sq_lock);
	return true;
}

static void on_slab_gone(struct soft_link *link, uint64_t slab)
{
	for (struct soft_map **at = &link->maps, *map; (map = *at);) {
		if (map->slab != slab) {
			at = &map->next;
			continue;
		}
		for (uint32_t i = 0; i < atomic_load(&soft_proc.qp_used); i++) {
			struct soft_qp *qp = atomic_load(&soft_proc.qps[i]);
			if (!qp)
				continue;
			soft_lock(&qp->sq_lock);
			for (unsigned k = 0; qp->out && qp->out->link == link && k < SOFT_REGS; k++)
				if (qp->out->regs[k].map == map)
					qp->out->regs[k] = (struct soft_reg){ 0 };
			soft_unlock(&qp->sq_lock);
		}
		*at = map->next;
		munmap(map->at, map->length);
		free(map);
	}
}

void soft_maps_drop(struct soft_link *link)
{
	struct soft_map *map;

	while ((map = link->maps)) {
		link->maps = map->next;
		munmap(map->at, map->length);
		free(map);
	}
}

/* ---- dispatch --------------------------------------------------------------------------------------- */

bool soft_attach_message(struct soft_link *link, const struct soft_message *msg, int *fds, struct soft_after *after)
{
	switch (msg->type) {
	case SOFT_ATTACH:
		return !link->dialled && on_attach(link, msg, fds);
	case SOFT_RESOLVE:
		return !link->dialled && on_resolve(link, msg);
	case SOFT_ATTACHED:
		return link->dialled && on_attached(link, msg, fds, after);
	case SOFT_ABSENT:
		if (link->dialled)
			on_absent(msg);
		return link->dialled;
	case SOFT_RESOLVED:
		return link->dialled && on_resolved(link, msg, fds[0]);
	case SOFT_SLAB_GONE:
		if (link->dialled)
			on_slab_gone(link, msg->slab);
		return link->dialled;
	default:
		return false;
	}
}

static void tell_gone(void)
{
	struct soft_gone *gone;

	for (;;) {
		soft_lock(&soft_shm.service_lock);
		gone = soft_shm.gone;
		if (gone)
			soft_shm.gone = gone->next;
		soft_unlock(&soft_shm.service_lock);
		if (!gone)
			return;
		for (struct soft_link *link = soft_shm.links; link; link = link->next) {
			struct soft_message msg = { .type = SOFT_SLAB_GONE, .slab = gone->slab };
			if (!link->dialled && link->ready)
				soft_link_send(link, &msg, NULL, 0, -1);
		}
		free(gone);
	}
}

void soft_service_run(void)
{
	tell_gone();
	for (;;) {
		uint32_t what = 0;

		soft_lock(&soft_shm.service_lock);
		struct soft_qp *qp = soft_shm.service;
		if (qp) {
			soft_shm.service = qp->service_next;
			qp->service_queued = false;
			what = qp->service & ~(uint32_t)SOFT_SERVICE_REDIAL;
			qp->service &= SOFT_SERVICE_REDIAL;
		}
		soft_unlock(&soft_shm.service_lock);
		if (!qp)
			return;
		if (what & SOFT_SERVICE_READY)
			grant_early(atomic_load(&qp->number));
		if (what & SOFT_SERVICE_CONNECT)
			ask_attach(qp);
		if (what & SOFT_SERVICE_RESOLVE)
			ask_resolve(qp);
		if (what & SOFT_SERVICE_DATAGRAM)
			soft_ud_ask();
	}
}

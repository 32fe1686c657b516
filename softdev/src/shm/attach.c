/*
 * What the progress thread does for lanes and mappings: work that other threads leave for it, and the messages that
 * arrive on Unix links. All threads may call soft_service(), soft_lanes_drop() and the soft_links_ functions.
 *
 * A requester asks for a lane (ATTACH) when its QP goes to RTR. The responder grants it as soon as its own QP is in RTR
 * with the requester as its destination; an earlier request waits. As with a NIC, work posted meanwhile waits for the
 * retry timeout. If the answer belongs to an attempt that was given up, the requester detaches at once.
 */
#include <stdlib.h>

#include "shm/attach.h"

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

static void links_gone(uint32_t type, uint64_t id)
{
	struct soft_gone *gone = malloc(sizeof(*gone));

	if (!gone)
		return; /* peers keep a mapping of freed memory, or a socket */
	gone->type = type;
	gone->id = id;
	soft_lock(&soft_shm.service_lock);
	gone->next = soft_shm.gone;
	soft_shm.gone = gone;
	soft_unlock(&soft_shm.service_lock);
	soft_kick_self();
}

void soft_links_slab_gone(uint64_t slab_id)
{
	links_gone(SOFT_SLAB_GONE, slab_id);
}

void soft_links_chan_gone(uint64_t chan_id)
{
	soft_bells_forget(chan_id);
	links_gone(SOFT_EVENT_GONE, chan_id);
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

/* Whether a peer that is gone has left nothing undone. rq_lock. */
static bool all_done(struct soft_qp *qp, struct soft_after *after)
{
	const struct soft_in *in = qp->in;
	struct soft_seg *seg = in->seg;
	const uint64_t tail = atomic_load(&seg->tail);

	if (in->stopped || in->message != SOFT_IN_NONE || in->head != tail)
		return false;
	if (atomic_load(&seg->waiting) && (!tail || atomic_load(&seg->run_at) != tail))
		return false;
	if (atomic_load(&seg->holds) == SOFT_HOLDS_NOTHING || (tail && atomic_load(&seg->settled_at) == tail))
		return true;
	return soft_in_will(qp, after);
}

/* Whether the loss of this link will fail the queue pair, for the sake of its own requests. */
static bool asks_by(struct soft_qp *qp, const struct soft_link *link)
{
	soft_lock(&qp->sq_lock);
	bool asks = qp->out && qp->out->link == link && atomic_load(&qp->out->seg->gate);
	soft_unlock(&qp->sq_lock);
	return asks;
}

void soft_lane_lost(struct soft_qp *qp, const struct soft_link *link, struct soft_after *after)
{
	bool lost = false, fails = asks_by(qp, link);
	uint32_t life;

	soft_lock(&qp->rq_lock);
	if (soft_state(qp) == IBV_QPS_RESET) {
		soft_unlock(&qp->rq_lock); /* its lanes are being dropped */
		return;
	}
	/* Two processes have two links, and the first that ends fails the queue pair, which then takes nothing more. */
	if (qp->in && (fails || qp->in->link == link)) {
		bool took = soft_receives(soft_state(qp));
		soft_in_last_look(qp, after); /* handles what was sent; may find that the peer left in good order */
		if (qp->in && took && !atomic_load(&qp->left_whole)) { /* what it has left is taken once */
			atomic_store(&qp->left_note, atomic_load(&qp->in->seg->note));
			atomic_store(&qp->left_whole, all_done(qp, after));
		}
		if (qp->in && qp->in->link == link) {
			lost = true;
			soft_in_free(qp);
		}
	}
	life = atomic_load(&qp->life);
	soft_unlock(&qp->rq_lock);
	soft_lock(&qp->sq_lock);
	if (soft_state(qp) == IBV_QPS_RESET || atomic_load(&qp->life) != life) {
		/* Reset in between, and perhaps connected to a peer that is there. */
		soft_unlock(&qp->sq_lock);
		return;
	}
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
	if (lost && qp->qp.qp_type == IBV_QPT_RC) /* UC hears nothing of its peer */
		soft_after_fail(after, qp);
	soft_unlock(&qp->sq_lock);
}

/* ---- dispatch --------------------------------------------------------------------------------------- */

static bool on_refused(struct soft_link *link, const struct soft_message *msg, struct soft_after *after)
{
	struct soft_qp *qp = soft_qp_find(link->dialled ? msg->src_qpn : msg->dst_qpn);

	if (!msg->src_qpn) { /* all of the link */
		soft_attach_fail(link, (int)msg->error, true, after);
		return false;
	}
	if (msg->event_id != SOFT_NO_EVENT)
		soft_bell_take(link, msg->event_id, msg->bell);
	if (msg->qp_type == IBV_QPT_UD) {
		if (link->dialled)
			soft_ud_absent(msg);
		else if (qp)
			soft_ud_given_back(qp, link);
		return true;
	}
	if (qp && link->dialled) {
		soft_attach_refused(qp, msg, (int)msg->error, true, after);
	} else if (qp) {
		soft_lock(&qp->rq_lock);
		if (qp->in && qp->in->link == link && qp->attr.dest_qp_num == msg->src_qpn)
			soft_in_free(qp);
		soft_unlock(&qp->rq_lock);
	}
	return true;
}

/* A peer speaks for its own queue pairs only: not of what this process has to do with other peers. */
static bool of_peer(const struct soft_link *link, const struct soft_message *msg)
{
	const bool none = !msg->src_qpn || msg->src_qpn == UINT32_MAX; /* all of the link; a bell */

	switch (msg->type) {
	case SOFT_ATTACH:
	case SOFT_RESOLVE:
		return msg->src_qpn >> SOFT_QPN_INDEX_BITS == link->slot;
	case SOFT_ATTACHED:
	case SOFT_RESOLVED:
	case SOFT_ABSENT:
		return msg->dst_qpn >> SOFT_QPN_INDEX_BITS == link->slot;
	case SOFT_REFUSED:
		return none || (link->dialled ? msg->dst_qpn : msg->src_qpn) >> SOFT_QPN_INDEX_BITS == link->slot;
	default:
		return true;
	}
}

bool soft_attach_incomplete(struct soft_link *link, const struct soft_message *msg, struct soft_after *after)
{
	struct soft_message less = *msg;
	int fds[SOFT_PACKET_FDS] = { -1, -1 };

	if (!link->ready) {
		soft_attach_none(link, EMFILE, after);
		return false;
	}
	if (!of_peer(link, msg))
		return false;
	switch (msg->type) {
	case SOFT_ATTACH:
		soft_attach_refuse(link, msg, EMFILE);
		return !link->dialled;
	case SOFT_ATTACHED:
		soft_attach_give_back(link, msg, EMFILE, after);
		return link->dialled;
	case SOFT_RESOLVED: /* the responder carries out what was to go directly */
		less.access = 0;
		return soft_attach_message(link, &less, fds, after);
	default:
		return false;
	}
}

bool soft_attach_message(struct soft_link *link, const struct soft_message *msg, int *fds, struct soft_after *after)
{
	if (!of_peer(link, msg))
		return false;
	switch (msg->type) {
	case SOFT_ATTACH:
		return !link->dialled && soft_attach_question(link, msg, fds, after);
	case SOFT_RESOLVE:
		return !link->dialled && soft_resolve_question(link, msg);
	case SOFT_ATTACHED:
		return link->dialled && soft_attach_answer(link, msg, fds, after);
	case SOFT_ABSENT:
		if (link->dialled)
			soft_attach_absent(msg);
		return link->dialled;
	case SOFT_RESOLVED:
		return link->dialled && soft_resolve_answer(link, msg, fds[0]);
	case SOFT_EVENT_GONE:
		soft_event_gone(link, msg->event_id);
		return true;
	case SOFT_REFUSED:
		return on_refused(link, msg, after);
	case SOFT_SLAB_GONE:
		if (link->dialled)
			soft_resolve_slab_gone(link, msg->slab);
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
			struct soft_message msg = { .type = gone->type, .slab = gone->id, .event_id = gone->id };
			if (gone->type == SOFT_EVENT_GONE ? soft_bell_take(link, gone->id, 0) :
							    !link->dialled && link->ready)
				soft_link_send(link, &msg, NULL, 0);
		}
		free(gone);
	}
}

void soft_service_run(struct soft_after *after)
{
	tell_gone();
	soft_links_retry();
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
			soft_attach_grant_early(atomic_load(&qp->number));
		if (what & SOFT_SERVICE_CONNECT)
			soft_attach_ask(qp, after);
		if (what & SOFT_SERVICE_RESOLVE)
			soft_resolve_ask(qp);
		if (what & SOFT_SERVICE_DATAGRAM)
			soft_ud_ask();
	}
}

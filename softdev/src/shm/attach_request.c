/*
 * The requester's side of making lanes: asking for one when a QP goes to RTR, and what becomes of the answer. If it
 * belongs to an attempt that was given up, the requester detaches at once. Runs on the progress thread.
 */
#include <stdlib.h>
#include <sys/mman.h>

#include "shm/attach.h"

enum { REDIAL_NS = 5000000 };

/* sq_lock held. */
static bool wants_lane(struct soft_qp *qp)
{
	return soft_receives(soft_state(qp)) && qp->remote && qp->path == &soft_shm_path && !qp->out;
}

/* Fills in the request, and opens the way for its answers. Returns errno. sq_lock held. */
static int attach_request(struct soft_qp *qp, struct soft_link *link, struct soft_message *msg, int *bell)
{
	struct soft_cq *cq = to_cq(qp->qp.send_cq);
	int err = soft_bell_give(link, cq, msg, bell);

	msg->src_qpn = qp->qp.qp_num;
	msg->dst_qpn = qp->attr.dest_qp_num;
	msg->qp_type = qp->qp.qp_type;
	msg->attempt = atomic_fetch_add(&qp->attempt, 1) + 1;
	qp->heard = qp->refused = false;
	msg->cq = cq->index;
	msg->bit = qp->send_slot;
	msg->rnr_retry = qp->attr.rnr_retry;
	if (!err && !soft_cq_door_add(cq, &link->here->cq[cq->index]))
		err = ENOSPC;
	return err;
}

/*
 * No lane for this attempt: without descriptors or memory here, or (peer) there. A QP that sends nothing has nothing that
 * could fail with the reason: in ERR its program would see EINVAL on the way to RTS, or a flush of its first request. It
 * asks again there and then.
 */
void soft_attach_refused(struct soft_qp *qp, const struct soft_message *msg, int err, bool peer,
			 struct soft_after *after)
{
	soft_lock(&qp->sq_lock);
	bool current = !qp->out && atomic_load(&qp->attempt) == msg->attempt && qp->attr.dest_qp_num == msg->dst_qpn;
	if (current && (soft_state(qp) == IBV_QPS_RTR || qp->sq_next == qp->sq_tail)) {
		qp->refused = true;
	} else if (current) {
		soft_shortage(err, peer);
		soft_sq_at(qp, qp->sq_next)->status = peer ? IBV_WC_REM_OP_ERR : IBV_WC_LOC_QP_OP_ERR;
		soft_sq_pump(qp, after);
		soft_after_fail(after, qp);
	}
	soft_unlock(&qp->sq_lock);
}

static void redial_later(struct soft_qp *qp)
{
	soft_lock(&soft_shm.service_lock);
	qp->service |= SOFT_SERVICE_REDIAL;
	soft_unlock(&soft_shm.service_lock);
	soft_timer_want(soft_now_ns() + REDIAL_NS);
}

void soft_attach_ask(struct soft_qp *qp, struct soft_after *after)
{
	struct soft_message msg = { .type = SOFT_ATTACH };
	struct soft_link *link;
	int bell = -1, err = 0;

	soft_lock(&qp->sq_lock);
	bool wanted = wants_lane(qp);
	uint32_t slot = qp->attr.dest_qp_num >> SOFT_QPN_INDEX_BITS;
	soft_unlock(&qp->sq_lock);
	if (!wanted)
		return;
	link = soft_link_dial(slot);
	if (!link && soft_is_shortage(errno)) {
		err = errno;
		msg.attempt = atomic_load(&qp->attempt);
		msg.dst_qpn = qp->attr.dest_qp_num;
		soft_attach_refused(qp, &msg, err, false, after);
		return;
	}
	if (!link) {
		/* No such process yet: retry when the timer next expires, as long as the QP wants the lane. */
		redial_later(qp);
		return;
	}
	soft_lock(&qp->sq_lock);
	wanted = wants_lane(qp) && qp->attr.dest_qp_num >> SOFT_QPN_INDEX_BITS == slot;
	if (wanted)
		err = attach_request(qp, link, &msg, &bell);
	soft_unlock(&qp->sq_lock);
	if (err)
		soft_attach_refused(qp, &msg, err, false, after);
	else if (wanted)
		soft_link_send(link, &msg, &bell, 1);
}

void soft_attach_unanswered(struct soft_qp *qp, const struct soft_link *link)
{
	if (!link->dialled)
		return;
	soft_lock(&qp->sq_lock);
	bool waits = atomic_load(&qp->number) && wants_lane(qp) && !qp->refused &&
		     qp->attr.dest_qp_num >> SOFT_QPN_INDEX_BITS == link->slot;
	soft_unlock(&qp->sq_lock);
	if (waits)
		redial_later(qp);
}

/* The answer to an attempt that was given up: closes the responder's end again. */
static void decline(struct soft_link *link, const struct soft_message *msg, struct soft_seg *seg)
{
	atomic_store(&seg->detached, 1);
	soft_door_ring(&link->doors->cq[msg->cq], msg->bit);
	munmap(seg, sizeof(*seg));
	soft_link_kick(link);
}

/* The requester cannot use its lane: the responder drops its end. */
void soft_attach_give_back(struct soft_link *link, const struct soft_message *msg, int err, struct soft_after *after)
{
	struct soft_qp *qp = soft_qp_find(msg->src_qpn);

	soft_attach_void(link, msg, err);
	if (msg->qp_type == IBV_QPT_UD) {
		soft_shortage(err, false);
		soft_ud_absent(msg); /* asks again after a while */
	} else if (qp) {
		soft_attach_refused(qp, msg, err, false, after);
	}
}

/*
 * Whether the peer expects other sequence numbers than this queue pair begins with, once it may begin. A card takes
 * nothing then, and the requester repeats in vain: as without a lane, and by a process that has answered.
 */
static bool out_of_sequence(const struct soft_qp *qp)
{
	enum { PSN = 0xffffff };
	const struct soft_out *o = qp->out;

	return o && o->psn && qp->qp.qp_type == IBV_QPT_RC && qp->attr.qp_state == IBV_QPS_RTS &&
	       ((qp->attr.sq_psn ^ (o->psn - 1)) & PSN);
}

void soft_out_settings(struct soft_qp *qp, bool first)
{
	if (first && soft_unlikely(out_of_sequence(qp))) {
		soft_link_kick(qp->out->link);
		soft_out_free(qp);
		qp->met = false;
		qp->heard = true;
		return;
	}
	if (qp->out)
		atomic_store(&qp->out->seg->rnr_retry, qp->attr.rnr_retry);
	else if (qp->refused)
		soft_service(qp, SOFT_SERVICE_CONNECT);
}

/* Takes the lane, if the QP still wants it. */
static bool take_lane(struct soft_qp *qp, struct soft_link *link, const struct soft_message *msg, struct soft_out *out,
		      struct soft_after *after)
{
	soft_lock(&qp->sq_lock);
	bool taken = atomic_load(&qp->attempt) == msg->attempt && !qp->out && soft_receives(soft_state(qp)) &&
		     qp->attr.dest_qp_num == msg->dst_qpn;
	if (taken) {
		out->link = link;
		atomic_fetch_add(&link->refs, 1);
		out->door = &link->doors->cq[msg->cq];
		out->armed = &link->published->cq[msg->cq].armed;
		out->bit = msg->bit;
		out->psn = (uint32_t)msg->base;
		qp->out = out;
		qp->met = true;
		soft_sq_mtu(qp, msg->length <= IBV_MTU_4096 ? (enum ibv_mtu)msg->length : 0);
		soft_out_settings(qp, true);
		if (qp->expected)
			soft_out_expect(qp, qp->expected);
		soft_sq_pump(qp, after);
		if (qp->out)
			soft_out_say_first(qp);
	}
	soft_unlock(&qp->sq_lock);
	return taken;
}

bool soft_attach_answer(struct soft_link *link, const struct soft_message *msg, int *fds, struct soft_after *after)
{
	struct soft_qp *qp = soft_qp_find(msg->src_qpn);
	struct soft_event *event = NULL;

	if (msg->cq >= SOFT_MAX_CQ || msg->bit >= SOFT_DOOR_BITS || fds[0] < 0)
		return false;
	if (msg->event_id != SOFT_NO_EVENT && !(event = soft_event_get(link, msg->event_id, fds[1]))) {
		if (errno == EINVAL)
			return false;
		soft_attach_give_back(link, msg, errno, after);
		return true;
	}
	if (msg->qp_type == IBV_QPT_UD) {
		const int err = soft_ud_attached(link, msg, fds[0], event);
		if (err && err != EINVAL)
			soft_attach_give_back(link, msg, err, after);
		return err != EINVAL;
	}
	errno = ENOMEM;
	struct soft_out *out = calloc(1, sizeof(*out));
	struct soft_seg *seg = out ? soft_memfd_map(fds[0], sizeof(*seg), PROT_READ | PROT_WRITE) : NULL;
	if (!seg) {
		int err = errno;
		free(out);
		soft_event_release(link, event);
		if (err == EINVAL)
			return false;
		soft_attach_give_back(link, msg, err, after);
		return true;
	}
	out->seg = seg;
	out->event = event;
	if (qp && take_lane(qp, link, msg, out, after))
		return true;
	free(out);
	soft_event_release(link, event);
	decline(link, msg, seg);
	return true;
}

/* The QPs that wait for a lane over this link get none. */
void soft_attach_fail(const struct soft_link *link, int err, bool peer, struct soft_after *after)
{
	for (uint32_t i = 0; link->dialled && i < atomic_load(&soft_proc.qp_used); i++) {
		struct soft_qp *qp = atomic_load(&soft_proc.qps[i]);
		if (!qp)
			continue;
		soft_lock(&qp->sq_lock);
		bool waits = atomic_load(&qp->number) && wants_lane(qp) &&
			     qp->attr.dest_qp_num >> SOFT_QPN_INDEX_BITS == link->slot;
		struct soft_message msg = { .attempt = atomic_load(&qp->attempt), .dst_qpn = qp->attr.dest_qp_num };
		soft_unlock(&qp->sq_lock);
		if (waits)
			soft_attach_refused(qp, &msg, err, peer, after);
	}
}

void soft_attach_none(struct soft_link *link, int err, struct soft_after *after)
{
	struct soft_message msg = { .type = SOFT_REFUSED, .error = (uint32_t)err };

	soft_shortage(err, false);
	soft_link_send(link, &msg, NULL, 0);
	soft_attach_fail(link, err, false, after);
}

/* The destination is not ready, and no further answer will come: from now on a retry timeout, as on a network. */
void soft_attach_absent(const struct soft_message *msg)
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

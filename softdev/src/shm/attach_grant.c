/*
 * The responder's side of making lanes: granting them. A request is granted as soon as this QP is in RTR with the
 * requester as its destination; an earlier one waits. Runs on the progress thread.
 */
#include <stdlib.h>
#include <unistd.h>

#include "shm/attach.h"

/* Of one peer's process, on all its links: one for each queue pair that it can have. */
enum { MAX_EARLY = SOFT_MAX_QP };

static bool too_early(const struct soft_link *link)
{
	unsigned n = 0;

	for (const struct soft_link *other = soft_shm.links; other; other = other->next)
		n += soft_same_process(other, link) ? other->nearly : 0;
	return n >= MAX_EARLY;
}

/* *seg_fd: of the segment, for the requester. NULL with errno. */
static struct soft_in *make_in(struct soft_link *link, const struct soft_message *msg, struct soft_event *event,
			       int *seg_fd)
{
	struct soft_in *in = calloc(1, sizeof(*in));
	void *map = NULL;

	*seg_fd = in ? soft_memfd_create("softdev-lane", sizeof(struct soft_seg), &map) : -1;
	if (*seg_fd < 0) {
		free(in);
		return NULL;
	}
	soft_memfd_share(*seg_fd, true);
	in->seg = map;
	in->link = link;
	atomic_fetch_add(&link->refs, 1);
	in->door = &link->doors->cq[msg->cq];
	in->armed = &link->published->cq[msg->cq].armed;
	in->bit = msg->bit;
	in->event = event;
	in->gate = 1;
	atomic_store(&in->seg->gate, in->gate);
	atomic_store(&in->seg->rnr_retry, msg->rnr_retry);
	soft_lane_open(in);
	return in;
}

/* Makes the responder's end and its answer. Returns errno. rq_lock held. */
static int grant_locked(struct soft_qp *qp, struct soft_link *link, struct soft_message *answer,
			struct soft_event *event, int fds[2])
{
	struct soft_cq *cq = to_cq(qp->qp.recv_cq);
	int err = soft_bell_give(link, cq, answer, &fds[1]);

	if (!err && !soft_cq_door_add(cq, &link->here->cq[cq->index]))
		err = ENOSPC;
	if (!err) {
		soft_in_free(qp); /* the requester restarted */
		qp->in = make_in(link, answer, event, &fds[0]);
		err = qp->in ? 0 : errno;
		if (qp->in)
			atomic_store(&qp->in->seg->cut, soft_fault_is_cut(qp));
	}
	if (err && fds[1] >= 0) {
		close(fds[1]);
		soft_bell_take(link, answer->event_id, answer->bell);
	}
	answer->type = SOFT_ATTACHED;
	answer->cq = cq->index;
	answer->bit = qp->recv_slot;
	answer->base = 1 + (uint64_t)qp->attr.rq_psn;
	answer->length = qp->attr.path_mtu;
	return err;
}

/* An ATTACH or ATTACHED is void. Its bell is only if it was lost: other lanes of the link may ring it. */
void soft_attach_void(struct soft_link *link, const struct soft_message *msg, int err)
{
	struct soft_message answer = *msg;

	answer.type = SOFT_REFUSED;
	answer.error = (uint32_t)err;
	if (soft_event_known(link, msg->event_id))
		answer.event_id = SOFT_NO_EVENT;
	soft_link_send(link, &answer, NULL, 0);
}

void soft_attach_refuse(struct soft_link *link, const struct soft_message *msg, int err)
{
	soft_shortage(err, false);
	soft_attach_void(link, msg, err);
}

/* Takes the reference to the event, if it returns true. False: this QP is not (yet) the other end of the request. */
static bool grant(struct soft_link *link, const struct soft_message *msg, struct soft_event *event)
{
	struct soft_message answer = *msg;
	struct soft_qp *qp = soft_qp_find(msg->dst_qpn);
	int fds[2] = { -1, -1 }, err = 0;
	bool ok;

	if (!qp)
		return false;
	soft_lock(&qp->rq_lock);
	ok = atomic_load(&qp->number) == msg->dst_qpn && soft_receives(soft_state(qp)) && qp->remote &&
	     qp->path == &soft_shm_path && qp->attr.dest_qp_num == msg->src_qpn && qp->qp.qp_type == msg->qp_type;
	if (ok)
		err = grant_locked(qp, link, &answer, event, fds);
	soft_unlock(&qp->rq_lock);
	if (err) {
		soft_event_release(link, event);
		soft_attach_refuse(link, msg, err);
	} else if (ok) {
		soft_link_send(link, &answer, fds, 2);
	}
	return ok;
}

static void forget(struct soft_link *link, struct soft_early *early)
{
	struct soft_early **at = &link->early;

	while (*at != early)
		at = &(*at)->next;
	*at = early->next;
	soft_event_release(link, early->event);
	free(early);
	link->nearly--;
}

bool soft_attach_question(struct soft_link *link, const struct soft_message *msg, int *fds, struct soft_after *after)
{
	struct soft_event *event = NULL;
	struct soft_early *early;

	if (msg->qp_type == IBV_QPT_UD)
		return soft_ud_attach(link, msg, after);
	if (msg->cq >= SOFT_MAX_CQ || msg->bit >= SOFT_DOOR_BITS)
		return false;
	if (msg->event_id != SOFT_NO_EVENT && !(event = soft_event_get(link, msg->event_id, fds[0]))) {
		if (errno == EINVAL)
			return false;
		soft_attach_refuse(link, msg, errno);
		return true;
	}
	for (early = link->early; early; early = early->next)
		if (early->msg.src_qpn == msg->src_qpn)
			break;
	if (grant(link, msg, event)) {
		/* An earlier request is void. Granted later, it would take this lane away. */
		if (early)
			forget(link, early);
		return true;
	}
	/* A new request of a QP replaces its earlier one. */
	if (!early) {
		if (too_early(link) || !(early = calloc(1, sizeof(*early)))) {
			soft_event_release(link, event);
			return true; /* the requester times out */
		}
		early->next = link->early;
		link->early = early;
		link->nearly++;
	} else {
		soft_event_release(link, early->event);
	}
	early->msg = *msg;
	early->event = event;
	struct soft_message answer = *msg;
	answer.type = SOFT_ABSENT;
	soft_link_send(link, &answer, NULL, 0);
	return true;
}

void soft_attach_forget(struct soft_link *link)
{
	struct soft_early *early;

	while ((early = link->early)) {
		link->early = early->next;
		soft_event_release(link, early->event);
		free(early);
	}
	link->nearly = 0;
}

/*
 * Grants what can be granted now, of all requests or (qpn) of those to one QP. Not while answers are queued: a peer that
 * does not read them would get two descriptors more for each.
 */
static void grant_early(struct soft_link *link, uint32_t qpn)
{
	for (struct soft_early **at = &link->early, *early; (early = *at);) {
		if (qpn && early->msg.dst_qpn != qpn) {
			at = &early->next;
			continue;
		}
		if (link->queue) {
			link->held = true;
			return;
		}
		if (!grant(link, &early->msg, early->event)) {
			at = &early->next;
			continue;
		}
		*at = early->next;
		free(early);
		link->nearly--;
	}
}

/* The QP is ready: requests that came early can be granted now. */
void soft_attach_grant_early(uint32_t qpn)
{
	for (struct soft_link *link = soft_shm.links; link; link = link->next)
		grant_early(link, qpn);
}

void soft_attach_grant_held(struct soft_link *link)
{
	link->held = false;
	grant_early(link, 0);
}

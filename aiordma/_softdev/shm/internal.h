/*
 * What the files of shared memory have in common.
 *
 * Locks, all innermost: nothing is taken while one is held, but for ud_lock that of a link's events.
 */
#ifndef AIORDMA_SOFT_SHM_INTERNAL_H
#define AIORDMA_SOFT_SHM_INTERNAL_H

#include "shm/shm.h"

struct soft_link;
struct soft_event;
struct soft_ud_out;
enum { SOFT_UD_BUCKETS = 256 };
struct soft_gone {
	uint64_t slab;
	struct soft_gone *next;
};

/* Of the process; empty in a forked child. */
struct soft_shm {
	struct soft_slab *slabs; /* soft_proc.lock */
	uint64_t slab_serial;

	struct soft_lock service_lock;
	struct soft_gone *gone;  /* slabs that peers shall let go of */
	struct soft_qp *service; /* QPs with something for the progress thread */

	struct soft_lock ud_lock;
	struct soft_ud_out *ud_out[SOFT_UD_BUCKETS];

	pthread_mutex_t links_lock; /* changes of the list; progress thread, fork */
	struct soft_link *links;
};
extern struct soft_shm soft_shm;

/* ---- attach.c --------------------------------------------------------------------------------------- */

enum {
	SOFT_SERVICE_CONNECT = 1,   /* out lane wanted */
	SOFT_SERVICE_RESOLVE = 2,   /* rkeys to ask for */
	SOFT_SERVICE_READY = 4,     /* became a responder: attach requests that came early */
	SOFT_SERVICE_REDIAL = 8,    /* there was no process; the timer asks again */
	SOFT_SERVICE_DATAGRAM = 16, /* lanes to UD QPs wanted */
};
/* The progress thread is to do that for the QP. Any lock held. */
void soft_service(struct soft_qp *qp, uint32_t what);
/* Peers that mapped the slab let go of it. */
void soft_links_slab_gone(uint64_t slab_id);
/* Both ends of a QP's lanes go; takes the locks itself. */
void soft_lanes_drop(struct soft_qp *qp);

/* ---- lane_requester.c: sq_lock held ----------------------------------------------------------------- */

enum soft_run soft_out_run(struct soft_qp *qp, struct soft_wqe *wqe, struct soft_after *after);
/* Rings the responder's door for what was put in the lane since. */
bool soft_out_flush(struct soft_qp *qp);
/* Takes acknowledgements only. False: the responder broke the rules. */
bool soft_out_collect_acks(struct soft_qp *qp);
/* Takes acknowledgements and responses. False: there is no lane. */
bool soft_out_collect(struct soft_qp *qp, struct soft_after *after);
/* Nothing is outstanding any more: the QP was flushed. */
void soft_out_idle(struct soft_qp *qp);
/* The requester has waited long for an acknowledgement: let its peer's progress thread look.
 * False: nothing is outstanding. */
bool soft_out_kick(struct soft_qp *qp);
/* Attributes of the QP that the responder must know. */
void soft_out_settings(struct soft_qp *qp, bool first);
/* Fires the door of a CQ of another process, if it is armed for what came. */
void soft_door_fire(struct soft_door *door, const struct soft_event *event, bool solicited);

/* ---- lane_responder.c: rq_lock held ----------------------------------------------------------------- */

/* Takes requests. True: there were some. */
bool soft_in_progress(struct soft_qp *qp, struct soft_after *after);
/* Waits until the requester of qp->in is not inside a direct access. */
void soft_in_quiesce(struct soft_qp *qp);
/* Access rights of the QP changed: peers ask again. */
void soft_in_rights_changed(struct soft_qp *qp);
/* The QP answers no more. */
void soft_in_close(struct soft_qp *qp);
/* RNR timer of a message that waits at qp->in. Takes the lock itself. */
void soft_in_timeout(struct soft_qp *qp, struct soft_after *after);

/* ---- ud_lane.c -------------------------------------------------------------------------------------- */

enum soft_run soft_ud_send(struct soft_qp *qp, struct soft_wqe *wqe, uint32_t qkey, const uint8_t grh[SOFT_GRH_BYTES],
			   const char *payload);
/* Takes the datagrams that other processes sent to this QP. rq_lock held. */
void soft_ud_progress(struct soft_qp *qp, struct soft_after *after);
/* The QP leaves: lanes that lead to it are closed. rq_lock held. */
void soft_ud_leave(struct soft_qp *qp);

#endif

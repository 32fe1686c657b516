/*
 * Functions and state that the files of shared memory share.
 *
 * Locks, all innermost: take nothing while you hold one, except a link's event lock under ud_lock.
 */
#ifndef SOFTDEV_SHM_INTERNAL_H
#define SOFTDEV_SHM_INTERNAL_H

#include "shm/shm.h"

struct soft_link;
struct soft_event;
struct soft_ud_out;
enum { SOFT_UD_BUCKETS = 256 };
/* A slab that peers must unmap, or a completion channel that they cannot wake any more. */
struct soft_gone {
	uint32_t type; /* SOFT_SLAB_GONE, SOFT_EVENT_GONE */
	uint64_t id;
	struct soft_gone *next;
};

/* Per process; empty in a forked child. */
struct soft_shm {
	struct soft_slab *slabs; /* soft_proc.lock */
	uint64_t slab_serial;

	struct soft_lock service_lock;
	struct soft_gone *gone;
	struct soft_qp *service; /* QPs with work for the progress thread */

	struct soft_lock lanes_lock;
	struct soft_in *lanes; /* all to QPs of this process, and those that a peer has not left yet */

	struct soft_lock ud_lock;
	struct soft_ud_out *ud_out[SOFT_UD_BUCKETS];

	pthread_mutex_t links_lock; /* list changes, also of bells, and their sets; progress thread, fork, closing */
	struct soft_link *links;
	/* bell.c, progress thread: door memory that no link uses, and how much there is in all */
	unsigned npool, nlinks_doors;
	bool stalled; /* unix_link.c, progress thread: a link is */
	/* resolve.c: slabs of peers that are mapped, on all links, and their bytes */
	atomic_uint nmaps;
	_Atomic(uint64_t) mapped;
	struct soft_doors *pool[SOFT_MAX_DOORS];
};
extern struct soft_shm soft_shm;

/* ---- attach.c --------------------------------------------------------------------------------------- */

enum {
	SOFT_SERVICE_CONNECT = 1,   /* out lane wanted */
	SOFT_SERVICE_RESOLVE = 2,   /* rkeys to ask the owner about */
	SOFT_SERVICE_READY = 4,     /* became a responder: handle early attach requests */
	SOFT_SERVICE_REDIAL = 8,    /* no process was there; the timer asks again */
	SOFT_SERVICE_DATAGRAM = 16, /* lanes to UD QPs wanted */
};
/* Queues this work for the progress thread. Any lock may be held. */
void soft_service(struct soft_qp *qp, uint32_t what);
/* Tells peers that a slab or a channel is gone. */
void soft_links_slab_gone(uint64_t slab_id);
void soft_links_chan_gone(uint64_t chan_id);
/* Drops both ends of a QP's lanes; takes the locks itself. */
void soft_lanes_drop(struct soft_qp *qp);

/* ---- attach_request.c: sq_lock held -------------------------------------------------------------------- */

/*
 * Copies the QP attributes that the responder needs. The first time, it drops a lane to a peer that would not take what
 * comes from here.
 */
void soft_out_settings(struct soft_qp *qp, bool first);

/* ---- lane_requester.c: sq_lock held ----------------------------------------------------------------- */

enum soft_run soft_out_run(struct soft_qp *qp, struct soft_wqe *wqe, struct soft_after *after);
/* Rings the responder's door for records added since the last call. */
bool soft_out_flush(struct soft_qp *qp);
/* Takes acknowledgements only. False: the responder violated the protocol. */
bool soft_out_collect_acks(struct soft_qp *qp);
/* Takes acknowledgements and responses. False: there is no lane. */
bool soft_out_collect(struct soft_qp *qp, struct soft_after *after);
/* The QP was flushed: nothing is outstanding any more. */
void soft_out_idle(struct soft_qp *qp);
/* An acknowledgement is overdue: kicks the peer's progress thread. False: nothing is outstanding. */
bool soft_out_kick(struct soft_qp *qp);
/* bell.c: wakes a CQ of another process if it is armed for this kind of completion. Never blocks. */
void soft_door_fire(struct soft_door *door, const _Atomic(uint64_t) *arming, const struct soft_event *event,
		    bool solicited);

/* ---- lane_direct.c: sq_lock held ---------------------------------------------------------------------- */

/* A WRITE that is not posted yet is placed already, if the memory may be written in any order. */
void soft_out_early(struct soft_qp *qp, struct soft_wqe *wqe);
/* Asks what a key opens, unless that is known. */
void soft_out_expect(struct soft_qp *qp, uint32_t rkey);

/* ---- lane_will.c -------------------------------------------------------------------------------------- */

/* Publish qp->holds, and qp->note. No lock; the thread that posts. */
void soft_out_say(struct soft_qp *qp);
void soft_out_note(struct soft_qp *qp);
/* Leaves a message. sq_lock held. */
void soft_out_will(struct soft_qp *qp, const void *message, uint32_t length, uint32_t imm);
/* Publishes both, on a lane that is new. */
void soft_out_say_first(struct soft_qp *qp);

/* ---- lane_responder.c: rq_lock held ----------------------------------------------------------------- */

/* Handles requests. True: there were some. */
bool soft_in_progress(struct soft_qp *qp, struct soft_after *after);
/* The same, when there may be no other look: nothing is left for later. */
bool soft_in_last_look(struct soft_qp *qp, struct soft_after *after);
/* The peer's process has ended, and all that it had posted was carried out: takes what it has left. False: nothing. */
bool soft_in_will(struct soft_qp *qp, struct soft_after *after);
/* Access rights of the QP changed: peers must ask again. */
void soft_in_rights_changed(struct soft_qp *qp);
void soft_in_cut(struct soft_qp *qp, bool cut);
/* The QP stops answering. */
void soft_in_close(struct soft_qp *qp);
/* RNR timer of a message that waits at qp->in. Takes the lock itself. */
void soft_in_timeout(struct soft_qp *qp, struct soft_after *after);

/* ---- outside.c -------------------------------------------------------------------------------------- */

/* For soft_fabric_ops. */
bool soft_all_outside(struct soft_region *region);

/* ---- ud_lane.c -------------------------------------------------------------------------------------- */

enum soft_run soft_ud_send(struct soft_qp *qp, struct soft_wqe *wqe, uint32_t qkey, const uint8_t grh[SOFT_GRH_BYTES],
			   const char *payload);
/* Receives the datagrams that other processes sent to this QP. rq_lock held. */
void soft_ud_progress(struct soft_qp *qp, struct soft_after *after);
/* The QP goes away: closes the lanes to it. rq_lock held. */
void soft_ud_leave(struct soft_qp *qp);

#endif

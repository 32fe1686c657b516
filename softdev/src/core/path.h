/*
 * Paths and fabrics: the tables of operations through which the core calls higher folders. Part of the core's contract
 * (core.h).
 *
 * A path is how one QP reaches its destination: in this process (core/local.c), through memory shared with another
 * process of this host (shm), or by packets (roce). soft_qp.path is never NULL. It is chosen when the QP goes to RTR,
 * with both of its locks held, and may be read under either. A fabric is the per-process part of such paths: one for
 * the other processes of this host, one for other hosts.
 *
 * An operation that does nothing is NULL. None takes a lock that stands further left than those it is called with.
 */
#ifndef SOFTDEV_PATH_H
#define SOFTDEV_PATH_H

#include "core/objects.h"

struct soft_after;
struct soft_wqe;

enum soft_run {
	SOFT_RUN_DONE, /* complete, or failed: wqe->status says */
	SOFT_RUN_SENT, /* in flight: complete when qp->acked has reached wqe->msn */
	SOFT_RUN_WAIT, /* qp->wait has the reason */
};

struct soft_path_ops {
	/* ---- the requester's side: sq_lock held ---- */

	/* Carries out or sends a work request; never NULL. Numbers what it sends by ++qp->issued. */
	enum soft_run (*run)(struct soft_qp *qp, struct soft_wqe *wqe, struct soft_after *after);
	/*
	 * Places the bytes of a WRITE that is not posted yet, if it can: run() does it again, and decides. For a
	 * personality that keeps no order between messages.
	 */
	void (*early)(struct soft_qp *qp, struct soft_wqe *wqe);
	/*
	 * Sends what run() has queued (qp->unsent): once for all WRs of a post, and whenever more may be sent. True:
	 * some may be complete.
	 */
	bool (*push)(struct soft_qp *qp);
	/* Brings qp->acked up to date, where nothing else does. */
	void (*count_acked)(struct soft_qp *qp);
	/* Takes acknowledgements and responses, and completes their WRs. False: there is no lane to take them from. */
	bool (*collect)(struct soft_qp *qp, struct soft_after *after);
	/* An acknowledgement is overdue: makes the peer check. False: nothing is outstanding. */
	bool (*kick)(struct soft_qp *qp);
	/* The send queue was flushed: nothing is outstanding any more. */
	void (*flushed)(struct soft_qp *qp);
	/* Tells the peer's process qp->holds, or qp->note. No lock held; the thread that posts. */
	void (*say)(struct soft_qp *qp);
	void (*note)(struct soft_qp *qp);
	/* Leaves the peer's process a message, in case this one ends (softdev_will()). */
	void (*will)(struct soft_qp *qp, const void *message, uint32_t length, uint32_t imm);
	/* WRITEs with this key of the peer's will follow (softdev_expect()). */
	void (*expect)(struct soft_qp *qp, uint32_t rkey);
	/* Whether what is posted now gets to where it outlives this process (softdev_reached()). NULL: it does. */
	bool (*reached)(const struct soft_qp *qp);
	/* The QP went to RTS, for the first time or again: its attributes for sending are set. */
	void (*may_send)(struct soft_qp *qp, bool first);

	/* ---- the responder's side: rq_lock held ---- */

	/* Handles what has arrived. True: there was something, and more may follow soon. */
	bool (*receive)(struct soft_qp *qp, struct soft_after *after);
	/* The same before the program ends the QP. */
	bool (*last_look)(struct soft_qp *qp, struct soft_after *after);
	/* The QP stops answering. */
	void (*close)(struct soft_qp *qp);
	/* Access rights of the QP changed: peers must ask again. */
	void (*rights_changed)(struct soft_qp *qp);
	/* A fault has taken the QP's port down, or it has ended: peers wait meanwhile. */
	void (*cut)(struct soft_qp *qp, bool cut);

	/* ---- both locks held ---- */

	/* The QP goes to RESET. */
	void (*leave)(struct soft_qp *qp);

	/* ---- no lock held ---- */

	/* The QP went to RTR. */
	void (*connected)(struct soft_qp *qp, struct soft_after *after);
	/* After leave(): frees resources that need one lock at a time. */
	void (*drop)(struct soft_qp *qp);
	/* After last_look(): takes what has arrived for any QP. */
	void (*catch_up)(void);
};

extern const struct soft_path_ops soft_local_path;    /* RC, UC: the destination is in this process, or unknown yet */
extern const struct soft_path_ops soft_datagram_path; /* UD */

struct soft_fabric_ops {
	/* ---- the progress thread, no lock held ---- */

	/* Handles an epoll event. False: `what` does not belong to this fabric. */
	bool (*event)(void *what, uint32_t events, struct soft_after *after);
	/* soft_kick_self() or the timer woke the thread. */
	void (*service)(struct soft_after *after);
	/* The timer expired: once for each QP, then tick(). */
	void (*timer)(struct soft_qp *qp, uint64_t now, struct soft_after *after);
	void (*tick)(void);
	/* Takes what has arrived for any QP. Any thread, no lock held. */
	void (*catch_up)(void);
	/* The last context closes. The progress thread has ended. */
	void (*close)(struct soft_after *after);

	/* ---- polls of any CQ, no lock held; only while soft_pollers is not 0 ---- */

	/* Receives and handles packets; returns at once when another thread does so already. */
	void (*poll)(void);
	/* A thread goes to sleep: from now on packets wake the progress thread. */
	void (*sleep)(void);

	/* ---- datagrams; sq_lock held to send, rq_lock for the others ---- */

	enum soft_run (*send_datagram)(struct soft_qp *qp, struct soft_wqe *wqe, uint32_t qkey,
				       const uint8_t grh[SOFT_GRH_BYTES], const char *payload);
	/* A UD QP went to RTR: senders can reach it from now on, also if it never sends. No lock held. */
	void (*expect_datagrams)(void);
	/* qp->ud_in is not NULL. */
	void (*take_datagrams)(struct soft_qp *qp, struct soft_after *after);
	/* The QP goes away: closes the lanes to it. */
	void (*close_datagrams)(struct soft_qp *qp);

	/* A completion channel was destroyed. No lock held. */
	void (*chan_gone)(uint64_t id);
	/*
	 * The region was withdrawn. True: no peer is inside an access to it that began before the call, or what it is
	 * inside of is no memory of this process any more. NULL: no peer reaches it directly. No lock held; the region
	 * may be freed afterwards.
	 */
	bool (*all_outside)(struct soft_region *region);

	/* ---- fork(): before it, and in the parent after it; in the child, which keeps nothing ---- */

	void (*fork_prepare)(void);
	void (*fork_parent)(void);
	void (*fork_child)(void);
};

struct soft_fabrics {
	const struct soft_fabric_ops *host; /* to other processes of this host */
	const struct soft_fabric_ops *net;  /* to other hosts */
};
/* Set by the first soft_ctx_init(), never changed. */
extern struct soft_fabrics soft_fabrics;

/* Users of the network that want polls to receive packets: QPs, address handles, the connection manager. */
extern atomic_uint soft_pollers;

#endif

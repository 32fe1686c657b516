/*
 * Lanes: the segment that two processes share, the private state of its two ends, and Unix links to other processes.
 *
 * Acknowledgements wake the requester as doors wake the responder (core/door.h), with the roles swapped: the responder
 * stores `acked`, full barrier, reads `want_ack`; the requester stores `want_ack`, full barrier, reads `acked`.
 */
#ifndef SOFTDEV_LANE_H
#define SOFTDEV_LANE_H

#include <sys/types.h>

#include "shm/internal.h"

/*
 * A lane: all requests of one QP to another. The responder's process creates it. Requests travel in one ring, response
 * data in a second ring in the other direction. Cursors count bytes since the beginning and never wrap. Each cache line
 * has one writer.
 */
enum {
	SOFT_REQ_RING = 128 * 1024,
	SOFT_RESP_RING = 64 * 1024,
	SOFT_FRAGMENT = 16 * 1024, /* limit for the payload of one record: a ring holds several */
	SOFT_RECORD_ALIGN = 64,    /* a cache line: a CDC message with its header fits in one */
};

struct soft_will {
	_Alignas(SOFT_CACHE_LINE) uint32_t length;
	uint32_t imm;
	unsigned char message[SOFTDEV_WILL_BYTES];
};

struct soft_seg {
	/* written by the requester */
	_Alignas(SOFT_CACHE_LINE) _Atomic(uint64_t) tail; /* request bytes published */
	_Atomic(uint64_t) want_ack;                       /* newest message whose acknowledgement it needs */
	_Atomic(uint32_t) waiting;                        /* a posted request is in the requester's memory only */
	_Atomic(uint32_t) holds;                          /* enum soft_holds */
	/*
	 * A process may be killed between two stores. So these are stored before a tail that ends `holds` or `waiting`,
	 * and say so as soon as `tail` has that value, by the store that publishes the records. 0: no tail does.
	 */
	_Atomic(uint64_t) settled_at, run_at;
	_Alignas(SOFT_CACHE_LINE) _Atomic(uint64_t) resp_head; /* response bytes consumed */
	_Atomic(uint32_t) blocked;                             /* waits for room in the request ring */
	_Atomic(uint32_t) rnr_retry;
	_Atomic(uint32_t) detached;                         /* the requester's QP is gone: no more requests */
	_Alignas(SOFT_CACHE_LINE) _Atomic(uint64_t) inside; /* in the middle of a direct access: enum soft_inside */
	_Atomic(uint64_t) inside_at;                        /* its first address, as the key names it */
	_Atomic(uint32_t) inside_length;                    /* 0: the kernel copies it, to the owner's address */
	_Atomic(uint64_t) note; /* softdev_note(); here, where the responder reads nothing while it polls */
	/* written by the responder */
	_Alignas(SOFT_CACHE_LINE) _Atomic(uint64_t) head; /* request bytes consumed */
	_Atomic(uint64_t) acked;                          /* messages carried out */
	_Alignas(SOFT_CACHE_LINE) _Atomic(uint64_t) resp_tail;
	_Atomic(uint32_t) resp_blocked;
	_Alignas(SOFT_CACHE_LINE) _Atomic(uint32_t) gate; /* 0: closed, final; changes with the access rights */
	_Atomic(uint32_t) nak;                            /* enum ibv_wc_status for message acked + 1 */
	_Atomic(uint32_t) cut;                            /* a fault has taken the responder's port down */
	/* written by the requester, read when its process has ended: softdev_will() */
	_Alignas(SOFT_CACHE_LINE) _Atomic(uint64_t) will; /* 1 + which of them + the tail that it follows; 0: none */
	struct soft_will wills[2];                        /* the other one is being written */
	_Alignas(4096) unsigned char req[SOFT_REQ_RING];
	unsigned char resp[SOFT_RESP_RING];
};

/*
 * The key of the memory in the lower half, or SOME from a process with an older device; 0: outside. The owner sets the
 * bit above while it takes away what the requester is inside of: it then has to begin again, by the ring.
 */
enum soft_inside { SOFT_INSIDE_SOME = 1 };
#define SOFT_INSIDE_EVICTED (UINT64_C(1) << 32)

enum soft_op {
	SOFT_OP_PAD = 1, /* padding to the end of the ring */
	SOFT_OP_SEND,
	SOFT_OP_WRITE,
	SOFT_OP_IMM, /* immediate of a WRITE carried out directly */
	SOFT_OP_READ,
	SOFT_OP_COMPARE_SWAP,
	SOFT_OP_FETCH_ADD,
	SOFT_OP_DATA, /* response: READ data or the old value of an atomic */
};
enum {
	SOFT_REC_FIRST = 1,
	SOFT_REC_LAST = 2,
	SOFT_REC_SOLICITED = 4,
	SOFT_REC_IMM = 8,
	SOFT_REC_INV = 16,
	SOFT_REC_REMOTE = 32, /* struct soft_reth follows */
};

struct soft_rec {
	uint32_t length; /* payload bytes of this record */
	uint8_t op, flags;
	uint16_t reserved;
	uint32_t imm;   /* immediate, or key to invalidate; SOFT_OP_DATA: offset in the answer */
	uint32_t total; /* FIRST: payload of the whole message; SOFT_OP_IMM: bytes written */
};

struct soft_reth {
	uint64_t addr;
	uint32_t rkey;
	uint32_t reserved;
	uint64_t compare_add, swap; /* atomics */
};

/* Of a datagram; follows struct soft_rec. */
struct soft_deth {
	uint32_t src_qpn, qkey;
	uint8_t grh[SOFT_GRH_BYTES];
};

_Static_assert(sizeof(struct soft_rec) == 16, "a 44 byte message and its header share one cache line");

/* A completion channel of the peer: the pipe that is its bell, shared by all lanes to that channel. */
struct soft_event {
	uint64_t id;
	int fd;
	bool gone; /* the channel; the fd stays open while lanes have it */
	unsigned refs;
	struct soft_event *next;
};

/* What wakes a channel of this process when the link's peer rings (bell.c). */
struct soft_bell {
	uint64_t chan;   /* its id */
	uint64_t number; /* on this link: a channel may get another bell, when the first is lost */
	int set, fd;     /* the channel's descriptor (links_lock; -1: closed), and the pipe's end in it */
	struct soft_bell *next;
};

/* A slab of the peer, mapped here. */
struct soft_map {
	uint64_t slab;
	char *at;
	size_t length;
	bool writable;
	struct soft_map *next;
};

struct soft_packet;
struct soft_early;

/*
 * One connected socket. The requester's process connects, so two processes with QPs in both directions have two. Only
 * the progress thread reads, writes, adds and removes links; lanes hold references to the objects behind them.
 */
struct soft_link {
	int fd;
	bool dialled, ready;
	atomic_bool dead;
	uint32_t slot;
	atomic_uint refs;
	struct soft_doors *here;                /* this process's, for the peer to ring */
	struct soft_doors *doors;               /* the peer's */
	const struct soft_published *published; /* the peer's */
	struct soft_bell *bells;                /* list changes: links_lock, too */
	uint64_t nbells;                        /* ever given */
	pid_t pid;                              /* of the peer, as this process sees it; 0: not visible */
	atomic_bool no_vm;                      /* the kernel denies access to the peer's memory */
	uint64_t impatient_until;               /* outside.c, soft_shm.lanes_lock */
	struct soft_lock lock;                  /* events */
	struct soft_event *events;
	struct soft_map *maps; /* progress thread */
	unsigned nmaps;
	uint64_t mapped; /* bytes */
	struct soft_packet *queue, **queue_tail;
	unsigned nqueue;
	bool stalled;
	struct soft_early *early; /* attach requests for QPs that are not ready */
	unsigned nearly;
	bool held; /* one of them has not been granted, because answers are queued */
	struct soft_link *next;
};
/* Whether their peers are one process, as far as this one can see. */
static inline bool soft_same_process(const struct soft_link *one, const struct soft_link *other)
{
	return one == other || (one->pid > 0 && one->pid == other->pid);
}
void soft_link_release(struct soft_link *link);
/* Wakes the peer's progress thread. Never blocks. */
void soft_link_kick(struct soft_link *link);
void soft_event_release(struct soft_link *link, struct soft_event *event);

/* A region of the peer that its owner allowed this process to map. */
struct soft_reg {
	uint32_t rkey, access;
	uint32_t
		loose; /* the same rights: in which order WRITEs are placed does not matter, and access has none to write */
	uint32_t gate; /* of the lane when the rights were checked */
	uint64_t base, length;
	uint64_t serial; /* valid while the peer's key table has the same serial */
	uint32_t index;  /* in that table */
	char *at;        /* NULL: may not be mapped */
	const struct soft_map *map;
	uint64_t remote; /* not shareable memory: its address in the peer's process; 0: no access */
};

enum { SOFT_REGS = 16, SOFT_ASKS = 8 };

/* Requester's end. sq_lock. */
struct soft_out {
	struct soft_seg *seg;
	struct soft_link *link;
	struct soft_door *door; /* of the responder's receive CQ */
	const _Atomic(uint64_t) *armed;
	uint32_t bit;
	struct soft_event *event;
	uint64_t tail, head; /* written; known to be consumed */
	uint64_t wanted;     /* newest message whose acknowledgement completes a WR */
	uint64_t staged;     /* newest READ, WRITE or atomic that the responder carries out */
	uint64_t resp_head;
	uint64_t kicked;      /* newest message for which the peer was kicked */
	bool fire, solicited; /* published since the last ring of the door: with completion; solicited */
	bool counted;         /* in send_cq->waiting */
	bool asleep;          /* the last acknowledgement needed a kick: the peer does not poll */
	bool now;             /* so kick again as soon as this is published */
	uint32_t psn;         /* 1 + what the peer expects first; 0: it does not say */
	uint64_t cut_until;   /* the peer's port is down: what is in flight fails then; 0: it is not */
	bool dead;            /* the peer's process is gone, or violated the protocol */
	bool waiting;         /* as published */
	uint8_t will;         /* number of the last one, modulo 2 */
	unsigned nasks, nasked;
	uint32_t asks[SOFT_ASKS]; /* rkeys to ask the owner about; the first nasked of them: asked, and not answered */
	unsigned oldest;          /* of regs: the next to be replaced */
	struct soft_reg regs[SOFT_REGS];
};

/* Where the region of a key usually is. */
static inline struct soft_reg *soft_reg_place(struct soft_out *out, uint32_t rkey)
{
	return &out->regs[(rkey >> 8) % SOFT_REGS];
}
/* Any place where it is; NULL: it is not known. */
struct soft_reg *soft_reg_elsewhere(struct soft_out *out, uint32_t rkey);

/* The message that the next record must go on with. */
enum soft_in_message {
	SOFT_IN_NONE,
	SOFT_IN_SEND,
	SOFT_IN_WRITE,
	SOFT_IN_READ,
	SOFT_IN_LOST, /* UC: what was refused, and is not placed */
};

/* Bytes of a slab. */
struct soft_span {
	size_t offset, length;
};

/* Responder's end. rq_lock. */
struct soft_in {
	struct soft_seg *seg;
	struct soft_link *link;
	struct soft_door *door; /* of the requester's send CQ */
	const _Atomic(uint64_t) *armed;
	uint32_t bit;
	struct soft_event *event;
	uint32_t gate; /* as last published */
	uint64_t head, acked;
	uint64_t published; /* what of it the requester can see */
	uint64_t resp_tail, resp_head;
	uint8_t message; /* enum soft_in_message: between FIRST and LAST, or a READ that is not answered completely */
	bool dropping;   /* its receive was missing (UC) */
	bool stopped;    /* refused a request: accepts no more */
	uint32_t placed, total;
	uint32_t answered; /* READ: bytes returned so far */
	/* outside.c, soft_shm.lanes_lock */
	struct soft_in *next, **at;
	bool orphan;         /* its QP is gone, and the peer was inside */
	bool disbelieved;    /* its process claims that of too many lanes */
	bool cut;            /* what the peer was evicted from is no memory of this process any more */
	struct soft_span in; /* evicted, and not cut yet: the bytes in the slab */
};

/* Receiver's end of a lane for datagrams, in its QP's list. rq_lock. */
struct soft_ud_in {
	struct soft_ud_in *next;
	struct soft_link *link;
	struct soft_seg *seg;
	uint64_t head;
};

/* ---- lane_direct.c: sq_lock held --------------------------------------------------------------------- */

enum soft_direct {
	SOFT_DIRECT_DONE,
	SOFT_DIRECT_MORE,  /* SOFT_TURN_BYTES of it are done */
	SOFT_DIRECT_LATER, /* when what is in the ring is carried out */
	SOFT_DIRECT_NO,    /* by the ring */
	SOFT_DIRECT_PROT,  /* this end's memory does not allow it */
	SOFT_DIRECT_LOST,  /* an atomic of which nobody knows whether it was in time */
};
/* Carries out a WRITE, READ or atomic here, if the memory is mapped and nothing in the ring goes before. */
enum soft_direct soft_out_direct(struct soft_qp *qp, struct soft_wqe *wqe, uint32_t access);

/* ---- lane_will.c -------------------------------------------------------------------------------------- */

/* What is held may be more than what settled, or was left: in this order, before the program goes on. */
void soft_seg_say(struct soft_seg *seg, uint32_t holds);

/* ---- outside.c: peers in the middle of a direct access ------------------------------------------------ */

/* The lane is new. */
void soft_lane_open(struct soft_in *in);
/* The lane is closed: frees it and releases its link as soon as the peer is not inside any more. */
void soft_lane_close(struct soft_in *in);
/* Frees closed lanes whose peer has left meanwhile. */
void soft_lanes_sweep(void);
/* The lane's gate was closed or changed: waits a little, then takes away what the peer is inside of. rq_lock held. */
void soft_lane_evict(struct soft_in *in);

/* Unmaps and drops references. That side's lock held. */
void soft_out_free(struct soft_qp *qp);
void soft_in_free(struct soft_qp *qp);
/* The peer's process is gone. Takes the locks. */
void soft_lane_lost(struct soft_qp *qp, const struct soft_link *link, struct soft_after *after);

#endif

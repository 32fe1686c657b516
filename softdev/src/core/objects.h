/*
 * The objects of the device. Part of the core's contract (core.h), which describes their locks and lifetimes.
 */
#ifndef SOFTDEV_OBJECTS_H
#define SOFTDEV_OBJECTS_H

#include "base/base.h"

enum {
	SOFT_MAX_DEVICES = 4,
	SOFT_MAX_SGE = 32,
	SOFT_MAX_WR = 16384,
	SOFT_MAX_CQE = 1 << 20,
	SOFT_MAX_INLINE = 1 << 20,
	SOFT_MAX_CQ = 1 << 14,    /* doors for each peer */
	SOFT_FIRST_CQS = 1024,    /* places that are looked at while there are no more CQs */
	SOFT_MAX_MR = 1 << 16,    /* entries in the published key table */
	SOFT_MAX_DOORS = 4096,    /* links to peer processes */
	SOFT_QPN_INDEX_BITS = 14, /* a QP number is process slot (10 bits), a number drawn at random (14 bits) */
	SOFT_MAX_QP = 1 << SOFT_QPN_INDEX_BITS,
	SOFT_MAX_SLOT = 1 << (24 - SOFT_QPN_INDEX_BITS),
	SOFT_GRH_BYTES = 40,
	SOFT_PKEY = 0xffff,  /* the only one */
	SOFT_GID_TABLE = 64, /* length of the GID table; mostly empty */
	SOFT_COMP_VECTORS = 1,
	SOFT_MAX_PD = 1 << 16,
	SOFT_MAX_AH = 1 << 16,
	SOFT_MAX_MW = 1 << 16,
	SOFT_MAX_SRQ = 1 << 16,
	SOFT_MAX_RD_ATOMIC = 128,
};
#define SOFT_MAX_MSG (UINT32_C(1) << 31)

/* ---- objects ------------------------------------------------------------------------------------ */

struct soft_qp;
struct soft_cq;
struct soft_door; /* door.h */
struct soft_wqe;  /* core.h */
struct soft_async;
struct soft_batch;
struct soft_gids;
struct soft_path_ops; /* path.h */
/* Opaque here: per-object state of a path. */
struct soft_out;
struct soft_in;
struct soft_ud_in;
struct soft_slab;
struct soft_roce;
struct roce_route;

/* verbs_context is extended at its front, so our own fields follow it. */
struct soft_ctx {
	struct verbs_context v;   /* v.context is what callers hold */
	atomic_bool dead;         /* inherited over fork(): no verb may touch it */
	atomic_uint objects;      /* PDs, CQs, channels not destroyed yet */
	struct soft_ctx *next;    /* soft_proc's list */
	struct soft_async *async; /* async.c: queue behind v.context.async_fd */
	struct soft_gids *gids;   /* gid.c */
};

struct soft_pd {
	struct ibv_pd pd;
	atomic_uint refs;       /* MRs, MWs, QPs, SRQs, AHs, slabs, parent domains */
	struct soft_pd *parent; /* parent domain: the PD whose memory it shares; else NULL */
};

/* Ways in which a peer's process reaches memory without this one. */
enum soft_lent {
	SOFT_LENT_MAPPED = 1,  /* it has mapped the slab */
	SOFT_LENT_ADDRESS = 2, /* the kernel copies, to the address in this process */
};

/* The memory that a key opens: MRs and bound MWs; found through soft_key_find(). */
struct soft_region {
	_Atomic(uint32_t) key; /* random (8 bits), index (16 bits), random (8 bits; a window's owner chooses them) */
	uint32_t access;       /* enum ibv_access_flags */
	uint64_t base;         /* first address as the peer names it */
	uint64_t length;
	char *host; /* first byte in our memory */
	struct soft_pd *pd;
	uint32_t qp_num;           /* type 2 MW: the only QP that may use it; else 0 */
	_Atomic(uint64_t) serial;  /* never reused; also in the published key table */
	atomic_uint lent;          /* enum soft_lent: how peers were told to reach it directly */
	struct soft_slab *slab;    /* the shareable memory that contains all of it, or NULL */
	bool window;               /* of an MW: never a local key */
	struct soft_region *older; /* MW: earlier binding, freed with the MW */
};

struct soft_mr {
	struct ibv_mr mr;
	struct soft_region region;
	void *map; /* of a file (dma-buf), and its bytes; or NULL */
	size_t mapped;
	atomic_uint windows; /* MWs bound to it */
};

struct soft_mw {
	struct ibv_mw mw;
	struct soft_lock lock;
	struct soft_region *bound; /* immutable once published; NULL: not bound */
	struct soft_region *retired;
	struct soft_mr *mr;
	uint32_t stem; /* of its keys: all but the 8 bits that its owner chooses */
};

struct soft_ah {
	struct ibv_ah ah;
	struct ibv_ah_attr attr;
	union ibv_gid sgid;       /* of attr.grh.sgid_index when it was created */
	bool here;                /* the destination is on this host */
	uint32_t max;             /* limit for a datagram's bytes */
	struct roce_route *route; /* roce: to another host, or over the network all the same; else NULL */
};

struct soft_chan {
	struct ibv_comp_channel chan; /* chan.fd is an epoll set: readable while an event may be waiting */
	int wake_fd;                  /* in that set: eventfd of this process alone; peers have bells (chan.c) */
	uint64_t id;                  /* never reused in this process */
	uint64_t round;               /* of looks for what peers announced */
	atomic_bool blocks;           /* the last wait for an event could block */
	struct soft_lock lock;
	struct soft_cq *head, **tail; /* CQs with undelivered events */
	struct soft_cq *members;      /* all CQs of the channel */
};

struct soft_cqe {
	struct ibv_wc wc;
	uint64_t timestamp;     /* CLOCK_MONOTONIC ns; only filled when soft_cq.timestamps */
	struct soft_qp *sender; /* of a work request; NULL: of a receive */
	uint32_t sent;          /* its sq_polled once the program has taken this entry */
};

struct soft_cq {
	union {
		struct ibv_cq cq;
		struct ibv_cq_ex cq_ex;
	};
	_Atomic(uint64_t) *armed; /* in the published segment */
	uint32_t index;           /* there and in doors */
	bool timestamps, ignore_overrun, single_threaded;
	struct soft_batch *batch;     /* batch.c: entries that are held back; NULL: none ever is */
	uint64_t wc_flags;            /* cq_ex */
	struct soft_cqe current;      /* cq_ex: the entry between start_poll/next_poll and end_poll */
	struct soft_lock reader_lock; /* cq_ex: held from start_poll to end_poll, before any other lock */

	_Alignas(SOFT_CACHE_LINE) struct soft_lock lock;
	uint32_t mask;
	struct soft_cqe *ring;
	atomic_uint head, tail;       /* written under lock; read without it to detect an empty queue */
	atomic_bool overrun;          /* an entry had no room */
	atomic_bool broken;           /* overrun; its QPs must fail */
	atomic_uint waiting;          /* QPs with work that completes when a peer process acknowledges it */
	atomic_bool unacked;          /* more messages may lack the peer's acknowledgement */
	_Atomic(uint64_t) idle_since; /* ticks; first empty poll since the last entry, 0: none */

	_Atomic(uint64_t) hot; /* slots whose lanes are checked without their bits: progress.c */
	atomic_uint hot_misses;
	atomic_uint ndoors;                     /* highest entry ever used + 1 */
	struct soft_door *_Atomic *doors;       /* of peers with lanes to this CQ; SOFT_MAX_DOORS entries */
	struct soft_door *own;                  /* rung by this process */
	atomic_bool rung;                       /* own has bits */
	struct soft_door *_Atomic hot_door[64]; /* where the bit of a hot slot is set */

	struct soft_lock slot_lock;
	struct soft_qp *_Atomic *slots; /* QPs by door bit */
	atomic_uint slots_used;         /* highest slot ever used + 1 */
	uint32_t slot_hint;             /* no free slot below */
	atomic_uint users;              /* QPs: ibv_destroy_cq answers EBUSY */
	atomic_uint pins;               /* threads using it after a list lookup: ibv_destroy_cq waits */

	struct soft_cq *chan_next, *event_next;
	uint64_t round;            /* under chan.lock: the last look that covered it */
	unsigned events_queued;    /* under chan.lock */
	unsigned events_delivered; /* under chan.lock: taken by ibv_get_cq_event; against comp_events_completed */
};

struct soft_rwqe {
	uint64_t wr_id;
	uint32_t num_sge;
	uint32_t length;
	struct ibv_sge sge[];
};

struct soft_rq {
	char *wqes;
	uint32_t stride, mask, limit; /* bytes of an entry; entries - 1 (power of two); entries the user asked for */
	uint32_t max_sge;
	uint32_t head, tail;
};

struct soft_srq {
	struct ibv_srq srq;
	struct soft_lock lock;
	struct soft_rq rq;
	uint32_t srq_limit; /* 0: not armed */
	uint32_t number;
	atomic_uint users;
	bool starved; /* some QP waits for a receive; under lock */
};

/* What a program says of data that it has accepted for a queue pair, and not posted. */
enum soft_holds {
	SOFT_HOLDS_UNKNOWN,
	SOFT_HOLDS_NOTHING,
	SOFT_HOLDS_SOME,
	SOFT_HOLDS_LAST, /* some, and all of it goes by the next post; known to this process only */
};

struct soft_qp {
	union {
		struct ibv_qp qp;
		struct ibv_qp_ex qp_ex;
	};
	_Atomic(uint32_t) number; /* 0: not in use (type-stable memory) */
	_Atomic(uint32_t) state;  /* enum ibv_qp_state; qp.state is the copy for callers */
	struct ibv_qp_attr attr;
	struct ibv_qp_cap cap;
	bool sq_sig_all;
	bool remote;                      /* RC, UC: the destination is in another process */
	const struct soft_path_ops *path; /* how the destination is reached; both locks to change */
	struct soft_srq *srq;
	uint32_t send_slot, recv_slot; /* bits in the doors of its CQs */
	uint32_t allowed;              /* bits of enum ibv_wr_opcode: what may be posted to send */
	struct soft_ex *ex;            /* qp_ex.c: state between wr_start and wr_complete; freed by soft_ex_free */

	_Alignas(SOFT_CACHE_LINE) struct soft_lock sq_lock;
	struct soft_wqe *sq;
	struct ibv_sge *sq_sge; /* cap.max_send_sge for each entry: copies, made when a WR has to wait */
	uint32_t sq_mask;
	uint32_t sq_head, sq_next, sq_tail; /* oldest incomplete; next to carry out; next to post */
	_Atomic(uint32_t) sq_polled;        /* oldest whose completion, or a later one's, was not polled; or a count */
	uint32_t wait;                      /* enum soft_wait: why sq_next is stalled */
	uint64_t issued, acked;             /* messages sent to another process or host; number acknowledged */
	bool unsent;                        /* run() queued something for push() to send */
	bool settles;                       /* and with that, the program holds nothing any more */
	uint64_t astray;                    /* WRITEs that posting did not finish: see softdev.h */
	_Atomic(uint32_t) holds;            /* enum soft_holds, as the program says */
	_Atomic(uint64_t) note;             /* softdev_note() */
	uint32_t expected;                  /* softdev_expect(), for a path that is not there yet; 0: none */
	uint32_t longest;                   /* message that posting need not look at more closely */
	atomic_uint placements;             /* orders drawn so far: placement.c */
	bool met;                           /* the destination has answered: its loss is a failure at once */
	bool refused;                       /* shm: no lane before it could send; asks again when it can */
	struct soft_roce *roce;             /* roce: its end of the connection, or NULL; both locks to change */
	_Atomic(uint64_t) roce_due_ns;      /* roce: time of its next check; 0: never */
	struct soft_out *out;               /* shm: requester's end of the lane to a QP of another process, or NULL */
	uint32_t waited, waited_wqe;        /* the wait that deadline_ns belongs to */
	uint8_t rnr_timer;                  /* of the destination */
	uint16_t tries;                     /* of a datagram */
	bool heard;                         /* the destination's process has answered the last attempt to reach it */
	uint64_t silent_ns;                 /* time without an answer, though its process lives */
	_Atomic(uint64_t) deadline_ns;      /* the waiting WR fails then (CLOCK_MONOTONIC); 0: never */
	uint64_t fault_until,
		slow_send; /* faults, by their clock: when a WR fails whose link is cut; when the next begins */

	_Alignas(SOFT_CACHE_LINE) struct soft_lock rq_lock;
	struct soft_rq rq;
	struct soft_in *in;                /* shm: responder's end of the lane from a QP of another process, or NULL */
	struct soft_ud_in *ud_in;          /* shm: of a UD QP, lanes from other processes */
	struct soft_ud_held *ud_held;      /* UD: a datagram to be delivered after the next one (fault) */
	struct soft_rwqe *srq_wqe;         /* SRQ: copy of the receive in use */
	struct soft_rwqe *current;         /* receive that a message is being written to, or NULL */
	uint32_t ended_in;                 /* 1 + the life in which a receive has failed */
	atomic_bool starved;               /* a message waits for a receive */
	_Atomic(uint64_t) rnr_deadline_ns; /* shm: it is refused then; 0: never */
	uint64_t slow_receive;             /* faults, by their clock: when it takes the next message */

	atomic_bool left_whole;      /* shm: see softdev_left_whole() */
	_Atomic(uint64_t) left_note; /* shm: see softdev_left_note() */
	atomic_bool fail_queued, pump_queued;
	_Atomic uint32_t life;                   /* counts resets; changes with both locks held */
	_Atomic uint32_t fail_life;              /* the life in which it was to fail last */
	struct soft_qp *after_fail, *after_pump; /* struct soft_after's lists */
	struct soft_qp *next;                    /* pool */
	struct soft_qp *service_next;            /* shm: pending work of the progress thread for it */
	uint32_t service;                        /* under soft_shm.service_lock */
	bool service_queued;
	atomic_uint mcast;         /* multicast groups it is attached to */
	_Atomic(uint64_t) attempt; /* shm: number of the current attempt to reach its destination */
};

/* ---- from the objects that callers hold ---------------------------------------------------------- */

static inline struct soft_ctx *to_ctx(struct ibv_context *c)
{
	return soft_container_of(c, struct soft_ctx, v.context);
}
static inline struct soft_pd *to_pd(struct ibv_pd *p)
{
	return soft_container_of(p, struct soft_pd, pd);
}
static inline struct soft_mr *to_mr(struct ibv_mr *m)
{
	return soft_container_of(m, struct soft_mr, mr);
}
static inline struct soft_mw *to_mw(struct ibv_mw *m)
{
	return soft_container_of(m, struct soft_mw, mw);
}
static inline struct soft_ah *to_ah(struct ibv_ah *a)
{
	return soft_container_of(a, struct soft_ah, ah);
}
static inline struct soft_cq *to_cq(struct ibv_cq *c)
{
	return soft_container_of(c, struct soft_cq, cq);
}
static inline struct soft_srq *to_srq(struct ibv_srq *s)
{
	return soft_container_of(s, struct soft_srq, srq);
}
static inline struct soft_qp *to_qp(struct ibv_qp *q)
{
	return soft_container_of(q, struct soft_qp, qp);
}
static inline struct soft_chan *to_chan(struct ibv_comp_channel *c)
{
	return soft_container_of(c, struct soft_chan, chan);
}

#endif

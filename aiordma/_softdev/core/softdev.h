/*
 * The software verbs device: its objects, and the functions its files offer one another.
 *
 * Locks, outermost first. Never take one that stands further left than one you hold:
 *   soft_proc.lock (tables, control path)  >  qp.sq_lock  >  qp.rq_lock  >  srq.lock  >  cq.lock  >  chan.lock
 * The other locks of struct soft_proc are innermost: nothing is taken while one is held, but for ud_lock an event's.
 * A requester that runs the responder's side of a QP in its own process holds its sq_lock and takes the
 * other's rq_lock, so no code may take any sq_lock while it holds an rq_lock.
 *
 * Lifetime. QP memory is type-stable: it goes back to a pool, never to the heap, so a pointer found in a
 * table may be locked and then looked at again. Memory regions are only dereferenced under some QP lock;
 * ibv_dereg_mr passes through all QP locks before it frees one.
 */
#ifndef AIORDMA_SOFTDEV_H
#define AIORDMA_SOFTDEV_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "aiordma_soft.h"
#include "preload/interpose.h"

#define soft_container_of(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))
#define soft_likely(x) __builtin_expect(!!(x), 1)
#define soft_unlikely(x) __builtin_expect(!!(x), 0)

enum {
	SOFT_MAX_DEVICES = 4,
	SOFT_MAX_SGE = 32,
	SOFT_MAX_WR = 16384,
	SOFT_MAX_CQE = 1 << 20,
	SOFT_MAX_INLINE = 1 << 20,
	SOFT_MAX_CQ = 1024,       /* doors in the published door segment */
	SOFT_MAX_MR = 1 << 16,    /* entries in the published key table */
	SOFT_QPN_INDEX_BITS = 14, /* a QP number is process slot (10 bits), index (14 bits) */
	SOFT_MAX_QP = 1 << SOFT_QPN_INDEX_BITS,
	SOFT_MAX_SLOT = 1 << (24 - SOFT_QPN_INDEX_BITS),
	SOFT_CACHE_LINE = 64,
	SOFT_GRH_BYTES = 40,
	SOFT_GID_TABLE = 64, /* length of the GID table; most of it is empty */
	SOFT_COMP_VECTORS = 1,
	SOFT_MAX_PD = 1 << 16,
	SOFT_MAX_AH = 1 << 16,
	SOFT_MAX_MW = 1 << 16,
	SOFT_MAX_SRQ = 1 << 16,
	SOFT_MAX_RD_ATOMIC = 128,
};
#define SOFT_MAX_MSG (UINT32_C(1) << 31)

/* Spin lock; a waiter yields its time slice soon, the holder may share its CPU. */
struct soft_lock {
	atomic_uint word;
};
void soft_lock_slow(struct soft_lock *lock);
static inline void soft_lock(struct soft_lock *lock)
{
	if (soft_unlikely(atomic_exchange_explicit(&lock->word, 1, memory_order_acquire)))
		soft_lock_slow(lock);
}
static inline bool soft_trylock(struct soft_lock *lock)
{
	return !atomic_exchange_explicit(&lock->word, 1, memory_order_acquire);
}
static inline void soft_unlock(struct soft_lock *lock)
{
	atomic_store_explicit(&lock->word, 0, memory_order_release);
}

/* ---- objects ------------------------------------------------------------------------------------ */

struct soft_qp;
struct soft_cq;
struct soft_out;
struct soft_in;
struct soft_door;
struct soft_slab;
struct soft_wqe;
struct soft_async; /* async.c */
struct soft_gids;  /* gid.c */

/* verbs_context "grows up" at its front, so our own fields follow it. */
struct soft_ctx {
	struct verbs_context v;   /* v.context is what callers hold */
	atomic_bool dead;         /* inherited over fork(): no verb may touch it */
	atomic_uint objects;      /* PDs, CQs, channels that were not destroyed */
	struct soft_ctx *next;    /* soft_proc's list */
	struct soft_async *async; /* async.c: queue behind v.context.async_fd */
	struct soft_gids *gids;   /* gid.c */
};

struct soft_pd {
	struct ibv_pd pd;
	atomic_uint refs;       /* MRs, MWs, QPs, SRQs, AHs, slabs, parent domains */
	struct soft_pd *parent; /* parent domain: the PD whose memory it shares; else NULL */
};

/* What a key opens. MRs and bound MWs; found through soft_key_find(). */
struct soft_region {
	_Atomic(uint32_t) key; /* index << 8 | tag */
	uint32_t access;       /* enum ibv_access_flags */
	uint64_t base;         /* first address as the peer names it */
	uint64_t length;
	char *host; /* first byte in our memory */
	struct soft_pd *pd;
	uint32_t qp_num;           /* type 2 MW: the only QP that may use it; else 0 */
	uint64_t serial;           /* never used twice; also in the published key table */
	struct soft_slab *slab;    /* shareable memory all of it lies in, or NULL */
	bool window;               /* of an MW: never a local key */
	struct soft_region *older; /* MW: earlier binding, freed with the MW */
};

struct soft_mr {
	struct ibv_mr mr;
	struct soft_region region;
	atomic_uint windows; /* MWs bound to it */
};

struct soft_mw {
	struct ibv_mw mw;
	struct soft_lock lock;
	struct soft_region *bound; /* immutable once published; NULL: not bound */
	struct soft_region *retired;
	struct soft_mr *mr;
	uint32_t index; /* of its key */
};

struct soft_ah {
	struct ibv_ah ah;
	struct ibv_ah_attr attr;
	union ibv_gid sgid; /* of attr.grh.sgid_index when it was created */
	bool here;          /* leads to this host */
	uint32_t max;       /* bytes that a datagram there may have */
	struct wire_route
		*route; /* leads to another host, or (internal.h) goes by the network all the same; else NULL */
};

struct soft_chan {
	struct ibv_comp_channel chan; /* chan.fd is the eventfd: readable while an event may be waiting */
	uint64_t id;                  /* never used twice in this process */
	struct soft_lock lock;
	struct soft_cq *head, **tail; /* CQs with undelivered events */
	struct soft_cq *members;      /* all CQs of the channel */
};

struct soft_cqe {
	struct ibv_wc wc;
	uint64_t timestamp; /* CLOCK_MONOTONIC ns; only filled when soft_cq.timestamps */
};

struct soft_cq {
	union {
		struct ibv_cq cq;
		struct ibv_cq_ex cq_ex;
	};
	struct soft_door *door; /* in the published segment: who has work for this CQ, is it armed */
	uint32_t index;         /* of the door */
	bool timestamps, ignore_overrun, single_threaded;
	uint64_t wc_flags;            /* cq_ex */
	struct soft_cqe current;      /* cq_ex: the entry between start_poll/next_poll and end_poll */
	struct soft_lock reader_lock; /* cq_ex: held from start_poll to end_poll, before any other lock */

	_Alignas(SOFT_CACHE_LINE) struct soft_lock lock;
	uint32_t mask;
	struct soft_cqe *ring;
	atomic_uint head, tail; /* written under lock; read without it to see that there is nothing */
	bool overrun;
	atomic_bool broken;           /* overrun, and its QPs are to fail */
	atomic_uint waiting;          /* QPs with work that completes when a peer process has acknowledged it */
	atomic_bool unacked;          /* there may be other messages that a peer has not acknowledged */
	_Atomic(uint64_t) idle_since; /* ticks; first empty poll since something was found, 0: none */

	_Atomic(uint64_t) hot; /* slots whose lanes are looked at without their bits: progress.c */
	atomic_uint hot_misses;

	struct soft_lock slot_lock;
	struct soft_qp *_Atomic *slots; /* QPs by door bit */
	atomic_uint slots_used;         /* highest slot ever used + 1 */
	uint32_t slot_hint;             /* no free slot below */
	atomic_uint users;              /* QPs: ibv_destroy_cq answers EBUSY */
	atomic_uint pins;               /* threads inside that found it in a list: ibv_destroy_cq waits */

	struct soft_cq *chan_next, *event_next;
	unsigned events_queued;    /* under chan.lock */
	unsigned events_delivered; /* ibv_get_cq_event returned it; under cq.mutex, against comp_events_completed */
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
	bool remote; /* RC, UC: the destination is in another process */
	struct soft_srq *srq;
	uint32_t send_slot, recv_slot; /* bits in the doors of its CQs */
	struct soft_ex *ex;            /* qp_ex.c: state between wr_start and wr_complete; freed by soft_ex_free */

	_Alignas(SOFT_CACHE_LINE) struct soft_lock sq_lock;
	struct soft_wqe *sq;
	struct ibv_sge *sq_sge; /* cap.max_send_sge for each entry: copies, made when a WR has to wait */
	uint32_t sq_mask;
	uint32_t sq_head, sq_next, sq_tail; /* oldest not complete; next to carry out; next to post */
	uint32_t wait;                      /* enum soft_wait: why sq_next stands still */
	uint64_t astray;                    /* WRITEs that posting did not carry out: see aiordma_soft.h */
	bool met;                           /* the destination has answered: its going away is a failure at once */
	struct soft_wire *wire;             /* RC, UC: the destination is on another host; both locks to change */
	_Atomic(uint64_t) wire_due_ns;      /* it wants to be looked at then; 0: never */
	struct soft_out *out;               /* requester's end of the lane to a QP of another process, or NULL */
	uint32_t waited, waited_wqe;        /* the wait that deadline_ns is of */
	uint8_t rnr_timer;                  /* of the destination */
	uint16_t tries;                     /* of a datagram */
	bool heard;                         /* the destination's process has answered the last attempt to reach it */
	uint64_t silent_ns;                 /* that it has not, and its process lives */
	_Atomic(uint64_t) deadline_ns;      /* the waiting WR fails then (CLOCK_MONOTONIC); 0: never */

	_Alignas(SOFT_CACHE_LINE) struct soft_lock rq_lock;
	struct soft_rq rq;
	struct soft_in *in;                /* responder's end of the lane from a QP of another process, or NULL */
	struct soft_ud_in *ud_in;          /* UD: lanes from other processes */
	struct soft_ud_held *ud_held;      /* UD: a datagram that the next one overtakes (fault) */
	struct soft_rwqe *srq_wqe;         /* SRQ: copy of the receive in use */
	struct soft_rwqe *current;         /* receive that a message is being placed in, or NULL */
	atomic_bool starved;               /* a message waits for a receive */
	_Atomic(uint64_t) rnr_deadline_ns; /* it is refused then; 0: never */

	atomic_bool fail_queued, pump_queued;
	struct soft_qp *after_fail, *after_pump; /* struct soft_after's lists */
	struct soft_qp *next;                    /* pool */
	struct soft_qp *service_next;            /* what the progress thread has to do for it: attach.c */
	uint32_t service;                        /* under soft_proc.service_lock */
	bool service_queued;
	atomic_uint mcast;         /* multicast groups it is attached to */
	_Atomic(uint64_t) attempt; /* numbers the tries to reach its destination */
};

/* ---- device.c ------------------------------------------------------------------------------------- */

extern struct ibv_device soft_devices[SOFT_MAX_DEVICES]; /* device.c */
static inline bool soft_is_device(const struct ibv_device *device)
{
	return (uintptr_t)device - (uintptr_t)soft_devices < sizeof soft_devices;
}
/*
 * AIORDMA_SOFT_IWARP=1: the device is what iWARP adapters are to their users (RFC 5040, RFC 7306 left out): RC queue
 * pairs only, no immediate data, no atomics, and READs land only in memory that allows remote writes.
 */
bool soft_iwarp(void);
/* AIORDMA_SOFT_IWARP=cm: what is more, only rdma_cm connects them, also those that are not rdma_create_qp()'s. */
bool soft_iwarp_by_cm(void);
static inline bool soft_is(const struct ibv_context *context)
{
	return context && soft_is_device(context->device);
}
/* Each device has one port, which aiordma_soft_port() takes down. */
bool soft_port_is_up(const struct ibv_context *context);
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

/*
 * ibv_open_device: after zeroing the context and filling device, sz, abi_compat, cmd_fd, async_fd. Sets the
 * data path operations, joins the process to the fabric (its slot). 0 or errno.
 */
int soft_ctx_init(struct soft_ctx *ctx);
/* Tells all contexts of a device: an event of its port, or of the device. */
void soft_ctx_tell(const struct ibv_device *device, enum ibv_event_type type);
/* ibv_close_device: objects that are left are abandoned; takes the context off the lists. The caller frees. */
int soft_ctx_fini(struct soft_ctx *ctx);
/* False with errno = EIO for a context inherited over fork(). First line of every control verb. */
static inline bool soft_usable(struct soft_ctx *ctx)
{
	if (soft_likely(!atomic_load_explicit(&ctx->dead, memory_order_relaxed)))
		return true;
	errno = EIO;
	return false;
}
/* ---- gid.c ---------------------------------------------------------------------------------------- */

int soft_gids_init(struct soft_ctx *ctx);
void soft_gids_fini(struct soft_ctx *ctx);
/* Is this one of our port's GIDs (so the destination is on this host)? */
bool soft_gid_is_local(struct soft_ctx *ctx, const union ibv_gid *gid);
/* Entry of our GID table; false when index is out of range. */
bool soft_gid_get(struct soft_ctx *ctx, int index, union ibv_gid *gid);
/* Its index, or -1. */
int soft_gid_find(struct soft_ctx *ctx, const union ibv_gid *gid);

/* ---- ah.c ----------------------------------------------------------------------------------------- */

/* Can RoCE send there: our port, a GRH, a source GID that exists? For address handles and QP address vectors. */
bool soft_route_is_valid(struct soft_ctx *ctx, const struct ibv_ah_attr *attr);
/*
 * The headers of a datagram with `payload` bytes as its receiver finds them before the payload: RoCEv2 over
 * IPv6 has the IPv6 header there, over IPv4 twenty zero bytes and the IPv4 header.
 */
void soft_grh_write(uint8_t grh[SOFT_GRH_BYTES], const union ibv_gid *sgid, const struct ibv_global_route *route,
		    uint32_t payload);

/* ---- async.c -------------------------------------------------------------------------------------- */

int soft_async_init(struct soft_ctx *ctx);
void soft_async_fini(struct soft_ctx *ctx);
/* element: struct ibv_qp/ibv_cq/ibv_srq as the event type says, or the port number cast; any lock may be held. */
void soft_async_push(struct soft_ctx *ctx, enum ibv_event_type type, void *element);
/* Before an object is destroyed: drops its queued events, waits until those delivered are acknowledged. No lock held. */
void soft_async_forget(struct soft_ctx *ctx, void *element);

/* ---- cq.c ----------------------------------------------------------------------------------------- */

/* flags: enum ibv_create_cq_attr_flags. NULL with errno. Used by ibv_create_cq and ibv_create_cq_ex. */
struct soft_cq *soft_cq_create(struct soft_ctx *ctx, uint32_t cqe, void *cq_context, struct ibv_comp_channel *channel,
			       uint32_t comp_vector, uint64_t wc_flags, uint32_t flags);
/* Takes up to n entries, driving progress first. The body of ibv_poll_cq; cq_ex takes them one at a time. */
int soft_cq_pop(struct soft_cq *cq, int n, struct soft_cqe *out);
/* Adds an entry and fires an armed channel. solicited: counts for solicited-only arming (errors always do). */
void soft_cq_push(struct soft_cq *cq, const struct ibv_wc *wc, bool solicited);

/* ---- qp.c, sq.c, srq.c ---------------------------------------------------------------------------- */

/* ibv_create_qp and ibv_create_qp_ex; attr->cap is updated to what was given. NULL with errno. */
struct soft_qp *soft_qp_create(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
/* ibv_post_send / ibv_post_recv / ibv_post_srq_recv of our context: 0 or errno, *bad set on failure. */
int soft_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int soft_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int soft_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
struct soft_srq *soft_srq_create(struct ibv_pd *pd, struct ibv_srq_init_attr *attr);

/* ---- cq_ex.c, qp_ex.c ----------------------------------------------------------------------------- */

struct ibv_cq_ex *soft_create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr);
struct ibv_qp *soft_create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr);
/* Before a QP is destroyed: what it kept for ibv_wr_*. */
void soft_ex_free(struct soft_qp *qp);

/* ---- parent.c ------------------------------------------------------------------------------------- */

struct ibv_td *soft_alloc_td(struct ibv_context *context, struct ibv_td_init_attr *attr);
int soft_dealloc_td(struct ibv_td *td);
struct ibv_pd *soft_alloc_parent_domain(struct ibv_context *context, struct ibv_parent_domain_init_attr *attr);

/* ---- pd_mr.c -------------------------------------------------------------------------------------- */

struct soft_pd *soft_pd_create(struct soft_ctx *ctx, struct soft_pd *parent);
struct ibv_mr *soft_mr_create(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned access);

#endif

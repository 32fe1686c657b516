/*
 * The core: the objects of the device (objects.h) and the engine that runs them, independent of the path their bytes
 * take.
 *
 *   post_send -> requester.c -> soft_path_ops.run  == local.c -------------------------------> rx.c (responder's side)
 *                                                  == shm:  shared ring => shm, another process -> rx.c
 *                                                  == roce: packets     => roce, another host   -> rx.c
 *
 * What it promises: work requests of a QP begin and complete in order; each completion is pushed once; memory is only
 * touched through a key that allows it (keys.c); work that has to wait until no lock is held goes onto a struct
 * soft_after.
 * What it calls: base, and the tables of path.h. It contains no code for sockets, shared rings or packets.
 * Who may call it: the folders above. Functions for its own files only are in internal.h.
 *
 * Locks, outermost first. Never take one that stands further left than one you hold:
 *   soft_proc.lock (tables, control path)  >  qp.sq_lock  >  qp.rq_lock  >  srq.lock  >  cq.lock  >  chan.lock
 * A requester that runs the responder's side of a QP in its own process holds its own sq_lock and takes the other QP's
 * rq_lock, so no code may take any sq_lock while it holds an rq_lock. Paths and fabrics have locks of their own:
 * innermost, unless their headers state otherwise.
 *
 * Lifetime. QP memory is type-stable: it returns to a pool, never to the heap, so code may lock a pointer found in a
 * table first and check it afterwards. Memory regions are only dereferenced under some QP lock; ibv_dereg_mr passes
 * through all QP locks before it frees one.
 */
#ifndef SOFTDEV_CORE_H
#define SOFTDEV_CORE_H

#include "core/door.h"
#include "core/faults.h"
#include "core/objects.h"
#include "core/path.h"
#include "core/personality.h"

/* Why a send queue is stalled. */
enum soft_wait {
	SOFT_RUN,
	SOFT_WAIT_PEER,     /* destination not there (yet): retry timeout */
	SOFT_WAIT_RNR,      /* destination has no receive posted */
	SOFT_WAIT_ROOM,     /* request ring full */
	SOFT_WAIT_STAGED,   /* the peer still carries out an earlier access to its memory */
	SOFT_WAIT_FENCE,    /* earlier READ or atomic not complete */
	SOFT_WAIT_TURN,     /* a long WR: goes on when others had their turn */
	SOFT_WAIT_DATAGRAM, /* UD: lane not there, or full; dropped after a while */
	SOFT_WAIT_DEPTH,    /* max_rd_atomic 0, and a personality that never carries it out */
	SOFT_WAIT_ERROR,    /* the WR at sq_next has failed; earlier ones complete first */
};

/* The status of a posted WR that waits so; no enum ibv_wc_status. */
enum { SOFT_WC_NEVER = 255 };

enum soft_wqe_state {
	SOFT_WQE_POSTED,
	SOFT_WQE_SENT, /* in flight; complete when the responder has acknowledged msn */
	SOFT_WQE_DONE,
};

struct soft_wqe {
	uint64_t wr_id;
	uint64_t msn;
	const struct ibv_sge *sge; /* the caller's list on the first try, then the copy in sq_sge */
	uint32_t length;
	uint32_t offset; /* bytes placed (SEND, WRITE) or answered (READ) */
	uint32_t imm;    /* immediate in network byte order, or key to invalidate */
	uint32_t rkey;
	uint64_t raddr;
	uint16_t num_sge;
	uint8_t opcode, flags; /* enum ibv_wr_opcode, enum ibv_send_flags */
	uint8_t state;
	uint8_t status;    /* enum ibv_wc_status */
	bool answered;     /* READ, atomic: waits for response data */
	bool placed;       /* WRITE_WITH_IMM: data written, immediate not sent yet */
	bool direct;       /* READ, WRITE: the bytes before offset were copied by this side */
	void *inline_copy; /* heap copy of inline data of a WR that has to wait */
	union {
		struct {
			uint64_t compare_add, swap;
		} atomic;
		struct {
			struct soft_ah *ah;
			uint32_t qpn, qkey;
		} ud;
		struct {
			struct ibv_mw *mw;
			struct ibv_mw_bind_info info;
		} bind;
	};
};

/* Work to do once no QP lock is held. Every entry point passes it down. */
struct soft_after {
	struct soft_qp *fail; /* QPs to move to ERR */
	struct soft_qp *pump; /* send queues that may continue */
};
/* sq_lock or rq_lock held: the life of the QP that is meant must not end meanwhile. */
void soft_after_fail(struct soft_after *after, struct soft_qp *qp);
void soft_after_pump(struct soft_after *after, struct soft_qp *qp);
void soft_after_run_slow(struct soft_after *after);
static inline void soft_after_run(struct soft_after *after)
{
	if (soft_unlikely(after->fail || after->pump))
		soft_after_run_slow(after);
}

/*
 * The most that one WR copies before the QP's lock is released and others have their turn: a fraction of a millisecond.
 * The longest message takes a second. Most are shorter than this, and done at once.
 */
enum { SOFT_TURN_BYTES = 2 << 20 };

static inline struct soft_wqe *soft_sq_at(struct soft_qp *qp, uint32_t i)
{
	return &qp->sq[i & qp->sq_mask];
}
static inline uint32_t soft_state(struct soft_qp *qp)
{
	return atomic_load_explicit(&qp->state, memory_order_acquire);
}
/* True if it answers requests of its peer. */
static inline bool soft_receives(uint32_t state)
{
	return state == IBV_QPS_RTR || state == IBV_QPS_RTS || state == IBV_QPS_SQD || state == IBV_QPS_SQE;
}
/* The same of a queue pair, and no receive has failed: it is in ERR then, as soon as no lock is held. rq_lock */
static inline bool soft_takes(struct soft_qp *qp)
{
	return soft_receives(soft_state(qp)) &&
	       soft_likely(qp->ended_in != atomic_load_explicit(&qp->life, memory_order_relaxed) + 1);
}

/* ---- devices.c -------------------------------------------------------------------------------------- */

extern struct ibv_device soft_devices[SOFT_MAX_DEVICES];
extern atomic_uint soft_ports_down; /* bit n: of device n */
static inline bool soft_is_device(const struct ibv_device *device)
{
	return (uintptr_t)device - (uintptr_t)soft_devices < sizeof soft_devices;
}
static inline bool soft_is(const struct ibv_context *context)
{
	return context && soft_is_device(context->device);
}
/* Each device has one port, which softdev_port() takes down. */
bool soft_port_is_up(const struct ibv_context *context);
/* The personality is an iWARP adapter's (RFC 5040): READs land only in memory that allows remote writes. */
bool soft_iwarp(void);
/* In addition, only rdma_cm connects queue pairs, even those not made by rdma_create_qp(). */
bool soft_iwarp_by_cm(void);

/* ---- proc.c: contexts and per-process state --------------------------------------------------------- */

struct soft_proc {
	pthread_mutex_t lock;
	struct soft_ctx *contexts;
	unsigned nctx;
	uint32_t slot;          /* 0: none yet */
	int listen_fd, file_fd; /* of the slot: peers connect to them; one may be -1 */
	int kick_fd, timer_fd, epoll_fd;
	pthread_t thread;
	bool running;
	atomic_bool stop;

	struct soft_published *published;
	int published_fd; /* its memfd, which cannot be mapped writable again */

	struct soft_qp *_Atomic qps[SOFT_MAX_QP]; /* all there are, in use or not */
	uint32_t qp_cursor;
	atomic_uint qp_used; /* highest index ever used + 1 */
	struct soft_qp
		*_Atomic numbered[SOFT_MAX_QP]; /* by the low bits of their numbers; may have another one by now */
	struct soft_region *_Atomic keys[SOFT_MAX_MR];
	struct soft_cq *_Atomic cqs[SOFT_MAX_CQ];
	uint32_t cq_cursor;
	atomic_uint cq_places;    /* of cqs, from the first: no CQ is behind them. Grows */
	struct soft_lock cq_lock; /* to find a CQ in cqs and pin it */
	struct soft_mw *_Atomic mws[SOFT_MAX_MR];

	_Atomic(uint64_t) timer_ns; /* when timer_fd fires; 0: not armed */
	atomic_uint held;           /* completions in batches (batch.c) */
};
extern struct soft_proc soft_proc;

static inline struct soft_qp *soft_qp_find(uint32_t number)
{
	if (number >> SOFT_QPN_INDEX_BITS != soft_proc.slot)
		return NULL;
	struct soft_qp *qp =
		atomic_load_explicit(&soft_proc.numbered[number & (SOFT_MAX_QP - 1)], memory_order_acquire);
	return qp && atomic_load_explicit(&qp->number, memory_order_relaxed) == number ? qp : NULL;
}
/*
 * Last step of ibv_open_device: starts the progress thread and joins the process to the fabrics, which are the same on
 * every call. Returns 0 or errno.
 */
int soft_ctx_init(struct soft_ctx *ctx, const struct soft_fabrics *fabrics);
/* Sends an event of the device or its port to all its contexts. */
void soft_ctx_announce(const struct ibv_device *device, enum ibv_event_type type);
/* For ibv_close_device: abandons the objects that are left and takes the context off the lists. The caller frees it. */
int soft_ctx_fini(struct soft_ctx *ctx);
/* False with errno = EIO for a context inherited over fork(). Every control verb calls it first. */
static inline bool soft_usable(struct soft_ctx *ctx)
{
	if (soft_likely(!atomic_load_explicit(&ctx->dead, memory_order_relaxed)))
		return true;
	errno = EIO;
	return false;
}
/* Wakes the progress thread. */
void soft_kick_self(void);
/* A resource was missing for something new, here or (peer) in the peer's process: for softdev_shortage(). */
void soft_shortage(int err, bool peer);
/* How long a sleeping requester waits for an acknowledgement before it kicks its peer. */
enum { SOFT_STALL_NS = 4000000 };
/* Upper bound on the time until the progress thread checks everything that waits, by the system's clock. */
void soft_timer_want(uint64_t when_ns);

/* ---- clock.c ---------------------------------------------------------------------------------------- */

/* The device's time, which the timers of protocols and faults go by. */
uint64_t soft_clock_ns(void);
/* Whether the program moves it. Otherwise it goes on as the system's does. */
bool soft_clock_is_driven(void);
/* As soft_timer_want(), by the device's time. UINT64_MAX: never. Any lock may be held. */
void soft_clock_want(uint64_t when_ns);
/* Is called when the program has moved the clock, or begins or ceases to: for timers that the progress thread has not. */
typedef void soft_clock_follower(void);
void soft_clock_followed(soft_clock_follower *by);

/* ---- slot.c ----------------------------------------------------------------------------------------- */

/* A socket connected to the process of this user with that slot, and its number. -1 with errno. */
int soft_slot_connect(uint32_t slot, pid_t *pid);
/* The next connection of a process of this user to one of the two listening sockets. -1 with errno. */
int soft_slot_accept(int listen_fd, pid_t *pid);
/* True if a process of this user on this host holds that slot. */
bool soft_slot_taken(uint32_t slot);
/* The same of a peer that is missed. Says once on standard error that it is another user's, which no error code tells. */
bool soft_slot_answers(uint32_t slot);

/* ---- home.c ----------------------------------------------------------------------------------------- */

enum { SOFT_HOME_BYTES = 100 };
/* The directory for sockets of this user's processes, which no other user can enter. False: there is none. */
bool soft_home(char path[SOFT_HOME_BYTES]);
/* Locks it against other processes, until the descriptor is closed. -1: no lock, no directory. */
int soft_home_lock(void);

/* ---- gid.c ------------------------------------------------------------------------------------------ */

/* has_wire: other hosts are reached by the interfaces, and the port is down where these are. */
int soft_gids_init(struct soft_ctx *ctx, bool has_wire);
void soft_gids_fini(struct soft_ctx *ctx);
/*
 * From now on the progress thread reads what changes, and the program gets events; until the second call, which comes
 * before the context's events go. The thread runs.
 */
void soft_gids_watch(struct soft_ctx *ctx);
void soft_gids_unwatch(struct soft_ctx *ctx);
/* Whether the interfaces behind the port have stopped. */
bool soft_gids_down(struct soft_ctx *ctx);
/* True for a GID of our own port (the destination is then on this host). */
bool soft_gid_is_local(struct soft_ctx *ctx, const union ibv_gid *gid);
/* Entry of our GID table, also one that programs are not shown; false when there is none at that index. */
bool soft_gid_entry(struct soft_ctx *ctx, int index, struct ibv_gid_entry *entry);
bool soft_gid_get(struct soft_ctx *ctx, int index, union ibv_gid *gid);
/* What fits the interfaces of all entries that programs are shown, or without these (of_interfaces: false), the most. */
enum ibv_mtu soft_gids_mtu(struct soft_ctx *ctx, bool of_interfaces);
/* Index of a GID in the table, or -1. */
int soft_gid_find(struct soft_ctx *ctx, const union ibv_gid *gid);
/* The ibv_ functions of those names, for our contexts. */
int soft_query_gid(struct ibv_context *context, uint8_t port_num, int index, union ibv_gid *gid);
int soft_query_gid_ex(struct ibv_context *context, uint32_t port_num, uint32_t gid_index, struct ibv_gid_entry *entry,
		      uint32_t flags, size_t entry_size);
ssize_t soft_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries, size_t max_entries,
			     uint32_t flags, size_t entry_size);

/* ---- grh.c ------------------------------------------------------------------------------------------ */

/*
 * Builds the headers of a datagram with `payload` bytes as its receiver finds them before the payload: for RoCEv2 over
 * IPv6 the IPv6 header, over IPv4 twenty zero bytes and the IPv4 header.
 */
void soft_grh_write(uint8_t grh[SOFT_GRH_BYTES], const union ibv_gid *sgid, const struct ibv_global_route *route,
		    uint32_t payload);
/* Reads the route back (zeroed first) and the destination GID from received headers. False: neither kind of header. */
bool soft_grh_read(const struct ibv_grh *grh, struct ibv_global_route *route, union ibv_gid *here);
/* The kind of packet that a datagram's completion reports as its service level, as mlx5 does on Ethernet. */
uint8_t soft_grh_kind(const uint8_t grh[SOFT_GRH_BYTES]);

/* ---- async.c ---------------------------------------------------------------------------------------- */

int soft_async_init(struct soft_ctx *ctx);
void soft_async_fini(struct soft_ctx *ctx);
/* element: struct ibv_qp/ibv_cq/ibv_srq, depending on the event type, or the port number cast. Any lock may be held. */
void soft_async_push(struct soft_ctx *ctx, enum ibv_event_type type, void *element);
/*
 * Before an object is destroyed: drops its queued events and waits until delivered ones are acknowledged. No lock held.
 */
void soft_async_forget(struct soft_ctx *ctx, void *element);
/* The ibv_ functions of those names, for our contexts. */
int soft_get_async_event(struct ibv_context *context, struct ibv_async_event *event);
void soft_ack_async_event(struct ibv_async_event *event);
/* Counter of the object that an event belongs to; NULL for events of a port or the whole device. */
struct ibv_context *soft_event_context(const struct ibv_async_event *event);

/* ---- keys.c ----------------------------------------------------------------------------------------- */

static inline uint32_t soft_key_index(uint32_t key)
{
	return key >> 8 & (SOFT_MAX_MR - 1);
}
static inline struct soft_region *soft_key_find(uint32_t key)
{
	struct soft_region *r = atomic_load_explicit(&soft_proc.keys[soft_key_index(key)], memory_order_acquire);
	return r && r->key == key ? r : NULL;
}
static inline bool soft_region_covers(const struct soft_region *r, uint64_t addr, uint64_t length)
{
	return addr >= r->base && length <= r->length && addr - r->base <= r->length - length;
}
struct soft_pd *soft_pd_root(struct soft_pd *pd);
/* Host address of [addr, addr + length) under a local key of the PD, or NULL. Call under a QP lock. */
char *soft_local_addr(struct soft_pd *pd, uint32_t lkey, uint64_t addr, uint64_t length, uint32_t access);
/* The same under a remote key for a QP; all bits of access must be granted. Zero length is not checked. */
char *soft_remote_addr(struct soft_qp *qp, uint32_t rkey, uint64_t addr, uint64_t length, uint32_t access);
/* Draws a key that no lookup finds yet, and reserves its entry. 0 or ENOMEM. */
int soft_key_reserve(uint32_t *key);
void soft_key_unreserve(uint32_t index);
/* Makes the region visible here and to peers; it must not change any more. */
void soft_key_publish(uint32_t index, struct soft_region *region);
/* Hides the region. The entry stays reserved. Accesses that began before may continue until soft_quiesce(). */
void soft_key_withdraw(uint32_t index);
/* Gives a region that is published a new serial: peers must ask again. Nothing, if it is being withdrawn. */
void soft_key_renew(uint32_t index, struct soft_region *region);
/*
 * Returns when no QP of the process is inside an access that began before the call. False: a peer may be inside one to
 * this region (NULL: a region that no peer reaches directly), and will not be waited for: try again later.
 */
bool soft_quiesce(struct soft_region *region);

/* ---- windows.c -------------------------------------------------------------------------------------- */

/* Windows by key index. */
void soft_mw_enter(struct soft_mw *mw);
void soft_mw_leave(struct soft_mw *mw);
/* Invalidates the binding; destroying the window frees it. mw->lock held. */
void soft_mw_unbind(struct soft_mw *mw);

/* ---- cq.c, progress.c ------------------------------------------------------------------------------- */

/* ibv_poll_cq and ibv_req_notify_cq for our contexts. */
int soft_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc);
int soft_req_notify_cq(struct ibv_cq *cq, int solicited_only);
/* Takes up to n entries with their timestamps; drives progress first, as polling does. -EIO: some were lost. */
int soft_cq_pop(struct soft_cq *cq, int n, struct soft_cqe *out);
/* Handles the door bits of this CQ, and its hot lanes. No lock held. */
void soft_cq_progress(struct soft_cq *cq);
/* Allocates a door bit for one side of a QP; -1: none free. */
int soft_cq_slot_get(struct soft_cq *cq, struct soft_qp *qp, bool send);
void soft_cq_slot_put(struct soft_cq *cq, uint32_t slot);
/* Of a queue with that index, where the personality has completions come together; else NULL. Freed with free(). */
struct soft_batch *soft_batch_new(uint32_t index);
/* Hides the CQ from the progress thread. */
void soft_cq_unpublish(struct soft_cq *cq);
/*
 * Adds and removes a door that a peer may ring. A poll may read a removed door a little later, so its memory must stay
 * mapped. False: too many doors.
 */
bool soft_cq_door_add(struct soft_cq *cq, struct soft_door *door);
void soft_cq_door_remove(struct soft_cq *cq, struct soft_door *door);
/* The CQ with that index, which cannot go away until soft_cq_unpin(); or NULL. */
struct soft_cq *soft_cq_pin(uint32_t index);
void soft_cq_unpin(struct soft_cq *cq);
/* Rings this process's own door for the QP in that slot. */
void soft_cq_ring(struct soft_cq *cq, uint32_t slot);
static inline bool soft_cq_armed(const struct soft_cq *cq)
{
	return atomic_load(cq->armed) & SOFT_ARM_WANTED;
}
/* The progress thread takes what peers have announced, for all CQs. */
void soft_run_doors(void);
/* Makes the channel readable. */
void soft_chan_wake(struct soft_chan *chan);
/* The channel from which this thread takes events now: those queued meanwhile need no wake-up. */
extern _Thread_local struct soft_chan *soft_chan_taking;
/* How often this thread has woken programs: they may wait for the very CPU that it runs on. */
extern _Thread_local unsigned soft_chan_wakes;
/* Ends an arming by an event without a completion. */
void soft_cq_spend(struct soft_cq *cq);
/* Gives the arming a new number, so that peers ring again. False: the CQ is not armed. */
bool soft_cq_rearm(struct soft_cq *cq);

/* ---- qp.c ------------------------------------------------------------------------------------------- */

/* Draws the number of a QP that becomes visible. 0: none is free. soft_proc.lock held. */
uint32_t soft_qp_draw(struct soft_qp *qp);
/* The path of a QP that is not connected. */
const struct soft_path_ops *soft_qp_first_path(const struct soft_qp *qp);
/* Moves to ERR and flushes both queues. No QP lock held. */
void soft_qp_error(struct soft_qp *qp, struct soft_after *after);
/* The same for what soft_after_fail() has noted, unless the program has reset the QP since. */
void soft_qp_fail(struct soft_qp *qp, struct soft_after *after);
void soft_qp_set_state(struct soft_qp *qp, enum ibv_qp_state state);
void soft_qp_reset(struct soft_qp *qp);
/* Receives what has arrived so far, before the program ends the queue pair. No lock held. */
void soft_qp_last_look(struct soft_qp *qp);

/* ---- rq.c: receive queues. rq_lock held, or srq.lock ------------------------------------------------- */

int soft_rq_init(struct soft_rq *rq, uint32_t max_wr, uint32_t max_sge);
void soft_rq_free(struct soft_rq *rq);
static inline struct soft_rwqe *soft_rq_at(struct soft_rq *rq, uint32_t i)
{
	return (struct soft_rwqe *)(rq->wqes + (size_t)(i & rq->mask) * rq->stride);
}
/* Takes the next receive of the QP or its SRQ into qp->current. False: none posted. */
bool soft_rq_take(struct soft_qp *qp);
/* The message that it was taken for is refused. One of the queue pair's own stays posted; one of a shared queue stays in
 * `current`, for the next message or for the flush. */
void soft_rq_put_back(struct soft_qp *qp);
/* ibv_post_recv and ibv_post_srq_recv for our contexts; they take the locks. */
int soft_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int soft_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);

/* ---- post_check.c: what posting checks ---------------------------------------------------------------- */

/* Bits of enum ibv_wr_opcode: what a queue pair of this type may be asked to send. */
uint32_t soft_ops_allowed(enum ibv_qp_type type);
/* Of these, what posting need not look at more closely: depends on its attributes. */
uint32_t soft_ops_now(const struct soft_qp *qp);
/*
 * 0, or the errno with which posting would refuse one of these, so many in all. Takes the lock. Other threads can only
 * make room in the queue afterwards, as long as none uses ibv_post_send at the same time.
 */
int soft_post_refuses(struct soft_qp *qp, const struct ibv_send_wr *wr, size_t count);
/* What a post function returns for this errno. */
int soft_error_returned(int err);
/* The destination's MTU, when it is known: of another one, messages of several packets fail. sq_lock held. */
void soft_sq_mtu(struct soft_qp *qp, enum ibv_mtu theirs);

/* ---- requester.c: send queues ----------------------------------------------------------------------- */

/* ibv_post_send for our contexts; takes the lock. */
int soft_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
/* All others need sq_lock held. Runs the WRs that may run, and sends them. */
void soft_sq_pump(struct soft_qp *qp, struct soft_after *after);
/* Completes acknowledged WRs, in order. */
void soft_sq_retire(struct soft_qp *qp, struct soft_after *after);
/*
 * True if that many more WRs fit. As with a card's driver, only polling the completion of a WR makes room for it, and for
 * those without a completion before it. Where completions come in any order, each makes room for one.
 */
static inline bool soft_sq_has_room(struct soft_qp *qp, size_t count)
{
	return qp->sq_tail - atomic_load_explicit(&qp->sq_polled, memory_order_relaxed) + count <= qp->cap.max_send_wr;
}
/* How long a requester repeats what is not answered. */
uint64_t soft_retry_ns(const struct soft_qp *qp);
/* The destination's process answered that its QP is not ready. */
void soft_sq_heard(struct soft_qp *qp);
/* Copies the caller's lists and inline bytes, which the caller may reuse after post_send returns. False: no memory. */
bool soft_wqe_keep(struct soft_qp *qp, struct soft_wqe *wqe);
/* Copies bytes [offset, offset + n) of the WR's payload out. False: a local key does not allow it. */
bool soft_wqe_gather(struct soft_qp *qp, const struct soft_wqe *wqe, uint32_t offset, char *to, uint32_t n);
/* Copies response bytes into the WR's buffers. */
bool soft_wqe_scatter(struct soft_qp *qp, const struct soft_wqe *wqe, uint32_t offset, const char *from, uint32_t n);
/* The WR waits for its next turn; what path->run() returns. */
enum soft_run soft_sq_yield(struct soft_qp *qp);
/* Visits the QP in that slot again, soon, whether the program polls or sleeps. Any lock may be held. */
void soft_again(struct soft_cq *cq, uint32_t slot);
void soft_again_unlocked(struct soft_cq *cq, uint32_t slot);
/* How long a requester waits for a receive in all; rnr_retry 7: for ever, which the caller looks at. */
uint64_t soft_rnr_ns(uint8_t rnr_retry, uint8_t min_rnr_timer);

/* ---- rx.c: the responder's side, for every path. rq_lock of the responder held. --------------------- */

struct soft_rx {
	uint8_t opcode; /* enum ibv_wr_opcode */
	bool solicited, grh;
	uint8_t sl;   /* in the completion */
	uint32_t imm; /* or key to invalidate */
	uint32_t src_qp;
	uint32_t length;          /* of the whole message; WRITE_WITH_IMM: bytes written */
	_Atomic(uint64_t) *acked; /* gets `ack` before the completion is seen; NULL: nothing does */
	uint64_t ack;
};
/* Returns 0, or an enum ibv_wc_status for the requester; adds the responder to after->fail if it must fail. */
int soft_rx_place(struct soft_qp *qp, uint32_t offset, const char *from, uint32_t n, struct soft_after *after);
int soft_rx_receive_done(struct soft_qp *qp, const struct soft_rx *rx, struct soft_after *after);
/* Ends the receive in use with an error completion. */
void soft_rx_receive_error(struct soft_qp *qp, enum ibv_wc_status status, struct soft_after *after);
/* Checked host address for a WRITE, READ or atomic; NULL: *status has the reason. */
char *soft_rx_remote(struct soft_qp *qp, uint8_t opcode, uint32_t rkey, uint64_t addr, uint32_t length, int *status,
		     struct soft_after *after);
/* False, both: the memory is not there any more, or may not be written. */
bool soft_rx_copy(char *to, const char *from, uint64_t n);
bool soft_rx_atomic(uint8_t opcode, char *at, uint64_t compare_add, uint64_t swap, uint64_t *old);
/* What a request ends with whose memory at the responder is not there: a status for the requester. */
int soft_rx_missing(struct soft_qp *qp, struct soft_after *after);
/* Counts for softdev_rnr(). */
void soft_count_rnr(void);

/* ---- placement.c: the pieces of a message, in the order in which they are placed. A QP lock held. ------- */

struct soft_order {
	uint32_t length, size, pieces, left, at, step;
};
/* Whether what reaches memory registered with that access has none; the memory of that key; all of that list. */
bool soft_any_order(uint32_t access);
bool soft_is_loose(uint32_t key);
bool soft_is_loose_list(const struct ibv_sge *sge, uint32_t n);
void soft_order_begin(struct soft_order *o, struct soft_qp *qp, uint32_t length);
bool soft_order_next(struct soft_order *o, uint32_t *offset, uint32_t *n);
/* Whether the next WRITE is placed before this one. */
bool soft_order_early(struct soft_qp *qp);
/* Copies in such an order. False: the memory is not there, or may not be written. */
bool soft_place(struct soft_qp *qp, char *to, const char *from, uint32_t n);

/* ---- ud.c ------------------------------------------------------------------------------------------- */

enum { SOFT_UD_MTU = 4096 };
/* Delivers a datagram to QP b, whose rq_lock is held. */
void soft_ud_deliver(struct soft_qp *b, const struct soft_rx *rx, uint32_t qkey, const uint8_t grh[SOFT_GRH_BYTES],
		     const char *payload, struct soft_after *after);

#endif

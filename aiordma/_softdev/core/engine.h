/*
 * The engines behind the objects of softdev.h: who runs what, and what passes between them.
 *
 *   post_send -> requester.c  -- same process --> local.c ---------------> rx.c (responder's side)
 *                             \- other process -> lane_requester.c => shared ring => lane_responder.c -> rx.c
 */
#ifndef AIORDMA_SOFT_ENGINE_H
#define AIORDMA_SOFT_ENGINE_H

#include "core/fabric.h"
#include "core/softdev.h"

/* Why a send queue stands still. */
enum soft_wait {
	SOFT_RUN,
	SOFT_WAIT_PEER,     /* destination not there (yet): retry timeout */
	SOFT_WAIT_RNR,      /* destination has no receive posted */
	SOFT_WAIT_ROOM,     /* request ring full */
	SOFT_WAIT_FENCE,    /* earlier READ or atomic not complete */
	SOFT_WAIT_DATAGRAM, /* UD: lane not there, or full; dropped after a while */
	SOFT_WAIT_ERROR,    /* the WR at sq_next has failed; earlier ones complete first */
};

enum soft_wqe_state {
	SOFT_WQE_POSTED,
	SOFT_WQE_SENT, /* in the lane; complete when the responder has acknowledged msn */
	SOFT_WQE_DONE,
};

struct soft_wqe {
	uint64_t wr_id;
	uint64_t msn;
	const struct ibv_sge *sge; /* the caller's while it is first tried, then the copy in sq_sge */
	uint32_t length;
	uint32_t offset; /* bytes placed (SEND, WRITE) or answered (READ) */
	uint32_t imm;    /* immediate as on the wire, or key to invalidate */
	uint32_t rkey;
	uint64_t raddr;
	uint16_t num_sge;
	uint8_t opcode, flags; /* enum ibv_wr_opcode, enum ibv_send_flags */
	uint8_t state;
	uint8_t status;    /* enum ibv_wc_status */
	bool answered;     /* READ, atomic: waits for response data */
	bool placed;       /* WRITE_WITH_IMM: data is there, the immediate is not sent */
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

/* What must be done when no QP lock is held any more. Passed down by every entry point. */
struct soft_after {
	struct soft_qp *fail; /* to ERR */
	struct soft_qp *pump; /* send queues that may go on */
};
void soft_after_fail(struct soft_after *after, struct soft_qp *qp);
void soft_after_pump(struct soft_after *after, struct soft_qp *qp);
void soft_after_run_slow(struct soft_after *after);
static inline void soft_after_run(struct soft_after *after)
{
	if (soft_unlikely(after->fail || after->pump))
		soft_after_run_slow(after);
}

static inline struct soft_wqe *soft_sq_at(struct soft_qp *qp, uint32_t i)
{
	return &qp->sq[i & qp->sq_mask];
}
static inline uint32_t soft_state(struct soft_qp *qp)
{
	return atomic_load_explicit(&qp->state, memory_order_acquire);
}
/* Answers requests of its peer. */
static inline bool soft_receives(uint32_t state)
{
	return state == IBV_QPS_RTR || state == IBV_QPS_RTS || state == IBV_QPS_SQD || state == IBV_QPS_SQE;
}

/* ---- proc.c: what the process has, and its tables ------------------------------------------------- */

struct soft_link;
struct soft_event;
struct soft_ud_out;
enum { SOFT_UD_BUCKETS = 256 };
struct soft_gone {
	uint64_t slab;
	struct soft_gone *next;
};
struct soft_proc {
	pthread_mutex_t lock;
	struct soft_ctx *contexts;
	unsigned nctx;
	uint32_t slot;   /* 0: none yet */
	uint64_t serial; /* last region serial given out */
	int listen_fd, kick_fd, timer_fd, epoll_fd;
	pthread_t thread;
	bool running;
	atomic_bool stop;

	struct soft_doors *doors; /* published: memfd */
	int doors_fd;
	struct soft_keys *keys_shm; /* published: memfd */
	int keys_fd, keys_ro_fd;    /* peers get the one they cannot write through */

	struct soft_qp *_Atomic qps[SOFT_MAX_QP];
	uint32_t qp_cursor;
	atomic_uint qp_used; /* highest index ever used + 1 */
	struct soft_region *_Atomic keys[SOFT_MAX_MR];
	uint32_t key_cursor;
	uint8_t key_tags[SOFT_MAX_MR];
	struct soft_cq *_Atomic cqs[SOFT_MAX_CQ];
	uint32_t cq_cursor;
	struct soft_lock cq_lock; /* finding a CQ in cqs and pinning it */
	struct soft_mw *_Atomic mws[SOFT_MAX_MR];

	struct soft_slab *slabs;
	uint64_t slab_serial;

	struct soft_lock service_lock;
	struct soft_gone *gone;     /* slabs that peers shall let go of */
	struct soft_qp *service;    /* QPs with something for the progress thread */
	_Atomic(uint64_t) timer_ns; /* when timer_fd is set for; 0: not */

	struct soft_lock ud_lock; /* innermost but for an event's */
	struct soft_ud_out *ud_out[SOFT_UD_BUCKETS];

	pthread_mutex_t links_lock; /* changes of the list; progress thread, fork */
	struct soft_link *links;
};
extern struct soft_proc soft_proc;

uint64_t soft_now_ns(void);
/* A clock that costs next to nothing: for "has it been long?" only. */
static inline uint64_t soft_ticks(void)
{
#if defined(__x86_64__)
	return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
	uint64_t ticks;
	__asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
	return ticks;
#else
	return soft_now_ns();
#endif
}
static inline void soft_pause(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}
static inline struct soft_qp *soft_qp_find(uint32_t number)
{
	if (number >> SOFT_QPN_INDEX_BITS != soft_proc.slot)
		return NULL;
	struct soft_qp *qp = atomic_load_explicit(&soft_proc.qps[number & (SOFT_MAX_QP - 1)], memory_order_acquire);
	return qp && atomic_load_explicit(&qp->number, memory_order_relaxed) == number ? qp : NULL;
}
/* Wakes the progress thread. */
void soft_kick_self(void);
/* How long a requester that sleeps lets its peer take for an acknowledgement before it kicks the peer. */
enum { SOFT_STALL_NS = 4000000 };
/* The progress thread looks at everything that waits no later than this. */
void soft_timer_want(uint64_t when_ns);
/* A process of this user on this host has that slot (unix_link.c). */
bool soft_slot_taken(uint32_t slot);

/* ---- pd_mr.c -------------------------------------------------------------------------------------- */

static inline struct soft_region *soft_key_find(uint32_t key)
{
	uint32_t index = key >> 8;
	if (soft_unlikely(index >= SOFT_MAX_MR))
		return NULL;
	struct soft_region *r = atomic_load_explicit(&soft_proc.keys[index], memory_order_acquire);
	return r && r->key == key ? r : NULL;
}
static inline bool soft_region_covers(const struct soft_region *r, uint64_t addr, uint64_t length)
{
	return addr >= r->base && length <= r->length && addr - r->base <= r->length - length;
}
struct soft_pd *soft_pd_root(struct soft_pd *pd);
/* Host address of [addr, addr + length) by a local key of the PD, or NULL. Under a QP lock. */
char *soft_local_addr(struct soft_pd *pd, uint32_t lkey, uint64_t addr, uint64_t length, uint32_t access);
/* The same by a remote key for a QP; all bits of access must be granted. Zero length asks nothing. */
char *soft_remote_addr(struct soft_qp *qp, uint32_t rkey, uint64_t addr, uint64_t length, uint32_t access);
/* SEND_WITH_INV and LOCAL_INV: an enum ibv_wc_status for the side that asked. Under a QP lock. */
int soft_key_invalidate(struct soft_qp *qp, uint32_t key, bool remote);
int soft_mw_bind(struct soft_qp *qp, struct ibv_mw *mw, const struct ibv_mw_bind_info *info, uint32_t rkey);
/* Windows by key index. */
void soft_mw_enter(struct soft_mw *mw);
void soft_mw_leave(struct soft_mw *mw);
struct soft_mw *soft_mw_find(uint32_t index);
struct ibv_mw *soft_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type);
int soft_dealloc_mw(struct ibv_mw *mw);
int soft_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind);
/* Returns when no QP of the process, and no mapped peer, is inside an access that began before. */
void soft_quiesce(void);

/* ---- slab.c --------------------------------------------------------------------------------------- */

struct soft_slab {
	char *addr;
	size_t length;
	int fd, fd_ro;
	uint64_t id;
	struct soft_pd *pd;
	atomic_uint regions;
	struct soft_slab *next;
};
struct soft_slab *soft_slab_find(const char *addr, uint64_t length);
/* The same memory through a descriptor that allows reading only. -1: there is none (no /proc). */
int soft_shm_read_only(int fd);
/* memfd of that many bytes, sealed against resizing, mapped. -1 with errno. */
int soft_shm_create(const char *name, size_t length, void **map);
/* Maps a memfd somebody else made; refuses one that could shrink under us. NULL with errno. */
void *soft_shm_map(int fd, size_t length, int prot);

/* ---- cq.c ----------------------------------------------------------------------------------------- */

int soft_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc);
int soft_req_notify_cq(struct ibv_cq *cq, int solicited_only);
/* Entry of soft_cq.slots: a QP and, in the lowest bit, which of its sides the door bit stands for. */
#define SOFT_SLOT_SEND ((uintptr_t)1)
/* Runs what the doors of this CQ announce, and its hot lanes. */
void soft_cq_progress(struct soft_cq *cq);
/* The hot lanes only. */
void soft_cq_visit_hot(struct soft_cq *cq);
/* Senders to that slot ring again. What they published before shows in the lane. */
void soft_cq_cool(struct soft_cq *cq, uint32_t slot);
/* Fails the QPs of a CQ that has overrun. */
void soft_cq_break(struct soft_cq *cq);
/* Kicks the peers whose acknowledgements are overdue. */
void soft_cq_idle(struct soft_cq *cq);
int soft_cq_slot_get(struct soft_cq *cq, struct soft_qp *qp, bool send);
void soft_cq_slot_put(struct soft_cq *cq, uint32_t slot);
/* Drops what a QP that is being destroyed left in a CQ. */
void soft_cq_purge(struct soft_cq *cq, uint32_t qp_num);

/* The progress thread finds it no more. */
void soft_cq_unpublish(struct soft_cq *cq);
void soft_cq_wait_unpinned(struct soft_cq *cq);
/* Makes the channel readable. */
void soft_chan_wake(struct soft_chan *chan);
void soft_chan_join(struct soft_cq *cq);
/* Off the channel's lists, after all delivered events were acknowledged. */
void soft_chan_leave(struct soft_cq *cq);

/* ---- faults.c ------------------------------------------------------------------------------------- */

enum soft_fault {
	SOFT_FAULT_EVENT,     /* completion event lost */
	SOFT_FAULT_SPURIOUS,  /* completion channel readable for nothing */
	SOFT_FAULT_ERROR,     /* a work request fails */
	SOFT_FAULT_DROP,      /* UD datagram lost */
	SOFT_FAULT_DUPLICATE, /* UD datagram delivered twice */
	SOFT_FAULT_DELAY,     /* acknowledgement late */
	SOFT_FAULT_REORDER,   /* UD datagram overtaken by the next one to its QP */
	SOFT_FAULT_CORRUPT,   /* UD datagram with a bit changed */
	SOFT_FAULT_WIRE_DROP, /* packets from other hosts: lost, ... */
	SOFT_FAULT_WIRE_DUPLICATE,
	SOFT_FAULT_WIRE_REORDER,  /* overtaken by the next one */
	SOFT_FAULT_WIRE_CORRUPT,  /* a bit changed */
	SOFT_FAULT_WIRE_DELAY,    /* a millisecond late */
	SOFT_FAULT_WIRE_MARK,     /* congestion experienced */
	SOFT_FAULT_WIRE_RENUMBER, /* to other hosts, behind the first of a run: another IPv4 identification */
	SOFT_FAULT_KINDS,
};
extern atomic_bool soft_faults_on;
bool soft_fault_hit(enum soft_fault kind);
void soft_faults_read(void);
static inline bool soft_fault(enum soft_fault kind)
{
	return soft_unlikely(atomic_load_explicit(&soft_faults_on, memory_order_relaxed)) && soft_fault_hit(kind);
}

/* ---- qp.c, qp_fsm.c ------------------------------------------------------------------------------- */

/* Moves to ERR and flushes both queues. No QP lock held. */
void soft_qp_error(struct soft_qp *qp, struct soft_after *after);
/* Completes all receives with a flush error. rq_lock held. */
void soft_rq_flush(struct soft_qp *qp);
void soft_qp_set_state(struct soft_qp *qp, enum ibv_qp_state state);
int soft_qp_modify(struct soft_qp *qp, struct ibv_qp_attr *attr, int mask);
void soft_qp_reset(struct soft_qp *qp);
/* Receives what has come so far. Before the program ends the queue pair; no lock held. */
void soft_qp_last_look(struct soft_qp *qp);

/* ---- rq.c ----------------------------------------------------------------------------------------- */

int soft_rq_init(struct soft_rq *rq, uint32_t max_wr, uint32_t max_sge);
void soft_rq_free(struct soft_rq *rq);
static inline struct soft_rwqe *soft_rq_at(struct soft_rq *rq, uint32_t i)
{
	return (struct soft_rwqe *)(rq->wqes + (size_t)(i & rq->mask) * rq->stride);
}
/* Takes the next receive of the QP or its SRQ into qp->current. False: none posted. rq_lock held. */
bool soft_rq_take(struct soft_qp *qp);
/* Gives qp->current's slot back, after its completion. rq_lock held. */
void soft_rq_release(struct soft_qp *qp);

/* ---- requester.c ---------------------------------------------------------------------------------- */

/* All with sq_lock held. */
void soft_sq_pump(struct soft_qp *qp, struct soft_after *after);
void soft_sq_retire(struct soft_qp *qp, struct soft_after *after);
void soft_sq_flush(struct soft_qp *qp);
/* The destination's process has said that its QP is not ready. */
void soft_sq_heard(struct soft_qp *qp);
/* The deadline has come: takes sq_lock itself. */
void soft_sq_timeout(struct soft_qp *qp, struct soft_after *after);
/* The caller's lists and inline bytes are his again when post_send returns: copies them. False: no memory. */
bool soft_wqe_keep(struct soft_qp *qp, struct soft_wqe *wqe);
/* Copies bytes [offset, offset + n) of the WR's payload out; false: a local key does not allow it. */
bool soft_wqe_gather(struct soft_qp *qp, const struct soft_wqe *wqe, uint32_t offset, char *to, uint32_t n);
/* Copies response bytes into the WR's buffers. */
bool soft_wqe_scatter(struct soft_qp *qp, const struct soft_wqe *wqe, uint32_t offset, const char *from, uint32_t n);
/* Absolute time at which a wait beginning now ends; 0 = never. */
uint64_t soft_retry_deadline(const struct soft_qp *qp);
uint64_t soft_rnr_deadline(uint8_t rnr_retry, uint8_t min_rnr_timer);
/* For aiordma_soft_rnr(). */
void soft_count_rnr(void);

/* ---- rx.c: the responder's side, whoever runs it. rq_lock of the responder held. -------------------- */

struct soft_rx {
	uint8_t opcode; /* enum ibv_wr_opcode */
	bool solicited, grh;
	uint32_t imm; /* or key to invalidate */
	uint32_t src_qp;
	uint32_t length; /* of the whole message; WRITE_WITH_IMM: bytes written */
};
/* 0, or an enum ibv_wc_status for the requester; then the responder is on after->fail if it has to be. */
int soft_rx_place(struct soft_qp *qp, uint32_t offset, const char *from, uint32_t n, struct soft_after *after);
int soft_rx_receive_done(struct soft_qp *qp, const struct soft_rx *rx, struct soft_after *after);
/* Gives up the receive in use with an error completion. */
void soft_rx_receive_error(struct soft_qp *qp, enum ibv_wc_status status, struct soft_after *after);
/* Host address for a WRITE, READ or atomic, checked; NULL: *status says why. */
char *soft_rx_remote(struct soft_qp *qp, uint8_t opcode, uint32_t rkey, uint64_t addr, uint32_t length, int *status,
		     struct soft_after *after);
void soft_rx_copy(char *to, const char *from, uint64_t n);
uint64_t soft_rx_atomic(uint8_t opcode, char *at, uint64_t compare_add, uint64_t swap);

/* ---- local.c -------------------------------------------------------------------------------------- */

enum soft_run {
	SOFT_RUN_DONE, /* complete, or failed: wqe->status says */
	SOFT_RUN_SENT, /* in the lane */
	SOFT_RUN_WAIT, /* qp->wait says for what */
};
enum soft_run soft_local_run(struct soft_qp *qp, struct soft_wqe *wqe, struct soft_after *after);

/* ---- ud.c ----------------------------------------------------------------------------------------- */

/* A datagram for qp, whose rq_lock is held. */
void soft_ud_deliver(struct soft_qp *b, const struct soft_rx *rx, uint32_t qkey, const uint8_t grh[SOFT_GRH_BYTES],
		     const char *payload, struct soft_after *after);
/* Takes the datagrams that other processes sent to this QP. rq_lock held. */
void soft_ud_progress(struct soft_qp *qp, struct soft_after *after);
/* The QP leaves: lanes that lead to it are closed. rq_lock held. */
void soft_ud_leave(struct soft_qp *qp);
enum { SOFT_UD_MTU = 4096 };
enum soft_run soft_ud_send(struct soft_qp *qp, struct soft_wqe *wqe, uint32_t qkey, const uint8_t grh[SOFT_GRH_BYTES],
			   const char *payload);
enum soft_run soft_ud_run(struct soft_qp *qp, struct soft_wqe *wqe, struct soft_after *after);

/* ---- wire_*.c: destinations on other hosts. More in internal.h. ------------------------------------------ */

struct soft_wire;
enum wire_mode { WIRE_OFF, WIRE_AUTO, WIRE_ONLY };
enum wire_mode soft_wire_mode(void);
/* Is this path the wire's? By the mode and whether the destination is on this host. */
bool soft_wire_wanted(struct soft_ctx *ctx, const struct ibv_ah_attr *ah);
void soft_wire_close(void);
void soft_wire_after_fork(void);

/* QPs and address handles that lead to other hosts: while there are any, polls look at the sockets. */
extern atomic_uint soft_wire_users;
/* Looks for packets and deals with them. A poll of a CQ: gives way when somebody else is at it. */
void soft_wire_poll(void);
/* A poller goes to sleep: the progress thread is to be woken by packets again. */
void soft_wire_rewatch(void);
/* The progress thread: an epoll event of ours; it came; the timer went off. */
bool soft_wire_is_socket(const void *what);
void soft_wire_progress(void *port);
void soft_wire_tick(void);
/* Takes what has come before the progress thread acts on what has not. */
void soft_wire_catch_up(void);

/* The end of a QP that goes to RTR with these attributes. NULL: *err. No lock held. */
struct soft_wire *soft_wire_make(struct soft_qp *qp, const struct ibv_qp_attr *attr, int *err);
void soft_wire_discard(struct soft_wire *wire);
/* Path MTU that it uses. */
enum ibv_mtu soft_wire_path_mtu(const struct soft_wire *wire);
/* It went to RTS, for the first time or again. sq_lock held. */
void soft_wire_rts(struct soft_qp *qp, bool first);
/* Both locks held. */
void soft_wire_join(struct soft_qp *qp, struct soft_wire *wire);
void soft_wire_leave(struct soft_qp *qp);
/* sq_lock held, all of them; the same as soft_out_run() and so on for lanes. */
enum soft_run soft_wire_run(struct soft_qp *qp, struct soft_wqe *wqe);
void soft_wire_push(struct soft_qp *qp);
uint64_t soft_wire_issued(const struct soft_qp *qp);
uint64_t soft_wire_acked(struct soft_qp *qp);
void soft_wire_idle(struct soft_qp *qp);
/* qp.wire_due_ns may have come. Takes the lock itself. */
void soft_wire_timer(struct soft_qp *qp, struct soft_after *after);
/* An address handle that leads to another host: opens the sockets, fills route and max. 0 or errno. */
int soft_wire_ah(struct soft_ctx *ctx, struct soft_ah *ah);
void soft_wire_ah_free(struct soft_ah *ah);
/* A datagram to another host. */
void soft_wire_ud_send(struct soft_qp *qp, const struct soft_wqe *wqe, uint32_t qkey, const char *payload);

/* ---- lane_requester.c, lane_responder.c ---------------------------------------------------------------------------------- */

/* Last message number given out, and last one acknowledged. qp->out is there. */
uint64_t soft_out_issued(const struct soft_qp *qp);
uint64_t soft_out_acked(const struct soft_qp *qp);
/* Nothing is outstanding any more: the QP was flushed. */
void soft_out_idle(struct soft_qp *qp);
enum soft_run soft_out_run(struct soft_qp *qp, struct soft_wqe *wqe);
/* Waits until the requester of qp->in is not inside a direct access. rq_lock held. */
void soft_in_quiesce(struct soft_qp *qp);
/* Rings the responder's door for what was put in the lane since. */
void soft_out_flush(struct soft_qp *qp);
/* The same for anybody's door, when the CQ behind it is armed for what came. */
void soft_door_fire(struct soft_door *door, const struct soft_event *event, bool solicited);
/* Takes acknowledgements only. False: the responder broke the rules. */
bool soft_out_collect_acks(struct soft_qp *qp);
/* Attributes of the QP that the responder must know. */
void soft_out_settings(struct soft_qp *qp);
/* Takes acknowledgements and responses. sq_lock held. */
void soft_out_collect(struct soft_qp *qp, struct soft_after *after);
/* Access rights of the QP changed: peers ask again. rq_lock held. */
void soft_in_rights_changed(struct soft_qp *qp);
/* The QP answers no more. rq_lock held. */
void soft_in_close(struct soft_qp *qp);
/* Takes requests. True: there were some. rq_lock held. */
bool soft_in_progress(struct soft_qp *qp, struct soft_after *after);
/* The requester has waited long for an acknowledgement: let its peer's progress thread look. sq_lock held.
 * False: nothing is outstanding. */
bool soft_out_kick(struct soft_qp *qp);

/* ---- unix_link.c --------------------------------------------------------------------------------------- */

enum {
	SOFT_SERVICE_CONNECT = 1,   /* out lane wanted */
	SOFT_SERVICE_RESOLVE = 2,   /* rkeys to ask for */
	SOFT_SERVICE_DATAGRAM = 16, /* lanes to UD QPs wanted */
	SOFT_SERVICE_REDIAL = 8,    /* nobody was there; the timer asks again */
	SOFT_SERVICE_READY = 4,     /* became a responder: attach requests that came early */
};
void soft_service(struct soft_qp *qp, uint32_t what);
/* Peers that mapped the slab let go of it. */
void soft_links_slab_gone(uint64_t slab_id);
/* After fork(), in the child: the sockets of the parent. */
void soft_links_close_fds(void);
/* Both ends of a QP's lanes go; takes the locks itself. */
void soft_lanes_drop(struct soft_qp *qp);
int soft_thread_start(void);
void soft_thread_stop(void);

#endif

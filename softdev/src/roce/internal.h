/*
 * RoCE: declarations that the files of this folder share.
 *
 *   ibv_modify_qp -> verbs -> make.c
 *   post_send -> core -> qp.c -> ask.c -> send.c => network
 *   network => receive.c -> rx.c (a poll, or the progress thread) -> qp.c -> ask.c / answer.c -> memory.c -> core
 *
 * Ports. Each process of an address has its own port, derived from the process number in its QP numbers. The first
 * process also has 4791, sends from there, and forwards packets meant for the others. If a peer proves to send from one
 * of its two ports (peer.h), answers go to that port; all other peers are addressed at 4791.
 *
 * Locks. receive lock > qp.sq_lock > qp.rq_lock; sending needs only the lock that the queue pair takes anyway.
 */
#ifndef SOFTDEV_ROCE_INTERNAL_H
#define SOFTDEV_ROCE_INTERNAL_H

#include <netinet/in.h>
#include <sys/socket.h>

#include "roce/icrc.h"
#include "roce/rate.h"
#include "roce/rc.h"
#include "roce/roce.h"

enum {
	/* Differentiated services, unless the user chose others (traffic_class.c). */
	ROCE_DSCP = 46,
	ROCE_CNP_DSCP = 48,
	ROCE_ECT = 2,             /* routers may mark it instead of dropping it */
	ROCE_CE = 3,              /* a router marked it */
	ROCE_CNP_NS = 50000,      /* minimum time between two notifications to one sender */
	ROCE_OWN_PORT = 24791,    /* plus the process's slot */
	ROCE_FORWARDED = 1 << 16, /* beside a port */
	ROCE_MAD_QPN = 1,
	ROCE_BATCH = 64,
	ROCE_BATCH_BYTES = 65507, /* largest UDP payload over IPv4: a batch may leave as one message */
};

struct roce_counters {
	_Atomic(uint64_t) sent, runs, received, send_failed, malformed, bad_icrc, no_qp, wrong_peer, forwarded;
	_Atomic(uint64_t) marked, cnps_sent, cnps_received, paced;
};
extern struct roce_counters soft_roce_counters;
_Static_assert(SOFT_ROCE_UDP_PORT == (int)ROCE_PORT, "one number, also for those that do not know packets");

struct roce_port; /* port.h */

/* The destination of the packets of one QP or one address handle. */
struct roce_route {
	struct roce_path path;
	struct roce_port *source; /* socket to send from; NULL: the one of path.src_port */
	uint32_t scope;           /* interface, for link-local addresses */
	uint8_t traffic_class;
	bool here; /* on this host */
	bool runs; /* may send several packets as one (send.c), regardless of runs.h */
};

enum roce_peer { ROCE_UNHEARD, ROCE_OTHERS, ROCE_OURS };
/* What is known of the sender of a packet. */
enum roce_sender { ROCE_STRANGER, ROCE_UNPROVEN, ROCE_PROVEN };

/* The RoCE state of one connected QP. */
struct soft_roce {
	struct roce_ask ask;             /* sq_lock */
	struct roce_answer answer;       /* rq_lock */
	struct roce_route route;         /* change under both locks, read under either; dst_port: atomic */
	struct roce_runs *runs[2];       /* the same lock rule; [0] for peers of other kinds, [1] for softdev devices */
	_Atomic(uint8_t) peer;           /* enum roce_peer, derived from its port */
	struct roce_port *source;        /* for peers of other kinds; NULL: none. Lock rule as for route */
	_Atomic(uint16_t) port;          /* of the peer, for packets to it */
	_Atomic(uint32_t) proven;        /* source of the packets that were its own: port, ROCE_FORWARDED; 0: none */
	uint32_t seen;                   /* ask.head at the last check */
	uint64_t blocked_until;          /* the socket was full, or the rate limit was reached; 0: not blocked */
	_Atomic(uint64_t) answers_until; /* the same for answers; change under rq_lock */
	struct soft_lock rate_lock;      /* innermost */
	struct roce_rate rate;           /* of requests and of READ responses */
	_Atomic(uint64_t) cnp_at;        /* time of the last congestion notification to the peer */
	atomic_bool owes;                /* an acknowledgement is due, with the next request or at the next check */
	atomic_bool unanswered;          /* the last message was acknowledged at once, and no request has left since */
	atomic_uint answered;            /* messages in a row that a request of this end followed before the next one */
	struct soft_wqe **wqes;          /* by message index & mask */
	struct soft_qp *qp;
	struct soft_after *after; /* of the current call, rq_lock */
};

/* ---- socket.c ---------------------------------------------------------------------------------- */

/* Opens the sockets if they are not open yet. 0 or errno. */
int soft_roce_open(void);
/* The port of the process on this host that owns that QP. */
static inline uint16_t soft_roce_own_port(uint32_t qpn)
{
	return (uint16_t)(ROCE_OWN_PORT + (qpn >> SOFT_QPN_INDEX_BITS));
}
/* Only our devices send from these ports. */
static inline bool soft_roce_is_ours(uint16_t port)
{
	return port == ROCE_PORT || (port >= ROCE_OWN_PORT && port < ROCE_OWN_PORT + SOFT_MAX_SLOT);
}
/* Addresses and ports for a valid address vector. */
void soft_roce_route(struct soft_ctx *ctx, const struct ibv_ah_attr *ah, uint32_t qpn, struct roce_route *route);
/* Answers arrive at the port that it sends from, so polls check that port from now on. */
void soft_roce_heat(const struct roce_route *route);
/* The largest path MTU whose packets fit the path to that address; 0 with errno: no route. */
enum ibv_mtu soft_roce_mtu(const struct roce_route *route);
/* How many packets with this payload size fit a receive buffer of our size. */
uint32_t soft_roce_buffered(const struct roce_route *route, uint32_t mtu);
/* Starts or stops waking the progress thread for packets (stopped while a thread polls). False: only partly done. */
bool soft_roce_watch(bool on);
/* Whether an epoll event belongs to this folder. */
bool soft_roce_is_socket(const void *what);
void soft_roce_close(void);
void soft_roce_after_fork(void);

/* ---- source.c ---------------------------------------------------------------------------------- */

/* A socket bound to the route's address, for sending to devices of other kinds. NULL: none exists. */
struct roce_port *soft_roce_source(const struct roce_route *route);

/* ---- traffic_class.c ----------------------------------------------------------------------------------- */

/* Traffic classes for packets where a user asks for `wanted` (DSCP 0: no preference), and for congestion
 * notifications. */
uint8_t soft_roce_class(uint8_t wanted);
uint8_t soft_roce_cnp_class(void);

/* ---- send.c ------------------------------------------------------------------------------------ */

/* Packets that one thread is about to pass to the kernel, all on one route. */
struct roce_batch {
	unsigned count; /* packets */
	unsigned runs;  /* messages to the kernel: packets of equal size, except that the last may be shorter */
	size_t used;
	struct roce_port *port;
	bool split; /* soft_roce_send() found a run that the kernel did not accept as one message */
	struct roce_path path;
	uint8_t traffic_class;
	struct mmsghdr messages[ROCE_BATCH];
	struct {
		uint16_t packets, size; /* size of the first */
		bool ended;
	} run[ROCE_BATCH];
	struct iovec iov[ROCE_BATCH];
	struct sockaddr_in6 to[ROCE_BATCH];
	union {
		char bytes[CMSG_SPACE(sizeof(struct in6_pktinfo)) + CMSG_SPACE(sizeof(int)) +
			   CMSG_SPACE(sizeof(uint16_t))];
		struct cmsghdr align;
	} control[ROCE_BATCH];
	uint8_t bytes[ROCE_BATCH_BYTES];
};
/* This thread's batch, empty. NULL: out of memory. */
struct roce_batch *soft_roce_batch(void);
/* Buffer for the next packet (at most ROCE_MAX_PACKET bytes). */
static inline uint8_t *soft_roce_room(struct roce_batch *batch)
{
	return batch->bytes + batch->used;
}
static inline bool soft_roce_full(const struct roce_batch *batch)
{
	return batch->count == ROCE_BATCH || batch->used > ROCE_BATCH_BYTES - ROCE_MAX_PACKET;
}
/* Adds the packet in the buffer and appends its ICRC. Returns its place in its run. */
unsigned soft_roce_add(struct roce_batch *batch, const struct roce_route *route, size_t size);
/* Returns how many packets left; the caller sends the rest later or treats it as lost. The batch is then empty. */
unsigned soft_roce_send(struct roce_batch *batch);

/* ---- receive.c --------------------------------------------------------------------------------- */

struct roce_inbound {
	struct roce_path path;
	uint8_t tos;
	uint16_t place; /* place in what arrived as one datagram, from 0 */
	uint32_t
		forwarded; /* ROCE_FORWARDED: by the process that has port 4791, which vouches for path and tos; else 0 */
	const uint8_t *bytes;
	size_t size;
};
typedef void roce_receiver(void *context, const struct roce_inbound *packet);
/*
 * Reads once whatever has arrived at that port, at all ports (ROCE_EVERY_PORT), or at all ports that received packets
 * before (NULL). Returns the number of packets. One thread at a time.
 */
unsigned soft_roce_receive(void *port, roce_receiver *receiver, void *context);
/* Forwards to the process of that slot on this host. */
void soft_roce_forward(uint32_t slot, const struct roce_inbound *in);

/* ---- observe.c ----------------------------------------------------------------------------------- */

/* Starts the capture that the environment asks for. */
void soft_roce_capture_read(void);
/* Records a sent or received packet if a capture runs. id: its IPv4 identification. */
void soft_roce_capture(const struct roce_path *path, uint8_t tos, uint16_t id, const uint8_t *bytes, size_t size);
void soft_roce_capture_inbound(const struct roce_inbound *in);

/* ---- faults.c: the thread that receives ---------------------------------------------------------- */

/* Passes a packet on, drops it, repeats it, ... */
void soft_roce_disturb(const struct roce_inbound *in, roce_receiver *receiver, void *context);
/* Delivers delayed packets that are due. */
void soft_roce_release(roce_receiver *receiver, void *context);

/* ---- rx.c -------------------------------------------------------------------------------------- */

/* See struct soft_fabric_ops. */
void soft_roce_poll(void);
void soft_roce_rewatch(void);
void soft_roce_tick(void);
/* The progress thread calls this when packets have arrived at that port. */
void soft_roce_progress(void *port);
/* Processes what has arrived before the progress thread acts on missing packets. */
void soft_roce_catch_up(void);
void soft_roce_rx_after_fork(void);

/* ---- mad.c ------------------------------------------------------------------------------------------ */

/* A packet for queue pair 1. */
void soft_roce_mad_take(const struct roce_packet *packet, const struct roce_inbound *in);

/* ---- knock.c ---------------------------------------------------------------------------------------- */

void soft_roce_knock_after_fork(void);

/* ---- ud.c ------------------------------------------------------------------------------------------- */

/* Opens the ports, so that datagrams can come. */
void soft_roce_ud_expect(void);
/* A datagram to another host. */
enum soft_run soft_roce_ud_send(struct soft_qp *qp, struct soft_wqe *wqe, uint32_t qkey,
				const uint8_t grh[SOFT_GRH_BYTES], const char *payload);
/* A datagram for this QP. */
void soft_roce_ud_take(struct soft_qp *qp, const struct roce_packet *packet, const struct roce_inbound *in,
		       struct soft_after *after);

/* ---- memory.c ---------------------------------------------------------------------------------- */

extern const struct roce_ask_owner soft_roce_ask_calls;
extern const struct roce_answer_owner soft_roce_answer_calls;

/* ---- make.c ------------------------------------------------------------------------------------- */

/* Applies the attributes of RTS. The caller holds sq_lock. */
void soft_roce_rts(struct soft_qp *qp, bool first);

/* ---- notify.c ---------------------------------------------------------------------------------- */

/* A router has marked a packet of this flow: notifies its sender, at a limited rate. The caller holds one of the
 * locks. */
void soft_roce_notify(struct soft_roce *w);
/* A congestion notification for this QP. */
void soft_roce_notified(struct soft_qp *qp, const struct roce_packet *packet, const struct roce_inbound *inbound);

/* ---- qp.c -------------------------------------------------------------------------------------- */

/* qp.roce_due_ns has come. Takes the lock itself. */
void soft_roce_timer(struct soft_qp *qp, struct soft_after *after);
/* A packet for this QP. Takes the locks itself. */
void soft_roce_take(struct soft_qp *qp, const struct roce_packet *packet, const struct roce_inbound *inbound,
		    struct soft_after *after);
/*
 * Call after the packets of a batch: sends answers, then requests that may continue. later: an acknowledgement may wait
 * for soft_roce_answer(). True: one does.
 */
bool soft_roce_go_on(struct soft_qp *qp, bool later, struct soft_after *after);
/* Sends the waiting acknowledgement. False: it still waits, because another thread holds the lock (never if wait). */
bool soft_roce_answer(struct soft_qp *qp, bool wait, struct soft_after *after);

#endif

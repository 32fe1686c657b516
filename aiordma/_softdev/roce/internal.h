/*
 * RoCE: what the files of this folder have in common.
 *
 *   ibv_modify_qp -> verbs -> make.c
 *   post_send -> core -> qp.c -> ask.c -> send.c => network
 *   network => receive.c -> rx.c (a poll, or the progress thread) -> qp.c -> ask.c / answer.c -> memory.c -> core
 *
 * Ports. Every process of an address has a port of its own, found from the process number in its QP numbers; the
 * first one has 4791 too, sends from there, and hands on what came for others. A peer that is heard from one of those
 * ports is answered there; everybody else is talked to at 4791.
 *
 * Locks. receive lock > qp.sq_lock > qp.rq_lock; sending needs no more than what the queue pair needs anyway.
 */
#ifndef AIORDMA_WIRE_INTERNAL_H
#define AIORDMA_WIRE_INTERNAL_H

#include <netinet/in.h>
#include <sys/socket.h>

#include "roce/icrc.h"
#include "roce/rate.h"
#include "roce/rc.h"
#include "roce/roce.h"

enum {
	/* Differentiated services, unless the user (traffic_class.c) has others. */
	WIRE_DSCP = 46,
	WIRE_CNP_DSCP = 48,
	WIRE_ECT = 2,          /* routers may mark it instead of dropping it */
	WIRE_CE = 3,           /* one has */
	WIRE_CNP_NS = 50000,   /* between two notifications to one sender */
	WIRE_OWN_PORT = 24791, /* plus the process's slot */
	WIRE_MAD_QPN = 1,
	WIRE_BATCH = 64,
	WIRE_BATCH_BYTES = 65507, /* what UDP over IPv4 carries: a batch may leave as one */
};

struct wire_counters {
	_Atomic(uint64_t) sent, runs, received, send_failed, malformed, bad_icrc, no_qp, wrong_peer, forwarded;
	_Atomic(uint64_t) marked, cnps_sent, cnps_received, paced;
};
extern struct wire_counters soft_wire_counters;
_Static_assert(SOFT_WIRE_UDP_PORT == (int)WIRE_PORT, "one number, also for those that do not know packets");

struct wire_port; /* port.h */

/* Where packets of one QP, or to one address handle, go. */
struct wire_route {
	struct wire_path path;
	struct wire_port *source; /* leaves by that one; NULL: by the one that path.src_port says */
	uint32_t scope;           /* interface, for link-local addresses */
	uint8_t traffic_class;
	bool here; /* on this host */
	bool runs; /* several packets may be sent as one (send.c), whatever runs.h says */
};

enum wire_peer { WIRE_UNHEARD, WIRE_OTHERS, WIRE_OURS };

/* One connected QP's end. */
struct soft_wire {
	struct wire_ask ask;             /* sq_lock */
	struct wire_answer answer;       /* rq_lock */
	struct wire_route route;         /* both to change, either to read; dst_port: atomic */
	struct wire_runs *runs[2];       /* the same: if the peer is another's device, or ours */
	_Atomic(uint8_t) peer;           /* enum wire_peer, as its port says */
	struct wire_port *source;        /* for others; NULL: none. As the route */
	_Atomic(uint16_t) port;          /* of the peer */
	uint32_t seen;                   /* ask.head when last looked at */
	uint64_t blocked_until;          /* the socket was full, or the rate is; 0: not */
	_Atomic(uint64_t) answers_until; /* the same for answers; rq_lock to change */
	struct soft_lock rate_lock;      /* innermost */
	struct wire_rate rate;           /* of requests and of answers to READs */
	_Atomic(uint64_t) cnp_at;        /* when the peer was last told of congestion */
	atomic_bool owes;                /* an acknowledgement, to leave with the next request or at the next look */
	struct soft_wqe **wqes;          /* by message index & mask */
	struct soft_qp *qp;
	struct soft_after *after; /* of the call that is under way, rq_lock */
};

/* ---- socket.c ---------------------------------------------------------------------------------- */

/* Opens the sockets if they are not yet. 0 or errno. */
int soft_wire_open(void);
/* Of the process on this host that has that QP. */
static inline uint16_t soft_wire_own_port(uint32_t qpn)
{
	return (uint16_t)(WIRE_OWN_PORT + (qpn >> SOFT_QPN_INDEX_BITS));
}
/* Nobody else sends from those. */
static inline bool soft_wire_is_ours(uint16_t port)
{
	return port == WIRE_PORT || (port >= WIRE_OWN_PORT && port < WIRE_OWN_PORT + SOFT_MAX_SLOT);
}
/* Addresses and ports for an address vector that is valid. */
void soft_wire_route(struct soft_ctx *ctx, const struct ibv_ah_attr *ah, uint32_t qpn, struct wire_route *route);
/* Its answers will come to the port that it sends from: polls look there from now on. */
void soft_wire_heat(const struct wire_route *route);
/* The largest path MTU whose packets fit what leads there; 0: nothing leads there. */
enum ibv_mtu soft_wire_mtu(const struct wire_route *route);
/* Packets with so much payload that a receive buffer like ours holds. */
uint32_t soft_wire_buffered(const struct wire_route *route, uint32_t mtu);
/* The progress thread is told of packets, or not (somebody polls). False: not all of it could be done. */
bool soft_wire_watch(bool on);
/* An epoll event of ours? */
bool soft_wire_is_socket(const void *what);
void soft_wire_close(void);
void soft_wire_after_fork(void);

/* ---- source.c ---------------------------------------------------------------------------------- */

/* A socket of the route's address, to send from to peers that are not ours. NULL: it has none. */
struct wire_port *soft_wire_source(const struct wire_route *route);

/* ---- traffic_class.c ----------------------------------------------------------------------------------- */

/* What to send with, where a user wants `wanted` (DSCP 0: no matter), and for congestion notifications. */
uint8_t soft_wire_class(uint8_t wanted);
uint8_t soft_wire_cnp_class(void);

/* ---- send.c ------------------------------------------------------------------------------------ */

/* Packets on their way to the kernel, of one thread, all by one route. */
struct wire_batch {
	unsigned count; /* packets */
	unsigned runs;  /* messages to the kernel: packets of one size, but for the last, which may be shorter */
	size_t used;
	struct wire_port *port;
	bool split; /* soft_wire_send() found a run that the kernel did not take as one */
	struct wire_path path;
	uint8_t traffic_class;
	struct mmsghdr messages[WIRE_BATCH];
	struct {
		uint16_t packets, size; /* size of the first */
		bool ended;
	} run[WIRE_BATCH];
	struct iovec iov[WIRE_BATCH];
	struct sockaddr_in6 to[WIRE_BATCH];
	union {
		char bytes[CMSG_SPACE(sizeof(struct in6_pktinfo)) + CMSG_SPACE(sizeof(int)) +
			   CMSG_SPACE(sizeof(uint16_t))];
		struct cmsghdr align;
	} control[WIRE_BATCH];
	uint8_t bytes[WIRE_BATCH_BYTES];
};
/* This thread's, empty. NULL: no memory. */
struct wire_batch *soft_wire_batch(void);
/* Room for the next packet (of at most WIRE_MAX_PACKET bytes). */
static inline uint8_t *soft_wire_room(struct wire_batch *batch)
{
	return batch->bytes + batch->used;
}
static inline bool soft_wire_full(const struct wire_batch *batch)
{
	return batch->count == WIRE_BATCH || batch->used > WIRE_BATCH_BYTES - WIRE_MAX_PACKET;
}
/* The packet in the room, without its ICRC, which is added. Returns its place in its run. */
unsigned soft_wire_add(struct wire_batch *batch, const struct wire_route *route, size_t size);
/* Returns how many packets left; the rest is for later, or lost. The batch is empty then. */
unsigned soft_wire_send(struct wire_batch *batch);

/* ---- receive.c --------------------------------------------------------------------------------- */

struct wire_inbound {
	struct wire_path path;
	uint8_t tos;
	uint16_t place; /* in what came as one, from 0 */
	const uint8_t *bytes;
	size_t size;
};
typedef void wire_receiver(void *context, const struct wire_inbound *packet);
/*
 * Reads what is there, once, in that port, in all of them (WIRE_EVERY_PORT), or (NULL) in those in which packets have
 * come before. Returns how many packets. One thread at a time.
 */
unsigned soft_wire_receive(void *port, wire_receiver *receiver, void *context);
/* To the process of that slot on this host. */
void soft_wire_forward(uint32_t slot, const struct wire_inbound *in);

/* ---- observe.c ----------------------------------------------------------------------------------- */

/* Begins the capture that the environment asks for. */
void soft_wire_capture_read(void);
/* A packet on its way, for the capture if there is one. id: its IPv4 identification. */
void soft_wire_capture(const struct wire_path *path, uint8_t tos, uint16_t id, const uint8_t *bytes, size_t size);
void soft_wire_capture_inbound(const struct wire_inbound *in);

/* ---- faults.c: the thread that receives ---------------------------------------------------------- */

/* Gives a packet on, or not, or twice, ... */
void soft_wire_disturb(const struct wire_inbound *in, wire_receiver *receiver, void *context);
/* Packets whose time has come. */
void soft_wire_release(wire_receiver *receiver, void *context);

/* ---- rx.c -------------------------------------------------------------------------------------- */

/* See struct soft_fabric_ops. */
void soft_wire_poll(void);
void soft_wire_rewatch(void);
void soft_wire_tick(void);
/* The progress thread: packets have come to that port. */
void soft_wire_progress(void *port);
/* Takes what has come before the progress thread acts on what has not. */
void soft_wire_catch_up(void);
void soft_wire_rx_after_fork(void);

/* ---- mad.c ------------------------------------------------------------------------------------------ */

/* A packet for queue pair 1. */
void soft_wire_mad_take(const struct wire_packet *packet, const struct wire_inbound *in);

/* ---- ud.c ------------------------------------------------------------------------------------------- */

/* A datagram to another host. */
enum soft_run soft_wire_ud_send(struct soft_qp *qp, struct soft_wqe *wqe, uint32_t qkey,
				const uint8_t grh[SOFT_GRH_BYTES], const char *payload);
/* A datagram for this QP. */
void soft_wire_ud_take(struct soft_qp *qp, const struct wire_packet *packet, const struct wire_inbound *in,
		       struct soft_after *after);

/* ---- memory.c ---------------------------------------------------------------------------------- */

extern const struct wire_ask_owner soft_wire_ask_calls;
extern const struct wire_answer_owner soft_wire_answer_calls;

/* ---- make.c ------------------------------------------------------------------------------------- */

/* The attributes of RTS. sq_lock held. */
void soft_wire_rts(struct soft_qp *qp, bool first);

/* ---- qp.c -------------------------------------------------------------------------------------- */

/* qp.wire_due_ns has come. Takes the lock itself. */
void soft_wire_timer(struct soft_qp *qp, struct soft_after *after);
/* A packet for this QP. Locks are taken inside. */
void soft_wire_take(struct soft_qp *qp, const struct wire_packet *packet, const struct wire_inbound *inbound,
		    struct soft_after *after);
/* A congestion notification for this QP. */
void soft_wire_notified(struct soft_qp *qp, const struct wire_packet *packet, const struct wire_inbound *inbound);
/*
 * After the packets of a batch: answers, then requests that may go on. later: an acknowledgement may wait for
 * soft_wire_answer(). True: one does.
 */
bool soft_wire_go_on(struct soft_qp *qp, bool later, struct soft_after *after);
/* The one that waits. False: it still does, as somebody has the lock (never if wait). */
bool soft_wire_answer(struct soft_qp *qp, bool wait, struct soft_after *after);

#endif

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
#ifndef AIORDMA_ROCE_INTERNAL_H
#define AIORDMA_ROCE_INTERNAL_H

#include <netinet/in.h>
#include <sys/socket.h>

#include "roce/icrc.h"
#include "roce/rate.h"
#include "roce/rc.h"
#include "roce/roce.h"

enum {
	/* Differentiated services, unless the user (traffic_class.c) has others. */
	ROCE_DSCP = 46,
	ROCE_CNP_DSCP = 48,
	ROCE_ECT = 2,          /* routers may mark it instead of dropping it */
	ROCE_CE = 3,           /* one has */
	ROCE_CNP_NS = 50000,   /* between two notifications to one sender */
	ROCE_OWN_PORT = 24791, /* plus the process's slot */
	ROCE_MAD_QPN = 1,
	ROCE_BATCH = 64,
	ROCE_BATCH_BYTES = 65507, /* what UDP over IPv4 carries: a batch may leave as one */
};

struct roce_counters {
	_Atomic(uint64_t) sent, runs, received, send_failed, malformed, bad_icrc, no_qp, wrong_peer, forwarded;
	_Atomic(uint64_t) marked, cnps_sent, cnps_received, paced;
};
extern struct roce_counters soft_roce_counters;
_Static_assert(SOFT_ROCE_UDP_PORT == (int)ROCE_PORT, "one number, also for those that do not know packets");

struct roce_port; /* port.h */

/* Where packets of one QP, or to one address handle, go. */
struct roce_route {
	struct roce_path path;
	struct roce_port *source; /* leaves by that one; NULL: by the one that path.src_port says */
	uint32_t scope;           /* interface, for link-local addresses */
	uint8_t traffic_class;
	bool here; /* on this host */
	bool runs; /* several packets may be sent as one (send.c), whatever runs.h says */
};

enum roce_peer { ROCE_UNHEARD, ROCE_OTHERS, ROCE_OURS };

/* One connected QP's end. */
struct soft_roce {
	struct roce_ask ask;             /* sq_lock */
	struct roce_answer answer;       /* rq_lock */
	struct roce_route route;         /* both to change, either to read; dst_port: atomic */
	struct roce_runs *runs[2];       /* the same: if the peer is another's device, or ours */
	_Atomic(uint8_t) peer;           /* enum roce_peer, as its port says */
	struct roce_port *source;        /* for others; NULL: none. As the route */
	_Atomic(uint16_t) port;          /* of the peer */
	uint32_t seen;                   /* ask.head when last looked at */
	uint64_t blocked_until;          /* the socket was full, or the rate is; 0: not */
	_Atomic(uint64_t) answers_until; /* the same for answers; rq_lock to change */
	struct soft_lock rate_lock;      /* innermost */
	struct roce_rate rate;           /* of requests and of answers to READs */
	_Atomic(uint64_t) cnp_at;        /* when the peer was last told of congestion */
	atomic_bool owes;                /* an acknowledgement, to leave with the next request or at the next look */
	struct soft_wqe **wqes;          /* by message index & mask */
	struct soft_qp *qp;
	struct soft_after *after; /* of the call that is under way, rq_lock */
};

/* ---- socket.c ---------------------------------------------------------------------------------- */

/* Opens the sockets if they are not yet. 0 or errno. */
int soft_roce_open(void);
/* Of the process on this host that has that QP. */
static inline uint16_t soft_roce_own_port(uint32_t qpn)
{
	return (uint16_t)(ROCE_OWN_PORT + (qpn >> SOFT_QPN_INDEX_BITS));
}
/* Nobody else sends from those. */
static inline bool soft_roce_is_ours(uint16_t port)
{
	return port == ROCE_PORT || (port >= ROCE_OWN_PORT && port < ROCE_OWN_PORT + SOFT_MAX_SLOT);
}
/* Addresses and ports for an address vector that is valid. */
void soft_roce_route(struct soft_ctx *ctx, const struct ibv_ah_attr *ah, uint32_t qpn, struct roce_route *route);
/* Its answers will come to the port that it sends from: polls look there from now on. */
void soft_roce_heat(const struct roce_route *route);
/* The largest path MTU whose packets fit what leads there; 0: nothing leads there. */
enum ibv_mtu soft_roce_mtu(const struct roce_route *route);
/* Packets with so much payload that a receive buffer like ours holds. */
uint32_t soft_roce_buffered(const struct roce_route *route, uint32_t mtu);
/* The progress thread is told of packets, or not (somebody polls). False: not all of it could be done. */
bool soft_roce_watch(bool on);
/* An epoll event of ours? */
bool soft_roce_is_socket(const void *what);
void soft_roce_close(void);
void soft_roce_after_fork(void);

/* ---- source.c ---------------------------------------------------------------------------------- */

/* A socket of the route's address, to send from to peers that are not ours. NULL: it has none. */
struct roce_port *soft_roce_source(const struct roce_route *route);

/* ---- traffic_class.c ----------------------------------------------------------------------------------- */

/* What to send with, where a user wants `wanted` (DSCP 0: no matter), and for congestion notifications. */
uint8_t soft_roce_class(uint8_t wanted);
uint8_t soft_roce_cnp_class(void);

/* ---- send.c ------------------------------------------------------------------------------------ */

/* Packets on their way to the kernel, of one thread, all by one route. */
struct roce_batch {
	unsigned count; /* packets */
	unsigned runs;  /* messages to the kernel: packets of one size, but for the last, which may be shorter */
	size_t used;
	struct roce_port *port;
	bool split; /* soft_roce_send() found a run that the kernel did not take as one */
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
/* This thread's, empty. NULL: no memory. */
struct roce_batch *soft_roce_batch(void);
/* Room for the next packet (of at most ROCE_MAX_PACKET bytes). */
static inline uint8_t *soft_roce_room(struct roce_batch *batch)
{
	return batch->bytes + batch->used;
}
static inline bool soft_roce_full(const struct roce_batch *batch)
{
	return batch->count == ROCE_BATCH || batch->used > ROCE_BATCH_BYTES - ROCE_MAX_PACKET;
}
/* The packet in the room, without its ICRC, which is added. Returns its place in its run. */
unsigned soft_roce_add(struct roce_batch *batch, const struct roce_route *route, size_t size);
/* Returns how many packets left; the rest is for later, or lost. The batch is empty then. */
unsigned soft_roce_send(struct roce_batch *batch);

/* ---- receive.c --------------------------------------------------------------------------------- */

struct roce_inbound {
	struct roce_path path;
	uint8_t tos;
	uint16_t place; /* in what came as one, from 0 */
	const uint8_t *bytes;
	size_t size;
};
typedef void roce_receiver(void *context, const struct roce_inbound *packet);
/*
 * Reads what is there, once, in that port, in all of them (ROCE_EVERY_PORT), or (NULL) in those in which packets have
 * come before. Returns how many packets. One thread at a time.
 */
unsigned soft_roce_receive(void *port, roce_receiver *receiver, void *context);
/* To the process of that slot on this host. */
void soft_roce_forward(uint32_t slot, const struct roce_inbound *in);

/* ---- observe.c ----------------------------------------------------------------------------------- */

/* Begins the capture that the environment asks for. */
void soft_roce_capture_read(void);
/* A packet on its way, for the capture if there is one. id: its IPv4 identification. */
void soft_roce_capture(const struct roce_path *path, uint8_t tos, uint16_t id, const uint8_t *bytes, size_t size);
void soft_roce_capture_inbound(const struct roce_inbound *in);

/* ---- faults.c: the thread that receives ---------------------------------------------------------- */

/* Gives a packet on, or not, or twice, ... */
void soft_roce_disturb(const struct roce_inbound *in, roce_receiver *receiver, void *context);
/* Packets whose time has come. */
void soft_roce_release(roce_receiver *receiver, void *context);

/* ---- rx.c -------------------------------------------------------------------------------------- */

/* See struct soft_fabric_ops. */
void soft_roce_poll(void);
void soft_roce_rewatch(void);
void soft_roce_tick(void);
/* The progress thread: packets have come to that port. */
void soft_roce_progress(void *port);
/* Takes what has come before the progress thread acts on what has not. */
void soft_roce_catch_up(void);
void soft_roce_rx_after_fork(void);

/* ---- mad.c ------------------------------------------------------------------------------------------ */

/* A packet for queue pair 1. */
void soft_roce_mad_take(const struct roce_packet *packet, const struct roce_inbound *in);

/* ---- ud.c ------------------------------------------------------------------------------------------- */

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

/* The attributes of RTS. sq_lock held. */
void soft_roce_rts(struct soft_qp *qp, bool first);

/* ---- qp.c -------------------------------------------------------------------------------------- */

/* qp.roce_due_ns has come. Takes the lock itself. */
void soft_roce_timer(struct soft_qp *qp, struct soft_after *after);
/* A packet for this QP. Locks are taken inside. */
void soft_roce_take(struct soft_qp *qp, const struct roce_packet *packet, const struct roce_inbound *inbound,
		    struct soft_after *after);
/* A congestion notification for this QP. */
void soft_roce_notified(struct soft_qp *qp, const struct roce_packet *packet, const struct roce_inbound *inbound);
/*
 * After the packets of a batch: answers, then requests that may go on. later: an acknowledgement may wait for
 * soft_roce_answer(). True: one does.
 */
bool soft_roce_go_on(struct soft_qp *qp, bool later, struct soft_after *after);
/* The one that waits. False: it still does, as somebody has the lock (never if wait). */
bool soft_roce_answer(struct soft_qp *qp, bool wait, struct soft_after *after);

#endif

/*
 * RoCEv2 on UDP sockets: destinations on other hosts, for RC, UC and UD, and the management datagrams of rdma_cm.
 *
 * Guarantees: a queue pair on this path interoperates with adapters and the kernel's rxe over RoCEv2 (IBTA volume 1,
 * annex A17). Packets from the network or from strangers can damage at most the queue pair that they address in its
 * peer's name. Depends on core and base. Callers: verbs and cm; the core calls through the two tables below.
 * Locks: receive lock > qp.sq_lock > qp.rq_lock; the others are innermost. internal.h explains the design.
 */
#ifndef SOFTDEV_ROCE_H
#define SOFTDEV_ROCE_H

#include "core/core.h"

/* For queue pairs that soft_roce_join() was called for. */
extern const struct soft_path_ops soft_roce_path;
extern const struct soft_fabric_ops soft_roce_fabric;

/* SOFTDEV_WIRE: never; for other hosts; for all QPs, also within the process. */
enum roce_mode { ROCE_OFF, ROCE_AUTO, ROCE_ONLY };
enum roce_mode soft_roce_mode(void);
/* Whether packets to this address go over RoCE. Depends on the mode and on whether the destination is on this host. */
bool soft_roce_wanted(struct soft_ctx *ctx, const struct ibv_ah_attr *ah);

/* ---- queue pairs ------------------------------------------------------------------------------------ */

/* RoCE state for a QP that goes to RTR with these attributes. NULL: *err is set. Call without locks. */
struct soft_roce *soft_roce_make(struct soft_qp *qp, const struct ibv_qp_attr *attr, int *err);
/* Frees RoCE state that joined no QP. Ignores NULL. */
void soft_roce_discard(struct soft_roce *roce);
/* The path MTU in use. */
enum ibv_mtu soft_roce_path_mtu(const struct soft_roce *roce);
/* Makes it the QP's path. The caller holds both locks. */
void soft_roce_join(struct soft_qp *qp, struct soft_roce *roce);

/* ---- address handles -------------------------------------------------------------------------------- */

/* Sets up an address handle that uses RoCE: opens the sockets, fills route and max. 0 or errno. */
int soft_roce_ah(struct soft_ctx *ctx, struct soft_ah *ah);
void soft_roce_ah_free(struct soft_ah *ah);

/* ---- management datagrams: QP 1, both directions -------------------------------------------------------- */

enum { SOFT_ROCE_UDP_PORT = 4791, SOFT_MAD_BYTES = 256 };

/* Source and destination of a management datagram. Addresses are GIDs. */
struct soft_mad_path {
	uint8_t src[16], dst[16];
	uint16_t answer_port; /* the sender's UDP port */
	uint16_t own_port;
};
/* Called for each complete datagram with a correct checksum, by the receiving thread, which holds the receive lock. */
typedef void soft_mad_receiver(const struct soft_mad_path *path, const uint8_t *payload, size_t size);
/* One receiver per process. Set it before any context is opened. */
void soft_mad_receive(soft_mad_receiver *function);
/* Opens the sockets. Polls and the progress thread then check them until the process ends. 0 or errno. */
int soft_mad_open(void);
/* Sends from one of our addresses to a UDP port. Lost, as in a network, if the address no longer exists. */
void soft_mad_send(struct soft_ctx *ctx, const uint8_t from[16], const uint8_t to[16], uint16_t port,
		   const uint8_t mad[SOFT_MAD_BYTES]);
/* Replies to the sender of a datagram. */
void soft_mad_answer(const struct soft_mad_path *path, const uint8_t mad[SOFT_MAD_BYTES]);
/*
 * Sends it to port 4791 of another host in a way that lets the network say that nobody is there. The descriptor that is
 * readable, or has an error, when it does; -1: not sent. One thread at a time, as for the next two.
 */
int soft_mad_knock(struct soft_ctx *ctx, const uint8_t from[16], const uint8_t to[16],
		   const uint8_t mad[SOFT_MAD_BYTES]);
bool soft_mad_is_knocker(int fd);
/* The next host that the network has spoken of: nobody listens at the port (refused), or no way leads there. False: none. */
bool soft_mad_refusal(int fd, uint8_t remote[16], bool *refused);
/* The largest path MTU whose packets fit the path to that address; 0 with errno: no route. The sockets are open. */
enum ibv_mtu soft_roce_mtu_to(struct soft_ctx *ctx, const struct ibv_ah_attr *ah);

#endif

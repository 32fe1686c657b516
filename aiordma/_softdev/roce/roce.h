/*
 * RoCEv2 on UDP sockets: destinations on other hosts, for RC, UC and UD, and the management datagrams of rdma_cm.
 *
 * What it promises: a queue pair on this path speaks RoCEv2 as cards and the kernel's rxe do (IBTA volume 1, annex A17);
 * nothing that a network or a stranger sends breaks anything but what it was addressed to by its peer.
 * What it calls: core and base. Who may call it: verbs and cm; the core, by the two tables below.
 * Locks of its own: receive lock > qp.sq_lock > qp.rq_lock; the others are innermost. How it works: internal.h.
 */
#ifndef AIORDMA_SOFT_ROCE_H
#define AIORDMA_SOFT_ROCE_H

#include "core/core.h"

/* Of a QP that soft_roce_join() was called for. */
extern const struct soft_path_ops soft_roce_path;
extern const struct soft_fabric_ops soft_roce_fabric;

/* AIORDMA_SOFT_WIRE: never; for other hosts; for all QPs, also within the process. */
enum roce_mode { ROCE_OFF, ROCE_AUTO, ROCE_ONLY };
enum roce_mode soft_roce_mode(void);
/* Does this address go by RoCE? By the mode and whether the destination is on this host. */
bool soft_roce_wanted(struct soft_ctx *ctx, const struct ibv_ah_attr *ah);

/* ---- queue pairs ------------------------------------------------------------------------------------ */

/* The end of a QP that goes to RTR with these attributes. NULL: *err. No lock held. */
struct soft_roce *soft_roce_make(struct soft_qp *qp, const struct ibv_qp_attr *attr, int *err);
/* Frees one that joined no QP. NULL: nothing to do. */
void soft_roce_discard(struct soft_roce *roce);
/* Path MTU that it uses. */
enum ibv_mtu soft_roce_path_mtu(const struct soft_roce *roce);
/* Makes it the QP's path. Both locks held. */
void soft_roce_join(struct soft_qp *qp, struct soft_roce *roce);

/* ---- address handles -------------------------------------------------------------------------------- */

/* One that goes by RoCE: opens the sockets, fills route and max. 0 or errno. */
int soft_roce_ah(struct soft_ctx *ctx, struct soft_ah *ah);
void soft_roce_ah_free(struct soft_ah *ah);

/* ---- management datagrams: QP 1, both ways ----------------------------------------------------------- */

enum { SOFT_ROCE_UDP_PORT = 4791, SOFT_MAD_BYTES = 256 };

/* Where one came from and went to. Addresses as in GIDs. */
struct soft_mad_path {
	uint8_t src[16], dst[16];
	uint16_t answer_port; /* UDP, of the sender */
	uint16_t own_port;
};
/* Called for each, whole and right by its checksum, by the thread that received it, with the receive lock held. */
typedef void soft_mad_receiver(const struct soft_mad_path *path, const uint8_t *payload, size_t size);
/* One receiver per process. Before any context is opened. */
void soft_mad_receive(soft_mad_receiver *function);
/* Opens the sockets, and has polls and the progress thread look at them as long as the process lives. 0 or errno. */
int soft_mad_open(void);
/* From an address of ours to a UDP port there. Lost, as in a network, if the address is gone. */
void soft_mad_send(struct soft_ctx *ctx, const uint8_t from[16], const uint8_t to[16], uint16_t port,
		   const uint8_t mad[SOFT_MAD_BYTES]);
/* Back to where one came from. */
void soft_mad_answer(const struct soft_mad_path *path, const uint8_t mad[SOFT_MAD_BYTES]);
/* The largest path MTU whose packets fit what leads there; 0: nothing leads there. The sockets are open. */
enum ibv_mtu soft_roce_mtu_to(struct soft_ctx *ctx, const struct ibv_ah_attr *ah);

#endif

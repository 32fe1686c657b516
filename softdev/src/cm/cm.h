/*
 * rdma_cm: librdmacm's functions on the device, and the connection manager protocol, which otherwise runs in the
 * kernel.
 *
 * What it promises: the results and errno values of librdmacm. Messages between processes of this host use Unix
 * sockets, those to other hosts management datagrams. A message only takes effect if it matches an existing connection
 * and that connection's addresses.
 * What it calls: verbs, as a program would, and verbs' internals for transitions reserved to rdma_cm; roce for
 * management datagrams.
 * Who may call it: preload.
 * Locks: one for everything (cm.lock), outermost of the device's locks. Taken inside; a callback of roce takes none.
 */
#ifndef SOFTDEV_CM_H
#define SOFTDEV_CM_H

#include <rdma/rdma_cma.h>

#include "verbs/verbs.h"

/* The rdma_ functions of those names. */
int soft_rdma_getaddrinfo(const char *node, const char *service, const struct rdma_addrinfo *hints,
			  struct rdma_addrinfo **res);
void soft_rdma_freeaddrinfo(struct rdma_addrinfo *res);
struct rdma_event_channel *soft_rdma_create_event_channel(void);
void soft_rdma_destroy_event_channel(struct rdma_event_channel *channel);
int soft_rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event);
int soft_rdma_ack_cm_event(struct rdma_cm_event *event);
const char *soft_rdma_event_str(enum rdma_cm_event_type event);
int soft_rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id, void *context,
			enum rdma_port_space ps);
int soft_rdma_destroy_id(struct rdma_cm_id *id);
int soft_rdma_bind_addr(struct rdma_cm_id *id, struct sockaddr *addr);
int soft_rdma_resolve_addr(struct rdma_cm_id *id, struct sockaddr *src, struct sockaddr *dst, int timeout_ms);
int soft_rdma_resolve_route(struct rdma_cm_id *id, int timeout_ms);
int soft_rdma_listen(struct rdma_cm_id *id, int backlog);
int soft_rdma_set_option(struct rdma_cm_id *id, int level, int name, void *value, size_t length);
int soft_rdma_migrate_id(struct rdma_cm_id *id, struct rdma_event_channel *channel);
__be16 soft_rdma_get_src_port(struct rdma_cm_id *id);
__be16 soft_rdma_get_dst_port(struct rdma_cm_id *id);
struct ibv_context **soft_rdma_get_devices(int *num_devices);
void soft_rdma_free_devices(struct ibv_context **list);
int soft_rdma_create_ep(struct rdma_cm_id **id, struct rdma_addrinfo *res, struct ibv_pd *pd,
			struct ibv_qp_init_attr *qp_init_attr);
void soft_rdma_destroy_ep(struct rdma_cm_id *id);
int soft_rdma_get_request(struct rdma_cm_id *listen, struct rdma_cm_id **id);
int soft_rdma_connect(struct rdma_cm_id *id, struct rdma_conn_param *param);
int soft_rdma_accept(struct rdma_cm_id *id, struct rdma_conn_param *param);
int soft_rdma_reject(struct rdma_cm_id *id, const void *data, uint8_t length);
int soft_rdma_reject_ece(struct rdma_cm_id *id, const void *data, uint8_t length);
int soft_rdma_establish(struct rdma_cm_id *id);
int soft_rdma_disconnect(struct rdma_cm_id *id);
int soft_rdma_notify(struct rdma_cm_id *id, enum ibv_event_type event);
int soft_rdma_create_qp_ex(struct rdma_cm_id *id, struct ibv_qp_init_attr_ex *attr);
int soft_rdma_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
void soft_rdma_destroy_qp(struct rdma_cm_id *id);
int soft_rdma_create_srq_ex(struct rdma_cm_id *id, struct ibv_srq_init_attr_ex *attr);
int soft_rdma_create_srq(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_srq_init_attr *attr);
void soft_rdma_destroy_srq(struct rdma_cm_id *id);
int soft_rdma_init_qp_attr(struct rdma_cm_id *id, struct ibv_qp_attr *attr, int *mask);

#endif

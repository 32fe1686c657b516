/*
 * rdma_create_ep(): an identifier with its address, route and queue pair made in one call, and connections accepted
 * from it.
 */
#include <stdlib.h>
#include <string.h>

#include "cm/internal.h"

enum { RESOLVE_MS = 2000 };

/* Attributes for connections accepted from this id. 0 or errno. */
static int keep_passive(struct cm_id *id, struct ibv_pd *pd, const struct ibv_qp_init_attr *attr)
{
	if (!attr)
		return 0;
	id->qp_init = malloc(sizeof(*attr));
	if (!id->qp_init)
		return ENOMEM;
	*id->qp_init = *attr;
	id->qp_init->qp_type = id->id.qp_type;
	id->qp_pd = pd;
	return 0;
}

static int keep_connect(struct cm_id *id, const struct rdma_addrinfo *res)
{
	if (!res->ai_connect_len)
		return 0;
	if (res->ai_connect_len > CM_PRIVATE_MAX)
		return EINVAL;
	id->connect_data = malloc(res->ai_connect_len);
	if (!id->connect_data)
		return ENOMEM;
	memcpy(id->connect_data, res->ai_connect, res->ai_connect_len);
	id->connect_length = (uint8_t)res->ai_connect_len;
	return 0;
}

static int make(struct rdma_cm_id *id, const struct rdma_addrinfo *res, struct ibv_pd *pd,
		struct ibv_qp_init_attr *attr)
{
	int err;

	if (res->ai_flags & RAI_PASSIVE) {
		if (soft_rdma_bind_addr(id, res->ai_src_addr))
			return errno;
		return keep_passive(to_id(id), pd, attr);
	}
	if (soft_rdma_resolve_addr(id, res->ai_src_addr, res->ai_dst_addr, RESOLVE_MS) ||
	    soft_rdma_resolve_route(id, RESOLVE_MS))
		return errno;
	if (attr) {
		attr->qp_type = (enum ibv_qp_type)res->ai_qp_type;
		if (soft_rdma_create_qp(id, pd, attr))
			return errno;
	}
	err = keep_connect(to_id(id), res);
	return err;
}

int soft_rdma_create_ep(struct rdma_cm_id **id, struct rdma_addrinfo *res, struct ibv_pd *pd,
			struct ibv_qp_init_attr *qp_init_attr)
{
	struct rdma_cm_id *made;
	int err;

	if (!id || !res)
		return cm_fail(EINVAL);
	if (soft_rdma_create_id(NULL, &made, NULL, (enum rdma_port_space)res->ai_port_space))
		return -1;
	to_id(made)->id.qp_type = (enum ibv_qp_type)res->ai_qp_type;
	err = make(made, res, pd, qp_init_attr);
	if (err) {
		soft_rdma_destroy_ep(made);
		return cm_fail(err);
	}
	*id = made;
	return 0;
}

void soft_rdma_destroy_ep(struct rdma_cm_id *id)
{
	if (id->qp)
		soft_rdma_destroy_qp(id);
	if (id->srq)
		soft_rdma_destroy_srq(id);
	soft_rdma_destroy_id(id);
}

/* Makes the connection request that `listen` holds into an id of its own. 0 or errno. */
static int adopt(struct rdma_cm_id *listen, struct rdma_cm_id *id)
{
	struct cm_id *from = to_id(listen);

	if (soft_rdma_migrate_id(id, NULL))
		return errno;
	if (!from->qp_init)
		return 0;
	struct ibv_qp_init_attr attr = *from->qp_init;
	attr.qp_type = id->qp_type;
	return soft_rdma_create_qp(id, from->qp_pd, &attr) ? errno : 0;
}

int soft_rdma_get_request(struct rdma_cm_id *listen, struct rdma_cm_id **id)
{
	struct cm_id *from = to_id(listen);
	int err;

	if (!cm_is_here(from))
		return cm_fail(EIO);
	if (!from->sync || !id)
		return cm_fail(EINVAL);
	if (listen->event) {
		soft_rdma_ack_cm_event(listen->event);
		listen->event = NULL;
	}
	struct rdma_cm_event *event;
	if (soft_rdma_get_cm_event(listen->channel, &event))
		return -1;
	if (event->event != RDMA_CM_EVENT_CONNECT_REQUEST) {
		soft_rdma_ack_cm_event(event);
		return cm_fail(EINVAL);
	}
	struct rdma_cm_id *child = event->id;
	err = adopt(listen, child);
	if (err) {
		soft_rdma_ack_cm_event(event);
		soft_rdma_reject(child, NULL, 0);
		soft_rdma_destroy_ep(child);
		return cm_fail(err);
	}
	/* The child may read the event's parameters and private data until its next call. */
	listen->event = NULL;
	child->event = event;
	*id = child;
	return 0;
}

/*
 * Identifiers: creation and destruction, addresses and routes, listening, options.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cm/internal.h"

enum {
	MAX_BACKLOG = 1024,
	PORT_TRIES = 4096,
	FIRST_PORT = 32768, /* range for ephemeral ports */
	PORTS = 28232,
	ACK_TIMEOUT = 16, /* 0.27 s */
};

/* ---- creation and destruction ----------------------------------------------------------------------- */

struct cm_id *cm_id_make(struct rdma_event_channel *channel, void *context, enum rdma_port_space space)
{
	struct cm_id *id = calloc(1, sizeof(*id));

	if (!id)
		return NULL;
	id->generation = soft_cm.generation;
	id->id.channel = channel;
	id->id.context = context;
	id->id.ps = space;
	id->id.qp_type = space == RDMA_PS_UDP ? IBV_QPT_UD : IBV_QPT_RC;
	id->port = id->listen = CM_BUS_NO_NAME;
	id->mtu = IBV_MTU_1024;
	id->ack_timeout = ACK_TIMEOUT;
	id->next = soft_cm.ids;
	soft_cm.ids = id;
	return id;
}

static void leave_listener(struct cm_id *id)
{
	if (id->listener)
		id->listener->waiting--;
	id->listener = NULL;
}

static void close_ports(struct cm_id *id)
{
	cm_bus_release(&id->port);
	cm_bus_release(&id->listen);
}

void cm_id_free(struct cm_id *id)
{
	struct cm_id **at = &soft_cm.ids;

	for (struct cm_id *other = soft_cm.ids; other; other = other->next)
		if (other->listener == id)
			other->listener = NULL;
	leave_listener(id);
	if (id->conn)
		cm_conn_release(&soft_cm.engine, id->conn, soft_clock_ns());
	close_ports(id);
	while (*at && *at != id)
		at = &(*at)->next;
	if (*at)
		*at = id->next;
	free(id->id.route.path_rec);
	free(id->qp_init);
	free(id->connect_data);
	free(id);
	cm_kick();
}

int soft_rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id, void *context,
			enum rdma_port_space ps)
{
	struct rdma_event_channel *own = NULL;
	int err = cm_start();

	if (err)
		return cm_fail(err);
	/* RDMA_PS_IPOIB exists on InfiniBand only; RDMA_PS_IB works with IP addresses too. */
	if (ps != RDMA_PS_TCP && ps != RDMA_PS_UDP && ps != RDMA_PS_IB)
		return cm_fail(EOPNOTSUPP);
	if (!channel)
		channel = own = soft_rdma_create_event_channel();
	if (!channel)
		return -1;
	cm_lock();
	struct cm_id *made = cm_id_make(channel, context, ps);
	if (made)
		made->sync = own;
	cm_unlock();
	if (!made) {
		if (own)
			soft_rdma_destroy_event_channel(own);
		return cm_fail(ENOMEM);
	}
	*id = &made->id;
	return 0;
}

int soft_rdma_destroy_id(struct rdma_cm_id *rdma_id)
{
	struct cm_id *id = to_id(rdma_id);
	struct rdma_event_channel *own = id->sync ? rdma_id->channel : NULL;

	if (!cm_is_here(id))
		return cm_fail(EIO); /* the memory is a copy of the parent's: small, and leaked */
	if (rdma_id->event)
		soft_rdma_ack_cm_event(rdma_id->event);
	rdma_id->event = NULL;
	if (id->own_qpn && id->conn)
		cm_qp_error(id); /* its connection ends with the id */
	cm_lock();
	/* No event arrives any more; then wait until the program has acknowledged those that it got. */
	if (id->conn)
		cm_conn_release(&soft_cm.engine, id->conn, soft_clock_ns());
	id->conn = NULL;
	close_ports(id);
	id->step = CM_NEW;
	cm_events_drop(id);
	while (id->acknowledged != id->delivered)
		pthread_cond_wait(&soft_cm.acknowledged, &soft_cm.lock);
	cm_id_free(id);
	cm_unlock();
	if (own)
		soft_rdma_destroy_event_channel(own);
	return 0;
}

/* ---- addresses -------------------------------------------------------------------------------------- */

bool cm_id_place(struct cm_id *id, const uint8_t gid[16])
{
	union ibv_gid wanted;

	memcpy(wanted.raw, gid, 16);
	const int index = soft_gid_find(to_ctx(soft_cm.context), &wanted);
	if (index < 0)
		return false;
	memcpy(id->peer.local, gid, 16);
	id->sgid_index = (uint8_t)index;
	id->id.verbs = soft_cm.context;
	if (!id->id.pd)
		id->id.pd = soft_cm.pd;
	id->id.port_num = 1;
	return true;
}

/* Binds the id to the port. 0 or errno. */
static int take_port(struct cm_id *id, struct sockaddr *address)
{
	const bool given = cm_port_of(address);
	uint8_t gid[16];
	int err = 0;

	cm_gid_of(address, gid);
	struct cm_port port = cm_port_for(id, address, gid, false);
	for (int tries = 0; tries < (given ? 1 : PORT_TRIES); tries++) {
		if (!given)
			port.port = (uint16_t)(FIRST_PORT + soft_random() % PORTS);
		err = cm_bus_bind_port(&port, &id->port);
		if (!err)
			cm_set_port(address, port.port);
		if (err != EADDRINUSE)
			break;
	}
	return err;
}

/*
 * As in the kernel, an id that is bound to a loopback address belongs to no device yet, as one that is bound to none:
 * libfabric takes the addresses of the interfaces then. Lock held. 0 or errno.
 */
static int bind_to(struct cm_id *id, const struct sockaddr *address)
{
	struct sockaddr_storage *own = &id->id.route.addr.src_storage;
	uint8_t gid[16];

	if (!cm_is_here(id))
		return EIO;
	if (id->step != CM_NEW)
		return EINVAL;
	if (!address)
		return EINVAL;
	if (!cm_gid_of(address, gid))
		return EAFNOSUPPORT;
	if (!cm_is_any(address) && !soft_gid_is_loopback(gid) && !cm_id_place(id, gid))
		return EADDRNOTAVAIL;
	memset(own, 0, sizeof(*own));
	memcpy(own, address, cm_length_of(address));
	int err = take_port(id, (struct sockaddr *)own);
	if (!err)
		id->step = CM_BOUND;
	return err;
}

int soft_rdma_bind_addr(struct rdma_cm_id *rdma_id, struct sockaddr *addr)
{
	cm_lock();
	int err = bind_to(to_id(rdma_id), addr);
	cm_unlock();
	return err ? cm_fail(err) : 0;
}

/* Fills in the source address if there is none yet, and the ends of the path. 0 or errno. */
static int find_source(struct cm_id *id)
{
	struct rdma_addr *route = &id->id.route.addr;
	struct sockaddr_storage found = { 0 };
	uint8_t gid[16];

	if (route->src_addr.sa_family && route->src_addr.sa_family != route->dst_addr.sa_family &&
	    !cm_is_any(&route->src_addr))
		return EAFNOSUPPORT;
	if (!route->src_addr.sa_family || cm_is_any(&route->src_addr)) {
		uint16_t port = route->src_addr.sa_family ? cm_port_of(&route->src_addr) : 0;
		int err = cm_source_for(&route->dst_addr, &found);
		if (err)
			return err;
		/* Such a port accepts no requests: it only distinguishes connections of one source. */
		cm_set_port((struct sockaddr *)&found, port ? port : (uint16_t)(FIRST_PORT + soft_random() % PORTS));
		route->src_storage = found;
	}
	cm_gid_of(&route->src_addr, gid);
	if (!cm_id_place(id, gid))
		return EADDRNOTAVAIL;
	cm_gid_of(&route->dst_addr, id->peer.remote);
	return 0;
}

/* The call itself succeeded; an event reports its outcome. Lock held. 0 or errno. */
static int tell(struct cm_id *id, enum rdma_cm_event_type good, enum rdma_cm_event_type bad, int err)
{
	struct cm_event *event = cm_event_make(id, err ? bad : good, -err);

	if (!event)
		return ENOMEM;
	cm_event_push(event);
	return 0;
}

/* As a destination, the unspecified address means this host. */
static void set_destination(struct cm_id *id, const struct sockaddr *to)
{
	struct rdma_addr *route = &id->id.route.addr;
	static const uint8_t ipv4[16] = { [10] = 0xff, [11] = 0xff, [12] = 127, [15] = 1 };

	if (cm_is_any(to)) {
		cm_address_of(to->sa_family == AF_INET ? ipv4 : in6addr_loopback.s6_addr, cm_port_of(to), 0,
			      &route->dst_storage);
		return;
	}
	memset(&route->dst_storage, 0, sizeof(route->dst_storage));
	memcpy(&route->dst_storage, to, cm_length_of(to));
}

int soft_rdma_resolve_addr(struct rdma_cm_id *rdma_id, struct sockaddr *src, struct sockaddr *dst, int timeout_ms)
{
	struct cm_id *id = to_id(rdma_id);
	uint8_t gid[16];
	int err = 0;

	(void)timeout_ms; /* no ARP query needed */
	cm_lock();
	if (!cm_is_here(id))
		err = EIO;
	else if (!dst || !cm_gid_of(dst, gid))
		err = dst ? EAFNOSUPPORT : EINVAL;
	else if (id->step == CM_NEW && src)
		err = bind_to(id, src);
	else if (id->step != CM_NEW && id->step != CM_BOUND)
		err = EINVAL;
	if (!err) {
		set_destination(id, dst);
		int failed = find_source(id);
		if (!failed)
			id->step = CM_ADDRESS;
		err = tell(id, RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_ADDR_ERROR, failed);
	}
	cm_unlock();
	return err ? cm_fail(err) : cm_complete(id);
}

/* ---- routes ----------------------------------------------------------------------------------------- */

static struct ibv_sa_path_rec *path_record(const struct cm_id *id)
{
	struct ibv_sa_path_rec *path = calloc(1, sizeof(*path));

	if (!path)
		return NULL;
	memcpy(path->sgid.raw, id->peer.local, 16);
	memcpy(path->dgid.raw, id->peer.remote, 16);
	path->hop_limit = 64;
	path->traffic_class = id->tos;
	path->reversible = 1;
	path->numb_path = 1;
	path->pkey = htobe16(SOFT_PKEY);
	path->mtu_selector = 2; /* exactly */
	path->mtu = (uint8_t)id->mtu;
	path->rate_selector = 2;
	path->packet_life_time_selector = 2;
	path->packet_life_time = id->ack_timeout;
	return path;
}

/* Lock held. 0 or errno. */
static int find_route(struct cm_id *id)
{
	struct soft_ctx *ctx = to_ctx(soft_cm.context);
	struct ibv_ah_attr ah;
	union ibv_gid remote;
	int err;

	memcpy(remote.raw, id->peer.remote, 16);
	cm_path(id, &ah);
	id->mtu = IBV_MTU_4096;
	id->peer.port = SOFT_ROCE_UDP_PORT;
	/* Messages to this host go from process to process, even when everything else uses RoCE. */
	id->peer.net = !soft_gid_is_local(ctx, &remote);
	if (soft_roce_wanted(ctx, &ah)) {
		err = cm_want_net();
		if (err)
			return err;
		id->mtu = soft_roce_mtu_to(ctx, &ah);
		if (!id->mtu)
			return errno;
	} else if (id->peer.net) {
		return ENETUNREACH; /* RoCE is switched off */
	}
	id->id.route.path_rec = path_record(id);
	if (!id->id.route.path_rec)
		return ENOMEM;
	id->id.route.num_paths = 1;
	return 0;
}

int soft_rdma_resolve_route(struct rdma_cm_id *rdma_id, int timeout_ms)
{
	struct cm_id *id = to_id(rdma_id);
	int err = 0;

	(void)timeout_ms;
	cm_lock();
	if (!cm_is_here(id))
		err = EIO;
	else if (id->step != CM_ADDRESS)
		err = EINVAL;
	if (!err) {
		int failed = find_route(id);
		if (!failed)
			id->step = CM_ROUTE;
		err = tell(id, RDMA_CM_EVENT_ROUTE_RESOLVED, RDMA_CM_EVENT_ROUTE_ERROR, failed);
	}
	cm_unlock();
	return err ? cm_fail(err) : cm_complete(id);
}

/* ---- listening -------------------------------------------------------------------------------------- */

/* Lock held. 0 or errno. */
static int hear(struct cm_id *id)
{
	const struct sockaddr *address = &id->id.route.addr.src_addr;
	uint8_t gid[16];

	cm_gid_of(address, gid);
	if (!soft_gid_is_loopback(gid)) {
		int err = cm_want_net();
		if (err)
			return err;
	}
	/* Requests arrive from here on, so everything must be ready. */
	id->step = CM_LISTENING;
	const struct cm_port port = cm_port_for(id, address, gid, true);
	int err = cm_bus_bind_port(&port, &id->listen);
	if (!err && !cm_watch_name(&id->listen))
		err = errno;
	if (err) { /* it may try again */
		cm_bus_release(&id->listen);
		id->step = CM_BOUND;
	}
	return err;
}

int soft_rdma_listen(struct rdma_cm_id *rdma_id, int backlog)
{
	const struct sockaddr_in any = { .sin_family = AF_INET };
	struct cm_id *id = to_id(rdma_id);
	int err = 0;

	cm_lock();
	if (!cm_is_here(id))
		err = EIO;
	else if (id->step == CM_NEW)
		err = bind_to(id, (const struct sockaddr *)&any);
	else if (id->step != CM_BOUND && id->step != CM_LISTENING)
		err = EINVAL;
	if (!err) {
		id->backlog = backlog > 0 && backlog < MAX_BACKLOG ? (unsigned)backlog : MAX_BACKLOG;
		if (id->step != CM_LISTENING)
			err = hear(id);
	}
	cm_unlock();
	return err ? cm_fail(err) : 0;
}

/* ---- options and the rest --------------------------------------------------------------------------- */

/* A bound id takes its port again by the other name. Lock held. 0 or errno. */
static int set_only_family(struct cm_id *id, bool only)
{
	struct sockaddr *address = &id->id.route.addr.src_addr;

	if (id->step == CM_NEW || !cm_is_any(address) || id->only_family == only) {
		id->only_family = only;
		return 0;
	}
	cm_bus_release(&id->port);
	id->only_family = only;
	int err = take_port(id, address);
	if (err) {
		id->only_family = !only;
		take_port(id, address);
	}
	return err;
}

int soft_rdma_set_option(struct rdma_cm_id *rdma_id, int level, int name, void *value, size_t length)
{
	struct cm_id *id = to_id(rdma_id);
	const size_t wanted = name == RDMA_OPTION_ID_REUSEADDR || name == RDMA_OPTION_ID_AFONLY ? sizeof(int) : 1;
	int err = 0;

	if (!cm_is_here(id))
		return cm_fail(EIO);
	if (level != RDMA_OPTION_ID)
		return cm_fail(ENOSYS);
	if (length != wanted)
		return cm_fail(EINVAL);
	cm_lock();
	switch (name) {
	case RDMA_OPTION_ID_TOS:
		id->tos = *(const uint8_t *)value;
		break;
	case RDMA_OPTION_ID_ACK_TIMEOUT:
		if (*(const uint8_t *)value > 31)
			err = EINVAL;
		else
			id->ack_timeout = *(const uint8_t *)value;
		break;
	case RDMA_OPTION_ID_REUSEADDR: /* a port is free as soon as its id is destroyed */
		break;
	case RDMA_OPTION_ID_AFONLY:
		/* The kernel takes it from a bound id, too, whose port it has given out before. */
		if (id->step != CM_NEW && id->step != CM_BOUND)
			err = EINVAL;
		else
			err = set_only_family(id, *(const int *)value != 0);
		break;
	default:
		err = ENOSYS;
		break;
	}
	cm_unlock();
	return err ? cm_fail(err) : 0;
}

int soft_rdma_migrate_id(struct rdma_cm_id *rdma_id, struct rdma_event_channel *channel)
{
	struct cm_id *id = to_id(rdma_id);
	const bool sync = !channel;
	struct rdma_event_channel *old = id->sync ? rdma_id->channel : NULL;

	if (!cm_is_here(id))
		return cm_fail(EIO);
	if (id->sync && sync)
		return cm_fail(EINVAL);
	if (sync && !(channel = soft_rdma_create_event_channel()))
		return -1;
	if (rdma_id->event) {
		soft_rdma_ack_cm_event(rdma_id->event);
		rdma_id->event = NULL;
	}
	cm_lock();
	cm_events_move(id, to_channel(channel));
	id->sync = sync;
	cm_unlock();
	if (old)
		soft_rdma_destroy_event_channel(old);
	return 0;
}

__be16 soft_rdma_get_src_port(struct rdma_cm_id *id)
{
	return id->route.addr.src_addr.sa_family ? htons(cm_port_of(&id->route.addr.src_addr)) : 0;
}

__be16 soft_rdma_get_dst_port(struct rdma_cm_id *id)
{
	return id->route.addr.dst_addr.sa_family ? htons(cm_port_of(&id->route.addr.dst_addr)) : 0;
}

struct ibv_context **soft_rdma_get_devices(int *num_devices)
{
	int err = cm_start();
	struct ibv_context **list = err ? NULL : calloc(2, sizeof(struct ibv_context *));

	if (!list) {
		errno = err ? err : ENOMEM;
		return NULL;
	}
	list[0] = soft_cm.context;
	if (num_devices)
		*num_devices = 1;
	return list;
}

void soft_rdma_free_devices(struct ibv_context **list)
{
	free(list);
}

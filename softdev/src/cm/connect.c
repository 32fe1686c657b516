/*
 * Connections of identifiers: connecting, accepting, disconnecting, and the events of the protocol.
 */
#include <string.h>

#include "cm/internal.h"

static uint8_t least(uint32_t a, uint32_t b)
{
	return (uint8_t)(a < b ? a : b);
}

/* READs and atomics outstanding at once: the maximum, unless the program gives a number. */
static uint8_t depth(uint8_t asked, uint8_t most)
{
	return asked == RDMA_MAX_INIT_DEPTH ? most : least(asked, SOFT_MAX_RD_ATOMIC);
}

/* ---- connecting ------------------------------------------------------------------------------------- */

/* Private data of a request: addresses first, then the program's. 0 or errno. */
static int put_private(const struct cm_id *id, const struct rdma_conn_param *param, struct cm_mad *mad)
{
	const void *data = param && param->private_data_len ? param->private_data : id->connect_data;
	const size_t length = param && param->private_data_len ? param->private_data_len : id->connect_length;
	struct cm_ip ip = { .src_port = cm_port_of(&id->id.route.addr.src_addr) };

	if (length > cm_private_room(mad->attribute) - CM_IP_BYTES || (length && !data))
		return EINVAL;
	memcpy(ip.src, id->peer.local, 16);
	memcpy(ip.dst, id->peer.remote, 16);
	cm_ip_pack(&ip, mad->private_data);
	if (length)
		memcpy(mad->private_data + CM_IP_BYTES, data, length);
	mad->private_length = (uint8_t)(CM_IP_BYTES + length);
	return 0;
}

static void put_request(struct cm_id *id, const struct rdma_conn_param *param, struct cm_mad *mad)
{
	id->initiator_depth = depth(param ? param->initiator_depth : RDMA_MAX_INIT_DEPTH, SOFT_MAX_RD_ATOMIC);
	id->responder_resources = depth(param ? param->responder_resources : RDMA_MAX_RESP_RES, SOFT_MAX_RD_ATOMIC);
	id->retry_count = param ? least(param->retry_count, 7) : 7;
	id->rnr_retry_count = param ? least(param->rnr_retry_count, 7) : 7;
	id->rq_psn = soft_random() & CM_24;
	mad->initiator_depth = id->initiator_depth;
	mad->responder_resources = id->responder_resources;
	mad->retry_count = id->retry_count;
	mad->rnr_retry_count = id->rnr_retry_count;
	mad->flow_control = param && param->flow_control;
	mad->srq = id->id.qp ? id->id.qp->srq != NULL : param && param->srq;
	mad->transport = id->id.qp_type == IBV_QPT_UC ? CM_UC : CM_RC;
	mad->qpn = id->id.qp ? id->id.qp->qp_num : param->qp_num & CM_24;
	mad->psn = id->rq_psn;
	mad->mtu = (uint8_t)id->mtu;
	mad->traffic_class = id->tos;
	mad->hop_limit = 64;
	mad->ack_timeout = id->ack_timeout;
	memcpy(mad->src_gid, id->peer.local, 16);
	memcpy(mad->dst_gid, id->peer.remote, 16);
}

/* On iWARP, rdma_cm also connects queue pairs that are not in the id: they cannot be connected otherwise. */
static void take_own_qp(struct cm_id *id, const struct rdma_conn_param *param)
{
	if (!id->id.qp && id->id.ps != RDMA_PS_UDP && soft_iwarp_by_cm())
		id->own_qpn = param->qp_num & CM_24;
}

/* Lock held. 0 or errno. */
static int ask(struct cm_id *id, const struct rdma_conn_param *param)
{
	const bool datagrams = id->id.ps == RDMA_PS_UDP;
	struct cm_mad mad = { .attribute = datagrams ? CM_SIDR_REQ : CM_REQ };

	if (!cm_is_here(id))
		return EIO;
	if (id->step != CM_ROUTE || (!datagrams && !id->id.qp && !param))
		return EINVAL;
	int err = put_private(id, param, &mad);
	if (err)
		return err;
	mad.service = cm_service((uint16_t)id->id.ps, cm_port_of(&id->id.route.addr.dst_addr));
	if (!datagrams)
		put_request(id, param, &mad);
	take_own_qp(id, param);
	id->conn = cm_conn_make(&soft_cm.engine, &id->peer, id);
	if (!id->conn)
		return ENOMEM;
	id->step = CM_CONNECTING;
	cm_conn_connect(&soft_cm.engine, id->conn, &mad, soft_clock_ns());
	cm_kick();
	return 0;
}

int soft_rdma_connect(struct rdma_cm_id *rdma_id, struct rdma_conn_param *param)
{
	cm_lock();
	int err = ask(to_id(rdma_id), param);
	cm_unlock();
	return err ? cm_fail(err) : cm_complete(to_id(rdma_id));
}

int cm_answer_response(struct cm_id *id)
{
	int err = cm_qp_connect(id);

	cm_lock();
	if (!id->conn)
		err = err ? err : ECONNRESET;
	else if (!err)
		err = cm_conn_establish(&soft_cm.engine, id->conn, soft_clock_ns());
	else
		cm_conn_reject(&soft_cm.engine, id->conn, CM_REASON_CONSUMER, NULL, 0, soft_clock_ns());
	cm_kick();
	cm_unlock();
	if (err)
		cm_qp_error(id);
	return err;
}

int soft_rdma_establish(struct rdma_cm_id *rdma_id)
{
	struct cm_id *id = to_id(rdma_id);
	int err = EINVAL;

	cm_lock();
	/* With a queue pair in the id, this happened on CONNECT_RESPONSE (event.c). */
	if (cm_is_here(id) && id->conn && !cm_qp_of(id))
		err = cm_conn_establish(&soft_cm.engine, id->conn, soft_clock_ns());
	cm_kick();
	cm_unlock();
	return err ? cm_fail(err) : 0;
}

/* ---- accepting -------------------------------------------------------------------------------------- */

static void leave_listener(struct cm_id *id)
{
	if (id->listener)
		id->listener->waiting--;
	id->listener = NULL;
}

static int put_answer(struct cm_id *id, const struct rdma_conn_param *param, struct cm_mad *mad)
{
	const bool datagrams = id->id.ps == RDMA_PS_UDP;

	*mad = (struct cm_mad){ .attribute = datagrams ? CM_SIDR_REP : CM_REP };
	if (param && param->private_data_len) {
		if (param->private_data_len > cm_private_room(mad->attribute) || !param->private_data)
			return EINVAL;
		memcpy(mad->private_data, param->private_data, param->private_data_len);
		mad->private_length = param->private_data_len;
	}
	mad->qpn = id->id.qp ? id->id.qp->qp_num : param->qp_num & CM_24;
	if (datagrams) {
		mad->qkey = RDMA_UDP_QKEY;
		mad->service = cm_service((uint16_t)id->id.ps, cm_port_of(&id->id.route.addr.src_addr));
		return 0;
	}
	mad->psn = id->rq_psn;
	mad->initiator_depth = id->initiator_depth;
	mad->responder_resources = id->responder_resources;
	mad->flow_control = param && param->flow_control;
	mad->rnr_retry_count = param ? least(param->rnr_retry_count, 7) : 7;
	mad->srq = id->id.qp ? id->id.qp->srq != NULL : param->srq;
	return 0;
}

/* Each end announces its limit; the smaller one holds. */
static int prepare(struct cm_id *id, const struct rdma_conn_param *param)
{
	const bool datagrams = id->id.ps == RDMA_PS_UDP;
	const enum cm_state wanted = datagrams ? CM_SIDR_REQ_RCVD : CM_REQ_RCVD;

	if (!cm_is_here(id))
		return EIO;
	if (!id->conn || (!id->id.qp && !param))
		return EINVAL;
	if (id->conn->state != wanted)
		return id->conn->state == CM_TIMEWAIT ? ECONNRESET : EINVAL; /* the peer has given up meanwhile */
	id->initiator_depth = depth(param ? param->initiator_depth : RDMA_MAX_INIT_DEPTH,
				    least(id->initiator_depth, SOFT_MAX_RD_ATOMIC));
	id->responder_resources = depth(param ? param->responder_resources : RDMA_MAX_RESP_RES,
					least(id->responder_resources, SOFT_MAX_RD_ATOMIC));
	return 0;
}

int soft_rdma_accept(struct rdma_cm_id *rdma_id, struct rdma_conn_param *param)
{
	struct cm_id *id = to_id(rdma_id);
	const bool datagrams = rdma_id->ps == RDMA_PS_UDP;
	struct cm_mad mad;

	cm_lock();
	int err = prepare(id, param);
	if (!err)
		take_own_qp(id, param);
	cm_unlock();
	if (!err && !datagrams && (rdma_id->qp || id->own_qpn))
		err = cm_qp_connect(id);
	if (err)
		return cm_fail(err);
	cm_lock();
	err = put_answer(id, param, &mad);
	if (!err)
		err = cm_conn_accept(&soft_cm.engine, id->conn, &mad, soft_clock_ns());
	if (!err)
		leave_listener(id);
	cm_kick();
	cm_unlock();
	if (err)
		cm_qp_error(id);
	return err ? cm_fail(err) : datagrams ? 0 : cm_complete(id);
}

static int reject(struct rdma_cm_id *rdma_id, const void *data, uint8_t length, uint16_t reason)
{
	struct cm_id *id = to_id(rdma_id);
	int err = EINVAL;

	cm_lock();
	if (cm_is_here(id) && id->conn && (!length || data))
		err = cm_conn_reject(&soft_cm.engine, id->conn, reason, data, length, soft_clock_ns());
	if (!err)
		leave_listener(id);
	cm_kick();
	cm_unlock();
	return err ? cm_fail(err) : 0;
}

int soft_rdma_reject(struct rdma_cm_id *id, const void *data, uint8_t length)
{
	return reject(id, data, length, CM_REASON_CONSUMER);
}

int soft_rdma_reject_ece(struct rdma_cm_id *id, const void *data, uint8_t length)
{
	return reject(id, data, length, CM_REASON_OPTION);
}

/* ---- disconnecting ---------------------------------------------------------------------------------- */

int soft_rdma_disconnect(struct rdma_cm_id *rdma_id)
{
	struct cm_id *id = to_id(rdma_id);
	int err = EINVAL;

	if (!cm_is_here(id))
		return cm_fail(EIO);
	cm_lock();
	struct cm_conn *c = rdma_id->ps == RDMA_PS_UDP ? NULL : id->conn;
	if (c && (c->state == CM_REP_SENT || c->state == CM_ESTABLISHED || c->state == CM_DREQ_SENT ||
		  c->state == CM_TIMEWAIT || (c->state == CM_IDLE && id->step == CM_CONNECTING)))
		err = 0;
	const bool ended = id->ended;
	cm_unlock();
	if (err)
		return cm_fail(err);
	/* Stop the queue pair first: nothing may leave it once the peer regards the connection as closed. */
	cm_qp_error(id);
	cm_lock();
	if (id->conn && id->conn->state != CM_IDLE)
		cm_conn_disconnect(&soft_cm.engine, id->conn, soft_clock_ns());
	cm_kick();
	cm_unlock();
	return ended ? 0 : cm_complete(id);
}

int soft_rdma_notify(struct rdma_cm_id *rdma_id, enum ibv_event_type event)
{
	(void)rdma_id;
	/*
	 * COMM_EST reports that data arrived before the RTU. The RTU is repeated until it arrives, so nothing more is
	 * needed.
	 */
	return event == IBV_EVENT_COMM_EST ? 0 : cm_fail(EINVAL);
}

/* ---- events of the protocol ------------------------------------------------------------------------- */

static void tell_parameters(struct cm_event *event, const struct cm_mad *mad)
{
	struct rdma_conn_param *conn = &event->event.param.conn;

	/* The peer's initiator depth is our limit for responder resources, and the reverse. */
	conn->responder_resources = mad->initiator_depth;
	conn->initiator_depth = mad->responder_resources;
	conn->flow_control = mad->flow_control;
	conn->retry_count = mad->retry_count;
	conn->rnr_retry_count = mad->rnr_retry_count;
	conn->srq = mad->srq;
	conn->qp_num = mad->qpn;
}

static void on_response(struct cm_id *id, struct cm_event *event, const struct cm_mad *mad)
{
	id->sq_psn = mad->psn;
	id->remote_qpn = mad->qpn;
	id->rnr_retry_count = mad->rnr_retry_count;
	id->initiator_depth = least(id->initiator_depth, mad->responder_resources);
	tell_parameters(event, mad);
	cm_event_data(event, mad->private_data, mad->private_length);
}

static void on_sidr_reply(const struct cm_id *id, struct cm_event *event, const struct cm_mad *mad)
{
	struct rdma_ud_param *ud = &event->event.param.ud;

	if (mad->reason != CM_SIDR_VALID) {
		event->event.event = RDMA_CM_EVENT_UNREACHABLE;
		event->event.status = mad->reason;
	}
	cm_path(id, &ud->ah_attr);
	ud->qp_num = mad->qpn;
	ud->qkey = mad->qkey;
	cm_event_data(event, mad->private_data, mad->private_length);
}

static void on_event(void *owner, struct cm_conn *c, enum cm_event_kind kind, const struct cm_mad *mad)
{
	static const enum rdma_cm_event_type types[] = {
		[CM_EVENT_RESPONSE] = RDMA_CM_EVENT_CONNECT_RESPONSE,
		[CM_EVENT_ESTABLISHED] = RDMA_CM_EVENT_ESTABLISHED,
		[CM_EVENT_REJECTED] = RDMA_CM_EVENT_REJECTED,
		[CM_EVENT_UNREACHABLE] = RDMA_CM_EVENT_UNREACHABLE,
		[CM_EVENT_DISCONNECTED] = RDMA_CM_EVENT_DISCONNECTED,
		[CM_EVENT_TIMEWAIT_EXIT] = RDMA_CM_EVENT_TIMEWAIT_EXIT,
		[CM_EVENT_SIDR_REPLY] = RDMA_CM_EVENT_ESTABLISHED,
	};
	struct cm_id *id = c->user;
	struct cm_event *event;

	(void)owner;
	/* The channel of a synchronous id is not read while no call waits on it. */
	if (kind == CM_EVENT_TIMEWAIT_EXIT && (id->sync || id->id.ps == RDMA_PS_UDP))
		return;
	event = cm_event_make(id, types[kind], kind == CM_EVENT_UNREACHABLE ? -ETIMEDOUT : 0);
	if (!event)
		return;
	if (kind == CM_EVENT_RESPONSE) {
		on_response(id, event, mad);
	} else if (kind == CM_EVENT_SIDR_REPLY) {
		on_sidr_reply(id, event, mad);
	} else if (kind == CM_EVENT_REJECTED) {
		event->event.status = mad->reason;
		cm_event_data(event, mad->private_data, mad->private_length);
	}
	cm_event_push(event);
}

static bool send_message(void *owner, const struct cm_peer *peer, const uint8_t mad[CM_MAD_BYTES])
{
	(void)owner;
	return cm_bus_send(to_ctx(soft_cm.context), peer, mad);
}

/* An acknowledgement of nothing, which whoever receives it ignores. */
static void knock(void *owner, const struct cm_peer *peer)
{
	const struct cm_mad nothing = { .attribute = CM_RTU };
	uint8_t bytes[CM_MAD_BYTES];

	(void)owner;
	cm_mad_pack(&nothing, bytes);
	const int fd = soft_mad_knock(to_ctx(soft_cm.context), peer->local, peer->remote, bytes);
	if (fd >= 0)
		cm_watch(fd); /* from the second time on it is watched already */
}

static struct cm_id *find_listener(const struct cm_mad *mad, const struct cm_peer *from)
{
	struct cm_id *found = NULL;
	uint8_t gid[16];

	for (struct cm_id *id = soft_cm.ids; id; id = id->next) {
		const struct sockaddr *address = &id->id.route.addr.src_addr;

		if (id->step != CM_LISTENING || cm_service((uint16_t)id->id.ps, cm_port_of(address)) != mad->service ||
		    !cm_gid_of(address, gid))
			continue;
		if (!memcmp(gid, from->local, 16))
			return id;
		if (cm_is_any(address) && (!id->only_family || cm_family_of(gid) == cm_family_of(from->local)))
			found = id;
	}
	return found;
}

static uint32_t scope_of(const struct cm_id *id)
{
	struct ibv_gid_entry entry = { 0 };

	soft_gid_entry(to_ctx(soft_cm.context), id->sgid_index, &entry);
	return entry.ndev_ifindex;
}

static struct cm_id *make_child(struct cm_id *listener, struct cm_conn *c, const struct cm_mad *mad,
				const struct cm_ip *ip)
{
	struct cm_id *id = cm_id_make(listener->id.channel, listener->id.context, listener->id.ps);

	if (!id)
		return NULL;
	id->peer = c->peer;
	id->step = CM_CONNECTING;
	id->tos = mad->attribute == CM_REQ ? mad->traffic_class : listener->tos;
	if (!cm_id_place(id, c->peer.local)) {
		cm_id_free(id);
		return NULL;
	}
	cm_address_of(c->peer.local, (uint16_t)mad->service, scope_of(id), &id->id.route.addr.src_storage);
	cm_address_of(c->peer.remote, ip->src_port, scope_of(id), &id->id.route.addr.dst_storage);
	if (mad->attribute == CM_REQ) {
		id->id.qp_type = mad->transport == CM_UC ? IBV_QPT_UC : IBV_QPT_RC;
		id->mtu = (enum ibv_mtu)mad->mtu;
		id->ack_timeout = mad->ack_timeout;
		id->retry_count = mad->retry_count;
		id->rnr_retry_count = mad->rnr_retry_count;
		id->initiator_depth = mad->responder_resources;
		id->responder_resources = mad->initiator_depth;
		id->remote_qpn = mad->qpn;
		id->sq_psn = mad->psn;
		id->rq_psn = soft_random() & CM_24;
	}
	return id;
}

static enum cm_verdict on_request(void *owner, struct cm_conn *c, const struct cm_mad *mad)
{
	struct cm_id *listener = find_listener(mad, &c->peer);
	const bool datagrams = mad->attribute == CM_SIDR_REQ;
	struct cm_ip ip;

	(void)owner;
	if (!listener || datagrams != (listener->id.ps == RDMA_PS_UDP) || !cm_ip_parse(mad->private_data, &ip))
		return CM_NOBODY;
	struct cm_id *id = listener->waiting < listener->backlog ? make_child(listener, c, mad, &ip) : NULL;
	if (!id)
		return CM_BUSY;
	struct cm_event *event = cm_event_make(listener, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
	if (!event) {
		cm_id_free(id);
		return CM_BUSY;
	}
	event->event.id = &id->id;
	event->event.listen_id = &listener->id;
	if (datagrams)
		event->event.param.ud.qp_num = 0;
	else
		tell_parameters(event, mad);
	cm_event_data(event, mad->private_data + CM_IP_BYTES, mad->private_length - (size_t)CM_IP_BYTES);
	id->listener = listener;
	listener->waiting++;
	id->conn = c;
	c->user = id;
	cm_event_push(event);
	return CM_TAKEN;
}

/* A killed process: its queue pairs' peers are in the error state, and its slot is free. */
static bool has_died(void *owner, const struct cm_conn *c)
{
	struct soft_qp *qp = soft_qp_find(c->local_qpn);

	(void)owner;
	return qp && soft_state(qp) == IBV_QPS_ERR && !soft_slot_taken(c->remote_qpn >> SOFT_QPN_INDEX_BITS);
}

const struct cm_calls cm_calls = {
	.died = has_died,
	.send = send_message,
	.event = on_event,
	.request = on_request,
	.knock = knock,
};

/*
 * rdma_cm: calls, events, and what becomes of the queue pairs.
 */
#include <netinet/in.h>
#include <rdma/rdma_cma.h>

#include "trace/recorder/recorder.h"

static struct trace_record call(enum trace_cm what, const void *id)
{
	struct trace_record record = {
		.stamp = trace_ticks(), .kind = TRACE_CM_CALL, .device = 255, .object = (uintptr_t)id
	};

	record.cm_call.what = (uint8_t)what;
	return record;
}

static int done(struct trace_record *record, int failed)
{
	record->error = failed ? (uint16_t)errno : 0;
	trace_note(TRACE_RING_CONTROL, record);
	return failed;
}

static void note_address(struct trace_record *record, const struct sockaddr *address)
{
	if (!address)
		return;
	record->cm_call.family = (uint8_t)address->sa_family;
	if (address->sa_family == AF_INET) {
		const struct sockaddr_in *v4 = (const struct sockaddr_in *)(const void *)address;
		memcpy(record->cm_call.address, &v4->sin_addr, 4);
		record->cm_call.port = ntohs(v4->sin_port);
	} else if (address->sa_family == AF_INET6) {
		const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)address;
		memcpy(record->cm_call.address, &v6->sin6_addr, 16);
		record->cm_call.port = ntohs(v6->sin6_port);
	}
}

static void note_param(struct trace_record *record, const struct rdma_conn_param *param)
{
	if (!param)
		return;
	record->cm_call.responder = param->responder_resources;
	record->cm_call.initiator = param->initiator_depth;
	record->cm_call.retry_count = param->retry_count;
	record->cm_call.rnr_retry = param->rnr_retry_count;
	record->cm_call.private_bytes = param->private_data_len;
}

TRACE_EXPORT int rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id, void *context,
				enum rdma_port_space ps)
{
	struct trace_record record = call(TRACE_CM_CREATE, NULL);
	const int failed = NEXT(rdma_create_id)(channel, id, context, ps);

	record.object = failed ? 0 : (uintptr_t)*id;
	record.qpn = (uint32_t)ps;
	return done(&record, failed);
}

/* It waits until the id's events are acknowledged. */
TRACE_EXPORT int rdma_destroy_id(struct rdma_cm_id *id)
{
	struct trace_record record = {
		.stamp = trace_ticks(), .kind = TRACE_ENTERED, .device = 255, .object = (uintptr_t)id
	};

	record.call.what = TRACE_CM_CALL;
	trace_note(TRACE_RING_CONTROL, &record);
	record = call(TRACE_CM_DESTROY, id);
	return done(&record, NEXT(rdma_destroy_id)(id));
}

TRACE_EXPORT int rdma_bind_addr(struct rdma_cm_id *id, struct sockaddr *address)
{
	struct trace_record record = call(TRACE_CM_BIND, id);

	note_address(&record, address);
	return done(&record, NEXT(rdma_bind_addr)(id, address));
}

TRACE_EXPORT int rdma_resolve_addr(struct rdma_cm_id *id, struct sockaddr *src_addr, struct sockaddr *dst_addr,
				   int timeout_ms)
{
	struct trace_record record = call(TRACE_CM_RESOLVE_ADDR, id);

	note_address(&record, dst_addr);
	return done(&record, NEXT(rdma_resolve_addr)(id, src_addr, dst_addr, timeout_ms));
}

TRACE_EXPORT int rdma_resolve_route(struct rdma_cm_id *id, int timeout_ms)
{
	struct trace_record record = call(TRACE_CM_RESOLVE_ROUTE, id);

	return done(&record, NEXT(rdma_resolve_route)(id, timeout_ms));
}

TRACE_EXPORT int rdma_listen(struct rdma_cm_id *id, int backlog)
{
	struct trace_record record = call(TRACE_CM_LISTEN, id);

	record.cm_call.backlog = (uint16_t)backlog;
	return done(&record, NEXT(rdma_listen)(id, backlog));
}

/* What rdma_cm does to a queue pair inside, it does not do by our functions. */
static void look_at(struct rdma_cm_id *id)
{
	if (id && id->verbs)
		trace_adopt(id->verbs);
	if (id && id->qp)
		trace_note_state(id->qp, TRACE_BY_CM);
}

TRACE_EXPORT int rdma_connect(struct rdma_cm_id *id, struct rdma_conn_param *param)
{
	struct trace_record record = call(TRACE_CM_CONNECT, id);

	note_param(&record, param);
	record.cm_call.qp = (uintptr_t)id->qp;
	return done(&record, NEXT(rdma_connect)(id, param));
}

TRACE_EXPORT int rdma_accept(struct rdma_cm_id *id, struct rdma_conn_param *param)
{
	struct trace_record record = call(TRACE_CM_ACCEPT, id);
	int failed;

	note_param(&record, param);
	record.cm_call.qp = (uintptr_t)id->qp;
	failed = done(&record, NEXT(rdma_accept)(id, param));
	if (!failed)
		look_at(id);
	return failed;
}

TRACE_EXPORT int rdma_reject(struct rdma_cm_id *id, const void *private_data, uint8_t private_data_len)
{
	struct trace_record record = call(TRACE_CM_REJECT, id);

	record.cm_call.private_bytes = private_data_len;
	return done(&record, NEXT(rdma_reject)(id, private_data, private_data_len));
}

TRACE_EXPORT int rdma_disconnect(struct rdma_cm_id *id)
{
	struct trace_record record = call(TRACE_CM_DISCONNECT, id);
	const int failed = done(&record, NEXT(rdma_disconnect)(id));

	if (!failed)
		look_at(id);
	return failed;
}

static void made(struct rdma_cm_id *id, struct ibv_pd *pd, const struct ibv_qp_cap *asked, const struct ibv_qp_cap *got,
		 bool sig_all, struct trace_record *record, int failed)
{
	const int error = errno;

	if (id->verbs)
		trace_adopt(id->verbs);
	if (id->qp)
		trace_qp_made(id->qp, pd, asked, got, sig_all, failed ? error : 0, id);
	record->cm_call.qp = (uintptr_t)id->qp;
	errno = error;
	done(record, failed);
	if (!failed)
		look_at(id);
}

TRACE_EXPORT int rdma_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct trace_record record = call(TRACE_CM_CREATE_QP, id);
	const struct ibv_qp_cap asked = attr->cap;

	/* Before the queue pair is made, so that its functions are ours. */
	if (id->verbs)
		trace_adopt(id->verbs);
	const int failed = NEXT(rdma_create_qp)(id, pd, attr);
	made(id, pd, &asked, &attr->cap, attr->sq_sig_all, &record, failed);
	return failed;
}

TRACE_EXPORT int rdma_create_qp_ex(struct rdma_cm_id *id, struct ibv_qp_init_attr_ex *attr)
{
	struct trace_record record = call(TRACE_CM_CREATE_QP, id);
	const struct ibv_qp_cap asked = attr->cap;

	if (id->verbs)
		trace_adopt(id->verbs);
	const int failed = NEXT(rdma_create_qp_ex)(id, attr);
	made(id, attr->comp_mask & IBV_QP_INIT_ATTR_PD ? attr->pd : NULL, &asked, &attr->cap, attr->sq_sig_all, &record,
	     failed);
	return failed;
}

/* An endpoint has its queue pair already, if the attributes were given. */
TRACE_EXPORT int rdma_create_ep(struct rdma_cm_id **id, struct rdma_addrinfo *res, struct ibv_pd *pd,
				struct ibv_qp_init_attr *attr)
{
	struct trace_record record = call(TRACE_CM_CREATE, NULL);
	const struct ibv_qp_cap asked = attr ? attr->cap : (struct ibv_qp_cap){ 0 };
	const int failed = NEXT(rdma_create_ep)(id, res, pd, attr);
	const int error = errno;

	record.object = failed ? 0 : (uintptr_t)*id;
	if (res && res->ai_dst_addr)
		note_address(&record, res->ai_dst_addr);
	errno = error;
	done(&record, failed);
	if (!failed && attr && (*id)->qp)
		trace_qp_made((*id)->qp, pd, &asked, &attr->cap, attr->sq_sig_all, 0, *id);
	if (!failed)
		look_at(*id);
	errno = error;
	return failed;
}

TRACE_EXPORT int rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event)
{
	const int failed = NEXT(rdma_get_cm_event)(channel, event);

	if (failed)
		return failed;
	const struct rdma_cm_event *got = *event;
	struct trace_record record = {
		.stamp = trace_ticks(), .kind = TRACE_CM_EVENT, .device = 255, .object = (uintptr_t)got->id
	};
	record.cm_event = (struct trace_cm_event){ .event = (uint32_t)got->event,
						   .status = got->status,
						   .listen = (uintptr_t)got->listen_id,
						   .qp = (uintptr_t)(got->id ? got->id->qp : NULL) };
	switch (got->event) {
	case RDMA_CM_EVENT_CONNECT_REQUEST:
	case RDMA_CM_EVENT_CONNECT_RESPONSE:
	case RDMA_CM_EVENT_ESTABLISHED:
	case RDMA_CM_EVENT_REJECTED:
		record.cm_event.responder = got->param.conn.responder_resources;
		record.cm_event.initiator = got->param.conn.initiator_depth;
		record.cm_event.retry_count = got->param.conn.retry_count;
		record.cm_event.rnr_retry = got->param.conn.rnr_retry_count;
		record.cm_event.private_bytes = got->param.conn.private_data_len;
		break;
	default:
		break;
	}
	trace_note(TRACE_RING_CONTROL, &record);
	look_at(got->id);
	return 0;
}

TRACE_EXPORT int rdma_ack_cm_event(struct rdma_cm_event *event)
{
	const struct trace_record record = {
		.stamp = trace_ticks(), .kind = TRACE_CM_ACK, .device = 255, .object = (uintptr_t)event->id
	};

	trace_note(TRACE_RING_CONTROL, &record);
	return NEXT(rdma_ack_cm_event)(event);
}

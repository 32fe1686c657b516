/*
 * Queue pairs: creation, states, addresses, end.
 */
#include "trace/recorder/recorder.h"

static uint8_t clip(uint32_t value)
{
	return value > 255 ? 255 : (uint8_t)value;
}

/* Who has been seen being made: those of rdma_cm are seen twice, where its library calls ours. */
static const void *mark_of(const struct ibv_qp *qp)
{
	return (const char *)qp + 1;
}

void trace_qp_made(struct ibv_qp *qp, struct ibv_pd *pd, const struct ibv_qp_cap *asked, const struct ibv_qp_cap *got,
		   bool sig_all, int error, void *cm_id)
{
	struct ibv_context *context = qp ? qp->context : pd ? pd->context : NULL;
	struct trace_record record = { .stamp = trace_ticks(),
				       .kind = TRACE_QP_ASKED,
				       .device = trace_device_of(context),
				       .error = (uint16_t)error,
				       .object = (uintptr_t)qp };

	if (qp && trace_find(mark_of(qp)))
		return;
	record.asked = (struct trace_qp_asked){ .pd = (uintptr_t)(qp ? qp->pd : pd),
						.cm_id = (uintptr_t)cm_id,
						.send_wr = asked->max_send_wr,
						.recv_wr = asked->max_recv_wr,
						.inline_bytes = asked->max_inline_data,
						.send_sge = clip(asked->max_send_sge),
						.recv_sge = clip(asked->max_recv_sge) };
	trace_note(TRACE_RING_CONTROL, &record);
	record.kind = TRACE_QP;
	record.qpn = qp ? qp->qp_num : 0;
	record.qp = (struct trace_qp){ .send_cq = (uintptr_t)(qp ? qp->send_cq : NULL),
				       .recv_cq = (uintptr_t)(qp ? qp->recv_cq : NULL),
				       .srq = (uintptr_t)(qp ? qp->srq : NULL),
				       .send_wr = got->max_send_wr,
				       .recv_wr = got->max_recv_wr,
				       .inline_bytes = got->max_inline_data,
				       .type = qp ? (uint8_t)qp->qp_type : 0,
				       .sig_all = sig_all,
				       .send_sge = clip(got->max_send_sge),
				       .recv_sge = clip(got->max_recv_sge) };
	trace_note(TRACE_RING_CONTROL, &record);
	if (qp)
		trace_enter(mark_of(qp), qp);
}

TRACE_EXPORT struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	const struct ibv_qp_cap asked = attr->cap;

	trace_adopt(pd->context);
	struct ibv_qp *qp = NEXT(ibv_create_qp)(pd, attr);
	trace_qp_made(qp, pd, &asked, &attr->cap, attr->sq_sig_all, qp ? 0 : errno, NULL);
	return qp;
}

struct ibv_qp *trace_create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr)
{
	const struct ibv_qp_cap asked = attr->cap;
	struct ibv_qp *qp = trace_context_of(context)->create_qp_ex(context, attr);

	trace_qp_made(qp, attr->comp_mask & IBV_QP_INIT_ATTR_PD ? attr->pd : NULL, &asked, &attr->cap, attr->sq_sig_all,
		      qp ? 0 : errno, NULL);
	return qp;
}

TRACE_EXPORT struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp)
{
	struct ibv_qp_ex *extended = NEXT(ibv_qp_to_qp_ex)(qp);

	if (extended && trace_adopt(qp->context))
		trace_adopt_qp_ex(extended);
	return extended;
}

TRACE_EXPORT int ibv_destroy_qp(struct ibv_qp *qp)
{
	struct trace_record record = { .stamp = trace_ticks(),
				       .kind = TRACE_QP_GONE,
				       .device = trace_device_of(qp->context),
				       .qpn = qp->qp_num,
				       .object = (uintptr_t)qp };
	/* Before, as another thread may get a queue pair at the same address at once. */
	void *extended = trace_find(qp), *mark = trace_find(mark_of(qp));

	trace_leave(mark_of(qp));
	const int error = NEXT(ibv_destroy_qp)(qp);
	record.error = (uint16_t)error;
	trace_note(TRACE_RING_CONTROL, &record);
	if (error && mark)
		trace_enter(mark_of(qp), mark);
	else if (!error && extended)
		trace_forget_qp_ex(qp, extended);
	return error;
}

/* ---- addresses ---- */

/* In the library but not in its public headers. */
enum ibv_gid_type_sysfs { IBV_GID_TYPE_SYSFS_IB_ROCE_V1, IBV_GID_TYPE_SYSFS_ROCE_V2 };
int ibv_query_gid_type(struct ibv_context *context, uint8_t port_num, unsigned int index,
		       enum ibv_gid_type_sysfs *type);

static uint8_t gid_type(struct ibv_context *context, uint8_t port, uint8_t index, uint8_t link_layer)
{
	__typeof__(&ibv_query_gid_type) query = NEXT(ibv_query_gid_type);
	enum ibv_gid_type_sysfs type;

	if (!query || query(context, port, index, &type))
		return TRACE_GID_UNKNOWN;
	if (type == IBV_GID_TYPE_SYSFS_ROCE_V2)
		return TRACE_GID_ROCE_V2;
	return link_layer == IBV_LINK_LAYER_ETHERNET ? TRACE_GID_ROCE_V1 : TRACE_GID_IB;
}

void trace_note_address(unsigned ring, const void *object, uint32_t qpn, struct ibv_context *context,
			const struct ibv_ah_attr *attr)
{
	struct trace_record record = { .stamp = trace_ticks(),
				       .kind = TRACE_ADDRESS,
				       .device = trace_device_of(context),
				       .qpn = qpn,
				       .object = (uintptr_t)object };
	struct ibv_port_attr port = { .state = IBV_PORT_NOP };
	union ibv_gid gid;
	const int saved = errno;

	if (!trace_on())
		return;
	memcpy(record.address.dgid, attr->grh.dgid.raw, sizeof(record.address.dgid));
	record.address.sgid_index = attr->grh.sgid_index;
	record.address.global = attr->is_global;
	record.address.sl = attr->sl;
	record.address.hop_limit = attr->grh.hop_limit;
	if (!ibv_query_port(context, attr->port_num, (struct _compat_ibv_port_attr *)&port)) {
		record.address.port_state = (uint8_t)port.state;
		record.address.active_mtu = (uint8_t)port.active_mtu;
	}
	if (attr->is_global && !ibv_query_gid(context, attr->port_num, attr->grh.sgid_index, &gid) &&
	    memcmp(gid.raw, (const uint8_t[16]){ 0 }, sizeof(gid.raw)) != 0) {
		memcpy(record.address.sgid, gid.raw, sizeof(record.address.sgid));
		record.address.sgid_known = 1;
		record.address.gid_type = gid_type(context, attr->port_num, attr->grh.sgid_index, port.link_layer);
	}
	trace_note(ring, &record);
	errno = saved;
}

/* ---- states ---- */

static void note_modify(struct ibv_qp *qp, const struct ibv_qp_attr *attr, int mask, uint8_t from, uint64_t stamp,
			int error, enum trace_origin origin)
{
	struct trace_record record = { .stamp = stamp,
				       .kind = TRACE_MODIFY,
				       .device = trace_device_of(qp->context),
				       .error = (uint16_t)(error < 0 ? -error : error),
				       .qpn = qp->qp_num,
				       .object = (uintptr_t)qp };

	record.modify = (struct trace_modify){
		.mask = (uint32_t)mask,
		.state = (uint8_t)attr->qp_state,
		.path_mtu = clip((uint32_t)attr->path_mtu),
		.timeout = attr->timeout,
		.retry_cnt = attr->retry_cnt,
		.rnr_retry = attr->rnr_retry,
		.min_rnr_timer = attr->min_rnr_timer,
		.max_rd_atomic = attr->max_rd_atomic,
		.max_dest_rd_atomic = attr->max_dest_rd_atomic,
		.qkey = attr->qkey,
		.rq_psn = attr->rq_psn,
		.sq_psn = attr->sq_psn,
		.dest_qpn = attr->dest_qp_num,
		.access = attr->qp_access_flags,
		.pkey_index = attr->pkey_index,
		.port = attr->port_num,
		.origin = (uint8_t)origin,
		.from = from,
	};
	trace_note(TRACE_RING_CONTROL, &record);
	if (mask & IBV_QP_AV)
		trace_note_address(TRACE_RING_CONTROL, qp, qp->qp_num, qp->context, &attr->ah_attr);
}

TRACE_EXPORT int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	const uint8_t from = (uint8_t)qp->state;
	const uint64_t stamp = trace_ticks();
	const int error = NEXT(ibv_modify_qp)(qp, attr, mask);
	const int saved = errno;

	note_modify(qp, attr, mask, from, stamp, error, TRACE_BY_PROGRAM);
	errno = saved;
	return error;
}

void trace_note_state(struct ibv_qp *qp, enum trace_origin origin)
{
	struct ibv_qp_attr attr = { 0 };
	struct ibv_qp_init_attr init;
	const int saved = errno;
	const int all = IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY | IBV_QP_AV |
			IBV_QP_PATH_MTU | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_RQ_PSN |
			IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER | IBV_QP_SQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
			IBV_QP_DEST_QPN;
	__typeof__(&ibv_query_qp) query = NEXT(ibv_query_qp);

	if (trace_on() && query && !query(qp, &attr, all, &init)) {
		/* Before it is connected, the rest says nothing. */
		const int mask = attr.qp_state == IBV_QPS_RTR || attr.qp_state == IBV_QPS_RTS ? all : IBV_QP_STATE;
		note_modify(qp, &attr, mask, (uint8_t)qp->state, trace_ticks(), 0, origin);
	}
	errno = saved;
}

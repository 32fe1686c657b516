/*
 * Contexts, protection domains, memory, completion channels and queues, shared receive queues, address handles.
 */
#include "trace/recorder/recorder.h"

static struct trace_record record_of(enum trace_kind kind, struct ibv_context *context, const void *object)
{
	return (struct trace_record){ .stamp = trace_ticks(),
				      .kind = (uint8_t)kind,
				      .device = trace_device_of(context),
				      .object = (uintptr_t)object };
}

/* What a call that makes an object has left behind: 0, or why there is none. */
static uint16_t error_of(const void *object)
{
	return object ? 0 : (uint16_t)errno;
}

static void note_gone(unsigned ring, enum trace_kind kind, uint8_t device, const void *object, uint64_t stamp,
		      int error)
{
	const struct trace_record record = { .stamp = stamp,
					     .kind = (uint8_t)kind,
					     .device = device,
					     .error = (uint16_t)(error < 0 ? -error : error),
					     .object = (uintptr_t)object };

	trace_note(ring, &record);
}

/* ---- contexts ---- */

TRACE_EXPORT struct ibv_context *ibv_open_device(struct ibv_device *device)
{
	struct ibv_context *context = NEXT(ibv_open_device)(device);

	if (context)
		trace_adopt(context);
	return context;
}

TRACE_EXPORT int ibv_close_device(struct ibv_context *context)
{
	struct trace_context *of = trace_close(context);
	const int failed = NEXT(ibv_close_device)(context);

	if (of && failed)
		trace_reopen(of, context);
	else if (of)
		trace_closed(of);
	return failed;
}

TRACE_EXPORT int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
	const int failed = NEXT(ibv_get_async_event)(context, event);

	if (!failed) {
		struct trace_record record = record_of(TRACE_ASYNC, context, NULL);
		record.async.type = (uint32_t)event->event_type;
		switch (event->event_type) {
		case IBV_EVENT_CQ_ERR:
			record.object = (uintptr_t)event->element.cq;
			break;
		case IBV_EVENT_SRQ_ERR:
		case IBV_EVENT_SRQ_LIMIT_REACHED:
			record.object = (uintptr_t)event->element.srq;
			break;
		case IBV_EVENT_QP_FATAL:
		case IBV_EVENT_QP_REQ_ERR:
		case IBV_EVENT_QP_ACCESS_ERR:
		case IBV_EVENT_COMM_EST:
		case IBV_EVENT_SQ_DRAINED:
		case IBV_EVENT_PATH_MIG:
		case IBV_EVENT_PATH_MIG_ERR:
		case IBV_EVENT_QP_LAST_WQE_REACHED:
			record.object = (uintptr_t)event->element.qp;
			record.qpn = event->element.qp->qp_num;
			break;
		default:
			record.object = (uintptr_t)context;
		}
		trace_note(TRACE_RING_CONTROL, &record);
	}
	return failed;
}

/* ---- protection domains ---- */

TRACE_EXPORT struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	struct trace_record record = record_of(TRACE_PD, context, NULL);
	struct ibv_pd *pd = NEXT(ibv_alloc_pd)(context);

	record.object = (uintptr_t)pd;
	record.error = error_of(pd);
	trace_note(TRACE_RING_CONTROL, &record);
	return pd;
}

TRACE_EXPORT int ibv_dealloc_pd(struct ibv_pd *pd)
{
	const uint8_t device = trace_device_of(pd->context);
	const uint64_t stamp = trace_ticks();
	const int error = NEXT(ibv_dealloc_pd)(pd);

	note_gone(TRACE_RING_CONTROL, TRACE_PD_GONE, device, pd, stamp, error);
	return error;
}

/* ---- memory ---- */

static void note_mr(struct trace_record *record, struct ibv_pd *pd, struct ibv_mr *mr, const void *address,
		    uint64_t length, uint64_t iova, unsigned access)
{
	record->object = (uintptr_t)mr;
	record->error = error_of(mr);
	record->qpn = access;
	record->mr = (struct trace_mr){ .pd = (uintptr_t)pd,
					.address = (uintptr_t)address,
					.length = length,
					.iova = iova,
					.lkey = mr ? mr->lkey : 0,
					.rkey = mr ? mr->rkey : 0 };
	trace_note(TRACE_RING_MEMORY, record);
}

TRACE_EXPORT struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *address, size_t length, int access)
{
	struct trace_record record = record_of(TRACE_MR, pd->context, NULL);
	struct ibv_mr *mr = NEXT(ibv_reg_mr)(pd, address, length, access);

	note_mr(&record, pd, mr, address, length, (uintptr_t)address, (unsigned)access);
	return mr;
}

TRACE_EXPORT struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *address, size_t length, uint64_t iova, int access)
{
	struct trace_record record = record_of(TRACE_MR, pd->context, NULL);
	struct ibv_mr *mr = NEXT(ibv_reg_mr_iova)(pd, address, length, iova, access);

	note_mr(&record, pd, mr, address, length, iova, (unsigned)access);
	return mr;
}

TRACE_EXPORT struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *address, size_t length, uint64_t iova,
					     unsigned access)
{
	struct trace_record record = record_of(TRACE_MR, pd->context, NULL);
	struct ibv_mr *mr = NEXT(ibv_reg_mr_iova2)(pd, address, length, iova, access);

	note_mr(&record, pd, mr, address, length, iova, access);
	return mr;
}

/* Of rdma-core 59 and later; the headers may be older. */
struct ibv_mr_init_attr;
struct ibv_mr *ibv_reg_mr_ex(struct ibv_pd *pd, struct ibv_mr_init_attr *given);
struct mr_init_attr {
	size_t length;
	int access;
	uint64_t comp_mask;
	uint64_t iova;
	void *addr;
};
enum { MR_IOVA = 1, MR_ADDR = 2 };

TRACE_EXPORT struct ibv_mr *ibv_reg_mr_ex(struct ibv_pd *pd, struct ibv_mr_init_attr *given)
{
	struct trace_record record = record_of(TRACE_MR, pd->context, NULL);
	const struct mr_init_attr *attr = (const struct mr_init_attr *)(const void *)given;
	__typeof__(&ibv_reg_mr_ex) next = NEXT(ibv_reg_mr_ex);

	if (!next) {
		errno = ENOSYS;
		return NULL;
	}
	struct ibv_mr *mr = next(pd, given);
	const void *address = attr->comp_mask & MR_ADDR ? attr->addr : NULL;
	note_mr(&record, pd, mr, address, attr->length,
		attr->comp_mask & MR_IOVA ? attr->iova : (uint64_t)(uintptr_t)address, (unsigned)attr->access);
	return mr;
}

TRACE_EXPORT struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd,
					      int access)
{
	struct trace_record record = record_of(TRACE_MR, pd->context, NULL);
	struct ibv_mr *mr = NEXT(ibv_reg_dmabuf_mr)(pd, offset, length, iova, fd, access);

	note_mr(&record, pd, mr, NULL, length, iova, (unsigned)access);
	return mr;
}

TRACE_EXPORT int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *address, size_t length, int access)
{
	struct trace_record record = record_of(TRACE_MR, mr->context, NULL);
	const int error = NEXT(ibv_rereg_mr)(mr, flags, pd, address, length, access);

	if (!error) /* access: all, if it is not said here what the old one was */
		note_mr(&record, mr->pd, mr, mr->addr, mr->length, (uintptr_t)mr->addr,
			flags & IBV_REREG_MR_CHANGE_ACCESS ? (unsigned)access : UINT32_MAX);
	return error;
}

TRACE_EXPORT int ibv_dereg_mr(struct ibv_mr *mr)
{
	const uint8_t device = trace_device_of(mr->context);
	const uint64_t stamp = trace_ticks();
	const int error = NEXT(ibv_dereg_mr)(mr);

	note_gone(TRACE_RING_MEMORY, TRACE_MR_GONE, device, mr, stamp, error);
	return error;
}

struct ibv_mw *trace_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
	struct trace_record record = record_of(TRACE_MW, pd->context, NULL);
	struct ibv_mw *mw = trace_context_of(pd->context)->ops.alloc_mw(pd, type);

	record.object = (uintptr_t)mw;
	record.error = error_of(mw);
	trace_note(TRACE_RING_MEMORY, &record);
	return mw;
}

/* ---- completion channels ---- */

TRACE_EXPORT struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
	struct trace_record record = record_of(TRACE_CHANNEL, context, NULL);
	struct ibv_comp_channel *channel = NEXT(ibv_create_comp_channel)(context);

	record.object = (uintptr_t)channel;
	record.error = error_of(channel);
	trace_note(TRACE_RING_CONTROL, &record);
	return channel;
}

TRACE_EXPORT int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
	const uint8_t device = trace_device_of(channel->context);
	const uint64_t stamp = trace_ticks();
	const int error = NEXT(ibv_destroy_comp_channel)(channel);

	note_gone(TRACE_RING_CONTROL, TRACE_CHANNEL_GONE, device, channel, stamp, error);
	return error;
}

static void note_event(enum trace_kind kind, struct ibv_context *context, const void *object, const void *cq,
		       uint32_t count, uint16_t error)
{
	const uint8_t device = trace_device_of(context);
	struct trace_record *record = trace_next();

	if (!record)
		return;
	record->stamp = trace_ticks();
	record->kind = (uint8_t)kind;
	record->device = device;
	record->error = error;
	record->qpn = 0;
	record->object = (uintptr_t)object;
	record->event = (struct trace_event){ .cq = (uintptr_t)cq, .count = count };
	trace_put();
}

TRACE_EXPORT int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)
{
	note_event(TRACE_WAIT, channel->context, channel, NULL, 0, 0);
	const int failed = NEXT(ibv_get_cq_event)(channel, cq, cq_context);
	const int saved = errno;

	note_event(TRACE_EVENT, channel->context, channel, failed ? NULL : *cq, 0, failed ? (uint16_t)saved : 0);
	errno = saved;
	return failed;
}

TRACE_EXPORT void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int n)
{
	/* Afterwards, another thread may have destroyed the queue. */
	note_event(TRACE_ACK, cq->context, cq, cq, n, 0);
	NEXT(ibv_ack_cq_events)(cq, n);
}

/* ---- completion queues ---- */

static void note_cq(struct trace_record *record, struct ibv_cq *cq, const struct ibv_comp_channel *channel,
		    uint32_t asked, uint32_t vector)
{
	record->object = (uintptr_t)cq;
	record->error = error_of(cq);
	record->cq = (struct trace_cq){
		.channel = (uintptr_t)channel, .asked = asked, .cqe = cq ? (uint32_t)cq->cqe : 0, .vector = vector
	};
	trace_note(TRACE_RING_CONTROL, record);
}

TRACE_EXPORT struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context,
					  struct ibv_comp_channel *channel, int comp_vector)
{
	struct trace_record record = record_of(TRACE_CQ, context, NULL);
	struct ibv_cq *cq = NEXT(ibv_create_cq)(context, cqe, cq_context, channel, comp_vector);

	note_cq(&record, cq, channel, (uint32_t)cqe, (uint32_t)comp_vector);
	return cq;
}

struct ibv_cq_ex *trace_create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr)
{
	struct trace_record record = record_of(TRACE_CQ, context, NULL);
	struct ibv_cq_ex *cq = trace_context_of(context)->create_cq_ex(context, attr);

	note_cq(&record, cq ? ibv_cq_ex_to_cq(cq) : NULL, attr->channel, attr->cqe, attr->comp_vector);
	if (cq)
		trace_adopt_cq_ex(cq);
	return cq;
}

TRACE_EXPORT int ibv_resize_cq(struct ibv_cq *cq, int cqe)
{
	struct trace_record record = record_of(TRACE_CQ_RESIZED, cq->context, cq);
	const int error = NEXT(ibv_resize_cq)(cq, cqe);

	record.error = (uint16_t)error;
	record.cq = (struct trace_cq){ .channel = (uintptr_t)cq->channel,
				       .asked = (uint32_t)cqe,
				       .cqe = (uint32_t)cq->cqe };
	trace_note(TRACE_RING_CONTROL, &record);
	return error;
}

/* It waits until all events are acknowledged: so it is noted before, too. */
TRACE_EXPORT int ibv_destroy_cq(struct ibv_cq *cq)
{
	struct trace_record record = record_of(TRACE_ENTERED, cq->context, cq);

	record.call.what = TRACE_CQ_GONE;
	trace_note(TRACE_RING_CONTROL, &record);
	void *extended = trace_find(cq);
	const int error = NEXT(ibv_destroy_cq)(cq);

	note_gone(TRACE_RING_CONTROL, TRACE_CQ_GONE, record.device, cq, trace_ticks(), error);
	if (!error && extended)
		trace_forget_cq_ex(cq, extended);
	return error;
}

/* ---- shared receive queues ---- */

static void note_srq(struct trace_record *record, struct ibv_srq *srq, const struct ibv_pd *pd,
		     const struct ibv_srq_attr *attr)
{
	record->object = (uintptr_t)srq;
	record->error = error_of(srq);
	record->srq = (struct trace_srq){
		.pd = (uintptr_t)pd, .max_wr = attr->max_wr, .max_sge = attr->max_sge, .limit = attr->srq_limit
	};
	trace_note(TRACE_RING_CONTROL, record);
}

TRACE_EXPORT struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
	struct trace_record record = record_of(TRACE_SRQ, pd->context, NULL);
	struct ibv_srq *srq = NEXT(ibv_create_srq)(pd, attr);

	note_srq(&record, srq, pd, &attr->attr);
	return srq;
}

struct ibv_srq *trace_create_srq_ex(struct ibv_context *context, struct ibv_srq_init_attr_ex *attr)
{
	struct trace_record record = record_of(TRACE_SRQ, context, NULL);
	struct ibv_srq *srq = trace_context_of(context)->create_srq_ex(context, attr);

	note_srq(&record, srq, attr->comp_mask & IBV_SRQ_INIT_ATTR_PD ? attr->pd : NULL, &attr->attr);
	return srq;
}

TRACE_EXPORT int ibv_destroy_srq(struct ibv_srq *srq)
{
	const uint8_t device = trace_device_of(srq->context);
	const uint64_t stamp = trace_ticks();
	const int error = NEXT(ibv_destroy_srq)(srq);

	note_gone(TRACE_RING_CONTROL, TRACE_SRQ_GONE, device, srq, stamp, error);
	return error;
}

/* ---- address handles ---- */

static void note_ah(struct trace_record *record, struct ibv_pd *pd, struct ibv_ah *ah, const struct ibv_ah_attr *attr)
{
	record->object = (uintptr_t)ah;
	record->error = error_of(ah);
	trace_note(TRACE_RING_MEMORY, record);
	if (attr)
		trace_note_address(TRACE_RING_MEMORY, ah, 0, pd->context, attr);
}

TRACE_EXPORT struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	struct trace_record record = record_of(TRACE_AH, pd->context, NULL);
	struct ibv_ah *ah = NEXT(ibv_create_ah)(pd, attr);

	note_ah(&record, pd, ah, attr);
	return ah;
}

TRACE_EXPORT struct ibv_ah *ibv_create_ah_from_wc(struct ibv_pd *pd, struct ibv_wc *wc, struct ibv_grh *grh,
						  uint8_t port_num)
{
	struct trace_record record = record_of(TRACE_AH, pd->context, NULL);
	struct ibv_ah *ah = NEXT(ibv_create_ah_from_wc)(pd, wc, grh, port_num);

	note_ah(&record, pd, ah, NULL);
	return ah;
}

TRACE_EXPORT int ibv_destroy_ah(struct ibv_ah *ah)
{
	const uint8_t device = trace_device_of(ah->context);
	const uint64_t stamp = trace_ticks();
	const int error = NEXT(ibv_destroy_ah)(ah);

	note_gone(TRACE_RING_MEMORY, TRACE_AH_GONE, device, ah, stamp, error);
	return error;
}

/* ---- what was there before the recorder ---- */

void trace_note_pd(struct ibv_context *context, const void *pd)
{
	const struct trace_record record = record_of(TRACE_PD, context, pd);

	trace_note(TRACE_RING_CONTROL, &record);
}

void trace_note_cq(const struct soft_attach_cq *cq)
{
	struct trace_record record = record_of(TRACE_CQ, cq->context, cq->object);

	record.cq = (struct trace_cq){ .channel = (uintptr_t)cq->channel,
				       .asked = (uint32_t)cq->cqe,
				       .cqe = (uint32_t)cq->cqe };
	trace_note(TRACE_RING_CONTROL, &record);
}

void trace_note_mr(const struct soft_attach_mr *mr)
{
	struct trace_record record = record_of(TRACE_MR, mr->context, mr->object);

	record.qpn = mr->access;
	record.mr = (struct trace_mr){ .pd = (uintptr_t)mr->pd,
				       .address = mr->address,
				       .length = mr->length,
				       .iova = mr->iova,
				       .lkey = mr->lkey,
				       .rkey = mr->rkey };
	trace_note(TRACE_RING_MEMORY, &record);
}

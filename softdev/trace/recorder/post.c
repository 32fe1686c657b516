/*
 * Posting by lists. The device works first and the record is written while the message is on its way; the time in it
 * is that of the call.
 */
#include <sys/uio.h>
#include <unistd.h>

#include "trace/recorder/recorder.h"

static uint32_t total(const struct ibv_sge *list, int count)
{
	uint64_t length = 0;

	for (int i = 0; i < count; i++)
		length += list[i].length;
	return length > UINT32_MAX ? UINT32_MAX : (uint32_t)length;
}

static uint8_t clip(long value)
{
	return value > 255 || value < 0 ? 255 : (uint8_t)value;
}

static void note_sge(struct trace_wr *wr, const struct ibv_sge *list, int count)
{
	wr->num_sge = clip(count);
	if (count > 0) {
		wr->address = list->addr;
		wr->lkey = list->lkey;
		wr->length = count == 1 ? list->length : total(list, count);
	} else {
		wr->address = 0;
		wr->lkey = wr->length = 0;
	}
}

/* Of a request that was refused, the list may be shorter than it says, or nowhere: the kernel reads it, and may fail. */
static TRACE_AFTER void note_refused_sge(struct trace_wr *wr, const struct ibv_sge *list, int count)
{
	struct ibv_sge copy[32];
	const int most = count > 32 ? 32 : count < 0 ? 0 : count;
	struct iovec here = { copy, (size_t)most * sizeof(*copy) };
	struct iovec there = { (void *)(uintptr_t)list, here.iov_len };

	note_sge(wr, copy,
		 most && process_vm_readv(getpid(), &here, 1, &there, 1, 0) == (ssize_t)here.iov_len ? most : 0);
	wr->num_sge = clip(count);
}

static void note_remote(struct trace_wr *to, const struct ibv_send_wr *wr, enum ibv_qp_type type)
{
	switch (wr->opcode) {
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
	case IBV_WR_RDMA_READ:
		to->remote = wr->wr.rdma.remote_addr;
		to->rkey = wr->wr.rdma.rkey;
		return;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		to->remote = wr->wr.atomic.remote_addr;
		to->rkey = wr->wr.atomic.rkey;
		return;
	case IBV_WR_SEND_WITH_INV:
	case IBV_WR_LOCAL_INV:
		to->remote = 0;
		to->rkey = wr->invalidate_rkey;
		return;
	case IBV_WR_BIND_MW:
		to->remote = (uintptr_t)wr->bind_mw.mw;
		to->rkey = wr->bind_mw.rkey;
		return;
	default:
		to->remote = 0;
		to->rkey = 0;
		if (type == IBV_QPT_UD) {
			to->address = wr->wr.ud.remote_qkey;
			to->remote = (uintptr_t)wr->wr.ud.ah;
			to->rkey = wr->wr.ud.remote_qpn;
		}
	}
}

static TRACE_AFTER int note_sends(uint8_t device, const struct ibv_qp *qp, uint64_t stamp, const struct ibv_send_wr *wr,
				  const struct ibv_send_wr *end, int error)
{
	const int saved = errno;
	long place = 0;

	for (; wr; wr = wr->next, place++) {
		struct trace_record *record = trace_next();
		if (!record)
			break;
		record->stamp = stamp;
		record->kind = TRACE_SEND;
		record->device = device;
		record->error = wr == end ? (uint16_t)(error > 0 ? error : -error) : 0;
		record->qpn = qp->qp_num;
		record->object = (uintptr_t)qp;
		record->wr.wr_id = wr->wr_id;
		record->wr.opcode = (uint8_t)wr->opcode;
		record->wr.flags = (uint8_t)wr->send_flags;
		record->wr.place = clip(place);
		const bool bare = wr->opcode == IBV_WR_BIND_MW || wr->opcode == IBV_WR_LOCAL_INV;
		if (trace_unlikely(wr == end))
			note_refused_sge(&record->wr, wr->sg_list, bare ? 0 : wr->num_sge);
		else
			note_sge(&record->wr, wr->sg_list, bare ? 0 : wr->num_sge);
		note_remote(&record->wr, wr, qp->qp_type);
		trace_put();
		if (wr == end)
			break; /* those behind it were not looked at */
	}
	errno = saved;
	return error;
}

/* A device that refuses the whole call may leave `bad` as it was. */
#define REFUSED(wr, bad)                                                                                               \
	({                                                                                                             \
		__typeof__(wr) at_ = (wr);                                                                             \
		while (at_ && at_ != (bad))                                                                            \
			at_ = at_->next;                                                                               \
		at_ ? at_ : (wr);                                                                                      \
	})

int trace_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	const struct trace_context *of = trace_context_of(qp->context);
	const uint64_t stamp = trace_ticks();
	const int error = of->ops.post_send(qp, wr, bad);

	return note_sends(of->number, qp, stamp, wr, error ? REFUSED(wr, *bad) : NULL, error);
}

static TRACE_AFTER void note_receives(uint8_t device, uint32_t qpn, const void *object, uint64_t stamp,
				      const struct ibv_recv_wr *wr, const struct ibv_recv_wr *end, int error)
{
	const int saved = errno;
	long place = 0;

	for (; wr; wr = wr->next, place++) {
		struct trace_record *record = trace_next();
		if (!record)
			break;
		record->stamp = stamp;
		record->kind = TRACE_RECV;
		record->device = device;
		record->error = wr == end ? (uint16_t)(error > 0 ? error : -error) : 0;
		record->qpn = qpn;
		record->object = (uintptr_t)object;
		record->wr.wr_id = wr->wr_id;
		record->wr.remote = 0;
		record->wr.rkey = 0;
		record->wr.opcode = record->wr.flags = 0;
		record->wr.place = clip(place);
		if (trace_unlikely(wr == end))
			note_refused_sge(&record->wr, wr->sg_list, wr->num_sge);
		else
			note_sge(&record->wr, wr->sg_list, wr->num_sge);
		trace_put();
		if (wr == end)
			break;
	}
	errno = saved;
}

int trace_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	const struct trace_context *of = trace_context_of(qp->context);
	const uint64_t stamp = trace_ticks();
	const int error = of->ops.post_recv(qp, wr, bad);

	note_receives(of->number, qp->qp_num, qp, stamp, wr, error ? REFUSED(wr, *bad) : NULL, error);
	return error;
}

int trace_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	const struct trace_context *of = trace_context_of(srq->context);
	const uint64_t stamp = trace_ticks();
	const int error = of->ops.post_srq_recv(srq, wr, bad);

	note_receives(of->number, 0, srq, stamp, wr, error ? REFUSED(wr, *bad) : NULL, error);
	return error;
}

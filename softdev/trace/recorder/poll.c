/*
 * Polling by arrays, and arming. An empty poll gets a record only if it is the first one: a program that polls in a
 * loop would fill the ring with them. The others count in that record.
 */
#include "trace/recorder/recorder.h"

static TRACE_AFTER void note_empty(const struct ibv_cq *cq, uint8_t device)
{
	struct trace_record *record = trace_next();

	if (!record)
		return;
	record->stamp = trace_ticks();
	record->kind = TRACE_EMPTY;
	record->device = device;
	record->error = 0;
	record->qpn = 0;
	record->object = (uintptr_t)cq;
	record->empty = (struct trace_empty){ .count = 1 };
	trace_put();
	trace_self.empty = record;
	trace_self.empty_cq = (uintptr_t)cq;
}

void trace_empty_poll(const struct ibv_cq *cq, uint8_t device)
{
	if (trace_likely(trace_self.empty && trace_self.empty_cq == (uintptr_t)cq))
		trace_self.empty->empty.count++;
	else
		note_empty(cq, device);
}

static TRACE_AFTER int note_done(const struct ibv_cq *cq, uint8_t device, int asked, const struct ibv_wc *wc, int got)
{
	const int saved = errno;
	const uint64_t stamp = trace_ticks();

	for (int i = 0; i < got; i++) {
		struct trace_record *record = trace_next();
		if (!record)
			break;
		record->stamp = stamp;
		record->kind = TRACE_DONE;
		record->device = device;
		record->error = 0;
		record->qpn = wc[i].qp_num;
		record->object = (uintptr_t)cq;
		record->done.wr_id = wc[i].wr_id;
		record->done.byte_len = wc[i].byte_len;
		record->done.vendor_err = wc[i].vendor_err;
		record->done.src_qp = wc[i].src_qp;
		record->done.opcode = (uint8_t)wc[i].opcode;
		record->done.status = (uint8_t)wc[i].status;
		record->done.flags = (uint8_t)wc[i].wc_flags;
		record->done.place = (uint8_t)(i < 255 ? i : 255);
		record->done.asked = (uint32_t)asked;
		trace_put();
	}
	if (got < 0) {
		const struct trace_record failed = { .stamp = stamp,
						     .kind = TRACE_POLL_FAILED,
						     .device = device,
						     .error = (uint16_t)-got,
						     .object = (uintptr_t)cq };
		trace_note(TRACE_RING_CONTROL, &failed);
	}
	errno = saved;
	return got;
}

int trace_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	const struct trace_context *of = trace_context_of(cq->context);
	const int got = of->ops.poll_cq(cq, n, wc);

	if (trace_unlikely(got))
		return note_done(cq, of->number, n, wc, got);
	trace_empty_poll(cq, of->number);
	return 0;
}

int trace_req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
	const struct trace_context *of = trace_context_of(cq->context);
	const uint64_t stamp = trace_ticks();
	const int error = of->ops.req_notify_cq(cq, solicited_only);
	struct trace_record *record = trace_next();

	if (record) {
		record->stamp = stamp;
		record->kind = TRACE_ARM;
		record->device = of->number;
		record->error = (uint16_t)error;
		record->qpn = 0;
		record->object = (uintptr_t)cq;
		record->event = (struct trace_event){ .cq = (uintptr_t)cq, .count = solicited_only != 0 };
		trace_put();
	}
	return error;
}

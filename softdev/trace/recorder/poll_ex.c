/*
 * Extended completion queues: the functions in the object are replaced, and those of the device kept by its address.
 */
#include <stdlib.h>

#include "trace/recorder/recorder.h"

struct cq_ex {
	int (*start_poll)(struct ibv_cq_ex *cq, struct ibv_poll_cq_attr *attr);
	int (*next_poll)(struct ibv_cq_ex *cq);
	void (*end_poll)(struct ibv_cq_ex *cq);
	uint8_t device;
	uint8_t place;
};

static void note(struct ibv_cq_ex *cq, struct cq_ex *of, int error)
{
	if (error == ENOENT) {
		if (!of->place)
			trace_empty_poll(ibv_cq_ex_to_cq(cq), of->device);
		return;
	}
	struct trace_record *record = error ? NULL : trace_next();
	if (!record)
		return;
	/* The device defines the rest of an entry that failed no more than for an array. */
	const bool good = cq->status == IBV_WC_SUCCESS;
	record->stamp = trace_ticks();
	record->kind = TRACE_DONE;
	record->device = of->device;
	record->error = 0;
	record->object = (uintptr_t)cq;
	record->qpn = cq->read_qp_num ? cq->read_qp_num(cq) : 0;
	record->done = (struct trace_done){
		.wr_id = cq->wr_id,
		.byte_len = good && cq->read_byte_len ? cq->read_byte_len(cq) : 0,
		.vendor_err = good || !cq->read_vendor_err ? 0 : cq->read_vendor_err(cq),
		.opcode = good && cq->read_opcode ? (uint8_t)cq->read_opcode(cq) : 0,
		.status = (uint8_t)cq->status,
		.flags = good && cq->read_wc_flags ? (uint8_t)cq->read_wc_flags(cq) : 0,
		.place = of->place,
		.asked = 1,
	};
	trace_put();
	if (of->place < 255)
		of->place++;
}

static int start_poll(struct ibv_cq_ex *cq, struct ibv_poll_cq_attr *attr)
{
	struct cq_ex *of = trace_find(cq);
	const int error = of->start_poll(cq, attr);

	if (!error)
		of->place = 0; /* from here to end_poll, this thread has the queue */
	if (error == ENOENT)
		trace_empty_poll(ibv_cq_ex_to_cq(cq), of->device);
	else
		note(cq, of, error);
	return error;
}

static int next_poll(struct ibv_cq_ex *cq)
{
	struct cq_ex *of = trace_find(cq);
	const int error = of->next_poll(cq);

	note(cq, of, error);
	return error;
}

void trace_adopt_cq_ex(struct ibv_cq_ex *cq)
{
	struct cq_ex *of = cq->start_poll && cq->next_poll ? calloc(1, sizeof(*of)) : NULL;

	if (!of)
		return;
	*of = (struct cq_ex){ cq->start_poll, cq->next_poll, cq->end_poll, trace_device_of(cq->context), 0 };
	if (!trace_enter(cq, of)) {
		free(of);
		return;
	}
	cq->start_poll = start_poll;
	cq->next_poll = next_poll;
}

void trace_forget_cq_ex(const struct ibv_cq *cq, void *saved)
{
	trace_leave_as(cq, saved);
	free(saved);
}

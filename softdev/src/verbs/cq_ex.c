/*
 * Extended completion queues: one entry at a time, between start_poll and end_poll, read field by field.
 */
#include "verbs/internal.h"

#include <time.h>

#define SUPPORTED_FIELDS                                                                                               \
	((uint64_t)IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |                                       \
	 IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)
#define SUPPORTED_FLAGS (IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN)
#define SUPPORTED_MASK (IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD)

static struct soft_cq *of(struct ibv_cq_ex *cq)
{
	return soft_container_of(cq, struct soft_cq, cq_ex);
}

static int next_poll(struct ibv_cq_ex *cq)
{
	struct soft_cq *soft = of(cq);
	int got = soft_cq_pop(soft, 1, &soft->current);

	if (got < 1)
		return got ? -got : ENOENT;
	cq->wr_id = soft->current.wc.wr_id;
	cq->status = soft->current.wc.status;
	return 0;
}

/* The CQ stores the current entry, so one thread at a time owns it: from a successful start to the end. */
static int start_poll(struct ibv_cq_ex *cq, struct ibv_poll_cq_attr *attr)
{
	struct soft_cq *soft = of(cq);
	int error;

	if (attr->comp_mask)
		return EINVAL;
	if (!soft->single_threaded)
		soft_lock(&soft->reader_lock);
	error = next_poll(cq);
	if (error && !soft->single_threaded)
		soft_unlock(&soft->reader_lock);
	return error;
}

static void end_poll(struct ibv_cq_ex *cq)
{
	struct soft_cq *soft = of(cq);

	if (!soft->single_threaded)
		soft_unlock(&soft->reader_lock);
}

static const struct ibv_wc *current_wc(struct ibv_cq_ex *cq)
{
	return &of(cq)->current.wc;
}

static enum ibv_wc_opcode read_opcode(struct ibv_cq_ex *cq)
{
	return current_wc(cq)->opcode;
}

static uint32_t read_vendor_err(struct ibv_cq_ex *cq)
{
	return current_wc(cq)->vendor_err;
}

static uint32_t read_byte_len(struct ibv_cq_ex *cq)
{
	return current_wc(cq)->byte_len;
}

static __be32 read_imm_data(struct ibv_cq_ex *cq)
{
	return current_wc(cq)->imm_data;
}

static uint32_t read_qp_num(struct ibv_cq_ex *cq)
{
	return current_wc(cq)->qp_num;
}

static uint32_t read_src_qp(struct ibv_cq_ex *cq)
{
	return current_wc(cq)->src_qp;
}

static unsigned int read_wc_flags(struct ibv_cq_ex *cq)
{
	return current_wc(cq)->wc_flags;
}

static uint32_t read_slid(struct ibv_cq_ex *cq)
{
	return current_wc(cq)->slid;
}

static uint8_t read_sl(struct ibv_cq_ex *cq)
{
	return current_wc(cq)->sl;
}

static uint8_t read_dlid_path_bits(struct ibv_cq_ex *cq)
{
	return current_wc(cq)->dlid_path_bits;
}

/* In cycles of hca_core_clock, which are nanoseconds. */
static uint64_t read_completion_ts(struct ibv_cq_ex *cq)
{
	return of(cq)->current.timestamp;
}

static uint64_t clock_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static uint64_t read_completion_wallclock_ns(struct ibv_cq_ex *cq)
{
	uint64_t age = clock_ns(CLOCK_MONOTONIC) - of(cq)->current.timestamp;

	return clock_ns(CLOCK_REALTIME) - age;
}

struct ibv_cq_ex *soft_create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr)
{
	uint32_t flags = attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS ? attr->flags : 0;
	struct soft_cq *soft;

	if (!soft_usable(to_ctx(context)))
		return NULL;
	if (attr->comp_mask & ~SUPPORTED_MASK || attr->wc_flags & ~SUPPORTED_FIELDS || flags & ~SUPPORTED_FLAGS) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	soft = soft_cq_create(to_ctx(context), attr->cqe, attr->cq_context, attr->channel, attr->comp_vector,
			      attr->wc_flags, flags);
	if (!soft)
		return NULL;
	struct ibv_cq_ex *cq = &soft->cq_ex;
	cq->start_poll = start_poll;
	cq->next_poll = next_poll;
	cq->end_poll = end_poll;
	cq->read_opcode = read_opcode;
	cq->read_vendor_err = read_vendor_err;
	cq->read_wc_flags = read_wc_flags;
	if (attr->wc_flags & IBV_WC_EX_WITH_BYTE_LEN)
		cq->read_byte_len = read_byte_len;
	if (attr->wc_flags & IBV_WC_EX_WITH_IMM)
		cq->read_imm_data = read_imm_data;
	if (attr->wc_flags & IBV_WC_EX_WITH_QP_NUM)
		cq->read_qp_num = read_qp_num;
	if (attr->wc_flags & IBV_WC_EX_WITH_SRC_QP)
		cq->read_src_qp = read_src_qp;
	if (attr->wc_flags & IBV_WC_EX_WITH_SLID)
		cq->read_slid = read_slid;
	if (attr->wc_flags & IBV_WC_EX_WITH_SL)
		cq->read_sl = read_sl;
	if (attr->wc_flags & IBV_WC_EX_WITH_DLID_PATH_BITS)
		cq->read_dlid_path_bits = read_dlid_path_bits;
	if (attr->wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP)
		cq->read_completion_ts = read_completion_ts;
	if (attr->wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)
		cq->read_completion_wallclock_ns = read_completion_wallclock_ns;
	return cq;
}

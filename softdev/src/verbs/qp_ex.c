/*
 * Extended queue pairs: work requests built call by call between wr_start and wr_complete.
 *
 * They are collected as ordinary work requests and posted together, so there is one path into a send queue. All or
 * nothing: if one of them is invalid, wr_complete returns the error and posts none.
 */
#include "verbs/internal.h"

#include <stdlib.h>
#include <string.h>

#define SUPPORTED_OPS                                                                                                  \
	((uint64_t)IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND |              \
	 IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |                 \
	 IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW |                     \
	 IBV_QP_EX_WITH_SEND_WITH_INV)
#define SUPPORTED_UD ((uint64_t)IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM)
#define SUPPORTED_UC                                                                                                   \
	(SUPPORTED_UD | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_LOCAL_INV |    \
	 IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_SEND_WITH_INV)
#define SUPPORTED_MASK (IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS | IBV_QP_INIT_ATTR_CREATE_FLAGS)

/*
 * A request under construction. Its SGEs and inline bytes lie in arrays that may still move, so they are stored by
 * position.
 */
struct built {
	struct ibv_send_wr wr;
	size_t first_sge;
	size_t first_byte;
};

struct soft_ex {
	pthread_mutex_t mutex; /* held from wr_start to wr_complete or wr_abort */
	struct built *wrs;
	struct ibv_sge *sges;
	char *bytes;
	size_t wr_count, wr_room, sge_count, sge_room, byte_count, byte_room;
	int error; /* the first one since wr_start */
};

static struct soft_qp *of(struct ibv_qp_ex *qp)
{
	return soft_container_of(qp, struct soft_qp, qp_ex);
}

/* Reserves `more` elements after the first `count`. */
static bool grow(void **array, size_t *room, size_t count, size_t more, size_t size)
{
	size_t wanted = count + more;
	void *larger;

	if (wanted <= *room)
		return true;
	wanted += wanted / 2;
	larger = realloc(*array, wanted * size);
	if (!larger)
		return false;
	*array = larger;
	*room = wanted;
	return true;
}

static struct ibv_send_wr *add(struct ibv_qp_ex *qp, enum ibv_wr_opcode opcode)
{
	struct soft_ex *ex = of(qp)->ex;
	struct built *one;

	if (!grow((void **)&ex->wrs, &ex->wr_room, ex->wr_count, 1, sizeof *ex->wrs)) {
		ex->error = ENOMEM;
		return NULL;
	}
	one = &ex->wrs[ex->wr_count++];
	*one = (struct built){
		.wr = { .wr_id = qp->wr_id, .opcode = opcode, .send_flags = qp->wr_flags & ~(unsigned)IBV_SEND_INLINE }
	};
	return &one->wr;
}

/* The request that setters modify: the last one begun, if there is no error. */
static struct built *last(struct ibv_qp_ex *qp)
{
	struct soft_ex *ex = of(qp)->ex;

	if (!ex->error && !ex->wr_count)
		ex->error = EINVAL;
	return ex->error ? NULL : &ex->wrs[ex->wr_count - 1];
}

static void wr_send(struct ibv_qp_ex *qp)
{
	add(qp, IBV_WR_SEND);
}

static void wr_send_imm(struct ibv_qp_ex *qp, __be32 imm_data)
{
	struct ibv_send_wr *wr = add(qp, IBV_WR_SEND_WITH_IMM);

	if (wr)
		wr->imm_data = imm_data;
}

static void wr_send_inv(struct ibv_qp_ex *qp, uint32_t invalidate_rkey)
{
	struct ibv_send_wr *wr = add(qp, IBV_WR_SEND_WITH_INV);

	if (wr)
		wr->invalidate_rkey = invalidate_rkey;
}

static void wr_local_inv(struct ibv_qp_ex *qp, uint32_t invalidate_rkey)
{
	struct ibv_send_wr *wr = add(qp, IBV_WR_LOCAL_INV);

	if (wr)
		wr->invalidate_rkey = invalidate_rkey;
}

static struct ibv_send_wr *add_rdma(struct ibv_qp_ex *qp, enum ibv_wr_opcode opcode, uint32_t rkey,
				    uint64_t remote_addr)
{
	struct ibv_send_wr *wr = add(qp, opcode);

	if (wr) {
		wr->wr.rdma.rkey = rkey;
		wr->wr.rdma.remote_addr = remote_addr;
	}
	return wr;
}

static void wr_rdma_read(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr)
{
	add_rdma(qp, IBV_WR_RDMA_READ, rkey, remote_addr);
}

static void wr_rdma_write(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr)
{
	add_rdma(qp, IBV_WR_RDMA_WRITE, rkey, remote_addr);
}

static void wr_rdma_write_imm(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr, __be32 imm_data)
{
	struct ibv_send_wr *wr = add_rdma(qp, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, remote_addr);

	if (wr)
		wr->imm_data = imm_data;
}

static void add_atomic(struct ibv_qp_ex *qp, enum ibv_wr_opcode opcode, uint32_t rkey, uint64_t remote_addr,
		       uint64_t compare_add, uint64_t swap)
{
	struct ibv_send_wr *wr = add(qp, opcode);

	if (wr) {
		wr->wr.atomic.rkey = rkey;
		wr->wr.atomic.remote_addr = remote_addr;
		wr->wr.atomic.compare_add = compare_add;
		wr->wr.atomic.swap = swap;
	}
}

static void wr_atomic_cmp_swp(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr, uint64_t compare,
			      uint64_t swap)
{
	add_atomic(qp, IBV_WR_ATOMIC_CMP_AND_SWP, rkey, remote_addr, compare, swap);
}

static void wr_atomic_fetch_add(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t remote_addr, uint64_t add)
{
	add_atomic(qp, IBV_WR_ATOMIC_FETCH_AND_ADD, rkey, remote_addr, add, 0);
}

static void wr_bind_mw(struct ibv_qp_ex *qp, struct ibv_mw *mw, uint32_t rkey, const struct ibv_mw_bind_info *bind_info)
{
	struct ibv_send_wr *wr = add(qp, IBV_WR_BIND_MW);

	if (wr) {
		wr->bind_mw.mw = mw;
		wr->bind_mw.rkey = rkey;
		wr->bind_mw.bind_info = *bind_info;
	}
}

static void wr_set_ud_addr(struct ibv_qp_ex *qp, struct ibv_ah *ah, uint32_t remote_qpn, uint32_t remote_qkey)
{
	struct built *one = last(qp);

	if (one) {
		one->wr.wr.ud.ah = ah;
		one->wr.wr.ud.remote_qpn = remote_qpn;
		one->wr.wr.ud.remote_qkey = remote_qkey;
	}
}

static void wr_set_sge_list(struct ibv_qp_ex *qp, size_t num_sge, const struct ibv_sge *sg_list)
{
	struct soft_ex *ex = of(qp)->ex;
	struct built *one = last(qp);

	if (!one)
		return;
	if (num_sge > of(qp)->cap.max_send_sge) {
		ex->error = (int)soft_personality()->sge_error;
		return;
	}
	if (!grow((void **)&ex->sges, &ex->sge_room, ex->sge_count, num_sge, sizeof *ex->sges)) {
		ex->error = ENOMEM;
		return;
	}
	one->first_sge = ex->sge_count;
	one->wr.num_sge = (int)num_sge;
	if (num_sge)
		memcpy(ex->sges + ex->sge_count, sg_list, num_sge * sizeof *sg_list);
	ex->sge_count += num_sge;
}

static void wr_set_sge(struct ibv_qp_ex *qp, uint32_t lkey, uint64_t addr, uint32_t length)
{
	struct ibv_sge sge = { .addr = addr, .length = length, .lkey = lkey };

	wr_set_sge_list(qp, 1, &sge);
}

/* The caller may reuse its bytes when this returns, so they are copied here until they are posted. */
static void wr_set_inline_data_list(struct ibv_qp_ex *qp, size_t num_buf, const struct ibv_data_buf *buf_list)
{
	struct soft_ex *ex = of(qp)->ex;
	struct built *one = last(qp);
	struct ibv_sge whole = { 0 };
	size_t length = 0;

	if (!one)
		return;
	for (size_t i = 0; i < num_buf && length <= of(qp)->cap.max_inline_data; i++)
		length += buf_list[i].length;
	if (length > of(qp)->cap.max_inline_data) {
		ex->error = (int)soft_personality()->inline_error;
		return;
	}
	if (!grow((void **)&ex->bytes, &ex->byte_room, ex->byte_count, length, 1)) {
		ex->error = ENOMEM;
		return;
	}
	one->first_byte = ex->byte_count;
	for (size_t i = 0; i < num_buf; i++) {
		if (buf_list[i].length)
			memcpy(ex->bytes + ex->byte_count, buf_list[i].addr, buf_list[i].length);
		ex->byte_count += buf_list[i].length;
	}
	one->wr.send_flags |= IBV_SEND_INLINE;
	whole.length = (uint32_t)length;
	wr_set_sge_list(qp, 1, &whole);
}

static void wr_set_inline_data(struct ibv_qp_ex *qp, void *addr, size_t length)
{
	struct ibv_data_buf one = { .addr = addr, .length = length };

	wr_set_inline_data_list(qp, 1, &one);
}

static void wr_start(struct ibv_qp_ex *qp)
{
	struct soft_ex *ex = of(qp)->ex;

	pthread_mutex_lock(&ex->mutex);
	ex->wr_count = ex->sge_count = ex->byte_count = 0;
	ex->error = 0;
}

static void wr_abort(struct ibv_qp_ex *qp)
{
	pthread_mutex_unlock(&of(qp)->ex->mutex);
}

/* The arrays no longer move: turn positions into addresses, and the array into a list. */
static void link_up(struct soft_ex *ex)
{
	for (size_t i = 0; i < ex->wr_count; i++) {
		struct built *one = &ex->wrs[i];

		one->wr.sg_list = one->wr.num_sge ? ex->sges + one->first_sge : NULL;
		if (one->wr.sg_list && one->wr.send_flags & IBV_SEND_INLINE)
			one->wr.sg_list->addr = (uintptr_t)(ex->bytes + one->first_byte);
		one->wr.next = i + 1 < ex->wr_count ? &ex->wrs[i + 1].wr : NULL;
	}
}

static int wr_complete(struct ibv_qp_ex *qp)
{
	struct soft_qp *soft = of(qp);
	struct soft_ex *ex = soft->ex;
	struct ibv_send_wr *bad;
	int error = ex->error;

	if (!error && ex->wr_count) {
		link_up(ex);
		error = soft_post_refuses(soft, &ex->wrs[0].wr, ex->wr_count);
		if (!error)
			error = soft_post_send(&soft->qp, &ex->wrs[0].wr, &bad);
	}
	pthread_mutex_unlock(&ex->mutex);
	return error;
}

static uint64_t supported(enum ibv_qp_type type)
{
	switch (type) {
	case IBV_QPT_RC:
		return SUPPORTED_OPS;
	case IBV_QPT_UC:
		return SUPPORTED_UC;
	case IBV_QPT_UD:
		return SUPPORTED_UD;
	default:
		return 0;
	}
}

static void set_operations(struct ibv_qp_ex *qp, uint64_t ops)
{
	qp->wr_start = wr_start;
	qp->wr_complete = wr_complete;
	qp->wr_abort = wr_abort;
	qp->wr_set_sge = wr_set_sge;
	qp->wr_set_sge_list = wr_set_sge_list;
	qp->wr_set_inline_data = wr_set_inline_data;
	qp->wr_set_inline_data_list = wr_set_inline_data_list;
	if (qp->qp_base.qp_type == IBV_QPT_UD)
		qp->wr_set_ud_addr = wr_set_ud_addr;
	if (ops & IBV_QP_EX_WITH_SEND)
		qp->wr_send = wr_send;
	if (ops & IBV_QP_EX_WITH_SEND_WITH_IMM)
		qp->wr_send_imm = wr_send_imm;
	if (ops & IBV_QP_EX_WITH_SEND_WITH_INV)
		qp->wr_send_inv = wr_send_inv;
	if (ops & IBV_QP_EX_WITH_LOCAL_INV)
		qp->wr_local_inv = wr_local_inv;
	if (ops & IBV_QP_EX_WITH_RDMA_READ)
		qp->wr_rdma_read = wr_rdma_read;
	if (ops & IBV_QP_EX_WITH_RDMA_WRITE)
		qp->wr_rdma_write = wr_rdma_write;
	if (ops & IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM)
		qp->wr_rdma_write_imm = wr_rdma_write_imm;
	if (ops & IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP)
		qp->wr_atomic_cmp_swp = wr_atomic_cmp_swp;
	if (ops & IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD)
		qp->wr_atomic_fetch_add = wr_atomic_fetch_add;
	if (ops & IBV_QP_EX_WITH_BIND_MW)
		qp->wr_bind_mw = wr_bind_mw;
}

struct ibv_qp *soft_create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr)
{
	bool extended = attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	struct ibv_qp_init_attr plain = { .qp_context = attr->qp_context,
					  .send_cq = attr->send_cq,
					  .recv_cq = attr->recv_cq,
					  .srq = attr->srq,
					  .cap = attr->cap,
					  .qp_type = attr->qp_type,
					  .sq_sig_all = attr->sq_sig_all };
	struct soft_ex *ex = NULL;
	struct soft_qp *qp;

	if (!soft_usable(to_ctx(context)))
		return NULL;
	if (attr->comp_mask & ~(uint32_t)SUPPORTED_MASK ||
	    (attr->comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS && attr->create_flags) ||
	    (extended && attr->send_ops_flags & ~supported(attr->qp_type))) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	if (!(attr->comp_mask & IBV_QP_INIT_ATTR_PD) || !attr->pd || attr->pd->context != context) {
		errno = EINVAL;
		return NULL;
	}
	if (extended) {
		ex = calloc(1, sizeof *ex);
		if (!ex)
			return NULL;
		pthread_mutex_init(&ex->mutex, NULL);
	}
	qp = soft_qp_create(attr->pd, &plain);
	if (!qp) {
		free(ex);
		return NULL;
	}
	attr->cap = plain.cap;
	qp->ex = ex;
	if (extended)
		set_operations(&qp->qp_ex, attr->send_ops_flags);
	return &qp->qp;
}

struct ibv_qp_ex *soft_qp_to_qp_ex(struct ibv_qp *qp)
{
	return to_qp(qp)->ex ? &to_qp(qp)->qp_ex : NULL;
}

void soft_ex_free(struct soft_qp *qp)
{
	struct soft_ex *ex = qp->ex;

	if (!ex)
		return;
	qp->ex = NULL;
	pthread_mutex_destroy(&ex->mutex);
	free(ex->wrs);
	free(ex->sges);
	free(ex->bytes);
	free(ex);
}

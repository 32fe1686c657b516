/*
 * Queue pairs: creation, queries, destruction.
 */
#include <stdlib.h>
#include <string.h>

#include "verbs/internal.h"

/* ---- memory --------------------------------------------------------------------------------------- */

/* All QPs ever allocated: also those of a parent process, which its forked child can neither use nor free. */
static struct soft_qp *pool;

/* Takes a QP from the pool and gives it a number. Its memory never returns to the heap: see core.h. */
static struct soft_qp *qp_take(void)
{
	struct soft_qp *qp = NULL;
	uint32_t n, i = 0;

	pthread_mutex_lock(&soft_proc.lock);
	/* Round robin, so that work left over from a destroyed QP does not reach a new one. */
	for (n = 0; n < SOFT_MAX_QP - 1; n++) {
		i = soft_proc.qp_cursor = (soft_proc.qp_cursor + 1) % (SOFT_MAX_QP - 1);
		struct soft_qp *old = atomic_load(&soft_proc.qps[i]);
		if (!old || !atomic_load(&old->number)) {
			qp = old;
			break;
		}
	}
	if (n < SOFT_MAX_QP - 1 && !qp) {
		qp = aligned_alloc(SOFT_CACHE_LINE, sizeof(*qp));
		if (qp) {
			memset(qp, 0, sizeof(*qp));
			qp->path = &soft_local_path; /* once in the table, other threads may lock and inspect it */
			qp->next = pool;
			pool = qp;
			atomic_store(&soft_proc.qps[i], qp);
			if (i >= atomic_load(&soft_proc.qp_used))
				atomic_store(&soft_proc.qp_used, i + 1);
		}
	}
	if (qp && !soft_qp_draw(qp))
		qp = NULL;
	pthread_mutex_unlock(&soft_proc.lock);
	return qp;
}

/* Clears everything but the locks and the number, which other threads may read at any time. */
static void qp_clear(struct soft_qp *qp)
{
	uint32_t number = qp->qp.qp_num;

	memset(&qp->qp_ex, 0, sizeof(qp->qp_ex));
	qp->qp.qp_num = number;
	memset(&qp->attr, 0, sizeof(qp->attr));
	qp->remote = qp->met = false;
	qp->expected = 0;
	qp->longest = SOFT_MAX_MSG;
	atomic_store(&qp->placements, 0);
	atomic_store(&qp->holds, SOFT_HOLDS_UNKNOWN);
	atomic_store(&qp->note, 0);
	atomic_store(&qp->left_whole, false);
	atomic_store(&qp->left_note, 0);
	qp->srq = NULL;
	qp->ex = NULL;
	qp->sq = NULL;
	qp->sq_sge = NULL;
	qp->sq_head = qp->sq_next = qp->sq_tail = 0;
	atomic_store(&qp->sq_polled, 0);
	qp->issued = qp->acked = 0;
	qp->unsent = false;
	qp->wait = qp->waited = SOFT_RUN;
	atomic_store(&qp->deadline_ns, 0);
	memset(&qp->rq, 0, sizeof(qp->rq));
	qp->current = qp->srq_wqe = NULL;
	atomic_store(&qp->starved, false);
	atomic_store(&qp->rnr_deadline_ns, 0);
}

static bool in_range(const struct ibv_qp_cap *cap)
{
	const struct soft_personality *most = soft_personality();

	return cap->max_send_wr <= most->max_qp_wr && cap->max_recv_wr <= most->max_qp_wr &&
	       cap->max_send_sge <= most->max_send_sge && cap->max_recv_sge <= most->max_recv_sge &&
	       cap->max_inline_data <= most->max_inline_data;
}

static bool has_type(enum ibv_qp_type type)
{
	const struct soft_personality *are = soft_personality();

	return (type == IBV_QPT_RC && are->rc) || (type == IBV_QPT_UC && are->uc) || (type == IBV_QPT_UD && are->ud);
}

static void queues_free(struct soft_qp *qp)
{
	free(qp->sq);
	free(qp->sq_sge);
	free(qp->srq_wqe);
	soft_rq_free(&qp->rq);
	qp->sq = NULL;
	qp->sq_sge = NULL;
	qp->srq_wqe = NULL;
}

static uint32_t round_up(uint32_t n, uint32_t to)
{
	return (n + to - 1) / to * to;
}

/* Adapters have room for inline data where the scatter list stands, and to the end of the blocks that a request fills. */
static uint32_t inline_room(const struct soft_qp *qp)
{
	const struct soft_personality *are = soft_personality();
	const uint32_t entry = sizeof(struct ibv_sge), list = qp->cap.max_send_sge * entry;
	const uint32_t before = qp->qp.qp_type == IBV_QPT_UD ? are->inline_before_ud : are->inline_before;
	const uint32_t asked = qp->cap.max_inline_data;
	uint32_t room = list;

	if (are->inline_block) {
		const uint32_t data = asked ? round_up(are->inline_head + asked, entry) : 0;

		room = round_up(before + (list > data ? list : data), are->inline_block) - before - are->inline_head;
	}
	room = room < are->max_inline_data ? room : are->max_inline_data;
	return room > asked ? room : asked;
}

static int queues_make(struct soft_qp *qp)
{
	struct ibv_qp_cap *cap = &qp->cap;
	uint32_t size = 1;

	cap->max_send_wr = cap->max_send_wr ? cap->max_send_wr : 1;
	cap->max_send_sge = cap->max_send_sge ? cap->max_send_sge : 1;
	cap->max_recv_sge = cap->max_recv_sge ? cap->max_recv_sge : 1;
	cap->max_inline_data = inline_room(qp); /* rdma_xclient counts on more than it asks for */
	while (size < cap->max_send_wr)
		size *= 2;
	qp->sq_mask = size - 1;
	qp->sq = calloc(size, sizeof(*qp->sq));
	qp->sq_sge = malloc((size_t)size * cap->max_send_sge * sizeof(*qp->sq_sge));
	if (qp->srq) {
		cap->max_recv_wr = 0;
		qp->srq_wqe = malloc(sizeof(*qp->srq_wqe) + SOFT_MAX_SGE * sizeof(struct ibv_sge));
	} else {
		cap->max_recv_wr = cap->max_recv_wr ? cap->max_recv_wr : 1;
		if (soft_rq_init(&qp->rq, cap->max_recv_wr, cap->max_recv_sge))
			return ENOMEM;
	}
	return qp->sq && qp->sq_sge && (!qp->srq || qp->srq_wqe) ? 0 : ENOMEM;
}

/* Allocates a door bit of its CQ for each side. */
static bool slots_take(struct soft_qp *qp)
{
	const int send = soft_cq_slot_get(to_cq(qp->qp.send_cq), qp, true);

	if (send < 0)
		return false;
	qp->send_slot = (uint32_t)send;
	const int recv = soft_cq_slot_get(to_cq(qp->qp.recv_cq), qp, false);
	if (recv < 0) {
		soft_cq_slot_put(to_cq(qp->qp.send_cq), qp->send_slot);
		return false;
	}
	qp->recv_slot = (uint32_t)recv;
	return true;
}

struct soft_qp *soft_qp_create(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct ibv_context *context = pd->context;
	struct soft_qp *qp;

	if (!has_type(attr->qp_type)) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	if (!attr->send_cq || !attr->recv_cq || attr->send_cq->context != context ||
	    attr->recv_cq->context != context || (attr->srq && attr->srq->context != context) ||
	    !in_range(&attr->cap)) {
		errno = EINVAL;
		return NULL;
	}
	qp = qp_take();
	if (!qp) {
		errno = ENOMEM;
		return NULL;
	}
	/* In the table, but in RESET: no operation touches it. */
	soft_lock(&qp->sq_lock);
	soft_lock(&qp->rq_lock);
	qp->qp.qp_num = atomic_load(&qp->number);
	qp_clear(qp);
	soft_qp_set_state(qp, IBV_QPS_RESET);
	qp->qp.context = context;
	qp->qp.qp_context = attr->qp_context;
	qp->qp.pd = pd;
	qp->qp.send_cq = attr->send_cq;
	qp->qp.recv_cq = attr->recv_cq;
	qp->qp.srq = attr->srq;
	qp->qp.handle = qp->qp.qp_num & (SOFT_MAX_QP - 1);
	qp->qp.qp_type = attr->qp_type;
	qp->allowed = soft_ops_now(qp);
	qp->path = soft_qp_first_path(qp);
	qp->srq = attr->srq ? to_srq(attr->srq) : NULL;
	qp->cap = attr->cap;
	qp->sq_sig_all = attr->sq_sig_all;
	int err = queues_make(qp);
	soft_unlock(&qp->rq_lock);
	soft_unlock(&qp->sq_lock);

	if (err || !slots_take(qp)) {
		queues_free(qp);
		atomic_store(&qp->number, 0);
		errno = ENOMEM;
		return NULL;
	}
	pthread_mutex_init(&qp->qp.mutex, NULL);
	pthread_cond_init(&qp->qp.cond, NULL);
	attr->cap = qp->cap;
	atomic_fetch_add(&to_cq(attr->send_cq)->users, 1);
	atomic_fetch_add(&to_cq(attr->recv_cq)->users, 1);
	if (qp->srq)
		atomic_fetch_add(&qp->srq->users, 1);
	atomic_fetch_add(&to_pd(pd)->refs, 1);
	return qp;
}

SOFT_EXPORT struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	if (!soft_is(pd->context))
		return REAL(ibv_create_qp, "IBVERBS_1.1")(pd, attr);
	if (!soft_usable(to_ctx(pd->context)))
		return NULL;
	struct soft_qp *qp = soft_qp_create(pd, attr);
	return qp ? &qp->qp : NULL;
}

SOFT_EXPORT int ibv_query_qp(struct ibv_qp *ibqp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init)
{
	if (!soft_is(ibqp->context))
		return REAL(ibv_query_qp, "IBVERBS_1.1")(ibqp, attr, mask, init);
	struct soft_qp *qp = to_qp(ibqp);

	if (!soft_usable(to_ctx(ibqp->context)))
		return EIO;
	soft_lock(&qp->sq_lock);
	soft_lock(&qp->rq_lock);
	*attr = qp->attr;
	attr->qp_state = attr->cur_qp_state = (enum ibv_qp_state)soft_state(qp);
	attr->cap = qp->cap;
	soft_unlock(&qp->rq_lock);
	soft_unlock(&qp->sq_lock);
	*init = (struct ibv_qp_init_attr){
		.qp_context = ibqp->qp_context,
		.send_cq = ibqp->send_cq,
		.recv_cq = ibqp->recv_cq,
		.srq = ibqp->srq,
		.cap = qp->cap,
		.qp_type = ibqp->qp_type,
		.sq_sig_all = qp->sq_sig_all,
	};
	return 0;
}

SOFT_EXPORT int ibv_modify_qp(struct ibv_qp *ibqp, struct ibv_qp_attr *attr, int mask)
{
	if (!soft_is(ibqp->context))
		return REAL(ibv_modify_qp, "IBVERBS_1.1")(ibqp, attr, mask);
	if (!soft_usable(to_ctx(ibqp->context)))
		return EIO;
	if (soft_iwarp_by_cm() && mask & IBV_QP_STATE &&
	    (attr->qp_state == IBV_QPS_RTR || attr->qp_state == IBV_QPS_RTS))
		return EINVAL;
	return soft_qp_modify(to_qp(ibqp), attr, mask);
}

SOFT_EXPORT int ibv_destroy_qp(struct ibv_qp *ibqp)
{
	if (!soft_is(ibqp->context))
		return REAL(ibv_destroy_qp, "IBVERBS_1.1")(ibqp);
	struct soft_qp *qp = to_qp(ibqp);
	struct soft_cq *send_cq = to_cq(ibqp->send_cq), *recv_cq = to_cq(ibqp->recv_cq);

	if (!soft_usable(to_ctx(ibqp->context)))
		return EIO;
	if (atomic_load(&qp->mcast))
		return EBUSY;
	soft_qp_reset(qp);
	soft_async_forget(to_ctx(ibqp->context), ibqp);
	soft_cq_slot_put(send_cq, qp->send_slot);
	soft_cq_slot_put(recv_cq, qp->recv_slot);
	soft_ex_free(qp);
	soft_lock(&qp->sq_lock);
	soft_lock(&qp->rq_lock);
	queues_free(qp);
	pthread_cond_destroy(&ibqp->cond);
	pthread_mutex_destroy(&ibqp->mutex);
	if (qp->srq)
		atomic_fetch_sub(&qp->srq->users, 1);
	qp->srq = NULL;
	atomic_fetch_sub(&send_cq->users, 1);
	atomic_fetch_sub(&recv_cq->users, 1);
	atomic_fetch_sub(&to_pd(ibqp->pd)->refs, 1);
	soft_unlock(&qp->rq_lock);
	soft_unlock(&qp->sq_lock);
	atomic_store(&qp->number, 0); /* last: from here on it may be reused */
	return 0;
}

/*
 * Creates the RoCE state of a queue pair from its attributes.
 */
#include <stdio.h>
#include <stdlib.h>

#include "roce/internal.h"

static void roce_free(struct soft_roce *w)
{
	roce_runs_release(w->runs[0]);
	roce_runs_release(w->runs[1]);
	free(w->ask.ring);
	free(w->wqes);
	free(w->answer.fetches);
	free(w);
}

static const struct roce_rate_profile *chosen;
static struct roce_line line;

static void choose(void)
{
	const char *said = getenv("SOFTDEV_CONGESTION"), *name = said && *said ? said : "sigcomm15";

	chosen = roce_rate_profile(name);
	if (!chosen && strcmp(name, "off") != 0)
		fprintf(stderr,
			"softdev: SOFTDEV_CONGESTION=\"%s\" is not understood, so no sender slows down when the "
			"network is "
			"congested; wanted: sigcomm15, connectx or off\n",
			name);
}

static const struct roce_rate_profile *profile(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, choose);
	return chosen;
}

struct soft_roce *soft_roce_make(struct soft_qp *qp, const struct ibv_qp_attr *attr, int *err)
{
	struct soft_roce *w = calloc(1, sizeof(*w));
	const bool reliable = qp->qp.qp_type == IBV_QPT_RC;
	const uint32_t fetches =
		reliable ? soft_personality()->max_rd_atomic : 0; /* the program may allow more later */

	*err = soft_roce_open();
	if (*err) {
		free(w);
		return NULL;
	}
	if (w) {
		w->ask.ring = calloc(qp->sq_mask + 1, sizeof(*w->ask.ring));
		w->wqes = calloc(qp->sq_mask + 1, sizeof(*w->wqes));
		w->answer.fetches = calloc(fetches ? fetches : 1, sizeof(*w->answer.fetches));
	}
	if (!w || !w->ask.ring || !w->wqes || !w->answer.fetches) {
		if (w)
			roce_free(w);
		*err = ENOMEM;
		return NULL;
	}
	soft_roce_route(to_ctx(qp->qp.context), &attr->ah_attr, attr->dest_qp_num, &w->route);
	const enum ibv_mtu fits = soft_roce_mtu(&w->route);
	if (!fits) {
		*err = errno;
		roce_free(w);
		return NULL;
	}
	/* Packets are never fragmented. Both sides find the same MTU, because both look at the path between them. */
	const uint32_t mtu = 128u << (attr->path_mtu < fits ? attr->path_mtu : fits);
	w->qp = qp;
	for (int ours = 0; ours < 2 && !w->route.runs; ours++)
		w->runs[ours] = roce_runs_of(w->route.path.src, w->route.path.dst, ours);
	atomic_store(&w->port, w->route.path.dst_port);
	/* A stranger can pass for another kind of device with UC, and a softdev peer knows this one by its port. */
	w->source = reliable ? soft_roce_source(&w->route) : NULL;
	w->ask.calls = &soft_roce_ask_calls;
	w->answer.calls = &soft_roce_answer_calls;
	w->ask.owner = w->answer.owner = w;
	w->ask.mask = qp->sq_mask;
	w->ask.reliable = w->answer.reliable = reliable;
	w->ask.singly = reliable && w->route.here;
	w->ask.mtu = w->answer.mtu = mtu;
	w->ask.qpn = w->answer.qpn = attr->dest_qp_num;
	w->ask.most = soft_roce_buffered(&w->route, mtu);
	if (w->ask.most > ROCE_WINDOW)
		w->ask.most = ROCE_WINDOW;
	w->ask.window = w->route.here ? w->ask.most : 0;
	w->rate.profile = profile();
	w->rate.line = &line;
	w->answer.max_fetches = reliable ? attr->max_dest_rd_atomic : 0;
	roce_answer_start(&w->answer, attr->rq_psn & ROCE_24);
	return w;
}

void soft_roce_discard(struct soft_roce *roce)
{
	if (roce)
		roce_free(roce);
}

/* Applies the attributes of RTS. The caller holds sq_lock. */
void soft_roce_rts(struct soft_qp *qp, bool first)
{
	struct roce_ask *ask = &qp->roce->ask;
	const struct ibv_qp_attr *attr = &qp->attr;

	ask->retry_cnt = attr->retry_cnt;
	ask->rnr_retry = attr->rnr_retry;
	ask->max_fetches = attr->max_rd_atomic ? attr->max_rd_atomic : 1; /* what is posted all the same */
	ask->timeout_ns = attr->timeout ? UINT64_C(4096) << attr->timeout : 0;
	if (first)
		roce_ask_start(ask, attr->sq_psn & ROCE_24);
	else if (ask->status == IBV_WC_WR_FLUSH_ERR)
		ask->status = IBV_WC_SUCCESS; /* back from SQE */
}

enum ibv_mtu soft_roce_path_mtu(const struct soft_roce *roce)
{
	return (enum ibv_mtu)(__builtin_ctz(roce->ask.mtu) - 7);
}

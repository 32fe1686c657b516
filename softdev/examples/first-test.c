/*
 * A test of RDMA in one process: a WRITE from one queue pair to the other, and whether the bytes are there.
 *
 * It fails, by a mistake that many make once. `softdev trace ./first-test` says which; `./first-test mended` passes.
 *
 *   cc -o first-test first-test.c -libverbs
 */
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES = 64 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;

static void need(int ok, const char *what)
{
	if (ok)
		return;
	fprintf(stderr, "FAILED: %s\n", what);
	exit(1);
}

static void open_device(void)
{
	int count = 0;
	struct ibv_device **list = ibv_get_device_list(&count);

	need(count > 0, "there is no RDMA device; with one: softdev trace ./first-test");
	context = ibv_open_device(list[0]);
	ibv_free_device_list(list);
	need(context != NULL, "ibv_open_device()");
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	need(pd && cq, "ibv_alloc_pd() or ibv_create_cq()");
}

static struct ibv_qp *make(void)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	need(qp != NULL, "ibv_create_qp()");
	return qp;
}

/* Programs send each other what this needs, by TCP for example. Here both ends are at hand. */
static void join(struct ibv_qp *qp, const struct ibv_qp *to)
{
	const int rtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	const int rts = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
			IBV_QP_MAX_QP_RD_ATOMIC;
	struct ibv_port_attr port;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT,
				    .port_num = 1,
				    .qp_access_flags = IBV_ACCESS_REMOTE_WRITE,
				    .dest_qp_num = to->qp_num,
				    .min_rnr_timer = 12,
				    .timeout = 14,
				    .retry_cnt = 7,
				    .rnr_retry = 7,
				    .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .hop_limit = 64 } } };

	need(!ibv_query_port(context, 1, &port) && !ibv_query_gid(context, 1, 0, &attr.ah_attr.grh.dgid), "the port");
	need(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = port.active_mtu;
	need(!ibv_modify_qp(qp, &attr, rtr), "RTR");
	attr.qp_state = IBV_QPS_RTS;
	need(!ibv_modify_qp(qp, &attr, rts), "RTS");
}

int main(int argc, char **argv)
{
	static char from[BYTES] = "Hello, RDMA", to[BYTES];
	const int mended = argc > 1 && !strcmp(argv[1], "mended");
	struct ibv_wc wc;
	int found = 0;

	open_device();
	struct ibv_mr *source = ibv_reg_mr(pd, from, BYTES, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_mr *target =
		ibv_reg_mr(pd, to, BYTES, IBV_ACCESS_LOCAL_WRITE | (mended ? IBV_ACCESS_REMOTE_WRITE : 0));
	need(source && target, "ibv_reg_mr()");
	struct ibv_qp *one = make(), *other = make();
	join(one, other);
	join(other, one);
	struct ibv_sge sge = { (uintptr_t)from, BYTES, source->lkey };
	struct ibv_send_wr write = { .wr_id = 1,
				     .sg_list = &sge,
				     .num_sge = 1,
				     .opcode = IBV_WR_RDMA_WRITE,
				     .send_flags = IBV_SEND_SIGNALED,
				     .wr.rdma = { (uintptr_t)to, target->rkey } },
			   *bad;
	need(!ibv_post_send(one, &write, &bad), "ibv_post_send()");
	while (!found)
		found = ibv_poll_cq(cq, 1, &wc);
	need(found == 1, "ibv_poll_cq()");
	need(wc.status == IBV_WC_SUCCESS, ibv_wc_status_str(wc.status));
	need(!memcmp(from, to, BYTES), "the bytes are not there");
	puts("passed");
	need(!ibv_destroy_qp(one) && !ibv_destroy_qp(other) && !ibv_dereg_mr(source) && !ibv_dereg_mr(target) &&
		     !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context),
	     "the end");
	return 0;
}

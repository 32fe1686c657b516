/*
 * EFA drops what a host sends to itself, and says nothing: monarch's issue 3376, in a second and without a card.
 *
 * A datagram from one queue pair of the host to another completes at its sender, and never arrives. A program that waits
 * for it waits for ever. What to do instead: notice that both ends are on one host (the same GID), and copy.
 *
 *   cc -o silent-loopback silent-loopback.c -libverbs
 *   export LD_PRELOAD=.../libsoftdev.so
 *   ./silent-loopback; SOFTDEV_PERSONALITY=efa ./silent-loopback
 */
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { GRH = 40, BYTES = 64, QKEY = 0x1234, LOOKS = 1000 };

static struct ibv_context *context;
static struct ibv_pd *pd;

static void need(int ok, const char *what)
{
	if (ok)
		return;
	perror(what);
	exit(1);
}

static struct ibv_qp *make(struct ibv_cq *cq)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_UD,
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };

	need(qp != NULL, "create_qp");
	need(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY), "INIT");
	attr.qp_state = IBV_QPS_RTR;
	need(!ibv_modify_qp(qp, &attr, IBV_QP_STATE), "RTR");
	attr.qp_state = IBV_QPS_RTS;
	need(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), "RTS");
	return qp;
}

int main(void)
{
	const struct timespec pause = { .tv_nsec = 1000000 };
	int count, sent = 0, received = 0;
	struct ibv_device **list = ibv_get_device_list(&count);
	char *memory = calloc(2, GRH + BYTES);
	union ibv_gid gid;
	struct ibv_wc wc;

	need(list && count > 0 && memory, "a device");
	context = ibv_open_device(list[count - 1]);
	ibv_free_device_list(list);
	need(context != NULL, "open_device");
	pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	need(pd && cq && !ibv_query_gid(context, 1, 0, &gid), "alloc_pd, create_cq, query_gid");
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, 2 * (GRH + BYTES), IBV_ACCESS_LOCAL_WRITE);
	struct ibv_ah_attr to = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 64 } };
	struct ibv_ah *ah = ibv_create_ah(pd, &to);
	need(mr && ah, "reg_mr, create_ah");
	struct ibv_qp *one = make(cq), *other = make(cq);
	struct ibv_sge from = { (uintptr_t)memory, BYTES, mr->lkey };
	struct ibv_sge into = { (uintptr_t)memory + GRH + BYTES, GRH + BYTES, mr->lkey };
	struct ibv_recv_wr receive = { .sg_list = &into, .num_sge = 1 }, *bad_receive;
	struct ibv_send_wr send = { .sg_list = &from,
				    .num_sge = 1,
				    .opcode = IBV_WR_SEND,
				    .send_flags = IBV_SEND_SIGNALED,
				    .wr.ud = { ah, other->qp_num, QKEY } },
			   *bad_send;
	need(!ibv_post_recv(other, &receive, &bad_receive) && !ibv_post_send(one, &send, &bad_send), "post");
	for (int i = 0; i < LOOKS && !(sent && received); i++) {
		while (ibv_poll_cq(cq, 1, &wc) == 1) {
			need(wc.status == IBV_WC_SUCCESS, "a completion in error");
			*(wc.opcode & IBV_WC_RECV ? &received : &sent) += 1;
		}
		nanosleep(&pause, NULL);
	}
	printf("%s: %d sent, %d received\n", received ? "loopback works" : "silent loopback", sent, received);
	return received ? 0 : 3;
}

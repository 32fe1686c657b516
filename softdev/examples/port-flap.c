/*
 * A port goes down and comes back, and transfers stay slow: Mooncake's issue 3596, in two seconds and without a card.
 *
 * Messages are striped over two rails. While the port of one is down its queue pair runs out of retries and is in error;
 * the program pauses the rail. When the port is back it takes the rail up again, and forgets that a queue pair in error
 * stays there: from now on each message loses the half that goes there, and sends it once more, on the other rail. With
 * the word `rebuild` it connects the queue pair anew first, and nothing is lost.
 *
 *   cc -o port-flap port-flap.c -libverbs
 *   export LD_PRELOAD=.../libsoftdev.so SOFTDEV_DEVICES=2 SOFTDEV_FAULTS="at=300ms port=down device=soft0 for=1s"
 *   ./port-flap; ./port-flap rebuild
 */
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RAILS = 2, HALF = 32 * 1024, AFTER = 1000 };

struct rail {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *from, *to; /* both ends are in this process */
	struct ibv_mr *mr;
	char *memory; /* what is sent, and behind it where it goes */
	bool paused;
};

enum phase { BEFORE, DURING, BEHIND, PHASES };

static void need(bool ok, const char *what)
{
	if (ok)
		return;
	perror(what);
	exit(1);
}

static void connect_one(struct rail *rail, struct ibv_qp *qp, const struct ibv_qp *peer)
{
	union ibv_gid gid;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };

	need(!ibv_query_gid(rail->context, 1, 0, &gid), "query_gid");
	need(!ibv_modify_qp(qp, &attr, IBV_QP_STATE), "RESET");
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT,
				     .port_num = 1,
				     .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
	need(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer->qp_num,
		.max_dest_rd_atomic = 1,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 64 } },
	};
	need(!ibv_modify_qp(qp, &attr,
			    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
	     "RTR");
	/* Eight times 8 ms. */
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS, .timeout = 11, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1
	};
	need(!ibv_modify_qp(qp, &attr,
			    IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				    IBV_QP_MAX_QP_RD_ATOMIC),
	     "RTS");
}

static void connect_rail(struct rail *rail)
{
	connect_one(rail, rail->from, rail->to);
	connect_one(rail, rail->to, rail->from);
}

static void open_rail(struct rail *rail, struct ibv_device *device)
{
	const int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

	rail->context = ibv_open_device(device);
	need(rail->context, "open_device");
	fcntl(rail->context->async_fd, F_SETFL, O_NONBLOCK);
	rail->memory = calloc(2, HALF);
	rail->pd = ibv_alloc_pd(rail->context);
	rail->cq = ibv_create_cq(rail->context, 64, NULL, NULL, 0);
	need(rail->memory && rail->pd && rail->cq, "alloc_pd, create_cq");
	rail->mr = ibv_reg_mr(rail->pd, rail->memory, 2 * HALF, rights);
	struct ibv_qp_init_attr init = {
		.send_cq = rail->cq,
		.recv_cq = rail->cq,
		.cap = { .max_send_wr = 16, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	rail->from = ibv_create_qp(rail->pd, &init);
	rail->to = ibv_create_qp(rail->pd, &init);
	need(rail->mr && rail->from && rail->to, "reg_mr, create_qp");
	connect_rail(rail);
}

/* Half a message. False: it did not arrive. */
static bool write_half(struct rail *rail)
{
	struct ibv_sge sge = { (uintptr_t)rail->memory, HALF, rail->mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED,
				  .wr.rdma = { (uintptr_t)rail->memory + HALF, rail->mr->rkey } },
			   *bad;
	struct ibv_wc wc;
	int n;

	need(!ibv_post_send(rail->from, &wr, &bad), "post_send");
	while (!(n = ibv_poll_cq(rail->cq, 1, &wc)))
		;
	need(n == 1, "poll_cq");
	return wc.status == IBV_WC_SUCCESS;
}

/* What the program was told of its first rail. */
static void look_at_events(struct rail *rail, enum phase *phase, bool rebuild)
{
	struct ibv_async_event event;

	while (!ibv_get_async_event(rail->context, &event)) {
		ibv_ack_async_event(&event);
		if (event.event_type == IBV_EVENT_PORT_ERR) {
			*phase = DURING;
		} else if (event.event_type == IBV_EVENT_PORT_ACTIVE) {
			*phase = BEHIND;
			rail->paused = false; /* this alone is the mistake */
			if (rebuild)
				connect_rail(rail);
		}
	}
}

static double now(void)
{
	struct timespec at;

	clock_gettime(CLOCK_MONOTONIC, &at);
	return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
	static const char *const names[PHASES] = { "before", "during", "after" };
	const bool rebuild = argc > 1 && !strcmp(argv[1], "rebuild");
	unsigned messages[PHASES] = { 0 }, lost[PHASES] = { 0 };
	double seconds[PHASES] = { 0 };
	struct ibv_device **list;
	struct rail rails[RAILS] = { { .paused = false } };
	enum phase phase = BEFORE;
	int count;

	list = ibv_get_device_list(&count);
	need(list && count >= RAILS, "two devices (SOFTDEV_DEVICES=2)");
	for (int i = 0; i < RAILS; i++)
		open_rail(&rails[i], list[count - RAILS + i]);
	ibv_free_device_list(list);
	while (messages[BEHIND] < AFTER) {
		const double begin = now();

		look_at_events(&rails[0], &phase, rebuild);
		for (int half = 0; half < RAILS; half++) {
			struct rail *rail = rails[half].paused ? &rails[1] : &rails[half];

			if (write_half(rail))
				continue;
			lost[phase]++;
			rail->paused = phase == DURING;
			need(write_half(&rails[1]), "the other rail");
		}
		messages[phase]++;
		seconds[phase] += now() - begin;
	}
	for (int i = 0; i < PHASES; i++)
		printf("%s the flap: %u messages, %.1f us each, %u halves lost and sent again\n", names[i], messages[i],
		       seconds[i] / (messages[i] ? messages[i] : 1) * 1e6, lost[i]);
	return 0;
}

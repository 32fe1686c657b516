/* Planted mistakes: states of queue pairs, and the attributes of their transitions. */
#include "tests/trace/mistakes.h"

#include "softdev.h"

static struct end a, b;

static struct ibv_send_wr *send_of(const struct end *end, struct ibv_sge *sge)
{
    static struct ibv_send_wr wr;

    *sge = end_sge(end, 0, 8);
    wr = (struct ibv_send_wr){
        .wr_id = 1, .sg_list = sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
    return &wr;
}

static void try_send(const struct end *end)
{
    struct ibv_send_wr *bad;
    struct ibv_sge sge;

    ibv_post_send(end->qp, send_of(end, &sge), &bad);
}

static void send_in_reset(void)
{
    end_open(&a, NULL);
    try_send(&a);
    end_close(&a);
}

static void send_in_init(void)
{
    end_open(&a, NULL);
    end_to_init(&a, 0);
    try_send(&a);
    end_close(&a);
}

static void send_in_rtr(void)
{
    pair_open(&a, &b, NULL);
    struct address there = end_address(&b);
    end_to_init(&a, 0);
    end_to_rtr(&a, &there, NULL);
    try_send(&a);
    pair_close(&a, &b);
}

static void receive_in_reset(void)
{
    struct ibv_recv_wr *bad;

    end_open(&a, NULL);
    struct ibv_sge sge = end_sge(&a, 0, 8);
    struct ibv_recv_wr wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1};
    ibv_post_recv(a.qp, &wr, &bad);
    end_close(&a);
}

static void rtr_left_out(void)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7};

    end_open(&a, NULL);
    end_to_init(&a, 0);
    ibv_modify_qp(a.qp, &attr,
                  IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                      IBV_QP_MAX_QP_RD_ATOMIC);
    end_close(&a);
}

enum {
    RTR = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER
};

static struct ibv_qp_attr rtr_attr(void)
{
    return (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = b.qp->qp_num,
        .rq_psn = 1,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = b.gid, .hop_limit = 64}},
    };
}

static void modify_wrongly(struct ibv_qp_attr attr, int mask)
{
    end_to_init(&a, 0);
    ibv_modify_qp(a.qp, &attr, mask);
    pair_close(&a, &b);
}

static void mask_without_min_rnr_timer(void)
{
    pair_open(&a, &b, NULL);
    modify_wrongly(rtr_attr(), RTR & ~IBV_QP_MIN_RNR_TIMER);
}

static void mtu_in_bytes(void)
{
    pair_open(&a, &b, NULL);
    struct ibv_qp_attr attr = rtr_attr();
    attr.path_mtu = 1024;
    modify_wrongly(attr, RTR);
}

static void number_with_swapped_bytes(void)
{
    pair_open(&a, &b, NULL);
    struct ibv_qp_attr attr = rtr_attr();
    attr.dest_qp_num = htobe32(attr.dest_qp_num | 1);
    modify_wrongly(attr, RTR);
}

static void gid_index_without_gid(void)
{
    pair_open(&a, &b, NULL);
    struct ibv_qp_attr attr = rtr_attr();
    attr.ah_attr.grh.sgid_index = 60;
    modify_wrongly(attr, RTR);
}

static void port_zero(void)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT};

    end_open(&a, NULL);
    ibv_modify_qp(a.qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    end_close(&a);
}

static void partition_that_is_none(void)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .pkey_index = 7};

    end_open(&a, NULL);
    ibv_modify_qp(a.qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    end_close(&a);
}

static void port_that_is_down(void)
{
    pair_open(&a, &b, NULL);
    OK(softdev_port("soft0", 0));
    modify_wrongly(rtr_attr(), RTR);
}

static void more_requests_than_the_device(void)
{
    end_open(&a, NULL);
    struct ibv_qp_init_attr attr = {.send_cq = a.send_cq,
                                    .recv_cq = a.recv_cq,
                                    .cap = {.max_send_wr = 1 << 20, .max_recv_wr = 1, .max_send_sge = 1},
                                    .qp_type = IBV_QPT_RC};
    ibv_create_qp(a.pd, &attr);
    end_close(&a);
}

static void posted_after_the_end(void)
{
    pair_open(&a, &b, NULL);
    pair_connect(&a, &b, NULL);
    end_to_error(&a);
    post_send(&a, 1, 0, 8, IBV_SEND_SIGNALED);
    any_wc(a.send_cq);
    pair_close(&a, &b);
}

const struct mistake mistakes_states[] = {
    {"a send in RESET", "post-before-rts", send_in_reset, false},
    {"a send in INIT", "post-before-rts", send_in_init, false},
    {"a send in RTR", "post-before-rts", send_in_rtr, false},
    {"a receive in RESET", "recv-in-reset", receive_in_reset, false},
    {"RTR left out", "wrong-order", rtr_left_out, false},
    {"a mask without MIN_RNR_TIMER", "missing-attributes", mask_without_min_rnr_timer, false},
    {"an MTU in bytes", "wrong-value", mtu_in_bytes, false},
    {"a queue pair number with swapped bytes", "wrong-value", number_with_swapped_bytes, false},
    {"a GID index without a GID", "empty-gid-index", gid_index_without_gid, false},
    {"port 0", "wrong-value", port_zero, false},
    {"an index of partition keys that has none", "wrong-value", partition_that_is_none, false},
    {"a port that is down", "port-down", port_that_is_down, false},
    {"more work requests than the device has", "qp-limits", more_requests_than_the_device, false},
    {"a send after the queue pair was ended", "flushed-by-program", posted_after_the_end, false},
    MISTAKES_END,
};

/* The QP state machine: every transition, required and forbidden attributes, bad values, posting per state.
 */
#include "tests/harness.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct end end;
static struct address self;

#define RC_TO_INIT (IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)
#define RC_TO_RTR                                                                                            \
    (IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |                          \
     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)
#define RC_TO_RTS                                                                                            \
    (IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |                   \
     IBV_QP_MAX_QP_RD_ATOMIC)

static struct ibv_qp_attr attributes(enum ibv_qp_state state)
{
    return (struct ibv_qp_attr){
        .qp_state = state,
        .port_num = 1,
        .qp_access_flags = ACCESS_ALL,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = self.qpn,
        .rq_psn = 5,
        .sq_psn = 5,
        .max_dest_rd_atomic = 4,
        .max_rd_atomic = 4,
        .min_rnr_timer = 12,
        .timeout = 14,
        .retry_cnt = 6,
        .rnr_retry = 5,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = self.gid, .hop_limit = 9}},
    };
}

static int to(enum ibv_qp_state state, int mask)
{
    struct ibv_qp_attr attr = attributes(state);

    return ibv_modify_qp(end.qp, &attr, mask);
}

static void bring_to(enum ibv_qp_state state)
{
    OK(to(IBV_QPS_RESET, IBV_QP_STATE));
    if (state == IBV_QPS_RESET)
        return;
    if (state == IBV_QPS_ERR) {
        OK(to(IBV_QPS_ERR, IBV_QP_STATE));
        return;
    }
    OK(to(IBV_QPS_INIT, RC_TO_INIT));
    if (state == IBV_QPS_INIT)
        return;
    OK(to(IBV_QPS_RTR, RC_TO_RTR));
    if (state == IBV_QPS_RTR)
        return;
    OK(to(IBV_QPS_RTS, RC_TO_RTS));
    if (state == IBV_QPS_SQD)
        OK(to(IBV_QPS_SQD, IBV_QP_STATE));
}

static void open_self(void)
{
    end_open(&end, NULL);
    self = end_address(&end);
}

/* The mask with which a transition is legal, 0 where it is illegal (IBTA figure 124; RC has no SQE). */
static int legal(enum ibv_qp_state from, enum ibv_qp_state state)
{
    if (state == IBV_QPS_RESET || state == IBV_QPS_ERR)
        return IBV_QP_STATE;
    switch (from) {
    case IBV_QPS_RESET: return state == IBV_QPS_INIT ? RC_TO_INIT : 0;
    case IBV_QPS_INIT: return state == IBV_QPS_INIT ? RC_TO_INIT : state == IBV_QPS_RTR ? RC_TO_RTR : 0;
    case IBV_QPS_RTR: return state == IBV_QPS_RTS ? RC_TO_RTS : 0;
    case IBV_QPS_RTS:
    case IBV_QPS_SQD: return state == IBV_QPS_RTS || state == IBV_QPS_SQD ? IBV_QP_STATE : 0;
    default: return 0;
    }
}

static void all_transitions(void)
{
    static const enum ibv_qp_state states[] = {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR,
                                               IBV_QPS_RTS,   IBV_QPS_SQD,  IBV_QPS_ERR};
    const size_t count = sizeof states / sizeof *states;

    open_self();
    CHECK_EQ(end_state(&end), IBV_QPS_RESET);
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < count; j++) {
            int mask = legal(states[i], states[j]);

            bring_to(states[i]);
            CHECK_EQ(end_state(&end), states[i]);
            if (mask) {
                int error = to(states[j], mask);

                if (error)
                    FAIL("state %d to %d: error %d", states[i], states[j], error);
                CHECK_EQ(end_state(&end), states[j]);
                CHECK_EQ(end.qp->state, states[j]);
            } else {
                static const int masks[] = {IBV_QP_STATE, RC_TO_INIT, RC_TO_RTR, RC_TO_RTS};

                for (size_t m = 0; m < sizeof masks / sizeof *masks; m++) {
                    int error = to(states[j], masks[m]);

                    if (error != EINVAL)
                        FAIL("state %d to %d: error %d, not EINVAL", states[i], states[j], error);
                    CHECK_EQ(end_state(&end), states[i]);
                }
            }
        }
    }
    end_close(&end);
}

/* Without one of the required attributes, and with one that is not allowed. */
static void masks(void)
{
    static const struct {
        enum ibv_qp_state from, state;
        int mask, wrong;
    } cases[] = {
        {IBV_QPS_RESET, IBV_QPS_INIT, RC_TO_INIT, IBV_QP_SQ_PSN},
        {IBV_QPS_RESET, IBV_QPS_INIT, RC_TO_INIT, IBV_QP_QKEY},
        {IBV_QPS_INIT, IBV_QPS_RTR, RC_TO_RTR, IBV_QP_TIMEOUT},
        {IBV_QPS_INIT, IBV_QPS_RTR, RC_TO_RTR, IBV_QP_PORT},
        {IBV_QPS_RTR, IBV_QPS_RTS, RC_TO_RTS, IBV_QP_DEST_QPN},
        {IBV_QPS_RTR, IBV_QPS_RTS, RC_TO_RTS, IBV_QP_QKEY},
    };

    open_self();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (int bit = 1; bit <= IBV_QP_DEST_QPN; bit <<= 1) {
            if (bit == IBV_QP_STATE || !(cases[i].mask & bit))
                continue;
            bring_to(cases[i].from);
            if (to(cases[i].state, cases[i].mask & ~bit) != EINVAL)
                FAIL("to state %d without attribute 0x%x: no EINVAL", cases[i].state, bit);
            CHECK_EQ(end_state(&end), cases[i].from);
        }
        bring_to(cases[i].from);
        CHECK_EQ(to(cases[i].state, cases[i].mask | cases[i].wrong), EINVAL);
        CHECK_EQ(end_state(&end), cases[i].from);
    }
    bring_to(IBV_QPS_INIT);
    struct ibv_qp_attr attr = attributes(IBV_QPS_RTR);
    attr.cur_qp_state = IBV_QPS_RTS;
    CHECK_EQ(ibv_modify_qp(end.qp, &attr, RC_TO_RTR | IBV_QP_CUR_STATE), EINVAL);
    CHECK_EQ(end_state(&end), IBV_QPS_INIT);
    /* Changes attributes only, with the state unchanged. */
    bring_to(IBV_QPS_RTS);
    attr = attributes(IBV_QPS_RTS);
    attr.min_rnr_timer = 3;
    OK(ibv_modify_qp(end.qp, &attr, IBV_QP_MIN_RNR_TIMER));
    struct ibv_qp_init_attr init;
    OK(ibv_query_qp(end.qp, &attr, IBV_QP_MIN_RNR_TIMER, &init));
    CHECK_EQ(attr.min_rnr_timer, 3);
    end_close(&end);
}

static void bad_values(void)
{
    struct ibv_qp_attr attr;
    struct ibv_device_attr device;

    open_self();
    OK(ibv_query_device(end.context, &device));
    attr = attributes(IBV_QPS_INIT);
    attr.port_num = 2;
    CHECK_EQ(ibv_modify_qp(end.qp, &attr, RC_TO_INIT), EINVAL);
    attr.port_num = 0;
    CHECK_EQ(ibv_modify_qp(end.qp, &attr, RC_TO_INIT), EINVAL);
    attr.port_num = 1;
    attr.pkey_index = 1;
    CHECK_EQ(ibv_modify_qp(end.qp, &attr, RC_TO_INIT), EINVAL);
    CHECK_EQ(end_state(&end), IBV_QPS_RESET);

    bring_to(IBV_QPS_INIT);
    attr = attributes(IBV_QPS_RTR);
    attr.ah_attr.grh.sgid_index = 255;
    CHECK_EQ(ibv_modify_qp(end.qp, &attr, RC_TO_RTR), EINVAL);
    attr = attributes(IBV_QPS_RTR);
    attr.ah_attr.port_num = 3;
    CHECK_EQ(ibv_modify_qp(end.qp, &attr, RC_TO_RTR), EINVAL);
    attr = attributes(IBV_QPS_RTR);
    attr.path_mtu = (enum ibv_mtu)9;
    CHECK_EQ(ibv_modify_qp(end.qp, &attr, RC_TO_RTR), EINVAL);
    CHECK_EQ(end_state(&end), IBV_QPS_INIT);
    if (device.max_qp_rd_atom < 255) {
        attr = attributes(IBV_QPS_RTR);
        attr.max_dest_rd_atomic = 255;
        CHECK_EQ(ibv_modify_qp(end.qp, &attr, RC_TO_RTR), EINVAL);
        bring_to(IBV_QPS_RTR);
        attr = attributes(IBV_QPS_RTS);
        attr.max_rd_atomic = 255;
        CHECK_EQ(ibv_modify_qp(end.qp, &attr, RC_TO_RTS), EINVAL);
    }
    end_close(&end);
}

static void query(void)
{
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;

    open_self();
    bring_to(IBV_QPS_RTS);
    OK(ibv_query_qp(end.qp, &attr, ~0 & 0x1fffff, &init));
    CHECK_EQ(attr.qp_state, IBV_QPS_RTS);
    CHECK_EQ(attr.cur_qp_state, IBV_QPS_RTS);
    CHECK_EQ(attr.port_num, 1);
    CHECK_EQ(attr.path_mtu, IBV_MTU_1024);
    CHECK_EQ(attr.dest_qp_num, self.qpn);
    CHECK_EQ(attr.qp_access_flags, ACCESS_ALL);
    CHECK_EQ(attr.max_dest_rd_atomic, 4);
    CHECK_EQ(attr.max_rd_atomic, 4);
    CHECK_EQ(attr.min_rnr_timer, 12);
    CHECK_EQ(attr.timeout, 14);
    CHECK_EQ(attr.retry_cnt, 6);
    CHECK_EQ(attr.rnr_retry, 5);
    CHECK_EQ(attr.ah_attr.is_global, 1);
    CHECK_EQ(attr.ah_attr.grh.hop_limit, 9);
    CHECK(!memcmp(&attr.ah_attr.grh.dgid, &self.gid, sizeof self.gid));
    CHECK(init.send_cq == end.send_cq && init.recv_cq == end.recv_cq);
    CHECK(init.qp_context == &end);
    CHECK_EQ(init.qp_type, IBV_QPT_RC);
    CHECK_EQ(init.sq_sig_all, 0);
    CHECK(init.cap.max_send_wr >= 16 && init.cap.max_recv_wr >= 16 && init.cap.max_send_sge >= 4);
    CHECK_EQ(attr.cap.max_send_wr, init.cap.max_send_wr);
    end_close(&end);
}

static void posting(void)
{
    struct ibv_sge sge;
    struct ibv_send_wr wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
    struct ibv_recv_wr recv = {.wr_id = 2, .sg_list = &sge, .num_sge = 1}, *bad_recv;

    open_self();
    sge = end_sge(&end, 0, 8);
    bring_to(IBV_QPS_RESET);
    CHECK_EQ(ibv_post_recv(end.qp, &recv, &bad_recv), EINVAL);
    CHECK(bad_recv == &recv);
    CHECK_EQ(ibv_post_send(end.qp, &wr, &bad), EINVAL);
    CHECK(bad == &wr);
    bring_to(IBV_QPS_INIT);
    OK(ibv_post_recv(end.qp, &recv, &bad_recv));
    CHECK_EQ(ibv_post_send(end.qp, &wr, &bad), EINVAL);
    bring_to(IBV_QPS_RTR);
    OK(ibv_post_recv(end.qp, &recv, &bad_recv));
    CHECK_EQ(ibv_post_send(end.qp, &wr, &bad), EINVAL);

    /* RESET drops what was posted, without completions. */
    bring_to(IBV_QPS_RTS);
    expect_empty(end.recv_cq);
    wr.send_flags = IBV_SEND_SIGNALED;
    recv.wr_id = 3;
    OK(ibv_post_recv(end.qp, &recv, &bad_recv));
    OK(ibv_post_send(end.qp, &wr, &bad));
    expect_wc(end.send_cq, 1, IBV_WC_SUCCESS);
    expect_wc(end.recv_cq, 3, IBV_WC_SUCCESS);
    bring_to(IBV_QPS_ERR);
    OK(ibv_post_send(end.qp, &wr, &bad));
    OK(ibv_post_recv(end.qp, &recv, &bad_recv));
    expect_wc(end.send_cq, 1, IBV_WC_WR_FLUSH_ERR);
    expect_wc(end.recv_cq, 3, IBV_WC_WR_FLUSH_ERR);
    end_close(&end);
}

/* A drained send queue keeps posted requests until it runs again, and an event reports that it is drained. */
static void drained(void)
{
    struct ibv_qp_attr attr;
    struct ibv_async_event event;

    open_self();
    bring_to(IBV_QPS_RTS);
    attr = attributes(IBV_QPS_SQD);
    attr.en_sqd_async_notify = 1;
    OK(ibv_modify_qp(end.qp, &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY));
    OK(ibv_get_async_event(end.context, &event));
    CHECK_EQ(event.event_type, IBV_EVENT_SQ_DRAINED);
    CHECK(event.element.qp == end.qp);
    ibv_ack_async_event(&event);
    fill(end.buf, 8, 1);
    post_rdma(&end, 1, IBV_WR_RDMA_WRITE, 0, 8, &self, 100, IBV_SEND_SIGNALED);
    for (int i = 0; i < 100; i++)
        expect_empty(end.send_cq);
    CHECK(all_bytes(end.buf + 100, 8, 0));
    OK(to(IBV_QPS_RTS, IBV_QP_STATE));
    expect_wc(end.send_cq, 1, IBV_WC_SUCCESS);
    CHECK(holds(end.buf + 100, 8, 1));
    end_close(&end);
}

/* A message that has begun is carried out first, however long it is. */
static void drained_behind_a_long_message(void)
{
    enum { LENGTH = 8 << 20 };
    struct ibv_async_event event;
    struct ibv_wc wc;
    bool done = false;

    end_open(&end, &(struct end_options){.size = 2 * LENGTH});
    self = end_address(&end);
    bring_to(IBV_QPS_RTS);
    fill(end.buf, LENGTH, 1);
    post_rdma(&end, 1, IBV_WR_RDMA_WRITE, 0, LENGTH, &self, LENGTH, IBV_SEND_SIGNALED);
    struct ibv_qp_attr attr = attributes(IBV_QPS_SQD);
    attr.en_sqd_async_notify = 1;
    OK(ibv_modify_qp(end.qp, &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY));
    while (!done) {
        const bool told = readable(end.context->async_fd);
        const int n = ibv_poll_cq(end.send_cq, 1, &wc);
        CHECK(n >= 0);
        done = n;
        CHECK(done || !told);
    }
    CHECK_STATUS(&wc, IBV_WC_SUCCESS);
    CHECK(holds(end.buf + LENGTH, LENGTH, 1));
    OK(ibv_get_async_event(end.context, &event));
    CHECK_EQ(event.event_type, IBV_EVENT_SQ_DRAINED);
    ibv_ack_async_event(&event);
    end_close(&end);
}

/* Both ends allow more READs at a time than they began with. */
static void more_reads_at_a_time(void)
{
    enum { FIRST = 1, MORE = 8, EACH = 1000 };
    struct connect_options options = CONNECT_DEFAULTS;
    struct end ends[2];

    options.max_rd_atomic = FIRST;
    pair_open(&ends[0], &ends[1], NULL);
    pair_connect(&ends[0], &ends[1], &options);
    for (int i = 0; i < 2; i++) {
        struct ibv_qp_attr attr = {
            .qp_state = IBV_QPS_SQD, .max_rd_atomic = MORE, .max_dest_rd_atomic = MORE};
        OK(ibv_modify_qp(ends[i].qp, &attr, IBV_QP_STATE));
        OK(ibv_modify_qp(ends[i].qp, &attr, IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC));
        attr.qp_state = IBV_QPS_RTS;
        OK(ibv_modify_qp(ends[i].qp, &attr, IBV_QP_STATE));
    }
    const struct address there = end_address(&ends[1]);
    struct ibv_send_wr wr[MORE], *bad;
    struct ibv_sge sge[MORE];
    fill(ends[1].buf, MORE * EACH, 3);
    for (uint32_t i = 0; i < MORE; i++) {
        sge[i] = end_sge(&ends[0], i * EACH, EACH);
        wr[i] = (struct ibv_send_wr){.wr_id = i,
                                     .next = i + 1 < MORE ? &wr[i + 1] : NULL,
                                     .sg_list = &sge[i],
                                     .num_sge = 1,
                                     .opcode = IBV_WR_RDMA_READ,
                                     .send_flags = IBV_SEND_SIGNALED,
                                     .wr.rdma = {there.addr + i * EACH, there.rkey}};
    }
    OK(ibv_post_send(ends[0].qp, wr, &bad));
    for (uint32_t i = 0; i < MORE; i++)
        expect_wc(ends[0].send_cq, i, IBV_WC_SUCCESS);
    CHECK(holds(ends[0].buf, MORE * EACH, 3));
    pair_close(&ends[0], &ends[1]);
}

/* Where its packets go does not change while a queue pair is connected. */
static void other_ways(void)
{
    open_self();
    bring_to(IBV_QPS_SQD);
    OK(to(IBV_QPS_SQD, IBV_QP_AV));
    struct ibv_qp_attr attr = attributes(IBV_QPS_SQD);
    attr.ah_attr.grh.dgid.raw[15] ^= 1;
    CHECK_EQ(ibv_modify_qp(end.qp, &attr, IBV_QP_AV), EINVAL);
    attr = attributes(IBV_QPS_SQD);
    attr.ah_attr.grh.traffic_class = 8;
    CHECK_EQ(ibv_modify_qp(end.qp, &attr, IBV_QP_AV), EINVAL);
    struct ibv_qp_init_attr init;
    OK(ibv_query_qp(end.qp, &attr, IBV_QP_AV, &init));
    CHECK(!memcmp(attr.ah_attr.grh.dgid.raw, self.gid.raw, 16));
    CHECK_EQ(attr.ah_attr.grh.traffic_class, 0);
    end_close(&end);
}

static void creation(void)
{
    struct ibv_device_attr device;
    struct ibv_qp_init_attr init;

    open_self();
    OK(ibv_query_device(end.context, &device));
    init =
        (struct ibv_qp_init_attr){.send_cq = end.send_cq,
                                  .recv_cq = end.recv_cq,
                                  .qp_type = IBV_QPT_RC,
                                  .cap = {.max_send_wr = (uint32_t)device.max_qp_wr + 1, .max_send_sge = 1}};
    CHECK(!ibv_create_qp(end.pd, &init));
    CHECK_EQ(errno, EINVAL);
    init.cap = (struct ibv_qp_cap){.max_recv_wr = 1, .max_recv_sge = (uint32_t)device.max_sge + 1};
    CHECK(!ibv_create_qp(end.pd, &init));
    init.cap = (struct ibv_qp_cap){.max_send_wr = 1, .max_send_sge = 1};
    init.qp_type = (enum ibv_qp_type)77;
    CHECK(!ibv_create_qp(end.pd, &init));
    init.qp_type = IBV_QPT_RC;
    init.send_cq = NULL;
    CHECK(!ibv_create_qp(end.pd, &init));

    /* Objects that a QP uses cannot be destroyed before it. */
    CHECK_EQ(ibv_destroy_cq(end.send_cq), EBUSY);
    CHECK_EQ(ibv_destroy_cq(end.recv_cq), EBUSY);
    CHECK_EQ(ibv_dealloc_pd(end.pd), EBUSY);

    /* Numbers are not reused at once: packets for a destroyed QP must not reach its successor. */
    init.send_cq = end.send_cq;
    uint32_t last = 0;
    for (int i = 0; i < 20; i++) {
        struct ibv_qp *qp = ibv_create_qp(end.pd, &init);

        CHECK(qp);
        CHECK(qp->qp_num > 1 && qp->qp_num < 1 << 24);
        CHECK(qp->qp_num != last && qp->qp_num != end.qp->qp_num);
        last = qp->qp_num;
        OK(ibv_destroy_qp(qp));
    }
    end_close(&end);
}

/* Adapters grant what fits where the scatter list stands. rdma_xclient asks for none, and sends 16 bytes. */
static void inline_unasked(void)
{
    struct end end;
    struct ibv_qp_init_attr init = {.cap = {.max_send_wr = 1, .max_send_sge = 1}, .qp_type = IBV_QPT_RC};

    end_open(&end, &(struct end_options){0});
    init.send_cq = init.recv_cq = end.send_cq;
    struct ibv_qp *qp = ibv_create_qp(end.pd, &init);
    CHECK(qp);
    CHECK(init.cap.max_inline_data >= 16);
    OK(ibv_destroy_qp(qp));
    end_close(&end);
}

TEST_MAIN(TEST(all_transitions), TEST(masks), TEST(bad_values), TEST(query), TEST(posting), TEST(drained),
          TEST(drained_behind_a_long_message), TEST(more_reads_at_a_time), TEST(other_ways), TEST(creation),
          TEST(inline_unasked))

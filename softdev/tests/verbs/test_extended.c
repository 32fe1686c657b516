/* ibv_create_cq_ex, ibv_create_qp_ex and ibv_wr_*. */
#include "tests/harness.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct end a, b;
static struct address of_b;
static struct ibv_qp_ex *ex;

#define ALL_OPS                                                                                              \
    (IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND |                  \
     IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |           \
     IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD)

static void use_extended_qp(struct end *end, enum ibv_qp_type type, uint64_t ops)
{
    struct ibv_qp_init_attr_ex attr = {
        .qp_context = end,
        .send_cq = end->send_cq,
        .recv_cq = end->recv_cq,
        .cap = {.max_send_wr = 16,
                .max_recv_wr = 16,
                .max_send_sge = 4,
                .max_recv_sge = 4,
                .max_inline_data = 64},
        .qp_type = type,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .pd = end->pd,
        .send_ops_flags = ops,
    };

    OK(ibv_destroy_qp(end->qp));
    end->qp = ibv_create_qp_ex(end->context, &attr);
    CHECK(end->qp);
    ex = ibv_qp_to_qp_ex(end->qp);
    CHECK(ex);
    CHECK(attr.cap.max_inline_data >= 64 && attr.cap.max_send_wr >= 16);
}

static void open_pair(enum ibv_qp_type type, uint64_t ops)
{
    pair_open(&a, &b, &(struct end_options){.type = type});
    CHECK(!ibv_qp_to_qp_ex(a.qp));
    use_extended_qp(&a, type, ops);
    pair_connect(&a, &b, NULL);
    of_b = end_address(&b);
}

static void every_operation(void)
{
    struct ibv_wc wc;
    struct ibv_sge sges[3];

    open_pair(IBV_QPT_RC, ALL_OPS);
    fill(a.buf, 1000, 1);
    for (int i = 0; i < 3; i++)
        post_recv(&b, (uint64_t)i, 10000 + (size_t)i * 1000, 1000);
    for (size_t i = 0; i < 3; i++)
        sges[i] = end_sge(&a, i * 100, 100);

    ibv_wr_start(ex);
    ex->wr_id = 1;
    ex->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_send(ex);
    ibv_wr_set_sge(ex, a.mr->lkey, (uintptr_t)a.buf, 500);
    ex->wr_id = 2;
    ibv_wr_send_imm(ex, htobe32(22));
    ibv_wr_set_sge_list(ex, 3, sges);
    ex->wr_id = 3;
    ex->wr_flags = 0;
    ibv_wr_rdma_write(ex, of_b.rkey, of_b.addr);
    ibv_wr_set_sge(ex, a.mr->lkey, (uintptr_t)a.buf, 1000);
    ex->wr_id = 4;
    ex->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_rdma_write_imm(ex, of_b.rkey, of_b.addr + 2000, htobe32(44));
    ibv_wr_set_sge(ex, a.mr->lkey, (uintptr_t)a.buf, 700);
    ex->wr_id = 5;
    ibv_wr_rdma_read(ex, of_b.rkey, of_b.addr);
    ibv_wr_set_sge(ex, a.mr->lkey, (uintptr_t)a.buf + 4096, 1000);
    ex->wr_id = 6;
    ibv_wr_atomic_fetch_add(ex, of_b.rkey, of_b.addr + 8192, 7);
    ibv_wr_set_sge(ex, a.mr->lkey, (uintptr_t)a.buf + 8192, 8);
    ex->wr_id = 7;
    ibv_wr_atomic_cmp_swp(ex, of_b.rkey, of_b.addr + 8192, 7, 9);
    ibv_wr_set_sge(ex, a.mr->lkey, (uintptr_t)a.buf + 8200, 8);
    OK(ibv_wr_complete(ex));

    CHECK_EQ(expect_wc(a.send_cq, 1, IBV_WC_SUCCESS).opcode, IBV_WC_SEND);
    CHECK_EQ(expect_wc(a.send_cq, 2, IBV_WC_SUCCESS).opcode, IBV_WC_SEND);
    CHECK_EQ(expect_wc(a.send_cq, 4, IBV_WC_SUCCESS).opcode, IBV_WC_RDMA_WRITE);
    CHECK_EQ(expect_wc(a.send_cq, 5, IBV_WC_SUCCESS).opcode, IBV_WC_RDMA_READ);
    CHECK_EQ(expect_wc(a.send_cq, 6, IBV_WC_SUCCESS).opcode, IBV_WC_FETCH_ADD);
    CHECK_EQ(expect_wc(a.send_cq, 7, IBV_WC_SUCCESS).opcode, IBV_WC_COMP_SWAP);
    CHECK_EQ(expect_wc(b.recv_cq, 0, IBV_WC_SUCCESS).byte_len, 500);
    wc = expect_wc(b.recv_cq, 1, IBV_WC_SUCCESS);
    CHECK_EQ(wc.byte_len, 300);
    CHECK_EQ(wc.imm_data, htobe32(22));
    wc = expect_wc(b.recv_cq, 2, IBV_WC_SUCCESS);
    CHECK_EQ(wc.byte_len, 700);
    CHECK_EQ(wc.imm_data, htobe32(44));
    CHECK(holds(b.buf + 10000, 500, 1) && holds(b.buf + 11000, 300, 1));
    CHECK(holds(b.buf, 1000, 1) && holds(b.buf + 2000, 700, 1) && holds(a.buf + 4096, 1000, 1));
    CHECK_EQ(*(uint64_t *)(void *)(b.buf + 8192), 9);
    CHECK_EQ(*(uint64_t *)(void *)(a.buf + 8192), 0);
    CHECK_EQ(*(uint64_t *)(void *)(a.buf + 8200), 7);
    pair_close(&a, &b);
}

static void inline_data(void)
{
    uint8_t data[64];

    open_pair(IBV_QPT_RC, ALL_OPS);
    for (unsigned round = 0; round < 50; round++) {
        struct ibv_data_buf bufs[3] = {{data, 10}, {data + 10, 0}, {data + 10, 54}};

        ibv_wr_start(ex);
        ex->wr_id = round;
        ex->wr_flags = 0;
        fill(data, 64, round);
        ibv_wr_rdma_write(ex, of_b.rkey, of_b.addr);
        ibv_wr_set_inline_data(ex, data, 64);
        fill(data, 64, round + 1);
        ex->wr_flags = IBV_SEND_SIGNALED;
        ibv_wr_rdma_write(ex, of_b.rkey, of_b.addr + 64);
        ibv_wr_set_inline_data_list(ex, 3, bufs);
        memset(data, 0, sizeof data);
        OK(ibv_wr_complete(ex));
        expect_wc(a.send_cq, round, IBV_WC_SUCCESS);
        CHECK(holds(b.buf, 64, round));
        CHECK(holds(b.buf + 64, 64, round + 1));
    }
    pair_close(&a, &b);
}

/* Nothing of a batch is sent when it is aborted, or when any part of it was wrong. */
static void all_or_nothing(void)
{
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    struct ibv_sge many[64];
    uint8_t *large;

    open_pair(IBV_QPT_RC, ALL_OPS);
    OK(ibv_query_qp(a.qp, &attr, IBV_QP_CAP, &init));
    for (size_t i = 0; i < 64; i++)
        many[i] = end_sge(&a, i, 1);
    fill(a.buf, 64, 1);
    ex->wr_flags = IBV_SEND_SIGNALED;

    ibv_wr_start(ex);
    ibv_wr_rdma_write(ex, of_b.rkey, of_b.addr);
    ibv_wr_set_sge(ex, a.mr->lkey, (uintptr_t)a.buf, 64);
    ibv_wr_abort(ex);

    ibv_wr_start(ex);
    ibv_wr_rdma_write(ex, of_b.rkey, of_b.addr);
    ibv_wr_set_sge(ex, a.mr->lkey, (uintptr_t)a.buf, 64);
    ibv_wr_rdma_write(ex, of_b.rkey, of_b.addr);
    ibv_wr_set_sge_list(ex, 64, many); /* too many */
    CHECK(ibv_wr_complete(ex) != 0);

    large = calloc(1, init.cap.max_inline_data + 1);
    CHECK(large);
    ibv_wr_start(ex);
    ibv_wr_rdma_write(ex, of_b.rkey, of_b.addr);
    ibv_wr_set_sge(ex, a.mr->lkey, (uintptr_t)a.buf, 64);
    ibv_wr_rdma_write(ex, of_b.rkey, of_b.addr);
    ibv_wr_set_inline_data(ex, large, init.cap.max_inline_data + 1);
    CHECK(ibv_wr_complete(ex) != 0);
    free(large);

    ibv_wr_start(ex);
    for (unsigned i = 0; i <= init.cap.max_send_wr; i++) { /* more than the queue holds */
        ibv_wr_rdma_write(ex, of_b.rkey, of_b.addr);
        ibv_wr_set_sge(ex, a.mr->lkey, (uintptr_t)a.buf, 64);
    }
    CHECK_EQ(ibv_wr_complete(ex), ENOMEM);

    CHECK(all_bytes(b.buf, 64, 0));
    expect_empty(a.send_cq);
    ibv_wr_start(ex);
    OK(ibv_wr_complete(ex)); /* nothing in it */
    ibv_wr_start(ex);
    ex->wr_id = 9;
    ibv_wr_rdma_write(ex, of_b.rkey, of_b.addr);
    ibv_wr_set_sge(ex, a.mr->lkey, (uintptr_t)a.buf, 64);
    OK(ibv_wr_complete(ex));
    expect_wc(a.send_cq, 9, IBV_WC_SUCCESS);
    CHECK(holds(b.buf, 64, 1));
    pair_close(&a, &b);
}

/* What posting refuses, and no call of the list has: of the requests before it none is posted, either. */
static void none_of_a_list(void)
{
    open_pair(IBV_QPT_RC, ALL_OPS);
    memset(b.buf, 0, 16);
    fill(a.buf, 16, 4);
    for (int last = 0; last < 2; last++) {
        ibv_wr_start(ex);
        ex->wr_id = 1;
        ex->wr_flags = IBV_SEND_SIGNALED;
        ibv_wr_rdma_write(ex, of_b.rkey, of_b.addr);
        ibv_wr_set_sge(ex, a.mr->lkey, (uintptr_t)a.buf, 8);
        ex->wr_id = 2;
        ibv_wr_atomic_fetch_add(ex, of_b.rkey, of_b.addr + 8, 1);
        ibv_wr_set_sge(ex, a.mr->lkey, (uintptr_t)a.buf + 8, last ? 8 : 4); /* an atomic has 8 bytes */
        if (!last) {
            CHECK_EQ(ibv_wr_complete(ex), EINVAL);
            continue;
        }
        OK(ibv_wr_complete(ex));
    }
    /* Those that are complete first would be the ones of the list that was refused. */
    expect_wc(a.send_cq, 1, IBV_WC_SUCCESS);
    expect_wc(a.send_cq, 2, IBV_WC_SUCCESS);
    expect_empty(a.send_cq);
    pair_close(&a, &b);
}

static void datagrams(void)
{
    struct ibv_ah_attr attr = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 1}};
    struct ibv_ah *ah;

    open_pair(IBV_QPT_UD, IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM);
    attr.grh.dgid = b.gid;
    ah = ibv_create_ah(a.pd, &attr);
    CHECK(ah);
    fill(a.buf, 100, 5);
    post_recv(&b, 1, 0, 200);
    ibv_wr_start(ex);
    ex->wr_id = 2;
    ex->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_send_imm(ex, htobe32(7));
    ibv_wr_set_ud_addr(ex, ah, b.qp->qp_num, 0x11111111);
    ibv_wr_set_sge(ex, a.mr->lkey, (uintptr_t)a.buf, 100);
    OK(ibv_wr_complete(ex));
    expect_wc(a.send_cq, 2, IBV_WC_SUCCESS);
    CHECK_EQ(expect_wc(b.recv_cq, 1, IBV_WC_SUCCESS).imm_data, htobe32(7));
    CHECK(holds(b.buf + 40, 100, 5));
    OK(ibv_destroy_ah(ah));
    pair_close(&a, &b);
}

static void creation(void)
{
    struct ibv_qp_init_attr_ex attr = {0};

    end_open(&a, NULL);
    attr.send_cq = a.send_cq;
    attr.recv_cq = a.recv_cq;
    attr.qp_type = IBV_QPT_UD;
    attr.pd = a.pd;
    attr.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    attr.send_ops_flags = IBV_QP_EX_WITH_RDMA_READ; /* not on UD */
    CHECK(!ibv_create_qp_ex(a.context, &attr));
    attr.send_ops_flags = IBV_QP_EX_WITH_TSO;
    attr.qp_type = IBV_QPT_RC;
    CHECK(!ibv_create_qp_ex(a.context, &attr));
    attr.send_ops_flags = IBV_QP_EX_WITH_SEND;
    attr.comp_mask = IBV_QP_INIT_ATTR_SEND_OPS_FLAGS; /* no PD */
    CHECK(!ibv_create_qp_ex(a.context, &attr));

    struct ibv_cq_init_attr_ex cq_attr = {.cqe = 4, .wc_flags = IBV_WC_EX_WITH_TM_INFO};
    CHECK(!ibv_create_cq_ex(a.context, &cq_attr));
    cq_attr.wc_flags = 0;
    cq_attr.comp_mask = 1 << 20;
    CHECK(!ibv_create_cq_ex(a.context, &cq_attr));
    cq_attr.comp_mask = 0;
    cq_attr.cqe = 0;
    CHECK(!ibv_create_cq_ex(a.context, &cq_attr));
    end_close(&a);
}

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec now;

    CHECK(!clock_gettime(clock, &now));
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* Entry by entry, with every requested field. */
static void polling(void)
{
    struct ibv_cq_init_attr_ex attr = {.cqe = 64,
                                       .wc_flags = IBV_WC_STANDARD_FLAGS |
                                                   IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
                                                   IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK};
    struct ibv_poll_cq_attr poll = {0};
    struct ibv_qp_init_attr init = {.cap = {.max_recv_wr = 16, .max_recv_sge = 1}, .qp_type = IBV_QPT_RC};
    uint64_t before = clock_ns(CLOCK_MONOTONIC), before_wall = clock_ns(CLOCK_REALTIME), last = before;
    struct ibv_cq_ex *cq;
    int error;

    pair_open(&a, &b, NULL);
    attr.cq_context = &b;
    cq = ibv_create_cq_ex(b.context, &attr);
    CHECK(cq && cq->context == b.context && cq->cq_context == &b && cq->cqe >= 64);
    OK(ibv_destroy_qp(b.qp));
    init.send_cq = init.recv_cq = ibv_cq_ex_to_cq(cq);
    b.qp = ibv_create_qp(b.pd, &init);
    CHECK(b.qp);
    pair_connect(&a, &b, NULL);
    of_b = end_address(&b);
    CHECK_EQ(ibv_start_poll(cq, &poll), ENOENT);
    for (uint64_t i = 0; i < 4; i++) {
        post_recv(&b, i, i * 100, 100);
        post_rdma(&a, 100 + i, i % 2 ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND, 0, 10 + i, &of_b, 0,
                  IBV_SEND_SIGNALED);
        expect_wc(a.send_cq, 100 + i, IBV_WC_SUCCESS);
    }
    while ((error = ibv_start_poll(cq, &poll)) == ENOENT)
        ;
    OK(error);
    for (uint64_t i = 0; i < 4; i++) {
        CHECK_EQ(cq->wr_id, i);
        CHECK_EQ(cq->status, IBV_WC_SUCCESS);
        CHECK_EQ(ibv_wc_read_opcode(cq), IBV_WC_RECV);
        CHECK_EQ(ibv_wc_read_byte_len(cq), 10 + i);
        CHECK_EQ(ibv_wc_read_qp_num(cq), b.qp->qp_num);
        CHECK_EQ(ibv_wc_read_vendor_err(cq), 0);
        CHECK_EQ(ibv_wc_read_wc_flags(cq) & IBV_WC_WITH_IMM, i % 2 ? IBV_WC_WITH_IMM : 0);
        if (i % 2)
            CHECK_EQ(ibv_wc_read_imm_data(cq), htobe32((uint32_t)(100 + i)));
        CHECK_EQ(ibv_wc_read_slid(cq), 0);
        CHECK_EQ(ibv_wc_read_sl(cq), 0);
        CHECK_EQ(ibv_wc_read_dlid_path_bits(cq), 0);
        CHECK(ibv_wc_read_completion_ts(cq) >= last);
        CHECK(ibv_wc_read_completion_ts(cq) <= clock_ns(CLOCK_MONOTONIC));
        last = ibv_wc_read_completion_ts(cq);
        CHECK(ibv_wc_read_completion_wallclock_ns(cq) + 1000000000 > before_wall);
        error = ibv_next_poll(cq);
        CHECK_EQ(error, i < 3 ? 0 : ENOENT);
    }
    ibv_end_poll(cq);
    /* The plain call works on the same queue. */
    post_recv(&b, 50, 0, 100);
    post_send(&a, 51, 0, 8, IBV_SEND_SIGNALED);
    expect_wc(a.send_cq, 51, IBV_WC_SUCCESS);
    expect_wc(ibv_cq_ex_to_cq(cq), 50, IBV_WC_SUCCESS);
    poll.comp_mask = 1;
    CHECK_EQ(ibv_start_poll(cq, &poll), EINVAL);
    OK(ibv_destroy_qp(b.qp));
    b.qp = NULL;
    OK(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
    pair_close(&a, &b);
}

TEST_MAIN(TEST(every_operation), TEST(inline_data), TEST(all_or_nothing), TEST(none_of_a_list),
          TEST(datagrams), TEST(creation), TEST(polling))

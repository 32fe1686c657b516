/* RC: every opcode, inline data, scatter and gather, order, signalling. */
#include "tests/harness.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct end a, b;
static struct address of_a, of_b;

static void open_pair(const struct end_options *options)
{
    pair_open(&a, &b, options);
    pair_connect(&a, &b, NULL);
    of_a = end_address(&a);
    of_b = end_address(&b);
}

static void send_receive(void)
{
    struct ibv_wc wc;

    open_pair(NULL);
    fill(a.buf, 1000, 1);
    post_recv(&b, 11, 4096, 2000);
    post_send(&a, 22, 0, 1000, IBV_SEND_SIGNALED);
    wc = expect_wc(a.send_cq, 22, IBV_WC_SUCCESS);
    CHECK_EQ(wc.opcode, IBV_WC_SEND);
    CHECK_EQ(wc.qp_num, a.qp->qp_num);
    wc = expect_wc(b.recv_cq, 11, IBV_WC_SUCCESS);
    CHECK_EQ(wc.opcode, IBV_WC_RECV);
    CHECK_EQ(wc.byte_len, 1000);
    CHECK_EQ(wc.qp_num, b.qp->qp_num);
    CHECK_EQ(wc.wc_flags & IBV_WC_WITH_IMM, 0);
    CHECK(holds(b.buf + 4096, 1000, 1));
    CHECK(all_bytes(b.buf, 4096, 0));
    CHECK(all_bytes(b.buf + 5096, 1000, 0));
    expect_empty(a.recv_cq);
    expect_empty(b.send_cq);
    pair_close(&a, &b);
}

static void immediate(void)
{
    struct ibv_wc wc;

    open_pair(NULL);
    fill(a.buf, 100, 2);
    post_recv(&b, 1, 0, 100);
    post_recv(&b, 2, 512, 100);
    post_rdma(&a, 0x12345678, IBV_WR_SEND_WITH_IMM, 0, 100, &of_b, 0, IBV_SEND_SIGNALED);
    wc = expect_wc(b.recv_cq, 1, IBV_WC_SUCCESS);
    CHECK_EQ(wc.opcode, IBV_WC_RECV);
    CHECK(wc.wc_flags & IBV_WC_WITH_IMM);
    CHECK_EQ(wc.imm_data, htobe32(0x12345678));
    CHECK(holds(b.buf, 100, 2));
    wc = expect_wc(a.send_cq, 0x12345678, IBV_WC_SUCCESS);
    CHECK_EQ(wc.opcode, IBV_WC_SEND);

    post_rdma(&a, 0x9abcdef0, IBV_WR_RDMA_WRITE_WITH_IMM, 0, 77, &of_b, 8192, IBV_SEND_SIGNALED);
    wc = expect_wc(b.recv_cq, 2, IBV_WC_SUCCESS);
    CHECK_EQ(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
    CHECK(wc.wc_flags & IBV_WC_WITH_IMM);
    CHECK_EQ(wc.imm_data, htobe32(0x9abcdef0));
    CHECK_EQ(wc.byte_len, 77);
    CHECK(holds(b.buf + 8192, 77, 2));
    CHECK(all_bytes(b.buf + 512, 100, 0));
    wc = expect_wc(a.send_cq, 0x9abcdef0, IBV_WC_SUCCESS);
    CHECK_EQ(wc.opcode, IBV_WC_RDMA_WRITE);
    pair_close(&a, &b);
}

static void write_and_read(void)
{
    struct ibv_wc wc;

    open_pair(NULL);
    fill(a.buf, 5000, 3);
    post_rdma(&a, 1, IBV_WR_RDMA_WRITE, 0, 5000, &of_b, 1001, IBV_SEND_SIGNALED);
    wc = expect_wc(a.send_cq, 1, IBV_WC_SUCCESS);
    CHECK_EQ(wc.opcode, IBV_WC_RDMA_WRITE);
    CHECK(holds(b.buf + 1001, 5000, 3));
    CHECK(all_bytes(b.buf, 1001, 0));
    CHECK(all_bytes(b.buf + 6001, 1000, 0));

    post_rdma(&a, 2, IBV_WR_RDMA_READ, 20000, 5000, &of_b, 1001, IBV_SEND_SIGNALED);
    wc = expect_wc(a.send_cq, 2, IBV_WC_SUCCESS);
    CHECK_EQ(wc.opcode, IBV_WC_RDMA_READ);
    CHECK(holds(a.buf + 20000, 5000, 3));
    expect_empty(b.recv_cq);
    expect_empty(b.send_cq);
    pair_close(&a, &b);
}

/* The key of an empty message is not checked (IBTA C9-88): such a message is a plain keep-alive. */
static void zero_length(void)
{
    struct address nowhere = {.rkey = 0};
    struct ibv_send_wr wr = {.wr_id = 5, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad;
    struct ibv_recv_wr recv = {.wr_id = 6}, *bad_recv;
    struct ibv_wc wc;

    open_pair(NULL);
    post_rdma(&a, 1, IBV_WR_RDMA_WRITE, 0, 0, &nowhere, 0, IBV_SEND_SIGNALED);
    expect_wc(a.send_cq, 1, IBV_WC_SUCCESS);
    post_rdma(&a, 2, IBV_WR_RDMA_READ, 0, 0, &nowhere, 0, IBV_SEND_SIGNALED);
    expect_wc(a.send_cq, 2, IBV_WC_SUCCESS);
    post_recv(&b, 3, 0, 10);
    post_rdma(&a, 4, IBV_WR_RDMA_WRITE_WITH_IMM, 0, 0, &nowhere, 0, IBV_SEND_SIGNALED);
    expect_wc(a.send_cq, 4, IBV_WC_SUCCESS);
    wc = expect_wc(b.recv_cq, 3, IBV_WC_SUCCESS);
    CHECK_EQ(wc.byte_len, 0);
    OK(ibv_post_recv(b.qp, &recv, &bad_recv));
    OK(ibv_post_send(a.qp, &wr, &bad));
    expect_wc(a.send_cq, 5, IBV_WC_SUCCESS);
    wc = expect_wc(b.recv_cq, 6, IBV_WC_SUCCESS);
    CHECK_EQ(wc.byte_len, 0);
    pair_close(&a, &b);
}

/* The caller may reuse inline data when post returns, and its key is ignored. */
static void inline_data(void)
{
    uint8_t on_stack[64];

    open_pair(NULL);
    for (unsigned i = 0; i < 4; i++) {
        struct ibv_sge sge[2] = {{.addr = (uintptr_t)on_stack, .length = 24},
                                 {.addr = (uintptr_t)on_stack + 24, .length = 40}};
        struct ibv_send_wr wr = {.wr_id = i,
                                 .sg_list = sge,
                                 .num_sge = 2,
                                 .opcode = i % 2 ? IBV_WR_RDMA_WRITE : IBV_WR_SEND,
                                 .send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED,
                                 .wr = {.rdma = {.remote_addr = of_b.addr + 4096 + i * 64,
                                                 .rkey = of_b.rkey}}},
                           *bad;

        if (!(i % 2))
            post_recv(&b, i, i * 64, 64);
        fill(on_stack, 64, i);
        OK(ibv_post_send(a.qp, &wr, &bad));
        memset(on_stack, 0xff, sizeof on_stack);
    }
    for (unsigned i = 0; i < 4; i++)
        expect_wc(a.send_cq, i, IBV_WC_SUCCESS);
    expect_wc(b.recv_cq, 0, IBV_WC_SUCCESS);
    expect_wc(b.recv_cq, 2, IBV_WC_SUCCESS);
    CHECK(holds(b.buf, 64, 0));
    CHECK(holds(b.buf + 128, 64, 2));
    CHECK(holds(b.buf + 4096 + 64, 64, 1));
    CHECK(holds(b.buf + 4096 + 192, 64, 3));

    uint8_t *large = calloc(1, 1 << 20);
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;

    CHECK(large);
    OK(ibv_query_qp(a.qp, &attr, IBV_QP_CAP, &init));
    CHECK(init.cap.max_inline_data >= 64);
    struct ibv_sge too_long = {.addr = (uintptr_t)large, .length = init.cap.max_inline_data + 1};
    struct ibv_send_wr wr = {.sg_list = &too_long,
                             .num_sge = 1,
                             .opcode = IBV_WR_RDMA_WRITE,
                             .send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED,
                             .wr = {.rdma = {.remote_addr = of_b.addr, .rkey = of_b.rkey}}},
                       *bad = NULL;
    CHECK(ibv_post_send(a.qp, &wr, &bad) != 0);
    CHECK(bad == &wr);
    free(large);
    pair_close(&a, &b);
}

static void scatter_gather(void)
{
    static const size_t gather[4] = {1, 700, 0, 299}, scatter[3] = {333, 5, 900};
    struct ibv_sge from[4], to[3];
    uint8_t message[1000], got[1000];
    size_t at = 0;

    open_pair(NULL);
    fill(message, sizeof message, 9);
    for (size_t i = 0; i < 4; i++) {
        from[i] = end_sge(&a, i * 5000 + i, gather[i]);
        memcpy(a.buf + i * 5000 + i, message + at, gather[i]);
        at += gather[i];
    }
    for (size_t i = 0; i < 3; i++)
        to[i] = end_sge(&b, 30000 - i * 5000 + i, scatter[i]);
    struct ibv_recv_wr recv = {.wr_id = 1, .sg_list = to, .num_sge = 3}, *bad_recv;
    struct ibv_send_wr wr = {.wr_id = 2,
                             .sg_list = from,
                             .num_sge = 4,
                             .opcode = IBV_WR_SEND,
                             .send_flags = IBV_SEND_SIGNALED},
                       *bad;
    OK(ibv_post_recv(b.qp, &recv, &bad_recv));
    OK(ibv_post_send(a.qp, &wr, &bad));
    expect_wc(a.send_cq, 2, IBV_WC_SUCCESS);
    CHECK_EQ(expect_wc(b.recv_cq, 1, IBV_WC_SUCCESS).byte_len, 1000);
    memcpy(got, b.buf + 30000, 333);
    memcpy(got + 333, b.buf + 25001, 5);
    memcpy(got + 338, b.buf + 20002, 662);
    CHECK(!memcmp(got, message, sizeof got));
    CHECK(all_bytes(b.buf + 20002 + 662, 100, 0));

    /* A READ scatters, a WRITE gathers. */
    fill(b.buf + 40000, 1000, 4);
    wr.opcode = IBV_WR_RDMA_READ;
    wr.wr.rdma.remote_addr = of_b.addr + 40000;
    wr.wr.rdma.rkey = of_b.rkey;
    OK(ibv_post_send(a.qp, &wr, &bad));
    expect_wc(a.send_cq, 2, IBV_WC_SUCCESS);
    at = 0;
    for (size_t i = 0; i < 4; i++) {
        memcpy(got + at, a.buf + i * 5000 + i, gather[i]);
        at += gather[i];
    }
    CHECK(holds(got, 1000, 4));
    wr.opcode = IBV_WR_RDMA_WRITE;
    wr.wr.rdma.remote_addr = of_b.addr + 50000;
    OK(ibv_post_send(a.qp, &wr, &bad));
    expect_wc(a.send_cq, 2, IBV_WC_SUCCESS);
    CHECK(holds(b.buf + 50000, 1000, 4));
    pair_close(&a, &b);
}

static void large_messages(void)
{
    const size_t half = 5 << 20, size = half - 13;

    open_pair(&(struct end_options){.size = 2 * half});
    fill(a.buf, size, 5);
    post_recv(&b, 1, 0, half);
    post_send(&a, 2, 0, size, IBV_SEND_SIGNALED);
    expect_wc(a.send_cq, 2, IBV_WC_SUCCESS);
    CHECK_EQ(expect_wc(b.recv_cq, 1, IBV_WC_SUCCESS).byte_len, size);
    CHECK(holds(b.buf, size, 5));
    post_rdma(&a, 3, IBV_WR_RDMA_WRITE, 0, size, &of_b, half, IBV_SEND_SIGNALED);
    expect_wc(a.send_cq, 3, IBV_WC_SUCCESS);
    CHECK(holds(b.buf + half, size, 5));
    post_rdma(&a, 4, IBV_WR_RDMA_READ, half, size, &of_b, half, IBV_SEND_SIGNALED);
    expect_wc(a.send_cq, 4, IBV_WC_SUCCESS);
    CHECK(holds(a.buf + half, size, 5));
    pair_close(&a, &b);
}

/* Unsignalled work gives no completion, and its place in the queue is free after a later signalled one. */
static void signalling(void)
{
    open_pair(&(struct end_options){.send_wr = 8});
    for (uint64_t i = 1; i <= 1000; i++) {
        unsigned int flags = i % 4 ? 0 : IBV_SEND_SIGNALED;

        fill(a.buf, 16, (unsigned)i);
        post_rdma(&a, i, IBV_WR_RDMA_WRITE, 0, 16, &of_b, 0, flags | IBV_SEND_INLINE);
        if (flags) {
            expect_wc(a.send_cq, i, IBV_WC_SUCCESS);
            expect_empty(a.send_cq);
            CHECK(holds(b.buf, 16, (unsigned)i));
        }
    }
    pair_close(&a, &b);

    open_pair(&(struct end_options){.sq_sig_all = true});
    post_rdma(&a, 7, IBV_WR_RDMA_WRITE, 0, 16, &of_b, 0, 0);
    expect_wc(a.send_cq, 7, IBV_WC_SUCCESS);
    pair_close(&a, &b);
}

static void lists_and_full_queues(void)
{
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;

    open_pair(&(struct end_options){.send_wr = 4, .recv_wr = 4, .cqe = 64});
    OK(ibv_query_qp(b.qp, &attr, IBV_QP_CAP, &init));
    CHECK(init.cap.max_send_wr >= 4 && init.cap.max_recv_wr >= 4);

    /* More receives than fit: those before the first that does not fit are posted. */
    unsigned count = init.cap.max_recv_wr + 1;
    struct ibv_recv_wr *recv = calloc(count, sizeof *recv), *bad_recv = NULL;
    struct ibv_sge sge = end_sge(&b, 0, 100);
    CHECK(recv);
    for (unsigned i = 0; i < count; i++)
        recv[i] = (struct ibv_recv_wr){
            .wr_id = i, .sg_list = &sge, .num_sge = 1, .next = i + 1 < count ? &recv[i + 1] : NULL};
    CHECK_EQ(ibv_post_recv(b.qp, recv, &bad_recv), ENOMEM);
    CHECK(bad_recv == &recv[count - 1]);
    free(recv);

    /* A list of sends with a bad one in the middle: the ones before it are sent. */
    struct ibv_sge from = end_sge(&a, 0, 8);
    struct ibv_send_wr wr[3], *bad = NULL;
    for (int i = 0; i < 3; i++)
        wr[i] = (struct ibv_send_wr){.wr_id = (uint64_t)i,
                                     .sg_list = &from,
                                     .num_sge = 1,
                                     .opcode = IBV_WR_SEND,
                                     .send_flags = IBV_SEND_SIGNALED,
                                     .next = i < 2 ? &wr[i + 1] : NULL};
    wr[1].num_sge = 1000;
    CHECK_EQ(ibv_post_send(a.qp, wr, &bad), EINVAL);
    CHECK(bad == &wr[1]);
    expect_wc(a.send_cq, 0, IBV_WC_SUCCESS);
    expect_empty(a.send_cq);
    expect_wc(b.recv_cq, 0, IBV_WC_SUCCESS);
    wr[1].num_sge = 1;
    wr[1].opcode = (enum ibv_wr_opcode)99;
    CHECK(ibv_post_send(a.qp, &wr[1], &bad) != 0);
    CHECK(bad == &wr[1]);
    pair_close(&a, &b);
}

/* Sends arrive, and complete, in the order they were posted; a WRITE lands before the SEND behind it. */
static void order(void)
{
    open_pair(&(struct end_options){.recv_wr = 64, .send_wr = 128, .cqe = 256});
    for (unsigned round = 0; round < 20; round++) {
        for (unsigned i = 0; i < 50; i++)
            post_recv(&b, i, i * 16, 16);
        for (unsigned i = 0; i < 50; i++) {
            fill(a.buf, 16, round + i);
            post_rdma(&a, 1000 + i, IBV_WR_RDMA_WRITE, 0, 16, &of_b, 8192 + i * 16, IBV_SEND_INLINE);
            post_send(&a, i, 0, 16, IBV_SEND_INLINE | IBV_SEND_SIGNALED);
        }
        for (unsigned i = 0; i < 50; i++) {
            expect_wc(b.recv_cq, i, IBV_WC_SUCCESS);
            CHECK(holds(b.buf + i * 16, 16, round + i));
            CHECK(holds(b.buf + 8192 + i * 16, 16, round + i));
        }
        for (unsigned i = 0; i < 50; i++)
            expect_wc(a.send_cq, i, IBV_WC_SUCCESS);
    }
    pair_close(&a, &b);
}

/* A fenced request starts after the READs before it: it may send what they fetched. */
static void fence(void)
{
    open_pair(&(struct end_options){.size = 4 << 20});
    for (unsigned round = 0; round < 10; round++) {
        const size_t size = 1 << 20;

        fill(b.buf + size, size, round);
        memset(a.buf, 0, size);
        post_recv(&b, 1, 2 * size, size);
        post_rdma(&a, 2, IBV_WR_RDMA_READ, 0, size, &of_b, size, 0);
        post_send(&a, 3, 0, size, IBV_SEND_SIGNALED | IBV_SEND_FENCE);
        expect_wc(a.send_cq, 3, IBV_WC_SUCCESS);
        expect_wc(b.recv_cq, 1, IBV_WC_SUCCESS);
        CHECK(holds(b.buf + 2 * size, size, round));
    }
    pair_close(&a, &b);
}

/* More READs than may be outstanding wait for their turn. */
static void reads_beyond_the_limit(void)
{
    struct connect_options options = CONNECT_DEFAULTS;

    options.max_rd_atomic = 1;
    pair_open(&a, &b, NULL);
    pair_connect(&a, &b, &options);
    of_b = end_address(&b);
    fill(b.buf, 16000, 8);
    for (unsigned i = 0; i < 16; i++)
        post_rdma(&a, i, IBV_WR_RDMA_READ, i * 1000, 1000, &of_b, i * 1000, IBV_SEND_SIGNALED);
    for (unsigned i = 0; i < 16; i++)
        expect_wc(a.send_cq, i, IBV_WC_SUCCESS);
    CHECK(holds(a.buf, 16000, 8));
    pair_close(&a, &b);
}

static void to_itself(void)
{
    end_open(&a, NULL);
    of_a = end_address(&a);
    end_connect(&a, &of_a, NULL);
    fill(a.buf, 100, 6);
    post_recv(&a, 1, 1000, 100);
    post_send(&a, 2, 0, 100, IBV_SEND_SIGNALED);
    expect_wc(a.send_cq, 2, IBV_WC_SUCCESS);
    expect_wc(a.recv_cq, 1, IBV_WC_SUCCESS);
    CHECK(holds(a.buf + 1000, 100, 6));
    post_rdma(&a, 3, IBV_WR_RDMA_WRITE, 0, 100, &of_a, 2000, IBV_SEND_SIGNALED);
    expect_wc(a.send_cq, 3, IBV_WC_SUCCESS);
    CHECK(holds(a.buf + 2000, 100, 6));
    end_close(&a);
}

static void unreliable_connected(void)
{
    open_pair(&(struct end_options){.type = IBV_QPT_UC});
    fill(a.buf, 3000, 7);
    post_recv(&b, 1, 0, 3000);
    post_send(&a, 2, 0, 3000, IBV_SEND_SIGNALED);
    expect_wc(a.send_cq, 2, IBV_WC_SUCCESS);
    expect_wc(b.recv_cq, 1, IBV_WC_SUCCESS);
    CHECK(holds(b.buf, 3000, 7));
    post_recv(&b, 3, 0, 0);
    post_rdma(&a, 4, IBV_WR_RDMA_WRITE_WITH_IMM, 0, 3000, &of_b, 9000, IBV_SEND_SIGNALED);
    expect_wc(a.send_cq, 4, IBV_WC_SUCCESS);
    expect_wc(b.recv_cq, 3, IBV_WC_SUCCESS);
    CHECK(holds(b.buf + 9000, 3000, 7));
    /* Without a receive the message is lost, and neither side fails. */
    post_send(&a, 5, 0, 10, IBV_SEND_SIGNALED);
    expect_wc(a.send_cq, 5, IBV_WC_SUCCESS);
    CHECK_EQ(end_state(&a), IBV_QPS_RTS);
    CHECK_EQ(end_state(&b), IBV_QPS_RTS);
    pair_close(&a, &b);
}

TEST_MAIN(TEST(send_receive), TEST(immediate), TEST(write_and_read), TEST(zero_length), TEST(inline_data),
          TEST(scatter_gather), TEST(large_messages), TEST(signalling), TEST(lists_and_full_queues),
          TEST(order), TEST(fence), TEST(reads_beyond_the_limit), TEST(to_itself), TEST(unreliable_connected))

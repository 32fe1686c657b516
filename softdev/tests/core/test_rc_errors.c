/* RC failures: the right status on both sides, the QPs in error, and everything else flushed. */
#include "tests/harness.h"

#include "softdev.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct end a, b;
static struct address of_b;

static void open_pair(const struct connect_options *options)
{
    pair_open(&a, &b, NULL);
    pair_connect(&a, &b, options);
    of_b = end_address(&b);
}

static void expect_async(struct ibv_context *context, enum ibv_event_type type, struct ibv_qp *qp)
{
    struct ibv_async_event event;

    OK(ibv_get_async_event(context, &event));
    CHECK_EQ(event.event_type, type);
    CHECK(event.element.qp == qp);
    ibv_ack_async_event(&event);
}

static void expect_flushed_sends(struct end *end)
{
    CHECK_EQ(end_state(end), IBV_QPS_ERR);
    post_send(end, 900, 0, 8, 0);
    post_send(end, 901, 0, 8, IBV_SEND_SIGNALED);
    expect_wc(end->send_cq, 900, IBV_WC_WR_FLUSH_ERR);
    expect_wc(end->send_cq, 901, IBV_WC_WR_FLUSH_ERR);
}

static void receive_too_small(void)
{
    open_pair(NULL);
    post_recv(&b, 1, 0, 99);
    post_recv(&b, 2, 0, 99);
    post_send(&a, 3, 0, 100, 0);
    post_send(&a, 4, 0, 10, 0);
    expect_wc(b.recv_cq, 1, IBV_WC_LOC_LEN_ERR);
    expect_wc(b.recv_cq, 2, IBV_WC_WR_FLUSH_ERR);
    expect_wc(a.send_cq, 3, IBV_WC_REM_INV_REQ_ERR);
    expect_wc(a.send_cq, 4, IBV_WC_WR_FLUSH_ERR);
    CHECK(all_bytes(b.buf + 99, 100, 0));
    expect_flushed_sends(&a);
    expect_flushed_sends(&b);
    pair_close(&a, &b);
}

/* One RDMA request that the responder must refuse. */
static void refused(enum ibv_wr_opcode opcode, size_t length, uint64_t offset, uint32_t rkey,
                    enum ibv_wc_status status)
{
    struct ibv_sge sge = end_sge(&a, 0, length);
    struct ibv_send_wr wr = {.wr_id = 5,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = opcode,
                             .send_flags = IBV_SEND_SIGNALED},
                       *bad;

    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
        wr.wr.atomic.remote_addr = of_b.addr + offset;
        wr.wr.atomic.rkey = rkey;
    } else {
        wr.wr.rdma.remote_addr = of_b.addr + offset;
        wr.wr.rdma.rkey = rkey;
    }
    post_recv(&b, 1, 0, 100);
    memset(a.buf, 0xee, 64);
    OK(ibv_post_send(a.qp, &wr, &bad));
    expect_wc(a.send_cq, 5, status);
    CHECK_EQ(end_state(&a), IBV_QPS_ERR);
    expect_wc(b.recv_cq, 1, IBV_WC_WR_FLUSH_ERR);
    CHECK_EQ(end_state(&b), IBV_QPS_ERR);
    CHECK(all_bytes(b.buf, b.size, 0));
}

static void one_refusal(enum ibv_wr_opcode opcode, size_t length, uint64_t offset, uint32_t wrong_key)
{
    open_pair(NULL);
    refused(opcode, length, offset, of_b.rkey ^ wrong_key, IBV_WC_REM_ACCESS_ERR);
    expect_async(b.context, IBV_EVENT_QP_ACCESS_ERR, b.qp);
    pair_close(&a, &b);
}

static void wrong_keys_and_bounds(void)
{
    static const enum ibv_wr_opcode opcodes[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ,
                                                 IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_CMP_AND_SWP};

    for (size_t i = 0; i < sizeof opcodes / sizeof *opcodes; i++) {
        one_refusal(opcodes[i], 8, 0, 1);           /* tag of the key */
        one_refusal(opcodes[i], 8, 0, 0x100);       /* index of the key */
        one_refusal(opcodes[i], 8, 0, 0xffffff00u); /* far away */
        one_refusal(opcodes[i], 8, 65536, 0);       /* just behind the region */
        one_refusal(opcodes[i], 8, (uint64_t)-8, 0);
    }
    for (size_t i = 0; i < 2; i++) {
        one_refusal(opcodes[i], 8, 65529, 0); /* the last byte does not fit */
        one_refusal(opcodes[i], 64, (uint64_t)-1, 0);
    }
    /* addr + length wraps around */
    open_pair(NULL);
    refused(IBV_WR_RDMA_WRITE, 64, UINT64_MAX - of_b.addr - 10, of_b.rkey, IBV_WC_REM_ACCESS_ERR);
    pair_close(&a, &b);
}

/* Of an unreliable connection, what is refused is lost, and both ends go on. */
static void refused_without_acknowledgements(void)
{
    static const struct {
        enum ibv_wr_opcode opcode;
        uint32_t length, offset, wrong_key;
    } cases[] = {
        {IBV_WR_RDMA_WRITE, 8, 0, 1},
        {IBV_WR_RDMA_WRITE_WITH_IMM, 8, 0, 0x100},
        {IBV_WR_RDMA_WRITE, 60000, 10000, 0},
    };

    pair_open(&a, &b, &(struct end_options){.type = IBV_QPT_UC});
    pair_connect(&a, &b, NULL);
    of_b = end_address(&b);
    post_recv(&b, 1, 0, 100);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct address wrong = of_b;
        wrong.rkey ^= cases[i].wrong_key;
        post_rdma(&a, i, cases[i].opcode, 0, cases[i].length, &wrong, cases[i].offset, IBV_SEND_SIGNALED);
        expect_wc(a.send_cq, i, IBV_WC_SUCCESS);
    }
    fill(a.buf, 100, 3);
    post_send(&a, 5, 0, 100, IBV_SEND_SIGNALED);
    expect_wc(a.send_cq, 5, IBV_WC_SUCCESS);
    expect_wc(b.recv_cq, 1, IBV_WC_SUCCESS);
    CHECK(holds(b.buf, 100, 3));
    CHECK(all_bytes(b.buf + 100, b.size - 100, 0));
    CHECK_EQ(end_state(&a), IBV_QPS_RTS);
    CHECK_EQ(end_state(&b), IBV_QPS_RTS);
    CHECK(!readable(b.context->async_fd));
    pair_close(&a, &b);
}

/* A receive that fails ends its queue pair, and takes nothing after it; the sender hears nothing of that. */
static void receive_too_small_without_acknowledgements(void)
{
    pair_open(&a, &b, &(struct end_options){.type = IBV_QPT_UC});
    pair_connect(&a, &b, NULL);
    post_recv(&b, 1, 0, 99);
    post_recv(&b, 2, 0, 100);
    struct ibv_sge sge = end_sge(&a, 0, 100);
    struct ibv_send_wr wr[2] = {{0}}, *bad;
    for (uint64_t i = 0; i < 2; i++)
        wr[i] = (struct ibv_send_wr){.wr_id = i,
                                     .next = i ? NULL : &wr[1],
                                     .sg_list = &sge,
                                     .num_sge = 1,
                                     .opcode = IBV_WR_SEND,
                                     .send_flags = IBV_SEND_SIGNALED};
    OK(ibv_post_send(a.qp, wr, &bad));
    expect_wc(a.send_cq, 0, IBV_WC_SUCCESS);
    expect_wc(a.send_cq, 1, IBV_WC_SUCCESS);
    expect_wc(b.recv_cq, 1, IBV_WC_LOC_LEN_ERR);
    expect_wc(b.recv_cq, 2, IBV_WC_WR_FLUSH_ERR);
    CHECK_EQ(end_state(&a), IBV_QPS_RTS);
    CHECK_EQ(end_state(&b), IBV_QPS_ERR);
    pair_close(&a, &b);
}

static void missing_rights_of_the_region(void)
{
    static const struct {
        enum ibv_wr_opcode opcode;
        int access;
    } cases[] = {
        {IBV_WR_RDMA_WRITE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC},
        {IBV_WR_RDMA_READ, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC},
        {IBV_WR_ATOMIC_FETCH_AND_ADD,
         IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        open_pair(NULL);
        struct ibv_mr *mr = ibv_reg_mr(b.pd, b.buf, b.size, cases[i].access);
        CHECK(mr);
        refused(cases[i].opcode, 8, 0, mr->rkey, IBV_WC_REM_ACCESS_ERR);
        OK(ibv_dereg_mr(mr));
        pair_close(&a, &b);
    }
}

/* IBTA requires "invalid request" for an operation the QP is not configured for; several devices report
 * "access". */
static void missing_rights_of_the_qp(void)
{
    static const struct {
        enum ibv_wr_opcode opcode;
        int access;
    } cases[] = {
        {IBV_WR_RDMA_WRITE, IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC},
        {IBV_WR_RDMA_READ, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC},
        {IBV_WR_ATOMIC_CMP_AND_SWP, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct connect_options options = CONNECT_DEFAULTS;
        struct ibv_sge sge;
        struct ibv_wc wc;

        options.access = cases[i].access;
        open_pair(&options);
        sge = end_sge(&a, 0, 8);
        struct ibv_send_wr wr = {.wr_id = 5,
                                 .sg_list = &sge,
                                 .num_sge = 1,
                                 .opcode = cases[i].opcode,
                                 .send_flags = IBV_SEND_SIGNALED},
                           *bad;
        if (cases[i].opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
            wr.wr.atomic.remote_addr = of_b.addr;
            wr.wr.atomic.rkey = of_b.rkey;
        } else {
            wr.wr.rdma.remote_addr = of_b.addr;
            wr.wr.rdma.rkey = of_b.rkey;
        }
        OK(ibv_post_send(a.qp, &wr, &bad));
        wc = next_wc(a.send_cq);
        CHECK(wc.status == IBV_WC_REM_INV_REQ_ERR || wc.status == IBV_WC_REM_ACCESS_ERR);
        CHECK_EQ(end_state(&a), IBV_QPS_ERR);
        pair_close(&a, &b);
    }
}

static void other_protection_domain(void)
{
    open_pair(NULL);
    struct ibv_pd *other = ibv_alloc_pd(b.context);
    struct ibv_mr *mr = ibv_reg_mr(other, b.buf, b.size, ACCESS_ALL);
    CHECK(other && mr);
    refused(IBV_WR_RDMA_WRITE, 8, 0, mr->rkey, IBV_WC_REM_ACCESS_ERR);
    OK(ibv_dereg_mr(mr));
    OK(ibv_dealloc_pd(other));
    pair_close(&a, &b);
}

static void deregistered(void)
{
    open_pair(NULL);
    struct ibv_mr *mr = ibv_reg_mr(b.pd, b.buf, b.size, ACCESS_ALL);
    uint32_t rkey = mr->rkey;
    struct address address = of_b;

    CHECK(mr);
    address.rkey = rkey;
    post_rdma(&a, 1, IBV_WR_RDMA_WRITE, 0, 8, &address, 0, IBV_SEND_SIGNALED);
    expect_wc(a.send_cq, 1, IBV_WC_SUCCESS);
    OK(ibv_dereg_mr(mr));
    refused(IBV_WR_RDMA_WRITE, 8, 0, rkey, IBV_WC_REM_ACCESS_ERR);
    pair_close(&a, &b);
}

static void misaligned_atomic(void)
{
    open_pair(NULL);
    refused(IBV_WR_ATOMIC_FETCH_AND_ADD, 8, 4, of_b.rkey, IBV_WC_REM_INV_REQ_ERR);
    pair_close(&a, &b);
}

static void local_protection(void)
{
    struct ibv_sge sge;
    struct ibv_send_wr wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
    static const int cases[] = {0, 1, 2, 3};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ibv_pd *other = NULL;
        struct ibv_mr *mr = NULL;

        open_pair(NULL);
        sge = end_sge(&a, 0, 8);
        switch (cases[i]) {
        case 0: /* invalid key */ sge.lkey ^= 0x5500; break;
        case 1: /* outside of the region */ sge.addr += a.size - 4; break;
        case 2: /* a region of another PD */
            other = ibv_alloc_pd(a.context);
            CHECK(other);
            mr = ibv_reg_mr(other, a.buf, a.size, ACCESS_ALL);
            CHECK(mr);
            sge.lkey = mr->lkey;
            break;
        case 3: /* the result of a READ into memory we may not write */
            mr = ibv_reg_mr(a.pd, a.buf, a.size, 0);
            CHECK(mr);
            sge.lkey = mr->lkey;
            wr.opcode = IBV_WR_RDMA_READ;
            wr.wr.rdma.remote_addr = of_b.addr;
            wr.wr.rdma.rkey = of_b.rkey;
            break;
        }
        post_recv(&b, 7, 0, 100);
        OK(ibv_post_send(a.qp, &wr, &bad));
        post_send(&a, 2, 0, 8, 0);
        expect_wc(a.send_cq, 1, IBV_WC_LOC_PROT_ERR);
        expect_wc(a.send_cq, 2, IBV_WC_WR_FLUSH_ERR);
        expect_empty(b.recv_cq);
        expect_flushed_sends(&a);
        if (mr)
            OK(ibv_dereg_mr(mr));
        if (other)
            OK(ibv_dealloc_pd(other));
        pair_close(&a, &b);
    }
}

/* The memory of the second of two long messages goes away while the first is on its way. */
static bool blames_the_second(void)
{
    enum { LENGTH = 6 << 20 };
    struct ibv_wc wc;

    pair_open(&a, &b, &(struct end_options){.size = 2 * LENGTH});
    pair_connect(&a, &b, NULL);
    of_b = end_address(&b);
    struct ibv_mr *gone = ibv_reg_mr(a.pd, a.buf + LENGTH, LENGTH, 0);
    CHECK(gone);
    struct ibv_sge sge[] = {end_sge(&a, 0, LENGTH), {(uintptr_t)a.buf + LENGTH, LENGTH, gone->lkey}};
    struct ibv_send_wr wr[3] = {{0}}, *bad;
    for (uint64_t i = 0; i < 3; i++)
        wr[i] = (struct ibv_send_wr){.wr_id = i,
                                     .next = i < 2 ? &wr[i + 1] : NULL,
                                     .sg_list = &sge[i % 2],
                                     .num_sge = 1,
                                     .opcode = IBV_WR_RDMA_WRITE,
                                     .send_flags = IBV_SEND_SIGNALED,
                                     .wr.rdma = {of_b.addr + i % 2 * LENGTH, of_b.rkey}};
    fill(a.buf, LENGTH, 3);
    OK(ibv_post_send(a.qp, wr, &bad));
    OK(ibv_dereg_mr(gone));
    expect_wc(a.send_cq, 0, IBV_WC_SUCCESS);
    CHECK(holds(b.buf, LENGTH, 3));
    wc = next_wc(a.send_cq);
    CHECK_EQ(wc.wr_id, 1);
    const bool failed = wc.status != IBV_WC_SUCCESS;
    if (failed) {
        CHECK_STATUS(&wc, IBV_WC_LOC_PROT_ERR);
        CHECK_EQ(end_state(&a), IBV_QPS_ERR);
    }
    expect_wc(a.send_cq, 2, failed ? IBV_WC_WR_FLUSH_ERR : IBV_WC_SUCCESS);
    pair_close(&a, &b);
    return failed;
}

static void protection_of_the_second(void)
{
    int attempts = 0;

    while (!blames_the_second()) /* all of it was sent before */
        CHECK(++attempts < 50);
}

/* A bad key in a receive: the receiver gets a local error, the sender a remote operation error. */
static void receive_protection(void)
{
    open_pair(NULL);
    struct ibv_sge sge = end_sge(&b, 0, 100);
    struct ibv_recv_wr recv = {.wr_id = 1, .sg_list = &sge, .num_sge = 1}, *bad;

    sge.lkey ^= 0x5500;
    OK(ibv_post_recv(b.qp, &recv, &bad));
    post_send(&a, 2, 0, 10, IBV_SEND_SIGNALED);
    expect_wc(b.recv_cq, 1, IBV_WC_LOC_PROT_ERR);
    expect_wc(a.send_cq, 2, IBV_WC_REM_OP_ERR);
    CHECK_EQ(end_state(&a), IBV_QPS_ERR);
    CHECK_EQ(end_state(&b), IBV_QPS_ERR);
    pair_close(&a, &b);
}

static void rnr_retries_run_out(void)
{
    struct connect_options options = CONNECT_DEFAULTS;

    for (uint8_t retries = 0; retries < 3; retries++) {
        uint64_t counted = softdev_rnr();

        options.rnr_retry = retries;
        open_pair(&options);
        post_send(&a, 1, 0, 10, 0);
        post_send(&a, 2, 0, 10, 0);
        expect_wc(a.send_cq, 1, IBV_WC_RNR_RETRY_EXC_ERR);
        expect_wc(a.send_cq, 2, IBV_WC_WR_FLUSH_ERR);
        expect_flushed_sends(&a);
        CHECK_EQ(end_state(&b), IBV_QPS_RTS);
        CHECK(softdev_rnr() > counted);
        pair_close(&a, &b);
    }
}

/* 7 means forever: the message waits, in its place, until a receive is posted. */
static void rnr_waits(void)
{
    open_pair(NULL);
    for (unsigned round = 0; round < 20; round++) {
        fill(a.buf, 100, round);
        fill(a.buf + 100, 100, round + 1);
        post_send(&a, 1, 0, 100, IBV_SEND_SIGNALED);
        post_send(&a, 2, 100, 100, IBV_SEND_SIGNALED);
        expect_empty(a.send_cq);
        post_recv(&b, 3, 0, 100);
        expect_wc(b.recv_cq, 3, IBV_WC_SUCCESS);
        expect_wc(a.send_cq, 1, IBV_WC_SUCCESS);
        CHECK(holds(b.buf, 100, round));
        expect_empty(a.send_cq);
        post_recv(&b, 4, 200, 100);
        expect_wc(a.send_cq, 2, IBV_WC_SUCCESS);
        expect_wc(b.recv_cq, 4, IBV_WC_SUCCESS);
        CHECK(holds(b.buf + 200, 100, round + 1));
    }
    pair_close(&a, &b);
}

static void peer_absent(void)
{
    struct connect_options options = CONNECT_DEFAULTS;

    options.timeout = 8; /* 4.096 us * 2^8 */
    options.retry_cnt = 1;

    /* never was */
    pair_open(&a, &b, NULL);
    of_b = end_address(&b);
    of_b.qpn = (of_b.qpn + 77) & 0xffffff;
    end_connect(&a, &of_b, &options);
    post_send(&a, 1, 0, 10, 0);
    post_send(&a, 2, 0, 10, 0);
    expect_wc(a.send_cq, 1, IBV_WC_RETRY_EXC_ERR);
    expect_wc(a.send_cq, 2, IBV_WC_WR_FLUSH_ERR);
    expect_flushed_sends(&a);
    pair_close(&a, &b);

    /* is not ready to receive */
    pair_open(&a, &b, NULL);
    of_b = end_address(&b);
    end_connect(&a, &of_b, &options);
    end_to_init(&b, 0);
    post_rdma(&a, 1, IBV_WR_RDMA_WRITE, 0, 8, &of_b, 0, IBV_SEND_SIGNALED);
    expect_wc(a.send_cq, 1, IBV_WC_RETRY_EXC_ERR);
    CHECK(all_bytes(b.buf, 8, 0));
    pair_close(&a, &b);

    /* has failed */
    open_pair(&options);
    end_to_error(&b);
    post_rdma(&a, 1, IBV_WR_RDMA_WRITE, 0, 8, &of_b, 0, IBV_SEND_SIGNALED);
    expect_wc(a.send_cq, 1, IBV_WC_RETRY_EXC_ERR);
    pair_close(&a, &b);

    /* is gone */
    open_pair(&options);
    end_close(&b);
    post_rdma(&a, 1, IBV_WR_RDMA_WRITE, 0, 8, &of_b, 0, IBV_SEND_SIGNALED);
    expect_wc(a.send_cq, 1, IBV_WC_RETRY_EXC_ERR);
    end_close(&a);

    /* is connected to another QP */
    struct end c;

    pair_open(&a, &b, NULL);
    end_open(&c, NULL);
    of_b = end_address(&b);
    struct address of_c = end_address(&c);
    end_connect(&a, &of_b, &options);
    end_connect(&b, &of_c, &options);
    post_recv(&b, 5, 0, 100);
    post_send(&a, 1, 0, 10, 0);
    expect_wc(a.send_cq, 1, IBV_WC_RETRY_EXC_ERR);
    expect_empty(b.recv_cq);
    CHECK_EQ(end_state(&b), IBV_QPS_RTS);
    end_close(&c);
    pair_close(&a, &b);
}

/* A request that arrives before its peer is ready is retried, and answered once the peer is ready. */
static void peer_late(void)
{
    pair_open(&a, &b, NULL);
    struct address of_a = end_address(&a);

    of_b = end_address(&b);
    end_connect(&a, &of_b, NULL);
    fill(a.buf, 100, 1);
    post_rdma(&a, 1, IBV_WR_RDMA_WRITE, 0, 100, &of_b, 0, IBV_SEND_SIGNALED);
    expect_empty(a.send_cq);
    end_connect(&b, &of_a, NULL);
    expect_wc(a.send_cq, 1, IBV_WC_SUCCESS);
    CHECK(holds(b.buf, 100, 1));
    pair_close(&a, &b);
}

static void flush_in_order(void)
{
    open_pair(NULL);
    for (uint64_t i = 0; i < 8; i++)
        post_recv(&a, i, 0, 8);
    for (uint64_t i = 0; i < 8; i++) /* no receives are posted: they stay outstanding */
        post_send(&a, i, 0, 8, i % 2 ? IBV_SEND_SIGNALED : 0);
    end_to_error(&a);
    for (uint64_t i = 0; i < 8; i++)
        expect_wc(a.recv_cq, i, IBV_WC_WR_FLUSH_ERR);
    for (uint64_t i = 0; i < 8; i++)
        expect_wc(a.send_cq, i, IBV_WC_WR_FLUSH_ERR);
    post_recv(&a, 20, 0, 8);
    expect_wc(a.recv_cq, 20, IBV_WC_WR_FLUSH_ERR);
    expect_empty(a.recv_cq);
    expect_empty(a.send_cq);
    pair_close(&a, &b);
}

/* After an error both ends go through RESET and work again, without leftovers. */
static void recover(void)
{
    struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};

    open_pair(NULL);
    for (unsigned round = 0; round < 5; round++) {
        post_recv(&b, 1, 0, 4);
        post_recv(&b, 2, 0, 4);
        post_send(&a, 3, 0, 8, 0);
        expect_wc(a.send_cq, 3, IBV_WC_REM_INV_REQ_ERR);
        expect_wc(b.recv_cq, 1, IBV_WC_LOC_LEN_ERR);
        expect_wc(b.recv_cq, 2, IBV_WC_WR_FLUSH_ERR);
        OK(ibv_modify_qp(a.qp, &reset, IBV_QP_STATE));
        OK(ibv_modify_qp(b.qp, &reset, IBV_QP_STATE));
        pair_connect(&a, &b, NULL);
        fill(a.buf, 8, round);
        post_recv(&b, 4, 0, 8);
        post_send(&a, 5, 0, 8, IBV_SEND_SIGNALED);
        expect_wc(a.send_cq, 5, IBV_WC_SUCCESS);
        expect_wc(b.recv_cq, 4, IBV_WC_SUCCESS);
        CHECK(holds(b.buf, 8, round));
    }
    pair_close(&a, &b);
}

TEST_MAIN(TEST(receive_too_small), TEST(wrong_keys_and_bounds), TEST(refused_without_acknowledgements),
          TEST(receive_too_small_without_acknowledgements), TEST(missing_rights_of_the_region),
          TEST(missing_rights_of_the_qp), TEST(other_protection_domain), TEST(deregistered),
          TEST(misaligned_atomic), TEST(local_protection), TEST(protection_of_the_second),
          TEST(receive_protection), TEST(rnr_retries_run_out), TEST(rnr_waits), TEST(peer_absent),
          TEST(peer_late), TEST(flush_in_order), TEST(recover))

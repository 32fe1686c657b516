/* Memory windows, and the invalidation of keys. */
#include "tests/harness.h"

#include <errno.h>

static struct end a, b;

static void open_pair(void)
{
    pair_open(&a, &b, &(struct end_options){.access = ACCESS_ALL | IBV_ACCESS_MW_BIND});
    pair_connect(&a, &b, NULL);
}

static void advertised(void)
{
    struct ibv_context *context = test_open();
    struct ibv_device_attr attr;

    OK(ibv_query_device(context, &attr));
    CHECK(attr.device_cap_flags & IBV_DEVICE_MEM_WINDOW);
    CHECK(attr.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B);
    CHECK(attr.max_mw > 0);
    OK(ibv_close_device(context));
}

static struct ibv_mw_bind_info window(size_t offset, size_t length)
{
    return (struct ibv_mw_bind_info){.mr = b.mr,
                                     .addr = (uintptr_t)b.buf + offset,
                                     .length = length,
                                     .mw_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                                                        IBV_ACCESS_LOCAL_WRITE};
}

static void write_through(uint32_t rkey, size_t offset, size_t length, enum ibv_wc_status status)
{
    struct address address = {.addr = (uintptr_t)b.buf + offset, .rkey = rkey};

    post_rdma(&a, 77, IBV_WR_RDMA_WRITE, 0, length, &address, 0, IBV_SEND_SIGNALED);
    expect_wc(a.send_cq, 77, status);
}

static void type_1(void)
{
    struct ibv_mw *mw;
    struct ibv_mw_bind bind = {.wr_id = 5, .send_flags = IBV_SEND_SIGNALED};
    struct ibv_wc wc;
    uint32_t old;

    open_pair();
    mw = ibv_alloc_mw(b.pd, IBV_MW_TYPE_1);
    CHECK(mw);
    bind.bind_info = window(4096, 1000);
    OK(ibv_bind_mw(b.qp, mw, &bind));
    wc = expect_wc(b.send_cq, 5, IBV_WC_SUCCESS);
    CHECK_EQ(wc.opcode, IBV_WC_BIND_MW);
    fill(a.buf, 1000, 1);
    write_through(mw->rkey, 4096, 1000, IBV_WC_SUCCESS);
    CHECK(holds(b.buf + 4096, 1000, 1));
    CHECK_EQ(ibv_dereg_mr(b.mr), EBUSY);
    /* bound again: the old key is invalid */
    old = mw->rkey;
    bind.bind_info = window(8192, 100);
    OK(ibv_bind_mw(b.qp, mw, &bind));
    expect_wc(b.send_cq, 5, IBV_WC_SUCCESS);
    CHECK(mw->rkey != old);
    write_through(mw->rkey, 8192, 100, IBV_WC_SUCCESS);
    write_through(old, 4096, 8, IBV_WC_REM_ACCESS_ERR);
    OK(ibv_dealloc_mw(mw));
    pair_close(&a, &b);
}

static struct ibv_mw *bound_type_2(size_t offset, size_t length)
{
    struct ibv_mw *mw = ibv_alloc_mw(b.pd, IBV_MW_TYPE_2);
    struct ibv_send_wr wr = {.wr_id = 6, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED}, *bad;

    CHECK(mw);
    wr.bind_mw.mw = mw;
    wr.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
    wr.bind_mw.bind_info = window(offset, length);
    OK(ibv_post_send(b.qp, &wr, &bad));
    expect_wc(b.send_cq, 6, IBV_WC_SUCCESS);
    mw->rkey = wr.bind_mw.rkey;
    return mw;
}

static void type_2(void)
{
    struct ibv_mw *mw;

    open_pair();
    mw = bound_type_2(4096, 1000);
    fill(a.buf, 1000, 2);
    write_through(mw->rkey, 4096, 1000, IBV_WC_SUCCESS);
    CHECK(holds(b.buf + 4096, 1000, 2));
    write_through(mw->rkey, 4097, 1000, IBV_WC_REM_ACCESS_ERR); /* one byte too far */
    OK(ibv_dealloc_mw(mw));
    pair_close(&a, &b);
}

/* SEND with invalidate closes the receiver's window before its completion is seen. */
static void send_with_invalidate(void)
{
    struct ibv_mw *mw;
    struct ibv_wc wc;

    open_pair();
    mw = bound_type_2(4096, 1000);
    struct ibv_sge sge = end_sge(&a, 0, 8);
    struct ibv_send_wr wr = {.wr_id = 1,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_SEND_WITH_INV,
                             .send_flags = IBV_SEND_SIGNALED,
                             .invalidate_rkey = mw->rkey},
                       *bad;
    write_through(mw->rkey, 4096, 8, IBV_WC_SUCCESS);
    post_recv(&b, 2, 0, 8);
    OK(ibv_post_send(a.qp, &wr, &bad));
    wc = expect_wc(b.recv_cq, 2, IBV_WC_SUCCESS);
    CHECK(wc.wc_flags & IBV_WC_WITH_INV);
    CHECK_EQ(wc.invalidated_rkey, mw->rkey);
    expect_wc(a.send_cq, 1, IBV_WC_SUCCESS);
    write_through(mw->rkey, 4096, 8, IBV_WC_REM_ACCESS_ERR);
    OK(ibv_dealloc_mw(mw));
    pair_close(&a, &b);
}

static void local_invalidate(void)
{
    struct ibv_mw *mw;
    struct ibv_wc wc;

    open_pair();
    mw = bound_type_2(4096, 1000);
    struct ibv_send_wr wr = {.wr_id = 1,
                             .opcode = IBV_WR_LOCAL_INV,
                             .send_flags = IBV_SEND_SIGNALED,
                             .invalidate_rkey = mw->rkey},
                       *bad;
    OK(ibv_post_send(b.qp, &wr, &bad));
    wc = expect_wc(b.send_cq, 1, IBV_WC_SUCCESS);
    CHECK_EQ(wc.opcode, IBV_WC_LOCAL_INV);
    write_through(mw->rkey, 4096, 8, IBV_WC_REM_ACCESS_ERR);
    OK(ibv_dealloc_mw(mw));
    pair_close(&a, &b);
}

/* A window cannot grant what its region, or its own binding, does not allow. */
static void rights(void)
{
    struct ibv_mw *mw;
    struct ibv_mw_bind bind = {.wr_id = 5, .send_flags = IBV_SEND_SIGNALED};

    open_pair();
    mw = ibv_alloc_mw(b.pd, IBV_MW_TYPE_1);
    CHECK(mw);
    bind.bind_info = window(0, 100);
    bind.bind_info.mw_access_flags = IBV_ACCESS_REMOTE_READ;
    OK(ibv_bind_mw(b.qp, mw, &bind));
    expect_wc(b.send_cq, 5, IBV_WC_SUCCESS);
    write_through(mw->rkey, 0, 8, IBV_WC_REM_ACCESS_ERR);
    OK(ibv_dealloc_mw(mw));
    pair_close(&a, &b);
}

TEST_MAIN(TEST(advertised), TEST(type_1), TEST(type_2), TEST(send_with_invalidate), TEST(local_invalidate),
          TEST(rights))

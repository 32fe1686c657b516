/* The device in the role of an iWARP adapter: it refuses what iWARP lacks. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"

static struct end a, b;
static struct address to_b;

static void open_pair(void)
{
    pair_open(&a, &b, NULL);
    pair_connect(&a, &b, NULL);
    to_b = end_address(&b);
}

static void says_so(void)
{
    struct ibv_context *context = test_open();
    struct ibv_device_attr attr;

    CHECK_EQ(context->device->transport_type, IBV_TRANSPORT_IWARP);
    CHECK_EQ(context->device->node_type, IBV_NODE_RNIC);
    OK(ibv_query_device(context, &attr));
    CHECK_EQ(attr.atomic_cap, IBV_ATOMIC_NONE);
    OK(ibv_close_device(context));
}

static void connected_queue_pairs_only(void)
{
    open_pair();
    for (int i = 0; i < 2; i++) {
        struct ibv_qp_init_attr attr = {.send_cq = a.send_cq,
                                        .recv_cq = a.recv_cq,
                                        .cap = {1, 1, 1, 1, 0},
                                        .qp_type = i ? IBV_QPT_UD : IBV_QPT_UC};
        CHECK(!ibv_create_qp(a.pd, &attr));
        CHECK_EQ(errno, EOPNOTSUPP);
    }
    pair_close(&a, &b);
}

static int post(enum ibv_wr_opcode opcode)
{
    struct ibv_sge sge = end_sge(&a, 0, 8);
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = opcode}, *bad;

    wr.wr.atomic.remote_addr = to_b.addr; /* the same place as of a WRITE */
    wr.wr.atomic.rkey = to_b.rkey;
    return ibv_post_send(a.qp, &wr, &bad);
}

static void no_immediates_no_atomics(void)
{
    open_pair();
    CHECK_EQ(post(IBV_WR_SEND_WITH_IMM), EINVAL);
    CHECK_EQ(post(IBV_WR_RDMA_WRITE_WITH_IMM), EINVAL);
    CHECK_EQ(post(IBV_WR_ATOMIC_CMP_AND_SWP), EINVAL);
    CHECK_EQ(post(IBV_WR_ATOMIC_FETCH_AND_ADD), EINVAL);
    post_recv(&b, 7, 0, 100);
    fill(a.buf, 100, 1);
    do_send(&a, 0, 100);
    expect_wc(b.recv_cq, 7, IBV_WC_SUCCESS);
    do_rdma(&a, IBV_WR_RDMA_WRITE, 0, 100, &to_b, 1000);
    do_rdma(&a, IBV_WR_RDMA_READ, 2000, 100, &to_b, 1000);
    CHECK(holds(b.buf, 100, 1) && holds(b.buf + 1000, 100, 1) && holds(a.buf + 2000, 100, 1));
    pair_close(&a, &b);
}

/* The response to a READ is a write by the peer, so memory closed to the peer cannot receive one. */
static void reads_land_in_open_memory(void)
{
    open_pair();
    struct ibv_mr *closed = ibv_reg_mr(a.pd, a.buf, a.size, IBV_ACCESS_LOCAL_WRITE), *open = a.mr;

    CHECK(closed);
    a.mr = closed;
    memset(a.buf, 5, 8);
    post_rdma(&a, 3, IBV_WR_RDMA_READ, 0, 8, &to_b, 0, IBV_SEND_SIGNALED);
    expect_wc(a.send_cq, 3, IBV_WC_LOC_PROT_ERR);
    CHECK(all_bytes(a.buf, 8, 5));
    a.mr = open;
    OK(ibv_dereg_mr(closed));
    pair_close(&a, &b);
}

static const struct test tests[] = {TEST(says_so), TEST(connected_queue_pairs_only),
                                    TEST(no_immediates_no_atomics), TEST(reads_land_in_open_memory)};

int main(int argc, char **argv)
{
    setenv("SOFTDEV_PERSONALITY", "iwarp", 1); /* before the device is listed */
    return test_main(argc, argv, tests, sizeof tests / sizeof *tests);
}

/*
 * The device in the role of cards: what each file in personalities/ says is reported, and kept. A process has one
 * personality, so each is a child of this program.
 */
#include <errno.h>

#include "softdev.h"
#include "tests/harness.h"

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;

static void opened(void)
{
    struct ibv_device **list = ibv_get_device_list(NULL);

    CHECK(list && list[0]);
    context = ibv_open_device(list[0]);
    CHECK(context);
    ibv_free_device_list(list);
    pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 16, NULL, NULL, 0);
    CHECK(pd && cq);
}

static void closed(void)
{
    OK(ibv_destroy_cq(cq));
    OK(ibv_dealloc_pd(pd));
    OK(ibv_close_device(context));
}

/* The errno of making such a queue pair, 0 if it can be made; what was granted is in *cap. */
static int makes(enum ibv_qp_type type, struct ibv_qp_cap *cap)
{
    struct ibv_qp_init_attr attr = {.send_cq = cq, .recv_cq = cq, .qp_type = type, .cap = *cap};
    struct ibv_qp *qp = ibv_create_qp(pd, &attr);

    if (!qp)
        return errno;
    *cap = attr.cap;
    OK(ibv_destroy_qp(qp));
    return 0;
}

static int entries(int asked)
{
    struct ibv_cq *one = ibv_create_cq(context, asked, NULL, NULL, 0);
    int got = one ? one->cqe : -1;

    if (one)
        OK(ibv_destroy_cq(one));
    return got;
}

static int shared_receives(unsigned wr, unsigned sge)
{
    struct ibv_srq_init_attr attr = {.attr = {.max_wr = wr, .max_sge = sge}};
    struct ibv_srq *srq = ibv_create_srq(pd, &attr);

    if (!srq)
        return errno;
    OK(ibv_destroy_srq(srq));
    return 0;
}

static void limits(enum ibv_qp_type type, unsigned wr, unsigned send_sge, unsigned recv_sge, unsigned inlined)
{
    struct ibv_qp_cap most = {.max_send_wr = wr,
                              .max_recv_wr = wr,
                              .max_send_sge = send_sge,
                              .max_recv_sge = recv_sge,
                              .max_inline_data = inlined};
    struct ibv_qp_cap cap = most;

    CHECK_EQ(makes(type, &cap), 0);
    CHECK_EQ(cap.max_inline_data, inlined);
    cap = most, cap.max_send_wr++;
    CHECK_EQ(makes(type, &cap), EINVAL);
    cap = most, cap.max_recv_wr++;
    CHECK_EQ(makes(type, &cap), EINVAL);
    cap = most, cap.max_send_sge++;
    CHECK_EQ(makes(type, &cap), EINVAL);
    cap = most, cap.max_recv_sge++;
    CHECK_EQ(makes(type, &cap), EINVAL);
    cap = most, cap.max_inline_data++;
    CHECK_EQ(makes(type, &cap), EINVAL);
}

/* What posting returns for mistakes: SGEs, inline bytes, before RTS, and in ERR (to send, and to receive). */
struct mistakes {
    int sges, recv_sges, inlined, early, late, late_recv;
};

static int sends(struct end *end, enum ibv_wr_opcode opcode, int sges, uint32_t length, unsigned flags)
{
    struct ibv_sge list[2] = {end_sge(end, 0, length), end_sge(end, 0, 1)};
    struct ibv_send_wr wr = {.wr_id = 1,
                             .sg_list = list,
                             .num_sge = sges,
                             .opcode = opcode,
                             .send_flags = flags},
                       *bad;

    wr.wr.rdma.remote_addr = (uintptr_t)end->buf;
    wr.wr.rdma.rkey = end->mr->rkey;
    return ibv_post_send(end->qp, &wr, &bad);
}

static int receives(struct end *end, int sges)
{
    struct ibv_sge list[2] = {end_sge(end, 0, 8), end_sge(end, 0, 8)};
    struct ibv_recv_wr wr = {.wr_id = 2, .sg_list = list, .num_sge = sges}, *bad;

    return ibv_post_recv(end->qp, &wr, &bad);
}

static void mistaken(struct mistakes want)
{
    struct end a, b;
    const struct end_options options = {.sge = 1, .inline_bytes = 16};

    pair_open(&a, &b, &options);
    struct address here = end_address(&a), there = end_address(&b);
    end_to_init(&a, 0);
    end_to_rtr(&a, &there, NULL);
    CHECK_EQ(sends(&a, IBV_WR_SEND, 1, 8, IBV_SEND_SIGNALED), want.early);
    end_to_rts(&a, &there, NULL);
    end_connect(&b, &here, NULL);
    CHECK_EQ(sends(&a, IBV_WR_SEND, 2, 8, IBV_SEND_SIGNALED), want.sges);
    CHECK_EQ(receives(&a, 2), want.recv_sges);
    CHECK_EQ(sends(&a, IBV_WR_SEND, 1, 1000, IBV_SEND_SIGNALED | IBV_SEND_INLINE), want.inlined);
    end_to_error(&a);
    CHECK_EQ(sends(&a, IBV_WR_SEND, 1, 8, IBV_SEND_SIGNALED), want.late);
    CHECK_EQ(receives(&a, 1), want.late_recv);
    if (!want.late)
        expect_wc(a.send_cq, 1, IBV_WC_WR_FLUSH_ERR);
    if (!want.late_recv)
        expect_wc(a.recv_cq, 2, IBV_WC_WR_FLUSH_ERR);
    pair_close(&a, &b);
}

/* A READ where max_rd_atomic is 0, and a WRITE after it. */
static void reads_without_depth(int posted, bool ends)
{
    struct connect_options none = CONNECT_DEFAULTS;
    struct end a, b;

    none.max_rd_atomic = 0;
    pair_open(&a, &b, NULL);
    struct address here = end_address(&a), there = end_address(&b);
    end_to_init(&a, 0);
    end_to_rtr(&a, &there, NULL);
    end_to_rts(&a, &there, &none);
    end_connect(&b, &here, NULL);
    struct ibv_sge sge = end_sge(&a, 0, 8);
    struct ibv_send_wr wr = {.wr_id = 1,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_RDMA_READ,
                             .send_flags = IBV_SEND_SIGNALED,
                             .wr = {.rdma = {.remote_addr = there.addr, .rkey = there.rkey}}},
                       *bad;
    CHECK_EQ(ibv_post_send(a.qp, &wr, &bad), posted);
    wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
    wr.wr.atomic.remote_addr = there.addr;
    wr.wr.atomic.compare_add = 0;
    wr.wr.atomic.rkey = there.rkey;
    CHECK_EQ(ibv_post_send(a.qp, &wr, &bad), posted);
    post_rdma(&a, 2, IBV_WR_RDMA_WRITE, 0, 8, &there, 0, IBV_SEND_SIGNALED);
    if (ends && !posted) {
        expect_wc(a.send_cq, 1, IBV_WC_SUCCESS);
        expect_wc(a.send_cq, 1, IBV_WC_SUCCESS);
    }
    /* Within a process, what can be carried out has been when it is posted. */
    if (ends)
        expect_wc(a.send_cq, 2, IBV_WC_SUCCESS);
    expect_empty(a.send_cq);
    end_to_error(&a);
    if (!ends) {
        expect_wc(a.send_cq, 1, IBV_WC_WR_FLUSH_ERR);
        expect_wc(a.send_cq, 1, IBV_WC_WR_FLUSH_ERR);
        expect_wc(a.send_cq, 2, IBV_WC_WR_FLUSH_ERR);
    }
    pair_close(&a, &b);
}

static struct ibv_device_attr reported(void)
{
    struct ibv_device_attr attr;

    OK(ibv_query_device(context, &attr));
    return attr;
}

/* To a queue pair that asks for so many bytes. */
static uint32_t granted_inline(enum ibv_qp_type type, uint32_t sges, uint32_t bytes)
{
    struct ibv_qp_cap cap = {
        .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = sges, .max_inline_data = bytes};

    CHECK_EQ(makes(type, &cap), 0);
    return cap.max_inline_data;
}

static void as_soft(void)
{
    CHECK_EQ(reported().vendor_id, 0xffffff);
    CHECK_EQ(entries(1), 64);
    CHECK_EQ(entries(65), 128);
    limits(IBV_QPT_RC, 16384, 32, 32, 1 << 20);
    CHECK_EQ(granted_inline(IBV_QPT_RC, 2, 0), 32);
    CHECK_EQ(granted_inline(IBV_QPT_RC, 2, 33), 33);
    mistaken((struct mistakes){.sges = EINVAL, .recv_sges = EINVAL, .inlined = EINVAL, .early = EINVAL});
    reads_without_depth(EINVAL, true);
}

static void as_mlx5(void)
{
    CHECK_EQ(reported().vendor_part_id, 4119);
    CHECK_EQ(reported().max_sge, 30);
    CHECK_EQ(reported().atomic_cap, IBV_ATOMIC_HCA);
    CHECK_EQ(reported().max_qp_wr, 16384); /* of 32768 there: the device's own limit */
    CHECK_EQ(reported().max_cqe, 1 << 20); /* of 4194303 there */
    CHECK_EQ(entries(1), 1);
    CHECK_EQ(entries(3), 3);
    CHECK_EQ(entries(4), 7);
    CHECK_EQ(entries(64), 127);
    limits(IBV_QPT_RC, 16384, 30, 30, 1 << 20);
    CHECK_EQ(granted_inline(IBV_QPT_RC, 1, 0), 60);
    CHECK_EQ(granted_inline(IBV_QPT_RC, 1, 60), 60);
    CHECK_EQ(granted_inline(IBV_QPT_RC, 1, 61), 124);
    CHECK_EQ(granted_inline(IBV_QPT_RC, 5, 0), 124); /* their list takes two blocks */
    CHECK_EQ(granted_inline(IBV_QPT_UC, 1, 220), 252);
    CHECK_EQ(granted_inline(IBV_QPT_UD, 1, 0), 60);
    CHECK_EQ(granted_inline(IBV_QPT_UD, 4, 100), 124);
    CHECK_EQ(shared_receives(16384, 31), 0);
    CHECK_EQ(shared_receives(16384, 32), EINVAL);
    mistaken((struct mistakes){.sges = ENOMEM, .recv_sges = EINVAL, .inlined = ENOMEM, .early = ENOMEM});
    reads_without_depth(0, true);
}

static void as_irdma(void)
{
    struct ibv_qp_cap cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 6};

    CHECK_EQ(reported().atomic_cap, IBV_ATOMIC_NONE);
    CHECK_EQ(reported().max_srq, 0);
    CHECK_EQ(reported().max_srq_wr, 0);
    limits(IBV_QPT_RC, 8127, 6, 6, 101);
    limits(IBV_QPT_UD, 8127, 6, 6, 101);
    CHECK_EQ(makes(IBV_QPT_RC, &cap), 0);
    CHECK_EQ(cap.max_inline_data, 96); /* what fits where six SGEs stand */
    CHECK_EQ(makes(IBV_QPT_UC, &cap), EOPNOTSUPP);
    CHECK_EQ(shared_receives(16, 1), EOPNOTSUPP);
}

static void as_qedr(void)
{
    limits(IBV_QPT_RC, 16384, 4, 4, 1 << 20);
    CHECK(!(reported().device_cap_flags & (IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B)));
    CHECK(!ibv_alloc_mw(pd, IBV_MW_TYPE_2) && errno == EOPNOTSUPP);
    mistaken((struct mistakes){.sges = -EINVAL, .recv_sges = -ENOMEM, .inlined = -EINVAL, .early = -EINVAL});
}

static void as_bnxt_re(void)
{
    struct ibv_qp_cap cap = {.max_send_wr = 1, .max_recv_wr = 1};

    CHECK_EQ(reported().vendor_id, 0x14e4);
    CHECK_EQ(reported().max_qp_rd_atom, 126);
    CHECK_EQ(reported().max_cqe, 1048575);
    CHECK_EQ(reported().atomic_cap, IBV_ATOMIC_NONE);
    CHECK_EQ(entries(5), 8);
    CHECK(!(reported().device_cap_flags & (IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B)));
    CHECK(!ibv_alloc_mw(pd, IBV_MW_TYPE_2) && errno == EOPNOTSUPP);
    CHECK_EQ(makes(IBV_QPT_UC, &cap), EOPNOTSUPP);
    limits(IBV_QPT_RC, 16384, 6, 6, 96);
    limits(IBV_QPT_UD, 16384, 6, 6, 96);
    CHECK_EQ(shared_receives(16, 6), 0);
    mistaken((struct mistakes){.sges = ENOMEM, .recv_sges = ENOMEM, .inlined = ENOMEM, .early = EINVAL});
}

static void as_erdma(void)
{
    struct ibv_qp_cap cap = {.max_send_wr = 1, .max_recv_wr = 1};

    CHECK_EQ(context->device->transport_type, IBV_TRANSPORT_IWARP);
    CHECK_EQ(softdev_by_cm(), 1);
    CHECK_EQ(reported().max_sge, 1);
    limits(IBV_QPT_RC, 16384, 6, 1, 96);
    CHECK_EQ(makes(IBV_QPT_UD, &cap), EOPNOTSUPP);
}

/* A datagram of a host to itself is sent, completes, and is gone. */
static void as_efa(void)
{
    struct ibv_qp_cap cap = {.max_send_wr = 1, .max_recv_wr = 1};
    struct end a, b;

    CHECK_EQ(makes(IBV_QPT_RC, &cap), EOPNOTSUPP);
    CHECK_EQ(makes(IBV_QPT_UC, &cap), EOPNOTSUPP);
    limits(IBV_QPT_UD, 4096, 1, 1, 32);
    pair_open(&a, &b, &(struct end_options){.type = IBV_QPT_UD, .sge = 1, .inline_bytes = 32});
    pair_connect(&a, &b, NULL);
    struct ibv_ah_attr to = {.is_global = 1, .port_num = 1, .grh = {.dgid = b.gid, .hop_limit = 7}};
    struct ibv_ah *ah = ibv_create_ah(a.pd, &to);
    struct ibv_sge sge = end_sge(&a, 0, 8);
    struct ibv_send_wr wr = {.wr_id = 5,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_SEND,
                             .send_flags = IBV_SEND_SIGNALED,
                             .wr = {.ud = {.ah = ah, .remote_qpn = b.qp->qp_num, .remote_qkey = 0x11111111}}},
                       *bad;

    CHECK(ah);
    wr.send_flags = 0;
    CHECK_EQ(ibv_post_send(a.qp, &wr, &bad), EINVAL);
    wr.send_flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED;
    CHECK_EQ(ibv_post_send(a.qp, &wr, &bad), EINVAL);
    wr.send_flags = IBV_SEND_SIGNALED;
    post_recv(&b, 1, 0, 1000);
    OK(ibv_post_send(a.qp, &wr, &bad));
    expect_wc(a.send_cq, 5, IBV_WC_SUCCESS);
    /* Within a process, a datagram has arrived when its completion is there (core/test_ud.c). */
    expect_empty(b.recv_cq);
    end_to_error(&a);
    CHECK_EQ(ibv_post_send(a.qp, &wr, &bad), EINVAL);
    CHECK_EQ(receives(&a, 1), EINVAL);
    OK(ibv_destroy_ah(ah));
    pair_close(&a, &b);
}

static void as_rxe(void)
{
    CHECK_EQ(reported().max_cqe, 32767);
    CHECK_EQ(entries(32767), 32767);
    CHECK_EQ(entries(32768), -1);
    reads_without_depth(0, false);
}

static void as_iwarp(void)
{
    CHECK_EQ(softdev_by_cm(), 0);
    CHECK_EQ(context->device->transport_type, IBV_TRANSPORT_IWARP);
}

static void as_siw(void)
{
    CHECK_EQ(softdev_by_cm(), 1);
}

/* It is said, and the device is itself. */
static void as_nobody(void)
{
    as_soft();
}

#define PERSONALITY(name)                                                                                    \
    static void in_child_##name(void)                                                                        \
    {                                                                                                        \
        opened();                                                                                            \
        as_##name();                                                                                         \
        closed();                                                                                            \
    }                                                                                                        \
    static void name(void)                                                                                   \
    {                                                                                                        \
        run_as(#name, in_child_##name);                                                                      \
    }

PERSONALITY(soft)
PERSONALITY(mlx5)
PERSONALITY(irdma)
PERSONALITY(qedr)
PERSONALITY(bnxt_re)
PERSONALITY(erdma)
PERSONALITY(efa)
PERSONALITY(rxe)
PERSONALITY(iwarp)
PERSONALITY(siw)
PERSONALITY(nobody)

static const struct test tests[] = {TEST(soft),    TEST(mlx5),  TEST(irdma), TEST(qedr),
                                    TEST(bnxt_re), TEST(erdma), TEST(efa),   TEST(rxe),
                                    TEST(iwarp),   TEST(siw),   TEST(nobody)};

int main(int argc, char **argv)
{
    return test_main(argc, argv, tests, sizeof tests / sizeof *tests);
}

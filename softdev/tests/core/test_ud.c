/* UD: address handles, the GRH, Q_Keys, sizes, loss without a receive, replies by ibv_create_ah_from_wc. */
#include "tests/harness.h"

#include <errno.h>
#include <string.h>

#define QKEY 0x11111111 /* as in end_to_init() */
#define GRH  40

static struct end a, b;
static struct ibv_ah *to_b;

static struct ibv_ah *ah_to(struct end *from, const struct end *peer)
{
    struct ibv_ah_attr attr = {
        .is_global = 1, .port_num = 1, .grh = {.dgid = peer->gid, .hop_limit = 7, .traffic_class = 32}};
    struct ibv_ah *ah = ibv_create_ah(from->pd, &attr);

    CHECK(ah);
    return ah;
}

static void open_pair(void)
{
    pair_open(&a, &b, &(struct end_options){.type = IBV_QPT_UD});
    pair_connect(&a, &b, NULL);
    to_b = ah_to(&a, &b);
}

static void close_pair(void)
{
    OK(ibv_destroy_ah(to_b));
    pair_close(&a, &b);
}

static int try_send(struct end *end, struct ibv_ah *ah, uint64_t wr_id, size_t length, uint32_t qpn,
                    uint32_t qkey, enum ibv_wr_opcode opcode)
{
    struct ibv_sge sge = end_sge(end, 0, length);
    struct ibv_send_wr wr = {.wr_id = wr_id,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = opcode,
                             .imm_data = htobe32(0xfeedbeef),
                             .send_flags = IBV_SEND_SIGNALED,
                             .wr = {.ud = {.ah = ah, .remote_qpn = qpn, .remote_qkey = qkey}}},
                       *bad;

    return ibv_post_send(end->qp, &wr, &bad);
}

static void send_one(uint64_t wr_id, size_t length, uint32_t qkey, enum ibv_wr_opcode opcode)
{
    OK(try_send(&a, to_b, wr_id, length, b.qp->qp_num, qkey, opcode));
    CHECK_EQ(expect_wc(a.send_cq, wr_id, IBV_WC_SUCCESS).opcode, IBV_WC_SEND);
}

/* What mlx5 reports as service level, and UCX reads: UDP (8) on IPv4 (2) or on IPv6 (1). */
static int kind_of(const struct end *end)
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};

    return memcmp(end->gid.raw, mapped, sizeof mapped) ? 9 : 10;
}

static void send_receive(void)
{
    struct ibv_wc wc;

    open_pair();
    fill(a.buf, 1000, 1);
    post_recv(&b, 1, 0, GRH + 1000);
    post_recv(&b, 2, 4096, GRH + 1000);
    send_one(3, 1000, QKEY, IBV_WR_SEND);
    wc = expect_wc(b.recv_cq, 1, IBV_WC_SUCCESS);
    CHECK_EQ(wc.opcode, IBV_WC_RECV);
    CHECK_EQ(wc.byte_len, GRH + 1000);
    CHECK(wc.wc_flags & IBV_WC_GRH);
    CHECK(!(wc.wc_flags & IBV_WC_WITH_IMM));
    CHECK_EQ(wc.src_qp, a.qp->qp_num);
    CHECK_EQ(wc.qp_num, b.qp->qp_num);
    CHECK_EQ(wc.pkey_index, 0);
    CHECK_EQ(wc.sl, kind_of(&b));
    CHECK(holds(b.buf + GRH, 1000, 1));
    send_one(4, 10, QKEY, IBV_WR_SEND_WITH_IMM);
    wc = expect_wc(b.recv_cq, 2, IBV_WC_SUCCESS);
    CHECK_EQ(wc.byte_len, GRH + 10);
    CHECK(wc.wc_flags & IBV_WC_WITH_IMM);
    CHECK_EQ(wc.imm_data, htobe32(0xfeedbeef));
    close_pair();
}

/* The reply goes to the sender of the request: the GRH and the completion contain all it needs. */
static void reply(void)
{
    struct ibv_wc wc;
    struct ibv_ah_attr attr;
    struct ibv_ah *back;

    open_pair();
    post_recv(&b, 1, 0, 200);
    post_recv(&a, 2, 1000, 200);
    send_one(3, 100, QKEY, IBV_WR_SEND);
    wc = expect_wc(b.recv_cq, 1, IBV_WC_SUCCESS);
    OK(ibv_init_ah_from_wc(b.context, 1, &wc, (struct ibv_grh *)(void *)b.buf, &attr));
    CHECK(!memcmp(&attr.grh.dgid, &a.gid, sizeof a.gid));
    CHECK_EQ(attr.grh.sgid_index, 0);
    CHECK_EQ(attr.sl, 0);
    CHECK_EQ(attr.grh.traffic_class, 32);
    back = ibv_create_ah_from_wc(b.pd, &wc, (struct ibv_grh *)(void *)b.buf, 1);
    CHECK(back);
    fill(b.buf, 50, 4);
    OK(try_send(&b, back, 4, 50, wc.src_qp, QKEY, IBV_WR_SEND));
    expect_wc(b.send_cq, 4, IBV_WC_SUCCESS);
    expect_wc(a.recv_cq, 2, IBV_WC_SUCCESS);
    CHECK(holds(a.buf + 1000 + GRH, 50, 4));
    OK(ibv_destroy_ah(back));
    close_pair();
}

/* Undeliverable datagrams are lost silently: no receive, wrong Q_Key, no such QP. */
static void loss(void)
{
    open_pair();
    send_one(1, 10, QKEY, IBV_WR_SEND);
    post_recv(&b, 2, 0, 100);
    send_one(3, 10, QKEY + 1, IBV_WR_SEND);
    OK(try_send(&a, to_b, 4, 10, b.qp->qp_num ^ 0x555, QKEY, IBV_WR_SEND));
    expect_wc(a.send_cq, 4, IBV_WC_SUCCESS);
    fill(a.buf, 10, 9);
    send_one(5, 10, QKEY, IBV_WR_SEND);
    expect_wc(b.recv_cq, 2, IBV_WC_SUCCESS);
    CHECK(holds(b.buf + GRH, 10, 9));
    expect_empty(b.recv_cq);
    CHECK_EQ(end_state(&a), IBV_QPS_RTS);
    CHECK_EQ(end_state(&b), IBV_QPS_RTS);
    close_pair();
}

/* A Q_Key with its highest bit set in the request stands for the sending QP's own. */
static void controlled_qkey(void)
{
    open_pair();
    post_recv(&b, 1, 0, 100);
    send_one(2, 10, 0x80000000u, IBV_WR_SEND);
    expect_wc(b.recv_cq, 1, IBV_WC_SUCCESS);
    close_pair();
}

static void sizes(void)
{
    const size_t mtu = 4096; /* within the host, whatever its interfaces carry */

    open_pair();
    fill(a.buf, mtu, 3);
    post_recv(&b, 1, 0, mtu + GRH);
    send_one(2, mtu, QKEY, IBV_WR_SEND);
    CHECK_EQ(expect_wc(b.recv_cq, 1, IBV_WC_SUCCESS).byte_len, mtu + GRH);
    CHECK(holds(b.buf + GRH, mtu, 3));
    /* A datagram is one packet: a longer one is an error of the sender, at once or as a completion. */
    int error = try_send(&a, to_b, 3, mtu + 1, b.qp->qp_num, QKEY, IBV_WR_SEND);

    if (!error)
        expect_wc(a.send_cq, 3, IBV_WC_LOC_LEN_ERR);
    else
        CHECK_EQ(error, EINVAL);
    close_pair();

    /* A receive that is too small: an error of the receiver only. */
    open_pair();
    post_recv(&b, 1, 0, GRH + 9);
    send_one(2, 10, QKEY, IBV_WR_SEND);
    expect_wc(b.recv_cq, 1, IBV_WC_LOC_LEN_ERR);
    CHECK_EQ(end_state(&a), IBV_QPS_RTS);
    close_pair();
}

static void only_sends(void)
{
    open_pair();
    CHECK(try_send(&a, to_b, 1, 8, b.qp->qp_num, QKEY, IBV_WR_RDMA_WRITE) != 0);
    CHECK(try_send(&a, to_b, 1, 8, b.qp->qp_num, QKEY, IBV_WR_RDMA_READ) != 0);
    CHECK(try_send(&a, to_b, 1, 8, b.qp->qp_num, QKEY, IBV_WR_ATOMIC_FETCH_AND_ADD) != 0);
    expect_empty(a.send_cq);
    close_pair();
}

/* After an error of its own the send queue of a UD QP stops (SQE) or the QP fails; RESET always heals. */
static void local_error(void)
{
    struct ibv_sge sge;
    struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};

    open_pair();
    sge = end_sge(&a, 0, 8);
    sge.lkey ^= 0x3300;
    struct ibv_send_wr wr = {.wr_id = 1,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_SEND,
                             .wr = {.ud = {.ah = to_b, .remote_qpn = b.qp->qp_num, .remote_qkey = QKEY}}},
                       *bad;
    OK(ibv_post_send(a.qp, &wr, &bad));
    expect_wc(a.send_cq, 1, IBV_WC_LOC_PROT_ERR);
    enum ibv_qp_state state = end_state(&a);
    CHECK(state == IBV_QPS_SQE || state == IBV_QPS_ERR);
    OK(ibv_modify_qp(a.qp, &reset, IBV_QP_STATE));
    end_connect(&a, NULL, NULL);
    post_recv(&b, 1, 0, 100);
    send_one(2, 10, QKEY, IBV_WR_SEND);
    expect_wc(b.recv_cq, 1, IBV_WC_SUCCESS);
    close_pair();
}

static void inline_and_many(void)
{
    open_pair();
    for (unsigned round = 0; round < 200; round++) {
        uint8_t data[32];
        struct ibv_sge sge = {.addr = (uintptr_t)data, .length = sizeof data};
        struct ibv_send_wr wr = {.wr_id = round,
                                 .sg_list = &sge,
                                 .num_sge = 1,
                                 .opcode = IBV_WR_SEND,
                                 .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE,
                                 .wr = {.ud = {.ah = to_b, .remote_qpn = b.qp->qp_num, .remote_qkey = QKEY}}},
                           *bad;

        post_recv(&b, round, 0, 100);
        fill(data, sizeof data, round);
        OK(ibv_post_send(a.qp, &wr, &bad));
        memset(data, 0, sizeof data);
        expect_wc(a.send_cq, round, IBV_WC_SUCCESS);
        expect_wc(b.recv_cq, round, IBV_WC_SUCCESS);
        CHECK(holds(b.buf + GRH, sizeof data, round));
    }
    close_pair();
}

TEST_MAIN(TEST(send_receive), TEST(reply), TEST(loss), TEST(controlled_qkey), TEST(sizes), TEST(only_sends),
          TEST(local_error), TEST(inline_and_many))

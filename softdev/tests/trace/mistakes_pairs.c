/* Planted mistakes: what two ends must agree on. */
#include "tests/trace/mistakes.h"

#include <stdlib.h>
#include <string.h>

static struct end a, b;

static void connect_impatiently(struct address to_b, struct address to_a)
{
    const struct connect_options options = IMPATIENT;

    end_connect(&a, &to_b, &options);
    end_connect(&b, &to_a, &options);
}

static void receives_missing(void)
{
    pair_open(&a, &b, NULL);
    connect_impatiently(end_address(&b), end_address(&a));
    post_send(&a, 1, 0, 8, IBV_SEND_SIGNALED);
    any_wc(a.send_cq);
    pair_close(&a, &b);
}

static void receive_too_small(void)
{
    pair_open(&a, &b, NULL);
    pair_connect(&a, &b, NULL);
    post_recv(&b, 1, 0, 99);
    post_send(&a, 2, 0, 100, IBV_SEND_SIGNALED);
    any_wc(a.send_cq);
    any_wc(b.recv_cq);
    pair_close(&a, &b);
}

static void wrong_number(void)
{
    pair_open(&a, &b, NULL);
    struct address there = end_address(&b);
    there.qpn ^= 0x155;
    connect_impatiently(there, end_address(&a));
    post_send(&a, 1, 0, 8, IBV_SEND_SIGNALED);
    any_wc(a.send_cq);
    pair_close(&a, &b);
}

static int to_rtr(struct end *end, const struct address *peer, enum ibv_mtu mtu)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = mtu,
        .dest_qp_num = peer->qpn,
        .rq_psn = peer->psn,
        .max_dest_rd_atomic = 16,
        .min_rnr_timer = 1,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = peer->gid, .hop_limit = 64}},
    };

    return ibv_modify_qp(end->qp, &attr,
                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                             IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

/* 198.51.100.9 is of nobody (RFC 5737). Where the host has no route to it, the device says so at once. */
static void wrong_address(void)
{
    static const uint8_t nobody[16] = {[10] = 0xff, [11] = 0xff, [12] = 198, 51, 100, 9};

    pair_open(&a, &b, NULL);
    struct address there = end_address(&b);
    memcpy(there.gid.raw, nobody, sizeof nobody);
    end_to_init(&a, 0);
    if (!to_rtr(&a, &there, IBV_MTU_1024)) {
        const struct connect_options options = IMPATIENT;
        struct address here = end_address(&a);

        end_to_rts(&a, &there, &options);
        end_connect(&b, &here, &options);
        post_send(&a, 1, 0, 8, IBV_SEND_SIGNALED);
        any_wc(a.send_cq);
    }
    pair_close(&a, &b);
}

void wrong_packet_number(void)
{
    pair_open(&a, &b, NULL);
    struct address here = end_address(&a), there = end_address(&b);
    here.psn ^= 0x700;
    const struct connect_options options = IMPATIENT;
    end_connect(&a, &there, &options);
    end_connect(&b, &here, NULL);
    post_recv(&b, 1, 0, 8);
    post_send(&a, 1, 0, 8, IBV_SEND_SIGNALED);
    any_wc(a.send_cq);
    pair_close(&a, &b);
}

static void connect_with_mtus(enum ibv_mtu mtu_a, enum ibv_mtu mtu_b)
{
    struct address here = end_address(&a), there = end_address(&b);

    end_to_init(&a, 0);
    end_to_init(&b, 0);
    OK(to_rtr(&a, &there, mtu_a));
    OK(to_rtr(&b, &here, mtu_b));
    end_to_rts(&a, &there, NULL);
    end_to_rts(&b, &here, NULL);
}

static void other_mtu(void)
{
    pair_open(&a, &b, NULL);
    connect_with_mtus(IBV_MTU_1024, IBV_MTU_256);
    post_recv(&b, 1, 0, 600);
    post_send(&a, 1, 0, 600, IBV_SEND_SIGNALED);
    any_wc(a.send_cq);
    pair_close(&a, &b);
}

static void reads_without_depth(void)
{
    struct connect_options none = CONNECT_DEFAULTS;

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
    if (!ibv_post_send(a.qp, &wr, &bad))
        any_wc(a.send_cq);
    pair_close(&a, &b);
}

/* The same on a card that carries them out. */
static void reads_without_depth_on_mlx5(void)
{
    setenv("SOFTDEV_PERSONALITY", "mlx5", 1);
    reads_without_depth();
}

/* A process that answers nothing any more. */
static void leave_at_once(int fd, void *unused)
{
    struct end end;

    (void)unused;
    end_open(&end, NULL);
    struct address there = exchange(fd, &end);
    end_connect(&end, &there, NULL);
    give(fd, "r", 1);
    take(fd, &there, 1);
    /* child_start() calls _exit() */
}

static void peer_that_dies(void)
{
    const struct connect_options options = IMPATIENT;
    struct child child = child_start(leave_at_once, NULL);
    char ready;

    end_open(&a, NULL);
    struct address there = exchange(child.fd, &a);
    end_connect(&a, &there, &options);
    take(child.fd, &ready, 1);
    give(child.fd, "g", 1);
    child_join(&child);
    post_send(&a, 1, 0, 8, IBV_SEND_SIGNALED);
    any_wc(a.send_cq);
    end_close(&a);
}

/* ---- datagrams ---- */

static struct ibv_ah *to_b(void)
{
    struct ibv_ah_attr attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = b.gid, .hop_limit = 64}};
    struct ibv_ah *ah = ibv_create_ah(a.pd, &attr);

    CHECK(ah);
    return ah;
}

static void send_datagram(size_t length, size_t room, uint32_t qpn, uint32_t qkey)
{
    const struct end_options options = {.type = IBV_QPT_UD};
    struct ibv_send_wr *bad;

    pair_open(&a, &b, &options);
    struct address nobody = end_address(&b);
    end_connect(&a, &nobody, NULL);
    end_connect(&b, &nobody, NULL);
    if (room)
        post_recv(&b, 1, 0, room);
    struct ibv_ah *ah = to_b();
    struct ibv_sge sge = end_sge(&a, 0, length);
    struct ibv_send_wr wr = {
        .wr_id = 2,
        .sg_list = &sge,
        .num_sge = 1,
        .opcode = IBV_WR_SEND,
        .send_flags = IBV_SEND_SIGNALED,
        .wr = {.ud = {.ah = ah, .remote_qpn = b.qp->qp_num ^ qpn, .remote_qkey = 0x11111111 ^ qkey}}};
    OK(ibv_post_send(a.qp, &wr, &bad));
    any_wc(a.send_cq);
    OK(ibv_destroy_ah(ah));
    pair_close(&a, &b);
}

static void wrong_queue_key(void)
{
    send_datagram(100, 1000, 0, 0x200);
}

static void datagram_to_nobody(void)
{
    send_datagram(100, 1000, 0x155, 0);
}

static void datagram_longer_than_a_packet(void)
{
    send_datagram(5000, 6000, 0, 0);
}

static void no_room_for_the_header(void)
{
    send_datagram(100, 100, 0, 0);
}

static void datagram_without_receive(void)
{
    send_datagram(100, 0, 0, 0);
}

const struct mistake mistakes_pairs[] = {
    {"no receive is posted", "no-receives", receives_missing, false},
    {"a receive that is too small", "receive-too-small", receive_too_small, false},
    {"a wrong dest_qp_num", "wrong-dest-qp", wrong_number, false},
    {"a wrong destination address", "wrong-gid or no-route", wrong_address, false},
    {"another packet number than the peer expects", "psn-mismatch", wrong_packet_number, false},
    {"another path MTU than the peer's", "mtu-mismatch", other_mtu, false},
    {"a READ with max_rd_atomic 0", "rd-atomic-zero", reads_without_depth, false},
    {"a READ with max_rd_atomic 0, on mlx5", "rd-atomic-zero", reads_without_depth_on_mlx5, false},
    {"a peer that dies", "peer-gone", peer_that_dies, false},
    {"a wrong queue key", "wrong-qkey", wrong_queue_key, false},
    {"a datagram to a queue pair that is not there", "wrong-dest-qp", datagram_to_nobody, false},
    {"a datagram longer than a packet", "datagram-too-long", datagram_longer_than_a_packet, false},
    {"a receive without the 40 bytes of the header", "grh-room", no_room_for_the_header, false},
    {"a datagram without a receive", "no-receives", datagram_without_receive, false},
    MISTAKES_END,
};

/*
 * A program for test_capture.sh: a process that sends, and one that only receives, of which each has a recording. It says
 * the number of the second.
 */
#include "tests/harness.h"

#include <stdio.h>
#include <unistd.h>

static void receive(int fd, void *unused)
{
    const struct end_options datagrams = {.type = IBV_QPT_UD};
    struct end end, other;

    (void)unused;
    end_open(&end, NULL);
    end_open(&other, &datagrams);
    end_meet(fd, &end);
    end_meet(fd, &other);
    post_recv(&end, 1, 0, 100);
    post_recv(&end, 2, 0, 3000);
    post_recv(&end, 3, 0, 0);
    post_recv(&end, 4, 0, 99);
    post_recv(&other, 5, 0, 140);
    rendezvous(fd);
    expect_wc(end.recv_cq, 1, IBV_WC_SUCCESS);
    expect_wc(end.recv_cq, 2, IBV_WC_SUCCESS);
    expect_wc(end.recv_cq, 3, IBV_WC_SUCCESS);
    expect_wc(end.recv_cq, 4, IBV_WC_LOC_LEN_ERR);
    expect_wc(other.recv_cq, 5, IBV_WC_SUCCESS);
    rendezvous(fd);
    end_close(&other);
    end_close(&end);
}

static void send_with_immediate(struct end *end, enum ibv_wr_opcode opcode, size_t length,
                                const struct address *peer)
{
    struct ibv_sge sge = end_sge(end, 0, length);
    struct ibv_send_wr wr = {.wr_id = 12,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = opcode,
                             .send_flags = IBV_SEND_SIGNALED,
                             .imm_data = 7,
                             .wr = {.rdma = {.remote_addr = peer->addr, .rkey = peer->rkey}}},
                       *bad;

    OK(ibv_post_send(end->qp, &wr, &bad));
    expect_wc(end->send_cq, 12, IBV_WC_SUCCESS);
}

static void send_datagram(struct end *end, const struct address *peer)
{
    struct ibv_ah_attr attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = peer->gid, .hop_limit = 64}};
    struct ibv_ah *ah = ibv_create_ah(end->pd, &attr);
    struct ibv_sge sge = end_sge(end, 0, 100);
    struct ibv_send_wr wr = {.wr_id = 13,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_SEND,
                             .send_flags = IBV_SEND_SIGNALED,
                             .wr = {.ud = {.ah = ah, .remote_qpn = peer->qpn, .remote_qkey = 0x11111111}}},
                       *bad;

    CHECK(ah);
    OK(ibv_post_send(end->qp, &wr, &bad));
    expect_wc(end->send_cq, 13, IBV_WC_SUCCESS);
    OK(ibv_destroy_ah(ah));
}

int main(void)
{
    struct child child = child_start(receive, NULL);
    const struct end_options datagrams = {.type = IBV_QPT_UD};
    struct address peer, to;
    struct end end, other;

    end_open(&end, NULL);
    end_open(&other, &datagrams);
    peer = end_meet(child.fd, &end);
    to = end_meet(child.fd, &other);
    rendezvous(child.fd);
    do_send(&end, 0, 100);
    send_with_immediate(&end, IBV_WR_SEND_WITH_IMM, 3000, &peer);
    do_rdma(&end, IBV_WR_RDMA_WRITE, 0, 64, &peer, 0);
    send_with_immediate(&end, IBV_WR_RDMA_WRITE_WITH_IMM, 50, &peer);
    post_send(&end, 14, 0, 100, IBV_SEND_SIGNALED);
    expect_wc(end.send_cq, 14, IBV_WC_REM_INV_REQ_ERR);
    send_datagram(&other, &to);
    rendezvous(child.fd);
    end_close(&other);
    end_close(&end);
    child_join(&child);
    printf("%d\n", child.pid);
    return 0;
}

/*
 * A program for test_attach.sh: it has worked for a while when the recorder comes, and then makes mistakes, with objects
 * that were there before and with new ones.
 */
#include "tests/harness.h"

#include <stdio.h>

static void post_sge(struct end *end, uint64_t wr_id, struct ibv_sge sge)
{
    struct ibv_send_wr wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;

    OK(ibv_post_send(end->qp, &wr, &bad));
}

int main(void)
{
    struct end a, b, c, d, pairs[2][2];
    struct address at;
    struct ibv_sge sge;
    char line[16];

    pair_open(&a, &b, NULL);
    pair_connect(&a, &b, NULL);
    for (int n = 0; n < 2; n++) {
        pair_open(&pairs[n][0], &pairs[n][1], NULL);
        pair_connect(&pairs[n][0], &pairs[n][1], NULL);
    }
    for (unsigned n = 0; n < 40; n++) {
        post_recv(&b, n, 0, 64);
        do_send(&a, 0, 64);
        expect_wc(b.recv_cq, n, IBV_WC_SUCCESS);
    }
    post_recv(&b, 70, 0, 99); /* the recorder will not have seen it */
    puts("ready");
    fflush(stdout);
    CHECK(fgets(line, sizeof line, stdin) != NULL);

    post_recv(&b, 71, 0, 99);
    do_send(&a, 0, 50);
    expect_wc(b.recv_cq, 70, IBV_WC_SUCCESS);
    post_send(&a, 72, 0, 100, 0);
    expect_wc(b.recv_cq, 71, IBV_WC_LOC_LEN_ERR);
    expect_wc(a.send_cq, 72, IBV_WC_REM_INV_REQ_ERR);

    /* Memory that was registered before: its bounds, and a key that it never had. */
    post_sge(&pairs[0][0], 74, end_sge(&pairs[0][0], pairs[0][0].size - 60, 100));
    expect_wc(pairs[0][0].send_cq, 74, IBV_WC_LOC_PROT_ERR);
    sge = end_sge(&pairs[1][0], 0, 100);
    sge.lkey ^= 0x800000;
    post_sge(&pairs[1][0], 75, sge);
    expect_wc(pairs[1][0].send_cq, 75, IBV_WC_LOC_PROT_ERR);

    /* What the program flushes itself. */
    post_recv(&pairs[1][1], 76, 0, 99);
    end_to_error(&pairs[1][1]);
    expect_wc(pairs[1][1].recv_cq, 76, IBV_WC_WR_FLUSH_ERR);

    pair_open(&c, &d, NULL);
    pair_connect(&c, &d, NULL);
    at = end_address(&d);
    at.rkey ^= 0x800000;
    post_rdma(&c, 73, IBV_WR_RDMA_WRITE, 0, 100, &at, 0, 0);
    expect_wc(c.send_cq, 73, IBV_WC_REM_ACCESS_ERR);
    pair_close(&c, &d);
    for (int n = 0; n < 2; n++)
        pair_close(&pairs[n][0], &pairs[n][1]);
    pair_close(&a, &b);
    return 0;
}

/*
 * A program for test_attach.sh: it has worked for a while when the recorder comes, and then makes two mistakes, one with
 * objects that were there before, one with new ones.
 */
#include "tests/harness.h"

#include <stdio.h>

int main(void)
{
    struct end a, b, c, d;
    struct address at;
    char line[16];

    pair_open(&a, &b, NULL);
    pair_connect(&a, &b, NULL);
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

    pair_open(&c, &d, NULL);
    pair_connect(&c, &d, NULL);
    at = end_address(&d);
    at.rkey ^= 0x800000;
    post_rdma(&c, 73, IBV_WR_RDMA_WRITE, 0, 100, &at, 0, 0);
    expect_wc(c.send_cq, 73, IBV_WC_REM_ACCESS_ERR);
    pair_close(&c, &d);
    pair_close(&a, &b);
    return 0;
}

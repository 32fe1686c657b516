/* A queue pair ends while it holds an unpolled message: the sender still gets its acknowledgement, as from
 * an adapter, which receives without polls. */
#include "tests/harness.h"

#include <stdlib.h>

enum { TURNS = 20, LENGTH = 100, POLLED_NS = 3000000 };

enum how { DESTROYED, RESET, FAILED };

/* Polls until the device relies on the polling. */
static void poll_on(struct end *end)
{
    for (const uint64_t until = test_now_ns() + POLLED_NS; test_now_ns() < until;)
        expect_empty(end->recv_cq);
}

static void receiver(int fd, void *argument)
{
    const enum how how = *(enum how *)argument;

    for (int turn = 0; turn < TURNS; turn++) {
        struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};
        struct end end;
        char byte;

        end_open(&end, NULL);
        end_to_init(&end, 0);
        for (uint64_t id = 6; id <= 8; id++)
            post_recv(&end, id, 0, LENGTH);
        const struct address peer = exchange(fd, &end);
        end_connect(&end, &peer, NULL);
        expect_wc(end.recv_cq, 6, IBV_WC_SUCCESS); /* the whole path is set up */
        poll_on(&end);
        give(fd, "g", 1);
        take(fd, &byte, 1);
        if (how == RESET) {
            OK(ibv_modify_qp(end.qp, &reset, IBV_QP_STATE));
            expect_empty(end.recv_cq);
        } else if (how == FAILED) {
            end_to_error(&end);
            CHECK_EQ(expect_wc(end.recv_cq, 7, IBV_WC_SUCCESS).byte_len, LENGTH);
            expect_wc(end.recv_cq, 8, IBV_WC_WR_FLUSH_ERR);
        }
        end_close(&end);
    }
}

static void unread(enum how how)
{
    struct child child = child_start(receiver, &how);

    for (int turn = 0; turn < TURNS; turn++) {
        struct end end;
        char byte;

        end_open(&end, NULL);
        end_to_init(&end, 0);
        const struct address peer = exchange(child.fd, &end);
        end_connect(&end, &peer, NULL);
        do_send(&end, 0, LENGTH);
        take(child.fd, &byte, 1);
        post_send(&end, 1, 0, LENGTH, IBV_SEND_SIGNALED);
        give(child.fd, "s", 1);
        expect_wc(end.send_cq, 1, IBV_WC_SUCCESS);
        end_close(&end);
    }
    child_join(&child);
}

static void unread_when_destroyed(void)
{
    unread(DESTROYED);
}

static void unread_when_reset(void)
{
    unread(RESET);
}

static void unread_when_failed(void)
{
    unread(FAILED);
}

TEST_MAIN(TEST(unread_when_destroyed), TEST(unread_when_reset), TEST(unread_when_failed))

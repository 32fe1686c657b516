/* Timers by a clock that the program moves: nothing happens while it stands still, and everything at its time. Runs with
 * every queue pair on RoCE, too. */
#include "tests/harness.h"

#include "softdev.h"

#include <sched.h>

enum { SECOND = 1000000000, LOOKS = 200, MOVES = 100000 };

static struct end a, b;
static uint64_t now = 1;

static void open_ends(void)
{
    softdev_clock(++now);
    pair_open(&a, &b, NULL);
}

static void close_ends(void)
{
    pair_close(&a, &b);
    softdev_clock(0);
}

static void expect_nothing(void)
{
    for (int i = 0; i < LOOKS; i++)
        expect_empty(a.send_cq);
}

/* Packets, if there are any, are under way for a moment of real time. True: what they lead to has come. */
static bool comes(struct ibv_wc *wc)
{
    int n = 0;

    for (int i = 0; !n && i < LOOKS; i++) {
        n = ibv_poll_cq(a.send_cq, 1, wc);
        sched_yield();
    }
    CHECK(n >= 0);
    return n;
}

/* Goes from one time that the device waits for to the next until a's work request ends, and returns what that took. */
static uint64_t until_it_ends(enum ibv_wc_status status)
{
    const uint64_t begin = now;
    struct ibv_wc wc;

    expect_nothing(); /* where time stands still */
    for (int moves = 0; !comes(&wc); moves++) {
        const uint64_t due = softdev_clock(now);
        CHECK(moves < MOVES);
        if (due == UINT64_MAX)
            continue; /* what has come is being handled by another thread */
        CHECK(due > now);
        now = due;
        softdev_clock(now);
    }
    CHECK_EQ(wc.status, status);
    return now - begin;
}

static void nobody_answers(void)
{
    struct connect_options options = CONNECT_DEFAULTS;

    options.timeout = 20; /* 4.3 s */
    options.retry_cnt = 2;
    open_ends();
    struct address peer = end_address(&b);
    end_connect(&a, &peer, &options); /* and not b */
    post_send(&a, 1, 0, 8, IBV_SEND_SIGNALED);
    const uint64_t took = until_it_ends(IBV_WC_RETRY_EXC_ERR);
    CHECK(took >= 3 * (UINT64_C(4096) << 20) && took < 13 * (UINT64_C(4096) << 20));
    close_ends();
}

static void no_receive_is_there(void)
{
    struct connect_options options = CONNECT_DEFAULTS;

    options.timeout = 20;
    options.rnr_retry = 3;
    options.min_rnr_timer = 0; /* 655 ms */
    open_ends();
    pair_connect(&a, &b, &options);
    post_send(&a, 1, 0, 8, IBV_SEND_SIGNALED);
    const uint64_t took = until_it_ends(IBV_WC_RNR_RETRY_EXC_ERR);
    /* Where the answer is slower than LOOKS, the requester repeats its packet first. */
    CHECK(took >= 3 * UINT64_C(655360000));
    close_ends();
}

/* The time that it asks for may change at any time. */
static void no_receive_is_there_for_longer(void)
{
    struct connect_options options = CONNECT_DEFAULTS;
    struct ibv_qp_attr attr = {.min_rnr_timer = 0};

    options.timeout = 20;
    options.rnr_retry = 3;
    options.min_rnr_timer = 1;
    open_ends();
    pair_connect(&a, &b, &options);
    OK(ibv_modify_qp(b.qp, &attr, IBV_QP_MIN_RNR_TIMER));
    post_send(&a, 1, 0, 8, IBV_SEND_SIGNALED);
    CHECK(until_it_ends(IBV_WC_RNR_RETRY_EXC_ERR) >= 3 * UINT64_C(655360000));
    close_ends();
}

static void a_receive_comes_in_time(void)
{
    struct connect_options options = CONNECT_DEFAULTS;

    options.rnr_retry = 7;
    options.min_rnr_timer = 0;
    open_ends();
    pair_connect(&a, &b, &options);
    post_send(&a, 1, 0, 8, IBV_SEND_SIGNALED);
    expect_nothing();
    post_recv(&b, 2, 0, 8);
    now += SECOND;
    softdev_clock(now);
    expect_wc(b.recv_cq, 2, IBV_WC_SUCCESS);
    expect_wc(a.send_cq, 1, IBV_WC_SUCCESS);
    close_ends();
}

/* What waits goes on by the system's clock, for as long as it has left. */
static void the_clock_is_given_back(void)
{
    struct connect_options options = CONNECT_DEFAULTS;

    options.timeout = 12; /* 17 ms */
    options.retry_cnt = 1;
    open_ends();
    struct address peer = end_address(&b);
    end_connect(&a, &peer, &options);
    post_send(&a, 1, 0, 8, IBV_SEND_SIGNALED);
    expect_nothing();
    softdev_clock(0);
    expect_wc(a.send_cq, 1, IBV_WC_RETRY_EXC_ERR);
    pair_close(&a, &b);
}

/* And the reverse. */
static void the_clock_is_taken_over(void)
{
    struct connect_options options = CONNECT_DEFAULTS;

    options.timeout = 25; /* two minutes */
    options.retry_cnt = 1;
    pair_open(&a, &b, NULL);
    struct address peer = end_address(&b);
    end_connect(&a, &peer, &options);
    post_send(&a, 1, 0, 8, IBV_SEND_SIGNALED);
    CHECK(until_it_ends(IBV_WC_RETRY_EXC_ERR) > 100 * (uint64_t)SECOND);
    close_ends();
}

static void it_never_goes_back(void)
{
    softdev_clock(now += SECOND);
    CHECK_EQ(softdev_clock(now - 5), UINT64_MAX);
    softdev_clock(0);
    CHECK_EQ(softdev_clock(5), UINT64_MAX); /* a program's own zero may be any */
    CHECK_EQ(softdev_clock(0), UINT64_MAX);
}

TEST_MAIN(TEST(nobody_answers), TEST(no_receive_is_there), TEST(no_receive_is_there_for_longer),
          TEST(a_receive_comes_in_time), TEST(the_clock_is_given_back), TEST(the_clock_is_taken_over),
          TEST(it_never_goes_back))

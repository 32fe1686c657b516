/* Planted mistakes: programs that poll for what cannot come; and one that polls for what may. */
#include "tests/trace/mistakes.h"

static struct end a, b;

static void poll_for_ever(struct ibv_cq *cq)
{
    last_call();
    any_wc(cq);
}

static void open_pair(void)
{
    pair_open(&a, &b, NULL);
    pair_connect(&a, &b, NULL);
    post_recv(&b, 1, 0, 8);
}

static void waits_for_unsignalled(void)
{
    open_pair();
    post_send(&a, 2, 0, 8, 0);
    expect_wc(b.recv_cq, 1, IBV_WC_SUCCESS);
    poll_for_ever(a.send_cq);
}

static void polls_the_other_queue(void)
{
    open_pair();
    do_send(&a, 0, 8);
    poll_for_ever(b.send_cq);
}

static void waits_for_a_write(void)
{
    open_pair();
    struct address there = end_address(&b);
    do_rdma(&a, IBV_WR_RDMA_WRITE, 0, 8, &there, 0);
    poll_for_ever(b.recv_cq);
}

/* Like a server that is killed. That its client had written before is no mistake: it has sent as well. */
static void waits_for_more(void)
{
    open_pair();
    struct address there = end_address(&b);
    do_rdma(&a, IBV_WR_RDMA_WRITE, 0, 8, &there, 0);
    do_send(&a, 0, 8);
    expect_wc(b.recv_cq, 1, IBV_WC_SUCCESS);
    post_recv(&b, 3, 0, 8);
    post_send(&b, 4, 0, 8, 0);
    poll_for_ever(b.recv_cq);
}

const struct mistake mistakes_vain[] = {
    {"a wait for a send that was not signalled", "polled-in-vain", waits_for_unsignalled, true},
    {"a wait in the queue of sends for a receive", "polled-in-vain", polls_the_other_queue, true},
    {"a wait for a receive, where the peer writes", "polled-in-vain", waits_for_a_write, true},
    {"a server that is killed", "process-died", waits_for_more, true},
    MISTAKES_END,
};

/* Planted mistakes: queues and their limits. */
#include "tests/trace/mistakes.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

static struct end a, b;

static void open_pair(const struct end_options *options)
{
    pair_open(&a, &b, options);
    pair_connect(&a, &b, NULL);
}

static void too_many_entries(void)
{
    struct ibv_send_wr *bad;
    struct ibv_sge list[5];

    open_pair(NULL);
    for (int i = 0; i < 5; i++)
        list[i] = end_sge(&a, 0, 8);
    struct ibv_send_wr wr = {.wr_id = 1, .sg_list = list, .num_sge = 5, .opcode = IBV_WR_SEND};
    ibv_post_send(a.qp, &wr, &bad);
    pair_close(&a, &b);
}

/* Its list is nowhere, and no device looks for it. */
static void many_entries_nowhere(void)
{
    struct ibv_send_wr *bad;

    open_pair(NULL);
    struct ibv_send_wr wr = {.wr_id = 1, .sg_list = NULL, .num_sge = 1000, .opcode = IBV_WR_SEND};
    ibv_post_send(a.qp, &wr, &bad);
    pair_close(&a, &b);
}

static void too_long_inline(void)
{
    struct ibv_send_wr *bad;

    open_pair(NULL);
    struct ibv_sge sge = end_sge(&a, 0, 4096);
    struct ibv_send_wr wr = {.wr_id = 1,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_SEND,
                             .send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED};
    ibv_post_send(a.qp, &wr, &bad);
    pair_close(&a, &b);
}

/* WRITEs until the queue is full. */
static void write_until_full(unsigned flags)
{
    struct ibv_send_wr *bad;

    open_pair(NULL);
    struct ibv_sge sge = end_sge(&a, 0, 8);
    struct ibv_send_wr wr = {.sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_RDMA_WRITE,
                             .send_flags = flags,
                             .wr = {.rdma = {.remote_addr = (uintptr_t)b.buf, .rkey = b.mr->rkey}}};
    while (!ibv_post_send(a.qp, &wr, &bad))
        wr.wr_id++;
    pair_close(&a, &b);
}

static void nothing_signalled(void)
{
    write_until_full(0);
}

static void nothing_polled(void)
{
    write_until_full(IBV_SEND_SIGNALED);
}

static void too_many_receives(void)
{
    struct ibv_recv_wr *bad;

    open_pair(NULL);
    struct ibv_sge sge = end_sge(&a, 0, 8);
    struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1};
    while (!ibv_post_recv(a.qp, &wr, &bad))
        wr.wr_id++;
    pair_close(&a, &b);
}

static void read_of_unreliable(void)
{
    const struct end_options options = {.type = IBV_QPT_UC};
    struct ibv_send_wr *bad;

    open_pair(&options);
    struct ibv_sge sge = end_sge(&a, 0, 8);
    struct ibv_send_wr wr = {.sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_RDMA_READ,
                             .wr = {.rdma = {.remote_addr = (uintptr_t)b.buf, .rkey = b.mr->rkey}}};
    ibv_post_send(a.qp, &wr, &bad);
    pair_close(&a, &b);
}

/* Two queue pairs of 64 requests and a queue of 64 completions. */
static void queue_of_completions_too_small(void)
{
    const struct end_options options = {.send_wr = 256, .cqe = 64};
    struct ibv_wc wc;

    open_pair(&options);
    struct address there = end_address(&b);
    for (unsigned i = 0; i < 200; i++)
        post_rdma(&a, i, IBV_WR_RDMA_WRITE, 0, 8, &there, 0, IBV_SEND_SIGNALED);
    while (ibv_poll_cq(a.send_cq, 1, &wc) >= 0)
        sched_yield();
    pair_close(&a, &b);
}

static void no_entry_asked_for(void)
{
    struct ibv_context *context = test_open();

    ibv_create_cq(context, 0, NULL, NULL, 0);
    ibv_close_device(context);
}

/* They poll in turns, so that both do, however they are scheduled. */
enum { TURNS = 100 };
static atomic_uint turn;
static struct address written;

static void *poll_in_turns(void *odd)
{
    for (unsigned mine = odd ? 1 : 0; mine < TURNS; mine += 2) {
        while (atomic_load(&turn) != mine)
            sched_yield();
        post_rdma(&a, mine, IBV_WR_RDMA_WRITE, 0, 8, &written, 0, IBV_SEND_SIGNALED);
        expect_wc(a.send_cq, mine, IBV_WC_SUCCESS);
        atomic_store(&turn, mine + 1);
    }
    return NULL;
}

static void two_threads_poll(void)
{
    pthread_t other;

    open_pair(NULL);
    written = end_address(&b);
    CHECK(!pthread_create(&other, NULL, poll_in_turns, &turn));
    poll_in_turns(NULL);
    CHECK(!pthread_join(other, NULL));
    pair_close(&a, &b);
}

const struct mistake mistakes_queues[] = {
    {"five scatter/gather entries of four", "too-many-sges", too_many_entries, false},
    {"a thousand entries, and no list", "too-many-sges", many_entries_nowhere, false},
    {"4096 bytes inline", "inline-too-long", too_long_inline, false},
    {"nothing is signalled", "unsignalled-run", nothing_signalled, false},
    {"completions are not polled", "send-queue-full", nothing_polled, false},
    {"more receives than the queue has", "receive-queue-full", too_many_receives, false},
    {"an RDMA READ of an unreliable queue pair", "opcode-not-allowed", read_of_unreliable, false},
    {"a completion queue that overruns", "cq-overrun", queue_of_completions_too_small, false},
    {"a completion queue of no entries", "cq-limits", no_entry_asked_for, false},
    {"two threads poll a queue", "double-polling", two_threads_poll, false},
    MISTAKES_END,
};

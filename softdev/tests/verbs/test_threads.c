/* Threads: several conversations in one process, events, and objects created and destroyed under traffic. */
#include "tests/harness.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static struct end a, b;
static atomic_bool stop;

/* ---- lost wake-ups within one process ---- */

enum { ROUNDS = TIMES(4000) };

static void volley(struct end *end, bool serves, uint32_t seed)
{
    for (uint32_t round = 0; round < ROUNDS; round++) {
        if (serves || round) {
            struct ibv_wc wc = sleep_wc(end->channel, end->recv_cq);

            CHECK_STATUS(&wc, IBV_WC_SUCCESS);
            post_recv(end, wc.wr_id, wc.wr_id * 64, 64);
        }
        for (uint32_t delay = test_random(&seed) % 300; delay; delay--)
            atomic_signal_fence(memory_order_seq_cst);
        post_send(end, 1, 4096, 8, IBV_SEND_SIGNALED);
        CHECK_EQ(sleep_wc(end->channel, end->send_cq).status, IBV_WC_SUCCESS);
    }
    if (!serves)
        CHECK_EQ(sleep_wc(end->channel, end->recv_cq).status, IBV_WC_SUCCESS);
}

static void *serve(void *argument)
{
    volley(argument, true, 17);
    return NULL;
}

static void no_lost_wakeups(void)
{
    pthread_t thread;

    pair_open(&a, &b, &(struct end_options){.channel = true});
    pair_connect(&a, &b, NULL);
    for (uint64_t i = 0; i < 4; i++) {
        post_recv(&a, i, i * 64, 64);
        post_recv(&b, i, i * 64, 64);
    }
    CHECK(!pthread_create(&thread, NULL, serve, &b));
    volley(&a, false, 71);
    CHECK(!pthread_join(thread, NULL));
    pair_close(&a, &b);
}

/* ---- many QPs of one context, a thread each, one CQ for all receives ---- */

enum { THREADS = 4, MESSAGES = TIMES(1500) };

static struct end senders[THREADS], receivers[THREADS];

static void *send_many(void *argument)
{
    size_t index = *(size_t *)argument;
    struct end *end = &senders[index];

    for (uint32_t i = 0; i < MESSAGES; i++) {
        memset(end->buf, (int)(index + i), 64);
        do_send(end, 0, 64);
    }
    return NULL;
}

static void one_cq_for_all(void)
{
    pthread_t threads[THREADS];
    uint32_t counts[THREADS] = {0};
    size_t indices[THREADS];

    end_open(&b, &(struct end_options){.cqe = 1024});
    for (size_t i = 0; i < THREADS; i++) {
        struct ibv_qp_init_attr init = {.send_cq = b.send_cq,
                                        .recv_cq = b.recv_cq,
                                        .cap = {.max_recv_wr = 8, .max_recv_sge = 1},
                                        .qp_type = IBV_QPT_RC};

        end_open(&senders[i], &(struct end_options){.context = b.context});
        receivers[i] = b;
        receivers[i].qp = ibv_create_qp(b.pd, &init);
        CHECK(receivers[i].qp);
        pair_connect(&senders[i], &receivers[i], NULL);
        for (uint64_t j = 0; j < 8; j++)
            post_recv(&receivers[i], i * 8 + j, (i * 8 + j) * 64, 64);
        indices[i] = i;
        CHECK(!pthread_create(&threads[i], NULL, send_many, &indices[i]));
    }
    for (uint32_t got = 0; got < THREADS * MESSAGES; got++) {
        struct ibv_wc wc = next_wc(b.recv_cq);
        size_t i = wc.wr_id / 8;

        CHECK_STATUS(&wc, IBV_WC_SUCCESS);
        CHECK_EQ(wc.qp_num, receivers[i].qp->qp_num);
        CHECK(all_bytes(b.buf + wc.wr_id * 64, 64, (uint8_t)(i + counts[i])));
        counts[i]++;
        post_recv(&receivers[i], wc.wr_id, wc.wr_id * 64, 64);
    }
    for (size_t i = 0; i < THREADS; i++) {
        CHECK(!pthread_join(threads[i], NULL));
        OK(ibv_destroy_qp(receivers[i].qp));
        end_close(&senders[i]);
    }
    end_close(&b);
}

/* ---- several threads poll one CQ: every completion is seen once ---- */

static atomic_uint seen[MESSAGES];
static atomic_uint seen_total;

static void *poll_shared(void *argument)
{
    (void)argument;
    while (atomic_load(&seen_total) < MESSAGES) {
        struct ibv_wc wc[4];
        int n = ibv_poll_cq(a.send_cq, 4, wc);

        CHECK(n >= 0);
        for (int i = 0; i < n; i++) {
            CHECK_EQ(wc[i].status, IBV_WC_SUCCESS);
            atomic_fetch_add(&seen[wc[i].wr_id], 1);
            atomic_fetch_add(&seen_total, 1);
        }
        if (!n)
            sched_yield();
    }
    return NULL;
}

static void shared_cq(void)
{
    pthread_t threads[3];

    pair_open(&a, &b, &(struct end_options){.send_wr = 64, .cqe = 4096});
    pair_connect(&a, &b, NULL);
    struct address of_b = end_address(&b);
    for (int i = 0; i < 3; i++)
        CHECK(!pthread_create(&threads[i], NULL, poll_shared, NULL));
    for (uint64_t i = 0; i < MESSAGES; i++) {
        while (i - atomic_load(&seen_total) >= 60)
            sched_yield();
        post_rdma(&a, i, IBV_WR_RDMA_WRITE, 0, 64, &of_b, 0, IBV_SEND_SIGNALED);
    }
    for (int i = 0; i < 3; i++)
        CHECK(!pthread_join(threads[i], NULL));
    for (size_t i = 0; i < MESSAGES; i++)
        CHECK_EQ(atomic_load(&seen[i]), 1);
    pair_close(&a, &b);
}

/* ---- regions, QPs, CQs, contexts are created and destroyed while others work ---- */

static void *churn(void *argument)
{
    (void)argument;
    while (!atomic_load(&stop)) {
        struct end c, d;

        pair_open(&c, &d, &(struct end_options){.context = a.context, .channel = true});
        pair_connect(&c, &d, NULL);
        struct ibv_mr *mr = ibv_reg_mr(c.pd, c.buf, c.size, ACCESS_ALL);
        CHECK(mr);
        post_recv(&d, 1, 0, 64);
        post_recv(&d, 2, 0, 64);
        do_send(&c, 0, 64);
        OK(ibv_dereg_mr(mr));
        post_send(&c, 3, 0, 64, IBV_SEND_SIGNALED); /* may still be in flight at destruction */
        pair_close(&c, &d);
    }
    return NULL;
}

static void *churn_contexts(void *argument)
{
    (void)argument;
    while (!atomic_load(&stop)) {
        struct ibv_context *context = test_open();

        OK(ibv_close_device(context));
        sched_yield();
    }
    return NULL;
}

static void coming_and_going(void)
{
    pthread_t threads[3];

    atomic_store(&stop, false);
    pair_open(&a, &b, NULL);
    pair_connect(&a, &b, NULL);
    struct address of_b = end_address(&b);
    CHECK(!pthread_create(&threads[0], NULL, churn, NULL));
    CHECK(!pthread_create(&threads[1], NULL, churn, NULL));
    CHECK(!pthread_create(&threads[2], NULL, churn_contexts, NULL));
    for (uint32_t i = 0; i < TIMES(3000); i++) {
        fill(a.buf, 256, i);
        post_recv(&b, i, 8192, 256);
        do_rdma(&a, IBV_WR_RDMA_WRITE, 0, 256, &of_b, 0);
        CHECK(holds(b.buf, 256, i));
        do_send(&a, 0, 256);
        expect_wc(b.recv_cq, i, IBV_WC_SUCCESS);
        CHECK(holds(b.buf + 8192, 256, i));
    }
    atomic_store(&stop, true);
    for (int i = 0; i < 3; i++)
        CHECK(!pthread_join(threads[i], NULL));
    pair_close(&a, &b);
}

/* A region is deregistered while its peer writes to it: either the write was in time, or it is refused. */
static atomic_uint writes;

static void *write_until_refused(void *argument)
{
    struct address *target = argument;

    for (;;) {
        struct ibv_wc wc;

        post_rdma(&a, 1, IBV_WR_RDMA_WRITE, 0, 4096, target, 0, IBV_SEND_SIGNALED);
        wc = next_wc(a.send_cq);
        if (wc.status == IBV_WC_SUCCESS) {
            atomic_fetch_add(&writes, 1);
            continue;
        }
        CHECK_STATUS(&wc, IBV_WC_REM_ACCESS_ERR);
        return NULL;
    }
}

static void region_goes_under_traffic(void)
{
    for (int round = 0; round < 30; round++) {
        struct ibv_mr *mr;
        struct address target;
        uint8_t *memory;
        pthread_t thread;

        pair_open(&a, &b, NULL);
        pair_connect(&a, &b, NULL);
        CHECK(!posix_memalign((void **)&memory, 4096, 4096));
        memset(memory, 0, 4096);
        mr = ibv_reg_mr(b.pd, memory, 4096, ACCESS_ALL);
        CHECK(mr);
        target = (struct address){.addr = (uintptr_t)memory, .rkey = mr->rkey};
        memset(a.buf, 0x77, 4096);
        atomic_store(&writes, 0);
        CHECK(!pthread_create(&thread, NULL, write_until_refused, &target));
        while (atomic_load(&writes) < 3)
            sched_yield();
        OK(ibv_dereg_mr(mr));
        /* From here on the peer no longer writes to the memory. */
        memset(memory, 0x11, 4096);
        CHECK(!pthread_join(thread, NULL));
        CHECK(all_bytes(memory, 4096, 0x11));
        free(memory);
        pair_close(&a, &b);
    }
}

TEST_MAIN(TEST(no_lost_wakeups), TEST(one_cq_for_all), TEST(shared_cq), TEST(coming_and_going),
          TEST(region_goes_under_traffic))

/* Atomics: results, old values, and several requesters at once, including the target's own CPU. */
#include "tests/harness.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>

static struct end a, b;
static struct address of_b;

static void post_atomic(struct end *end, uint64_t wr_id, enum ibv_wr_opcode opcode, size_t result,
                        size_t target, uint64_t compare_add, uint64_t swap)
{
    struct ibv_sge sge = end_sge(end, result, 8);
    struct ibv_send_wr wr = {.wr_id = wr_id,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = opcode,
                             .send_flags = IBV_SEND_SIGNALED,
                             .wr = {.atomic = {.remote_addr = of_b.addr + target,
                                               .compare_add = compare_add,
                                               .swap = swap,
                                               .rkey = of_b.rkey}}},
                       *bad;

    OK(ibv_post_send(end->qp, &wr, &bad));
}

static uint64_t word(const struct end *end, size_t offset)
{
    return __atomic_load_n((uint64_t *)(void *)(end->buf + offset), __ATOMIC_SEQ_CST);
}

static void set_word(struct end *end, size_t offset, uint64_t value)
{
    __atomic_store_n((uint64_t *)(void *)(end->buf + offset), value, __ATOMIC_SEQ_CST);
}

static void results(void)
{
    struct ibv_wc wc;

    pair_open(&a, &b, NULL);
    pair_connect(&a, &b, NULL);
    of_b = end_address(&b);
    set_word(&b, 64, 100);
    post_atomic(&a, 1, IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 64, 23, 0);
    wc = expect_wc(a.send_cq, 1, IBV_WC_SUCCESS);
    CHECK_EQ(wc.opcode, IBV_WC_FETCH_ADD);
    CHECK_EQ(word(&a, 0), 100);
    CHECK_EQ(word(&b, 64), 123);
    post_atomic(&a, 2, IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 64, UINT64_MAX, 0); /* wraps: minus one */
    expect_wc(a.send_cq, 2, IBV_WC_SUCCESS);
    CHECK_EQ(word(&b, 64), 122);

    post_atomic(&a, 3, IBV_WR_ATOMIC_CMP_AND_SWP, 8, 64, 122, 0xdeadbeefcafef00dULL);
    wc = expect_wc(a.send_cq, 3, IBV_WC_SUCCESS);
    CHECK_EQ(wc.opcode, IBV_WC_COMP_SWAP);
    CHECK_EQ(word(&a, 8), 122);
    CHECK_EQ(word(&b, 64), 0xdeadbeefcafef00dULL);
    post_atomic(&a, 4, IBV_WR_ATOMIC_CMP_AND_SWP, 8, 64, 1, 2); /* does not match: nothing changes */
    expect_wc(a.send_cq, 4, IBV_WC_SUCCESS);
    CHECK_EQ(word(&a, 8), 0xdeadbeefcafef00dULL);
    CHECK_EQ(word(&b, 64), 0xdeadbeefcafef00dULL);
    CHECK(all_bytes(b.buf, 64, 0) && all_bytes(b.buf + 72, 64, 0));
    expect_empty(b.recv_cq);
    pair_close(&a, &b);
}

static void in_order(void)
{
    pair_open(&a, &b, &(struct end_options){.send_wr = 64, .cqe = 64});
    pair_connect(&a, &b, NULL);
    of_b = end_address(&b);
    for (uint64_t i = 0; i < 50; i++)
        post_atomic(&a, i, IBV_WR_ATOMIC_FETCH_AND_ADD, i * 8, 0, 1, 0);
    for (uint64_t i = 0; i < 50; i++) {
        expect_wc(a.send_cq, i, IBV_WC_SUCCESS);
        CHECK_EQ(word(&a, i * 8), i);
    }
    pair_close(&a, &b);
}

enum { PER_THREAD = 2000, THREADS = 3 };

static void *add_by_device(void *argument)
{
    struct end *end = argument;
    uint64_t last = 0;

    for (uint64_t i = 0; i < PER_THREAD; i++) {
        post_atomic(end, i, IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 128, 1, 0);
        expect_wc(end->send_cq, i, IBV_WC_SUCCESS);
        CHECK(!i || word(end, 0) > last);
        last = word(end, 0);
    }
    return NULL;
}

static void *add_by_cpu(void *argument)
{
    uint64_t *target = (uint64_t *)(void *)(b.buf + 128);

    (void)argument;
    for (unsigned i = 0; i < PER_THREAD; i++) {
        __atomic_fetch_add(target, 1, __ATOMIC_SEQ_CST);
        if (i % 64 == 0)
            sched_yield();
    }
    return NULL;
}

/* IBV_ATOMIC_GLOB: atomic with respect to the CPU too; IBV_ATOMIC_HCA: among QPs only. */
static void contended(void)
{
    struct ibv_device_attr attr;
    struct end ends[THREADS], targets[THREADS];
    pthread_t threads[THREADS + 1];
    uint64_t expected = THREADS * PER_THREAD;

    end_open(&b, NULL);
    of_b = end_address(&b);
    OK(ibv_query_device(b.context, &attr));
    for (size_t i = 0; i < THREADS; i++) {
        struct ibv_qp_init_attr init = {.send_cq = b.send_cq,
                                        .recv_cq = b.recv_cq,
                                        .qp_type = IBV_QPT_RC,
                                        .cap = {.max_recv_wr = 1, .max_recv_sge = 1}};

        end_open(&ends[i], NULL);
        targets[i] = b;
        targets[i].qp = ibv_create_qp(b.pd, &init);
        CHECK(targets[i].qp);
        pair_connect(&ends[i], &targets[i], NULL);
    }
    for (size_t i = 0; i < THREADS; i++)
        CHECK(!pthread_create(&threads[i], NULL, add_by_device, &ends[i]));
    if (attr.atomic_cap == IBV_ATOMIC_GLOB) {
        CHECK(!pthread_create(&threads[THREADS], NULL, add_by_cpu, NULL));
        expected += PER_THREAD;
        CHECK(!pthread_join(threads[THREADS], NULL));
    }
    for (size_t i = 0; i < THREADS; i++)
        CHECK(!pthread_join(threads[i], NULL));
    CHECK_EQ(word(&b, 128), expected);
    for (size_t i = 0; i < THREADS; i++) {
        OK(ibv_destroy_qp(targets[i].qp));
        end_close(&ends[i]);
    }
    end_close(&b);
}

TEST_MAIN(TEST(results), TEST(in_order), TEST(contended))

/* Programs that poll the last byte of what arrives, in place of its completion. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "tests/harness.h"

enum { SIZE = 1 << 16, ROUNDS = 20000 };

static struct end a, b;
static atomic_int rounds;
static atomic_bool over;

/* Waits for the last byte of each message, and looks at the first ones. What TSan would report is what is tested. */
__attribute__((no_sanitize("thread"))) static void *poll_last(void *at_end)
{
    const volatile uint8_t *first = b.buf, *last = at_end;

    for (int round = 1;; round++) {
        for (unsigned turns = 1; *last != (uint8_t)round; turns++) {
            if (atomic_load(&over))
                return NULL;
            if (turns % 1024 == 0)
                sched_yield();
        }
        for (int i = 0; i < 64; i++)
            CHECK_EQ(first[i], (uint8_t)round);
        atomic_store(&rounds, round);
    }
}

/* As latency tests and older programs do: the last byte of a message says that all of it is there. */
static void of_a_write(void)
{
    pthread_t poller;

    pair_open(&a, &b, &(struct end_options){.size = SIZE});
    pair_connect(&a, &b, NULL);
    struct address there = end_address(&b);
    memset(b.buf, 0, SIZE);
    OK(pthread_create(&poller, NULL, poll_last, b.buf + SIZE - 1));
    for (int round = 1; round <= ROUNDS && !test_takes_long(); round++) {
        memset(a.buf, round, SIZE);
        do_rdma(&a, IBV_WR_RDMA_WRITE, 0, SIZE, &there, 0);
        while (atomic_load(&rounds) < round)
            sched_yield();
    }
    atomic_store(&over, true);
    OK(pthread_join(poller, NULL));
    pair_close(&a, &b);
}

TEST_MAIN(TEST(of_a_write))

/* Whether the progress thread or polls receive packets: when the watch stops and restarts, and that no
 * thread that goes to sleep while the watch is about to stop sleeps unwatched. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>

#include "tests/harness.h"

/* Lets another thread act while one that is about to stop the watch asks for the lock. */
#define pthread_mutex_lock lock_or_cross
static int lock_or_cross(pthread_mutex_t *mutex);
#include "roce/watch.c"
#undef pthread_mutex_lock

enum { MS = 1000000, ROUNDS = TIMES(20000), LONGEST = 64 };

/* ---- what watch.c depends on --------------------------------------------------------------------------- */

static _Atomic(uint64_t) now = 5 * MS, wanted;
static atomic_bool watched = true, no_memory;

uint64_t soft_now_ns(void)
{
    return now;
}

void soft_timer_want(uint64_t when_ns)
{
    wanted = when_ns;
}

bool soft_roce_watch(bool on)
{
    if (on && no_memory)
        return false;
    watched = on;
    return true;
}

static bool crossed;

static int lock_or_cross(pthread_mutex_t *mutex)
{
    if (crossed) {
        crossed = false;
        CHECK(!roce_watch_sleeps());
    }
    return pthread_mutex_lock(mutex);
}

static void fresh(void)
{
    roce_watch_after_fork();
    roce_watch_sleeps();
    while (!roce_watch_ask())
        now += MS;
    watched = true;
    wanted = 0;
}

static void do_polls(int count, bool found)
{
    for (int i = 0; i < count; i++) {
        roce_watch_poll();
        roce_watch_looked(found);
    }
}

static void be_kept_out(int count)
{
    for (int i = 0; i < count; i++) {
        roce_watch_poll();
        roce_watch_kept_out();
    }
}

/* A program that polls for so long that no thread needs to be woken. */
static void polls_all_the_time(void)
{
    fresh();
    do_polls(OFTEN + 1, false);
    now += MS;
    do_polls(1, false);
}

/* ---- one thread --------------------------------------------------------------------------------------- */

static void stops_for_who_polls(void)
{
    fresh();
    do_polls(OFTEN + 1, false);
    CHECK(!roce_watch_stopped());
    now += MS - 1;
    do_polls(1, false);
    CHECK(!roce_watch_stopped());
    now++;
    do_polls(1, false);
    CHECK(roce_watch_stopped());
    CHECK(!watched);
    CHECK_EQ(wanted, now + MS);

    CHECK(roce_watch_sleeps());
    CHECK(!roce_watch_stopped());
    CHECK(watched);
    CHECK(!roce_watch_sleeps());
}

static void not_for_a_poll_now_and_then(void)
{
    fresh();
    do_polls(OFTEN, false);
    for (int i = 0; i < 5; i++) {
        do_polls(1, false);
        now += MS + 1;
    }
    CHECK(!roce_watch_stopped());
    /* Polls between sleeps do not stop it either, however many. */
    for (int i = 0; i < 5; i++) {
        do_polls(2 * OFTEN, false);
        now += MS - 1;
        CHECK(!roce_watch_sleeps());
    }
    CHECK(!roce_watch_stopped());
}

static void asks_whether_he_still_polls(void)
{
    polls_all_the_time();
    const uint64_t when = wanted;

    now += MS / 2;
    wanted = 0;
    CHECK(!roce_watch_ask()); /* another timer */
    CHECK_EQ(wanted, when);
    now = when;
    CHECK(!roce_watch_ask()); /* it still polls */
    CHECK_EQ(wanted, now + MS);
    do_polls(1, true); /* with packets once is enough */
    now += MS;
    CHECK(!roce_watch_ask());
    do_polls(OFTEN - 1, false);
    now += MS;
    CHECK(roce_watch_ask()); /* it no longer polls */
    CHECK(roce_watch_stopped());
    CHECK(roce_watch_sleeps());
    CHECK(watched);
}

static void hands_over_to_polls_that_are_kept_out(void)
{
    fresh();
    be_kept_out(OFTEN - 1);
    CHECK(!roce_watch_hand_over());
    do_polls(1, false); /* in a row */
    be_kept_out(1);
    CHECK(!roce_watch_hand_over());
    be_kept_out(OFTEN - 1);
    CHECK(roce_watch_hand_over());
    CHECK(roce_watch_stopped());
    CHECK(!watched);
    CHECK_EQ(wanted, now + MS);
    CHECK(!roce_watch_hand_over());

    CHECK(roce_watch_sleeps());
    be_kept_out(OFTEN);
    CHECK(!roce_watch_sleeps());
    CHECK(!roce_watch_hand_over()); /* the polling thread sleeps */
}

/* The progress thread meets a poll: whether it leaves packets to the program. */
static void leaves_packets_to_who_is_awake(void)
{
    fresh();
    do_polls(AWAKE - 1, true); /* one that is about to sleep looks once more, or twice */
    CHECK(!roce_watch_program_awake());
    CHECK(!roce_watch_leave());
    CHECK(!roce_watch_stopped());
    do_polls(1, true);
    CHECK(roce_watch_program_awake());
    CHECK(roce_watch_leave());
    CHECK(!watched);
    CHECK_EQ(wanted, now + MS);
    CHECK(roce_watch_leave()); /* as it is */

    CHECK(roce_watch_sleeps());
    CHECK(watched);
    CHECK(!roce_watch_program_awake());
    CHECK(!roce_watch_leave());
    CHECK(watched);

    do_polls(AWAKE, false);
    crossed = true; /* it goes to sleep just then */
    CHECK(roce_watch_leave());
    CHECK(!crossed);
    CHECK(watched);

    do_polls(AWAKE, false);
    CHECK(roce_watch_leave());
    now += MS;
    roce_watch_ask();
    now += MS;
    CHECK(roce_watch_ask()); /* it sleeps without saying so: for two intervals of the timer at most */
    CHECK(roce_watch_sleeps());
    CHECK(watched);
}

/* The thread that made these polls sleeps by now: only the timer would have woken it. */
static void watches_again_if_crossed_by_a_sleeper(void)
{
    fresh();
    be_kept_out(OFTEN);
    crossed = true;
    CHECK(roce_watch_hand_over());
    CHECK(!crossed);
    CHECK(!roce_watch_stopped());
    CHECK(watched);
}

static void watches_as_soon_as_there_is_memory(void)
{
    polls_all_the_time();
    no_memory = true;
    CHECK(roce_watch_sleeps());
    CHECK(roce_watch_stopped());
    no_memory = false;
    CHECK(roce_watch_sleeps());
    CHECK(!roce_watch_stopped());
    CHECK(watched);
}

/* ---- two threads -------------------------------------------------------------------------------------- */

static atomic_uint arrived;
static atomic_bool asleep, last;

/* Both threads may share one CPU. */
static void let_others(unsigned int turn)
{
    if (turn % 256 == 0)
        sched_yield();
}

static void meet(unsigned int times)
{
    atomic_fetch_add(&arrived, 1);
    for (unsigned int i = 1; atomic_load(&arrived) < 2 * times; i++)
        let_others(i);
}

static void *progress_thread(void *unused)
{
    (void)unused;
    for (unsigned int i = 0; !atomic_load(&last); i++) {
        meet(2 * i + 1);
        for (unsigned int k = 1; !atomic_load(&asleep); k++) {
            if (k % 2)
                roce_watch_hand_over();
            else
                roce_watch_leave();
            if (roce_watch_stopped() && roce_watch_ask())
                roce_watch_sleeps();
            let_others(k);
        }
        meet(2 * i + 2);
    }
    return NULL;
}

/* One polls, is kept out, and eventually goes to sleep; the other hands over meanwhile. */
static void nobody_sleeps_unwatched(void)
{
    pthread_t thread;
    unsigned int before = 0;

    fresh();
    OK(pthread_create(&thread, NULL, progress_thread, NULL));
    for (unsigned int i = 0; !atomic_load(&last); i++) {
        atomic_store(&asleep, false);
        meet(2 * i + 1);
        now += MS / 4;
        do_polls((int)(i % 3) * OFTEN, i % 2);
        be_kept_out(OFTEN + (int)(i % 7));
        for (unsigned int k = 0; k < i % LONGEST; k++)
            atomic_thread_fence(memory_order_seq_cst);
        before += roce_watch_sleeps();
        atomic_store(&asleep, true);
        atomic_store(&last, i + 1 == ROUNDS || (before && test_takes_long()));
        meet(2 * i + 2);
        CHECK(!roce_watch_stopped());
        CHECK(watched);
    }
    OK(pthread_join(thread, NULL));
    CHECK(before); /* handed over before it slept, now and then */
}

TEST_MAIN(TEST(stops_for_who_polls), TEST(not_for_a_poll_now_and_then), TEST(asks_whether_he_still_polls),
          TEST(hands_over_to_polls_that_are_kept_out), TEST(leaves_packets_to_who_is_awake),
          TEST(watches_again_if_crossed_by_a_sleeper), TEST(watches_as_soon_as_there_is_memory),
          TEST(nobody_sleeps_unwatched))

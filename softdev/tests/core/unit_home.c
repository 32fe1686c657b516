/* The lock of the directory for sockets: a process that never lets it go stops no other one for long. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/internal.h"
#include "tests/harness.h"

enum { CALLS = 30, WAIT_NS = 8000000, IMPATIENT_NS = 1000000000 };

/* The time is this test's: it moves by the pauses alone, however long the machine takes for the calls. */
static int64_t now_ns = 1000000000;
static int64_t paused_ns;

int clock_gettime(clockid_t clock, struct timespec *now)
{
    (void)clock;
    now->tv_sec = now_ns / 1000000000;
    now->tv_nsec = now_ns % 1000000000;
    return 0;
}

int nanosleep(const struct timespec *pause, struct timespec *left)
{
    const int64_t ns = pause->tv_sec * INT64_C(1000000000) + pause->tv_nsec;

    (void)left;
    now_ns += ns;
    paused_ns += ns;
    return 0;
}

/* A process that has the lock when this returns, and stops there. */
static pid_t stopped_holder(void)
{
    int told[2];
    char byte;

    CHECK(!pipe(told));
    const pid_t child = fork();
    if (!child) {
        CHECK(!prctl(PR_SET_PDEATHSIG, SIGKILL)); /* a test that fails leaves nobody who has its output */
        if (soft_home_lock() >= 0 && write(told[1], "x", 1) == 1)
            raise(SIGSTOP);
        _exit(1);
    }
    CHECK(child > 0);
    close(told[1]);
    CHECK(read(told[0], &byte, 1) == 1);
    close(told[0]);
    return child;
}

static void a_stopped_process_has_the_lock(void)
{
    const pid_t child = stopped_holder();

    for (int round = 0; round < 2; round++) {
        const int64_t before = paused_ns;

        for (int n = 0; n < CALLS; n++)
            CHECK(soft_home_lock() < 0);
        CHECK_EQ(paused_ns - before, WAIT_NS); /* once for all of them */
        now_ns += IMPATIENT_NS;
    }
    kill(child, SIGKILL);
    CHECK(waitpid(child, NULL, 0) == child);
    /* The kernel has taken the lock from the dead. */
    const int fd = soft_home_lock();
    CHECK(fd >= 0);
    close(fd);
}

static void the_lock_is_waited_for(void)
{
    const int fd = soft_home_lock();

    CHECK(fd >= 0);
    CHECK(soft_home_lock() < 0); /* of another open file, also in the same process */
    close(fd);
    for (int n = 0; n < CALLS; n++) {
        const int again = soft_home_lock();
        CHECK(again >= 0);
        close(again);
    }
}

TEST_MAIN(TEST(a_stopped_process_has_the_lock), TEST(the_lock_is_waited_for))

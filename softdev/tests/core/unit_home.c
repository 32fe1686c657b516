/* The lock of the directory for sockets: a process that never lets it go stops no other one for long. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/internal.h"
#include "tests/harness.h"

enum { CALLS = 30 };

static double seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* A process that has the lock when this returns, and stops there. */
static pid_t stopped_holder(void)
{
    int told[2];
    char byte;

    CHECK(!pipe(told));
    const pid_t child = fork();
    if (!child) {
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
    const double began = seconds();

    for (int n = 0; n < CALLS; n++)
        CHECK(soft_home_lock() < 0);
    /* One wait of 8 ms for all of them, on a machine that may have much else to do. */
    CHECK(seconds() - began < CALLS / 3);
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

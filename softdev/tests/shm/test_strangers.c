/* Processes of other PID namespaces, whose numbers the kernel does not tell: all together, they take a bounded number of
 * this process' descriptors. Needs root. */
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "raw_peer.h"
#include "tests/harness.h"

/* A_FEW: the device opens a file of /proc for a moment. */
enum { CONNECTIONS = 600, MOST = 256, A_FEW = 8, WAIT_MS = 60000 };

/* The first process of another namespace, where the others have no number. */
static void victim(int fd, void *argument)
{
    struct end end;
    char byte;

    (void)argument;
    end_open(&end, NULL);
    const unsigned before = (unsigned)test_count_fds();
    const uint32_t slot = end.qp->qp_num >> SOFT_QPN_INDEX_BITS;
    give(fd, &slot, sizeof slot);
    take(fd, &byte, 1);
    const unsigned more = (unsigned)test_count_fds() - before;
    if (more > MOST + A_FEW)
        FAIL("%u descriptors more", more);
    CHECK(more > 0);
    end_close(&end);
}

/* Stays in this namespace, unlike its children. */
static void attacker(int fd, void *argument)
{
    static int fds[CONNECTIONS];
    uint32_t slot;

    (void)argument;
    const bool can = !unshare(CLONE_NEWPID);
    give(fd, &can, sizeof can);
    if (!can)
        return;
    struct child child = child_start(victim, NULL);
    take(child.fd, &slot, sizeof slot);
    for (int i = 0; i < CONNECTIONS; i++) {
        fds[i] = raw_connect(slot);
        CHECK(fds[i] >= 0);
    }
    /* Those that it does not want have ended. */
    for (int i = MOST; i < CONNECTIONS; i++) {
        struct pollfd ended = {fds[i], POLLIN, 0};
        CHECK_EQ(poll(&ended, 1, WAIT_MS), 1);
        CHECK(ended.revents & POLLHUP);
    }
    give(child.fd, "c", 1);
    child_join(&child);
}

static void take_no_more_descriptors(void)
{
    struct child child = child_start(attacker, NULL);
    bool can;

    take(child.fd, &can, sizeof can);
    child_join(&child);
    if (!can) {
        fprintf(stderr, "no PID namespaces\n");
        exit(77);
    }
}

TEST_MAIN(TEST(take_no_more_descriptors))

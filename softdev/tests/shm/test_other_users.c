/* A peer that is another user's process of this host: no shared memory, and the program hears why. By packets it is reached.
 * Needs root. */
#include "tests/harness.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { NOBODY = 65534 };

static void end_of_nobody(int fd, void *unused)
{
    struct end end;
    char byte;

    (void)unused;
    CHECK(!setgid(NOBODY) && !setuid(NOBODY));
    end_open(&end, NULL);
    end_to_init(&end, 0);
    post_recv(&end, 1, 0, 64);
    const struct address peer = exchange(fd, &end);
    end_connect(&end, &peer, NULL);
    rendezvous(fd);
    take(fd, &byte, 1);
    end_close(&end);
}

static struct child child;
static struct end end;

static void meet(void)
{
    struct connect_options options = CONNECT_DEFAULTS;

    options.timeout = 10; /* four milliseconds */
    options.retry_cnt = 1;
    child = child_start(end_of_nobody, NULL);
    end_open(&end, NULL);
    const struct address peer = exchange(child.fd, &end);
    end_connect(&end, &peer, &options);
    rendezvous(child.fd);
}

static void part(void)
{
    give(child.fd, "e", 1);
    child_join(&child);
    end_close(&end);
}

static void it_is_said_body(void)
{
    char said[1000] = {0};
    const int file = memfd_create("said", MFD_CLOEXEC), before = dup(STDERR_FILENO);

    CHECK(file >= 0 && before >= 0);
    meet();
    CHECK(dup2(file, STDERR_FILENO) >= 0);
    post_send(&end, 7, 0, 64, IBV_SEND_SIGNALED);
    const struct ibv_wc wc = next_wc(end.send_cq);
    CHECK(dup2(before, STDERR_FILENO) >= 0);
    CHECK_EQ(wc.status, IBV_WC_RETRY_EXC_ERR);
    CHECK(pread(file, said, sizeof said - 1, 0) > 0);
    CHECK(strstr(said, "another user (65534)"));
    CHECK(strstr(said, "SOFTDEV_WIRE=only"));
    part();
}

static void packets_reach_it_body(void)
{
    CHECK(!setenv("SOFTDEV_WIRE", "only", 1));
    meet();
    do_send(&end, 0, 64);
    part();
}

/* Each in a process of its own: a process has one setting. */
static void it_is_said(void)
{
    run_as(NULL, it_is_said_body);
}

static void packets_reach_it(void)
{
    run_as(NULL, packets_reach_it_body);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {TEST(it_is_said), TEST(packets_reach_it)};

    if (geteuid())
        return 77;
    return test_main(argc, argv, tests, sizeof tests / sizeof *tests);
}

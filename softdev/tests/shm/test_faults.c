/* Faults of another process: a port that is down at one end only, by hand, through the socket for faults. */
#include "tests/harness.h"

#include "softdev.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* A socket by which to ask that process. */
static int dial(int pid)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX}, own = {.sun_family = AF_UNIX};
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const int n = snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "softdev-control-%u-%d",
                           (unsigned int)getuid(), pid);

    CHECK(fd >= 0);
    OK(bind(fd, (struct sockaddr *)&own, sizeof own.sun_family));
    OK(connect(fd, (struct sockaddr *)&name,
               (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n)));
    return fd;
}

static int ask_bytes(int pid, const void *request, size_t size, char *answer, size_t room)
{
    const int fd = dial(pid);

    CHECK_EQ(send(fd, request, size, 0), size);
    const ssize_t got = recv(fd, answer, room - 1, 0);
    CHECK(got >= 4);
    answer[got] = 0;
    close(fd);
    return (int)strtol(answer, NULL, 10);
}

static int ask(int pid, const char *request)
{
    char answer[10000];

    return ask_bytes(pid, request, strlen(request), answer, sizeof answer);
}

/* Has one end, and does what it is told: 'r': receives; 'q': ends. */
static void other(int fd, void *slab)
{
    struct end_options options = {.slab = slab != NULL, .recv_wr = 64, .cqe = 128};
    struct end end;
    char byte;

    end_open(&end, &options);
    end_to_init(&end, 0);
    for (uint64_t i = 0; i < 32; i++)
        post_recv(&end, i, 0, 64);
    struct address peer = exchange(fd, &end);
    end_connect(&end, &peer, NULL);
    give(fd, "c", 1);
    do
        take(fd, &byte, 1);
    while (byte != 'q');
    end_close(&end);
}

static struct child child;
static struct end end;
static struct address peer;

static void start(const struct connect_options *options, void *slab)
{
    char byte;

    child = child_start(other, slab);
    end_open(&end, NULL);
    peer = exchange(child.fd, &end);
    end_connect(&end, &peer, options);
    take(child.fd, &byte, 1);
    do_send(&end, 0, 64);
}

static void finish(void)
{
    give(child.fd, "q", 1);
    child_join(&child);
    end_close(&end);
}

/* What is sent meanwhile arrives afterwards: nothing of it earlier, by the ring or into mapped memory. */
static void flap(void *slab)
{
    struct connect_options options = CONNECT_DEFAULTS;
    struct ibv_wc wc;

    options.timeout = 20;
    start(&options, slab);
    for (int i = 0; i < 100; i++)
        do_rdma(&end, IBV_WR_RDMA_WRITE, 0, 64, &peer, 0);
    OK(ask(child.pid, "port=down"));
    post_rdma(&end, 7, IBV_WR_RDMA_WRITE, 0, 64, &peer, 0, IBV_SEND_SIGNALED);
    post_send(&end, 8, 0, 64, IBV_SEND_SIGNALED);
    for (int i = 0; i < 100000; i++)
        CHECK_EQ(ibv_poll_cq(end.send_cq, 1, &wc), 0);
    OK(ask(child.pid, "clear"));
    expect_wc(end.send_cq, 7, IBV_WC_SUCCESS);
    expect_wc(end.send_cq, 8, IBV_WC_SUCCESS);
    finish();
}

static void a_flap_by_the_ring(void)
{
    flap(NULL);
}

static void a_flap_of_mapped_memory(void)
{
    flap("slab");
}

/* The requester's retries end, whether it polls or not. */
static void too_long(void)
{
    struct connect_options options = CONNECT_DEFAULTS;

    options.timeout = 14;
    options.retry_cnt = 1;
    start(&options, NULL);
    OK(ask(child.pid, "port=down"));
    post_send(&end, 8, 0, 64, IBV_SEND_SIGNALED);
    expect_wc(end.send_cq, 8, IBV_WC_RETRY_EXC_ERR);
    finish();
}

/* A message is in the ring already when the port goes down: it is not taken, and fails as well. */
static void in_flight(void)
{
    struct connect_options options = CONNECT_DEFAULTS;

    options.timeout = 14;
    options.retry_cnt = 1;
    start(&options, NULL);
    OK(ask(child.pid, "slow=1m"));
    do_send(&end, 0, 64); /* the last one for a minute */
    post_send(&end, 8, 0, 64, IBV_SEND_SIGNALED);
    OK(ask(child.pid, "port=down"));
    expect_wc(end.send_cq, 8, IBV_WC_RETRY_EXC_ERR);
    finish();
}

static void bytes_are_checked(void)
{
    static const char zero[] = "port=down\0 for=2s";
    char answer[10000], big[5000];

    start(NULL, NULL);
    CHECK_EQ(ask_bytes(child.pid, "port=left", 9, answer, sizeof answer), EINVAL);
    CHECK(strstr(answer, "down or up"));
    CHECK_EQ(ask_bytes(child.pid, zero, sizeof zero - 1, answer, sizeof answer), EINVAL);
    CHECK_EQ(ask_bytes(child.pid, "", 0, answer, sizeof answer), 0);
    memset(big, 'x', sizeof big);
    CHECK_EQ(ask_bytes(child.pid, big, sizeof big, answer, sizeof answer), EMSGSIZE);
    CHECK_EQ(ask_bytes(child.pid, big, 1000, answer, sizeof answer), EINVAL);
    /* "@" reads files for the process itself, and for nobody else. */
    CHECK_EQ(ask_bytes(child.pid, "@/etc/passwd", 12, answer, sizeof answer), EINVAL);
    CHECK_EQ(ask_bytes(child.pid, "list", 4, answer, sizeof answer), 0);
    CHECK(strstr(answer, "no faults") && strstr(answer, "RC RTS"));
    do_send(&end, 0, 64);
    finish();
}

TEST_MAIN(TEST(a_flap_by_the_ring), TEST(a_flap_of_mapped_memory), TEST(too_long), TEST(in_flight),
          TEST(bytes_are_checked))

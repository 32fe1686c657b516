/* The clock on the wall jumps by an hour whenever somebody looks at it. Nothing may wait for it. */
#include "softdev.h"
#include "tests/harness.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* The device's calls come here, too. */
int clock_gettime(clockid_t clock, struct timespec *now)
{
    static _Atomic(int) hours;
    int result = (int)syscall(SYS_clock_gettime, clock, now);

    if (clock == CLOCK_REALTIME)
        now->tv_sec += 3600 * ++hours;
    return result;
}

static atomic_bool kept;

/* So do these. While `kept`, the connection manager's thread hears of something and gets no processor. */
int epoll_wait(int fd, struct epoll_event *events, int most, int timeout)
{
    int n = (int)syscall(SYS_epoll_pwait, fd, events, most, timeout, NULL, 8);
    char name[16] = "";

    prctl(PR_GET_NAME, name);
    while (atomic_load(&kept) && !strcmp(name, "softdev-cm"))
        usleep(100);
    return n;
}

struct reader {
    struct rdma_event_channel *channel;
    int to_test[2], to_reader[2];
};

/* Takes one event, and does not come back for another. */
static void *read_one(void *argument)
{
    struct reader *reader = argument;
    struct rdma_cm_event *event;
    char byte;

    OK(rdma_get_cm_event(reader->channel, &event));
    OK(rdma_ack_cm_event(event));
    CHECK_EQ(write(reader->to_test[1], "r", 1), 1);
    CHECK_EQ(read(reader->to_reader[0], &byte, 1), 1);
    return NULL;
}

/* The thread that read from it last gets a moment to return to its wait, and no more. */
static void a_channel_ends_soon(void)
{
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct reader reader = {.channel = rdma_create_event_channel()};
    struct rdma_cm_id *id;
    pthread_t thread;
    char byte;

    CHECK(reader.channel && !pipe(reader.to_test) && !pipe(reader.to_reader));
    OK(rdma_create_id(reader.channel, &id, NULL, RDMA_PS_TCP));
    OK(pthread_create(&thread, NULL, read_one, &reader));
    OK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&here, 10000));
    CHECK_EQ(read(reader.to_test[0], &byte, 1), 1);
    OK(rdma_destroy_id(id));
    rdma_destroy_event_channel(reader.channel);
    CHECK_EQ(write(reader.to_reader[1], "e", 1), 1);
    OK(pthread_join(thread, NULL));
}

/* With a retry timeout, which ends by the monotonic clock. */
static void time_limits(void)
{
    static const struct connect_options brief = {
        .rnr_retry = 7, .retry_cnt = 1, .timeout = 12, .min_rnr_timer = 1, .max_rd_atomic = 1};
    struct end a, b;

    pair_open(&a, &b, NULL);
    struct address peer = end_address(&b);
    end_connect(&a, &peer, &brief); /* and not b */
    post_send(&a, 1, 0, 8, IBV_SEND_SIGNALED);
    expect_wc(a.send_cq, 1, IBV_WC_RETRY_EXC_ERR);
    pair_close(&a, &b);
}

static struct rdma_cm_id *next_is(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
    struct rdma_cm_event *event;

    OK(rdma_get_cm_event(channel, &event));
    CHECK_EQ(event->event, type);
    struct rdma_cm_id *id = event->id;
    OK(rdma_ack_cm_event(event));
    return id;
}

/* A request that nobody answers is repeated by the clock that the program moves: after 250 ms, and more and more. (The
 * listener's process lives, and says that it takes longer. So it is not given up.) The thread that waits for messages has
 * no part in it: a busy machine may let it run only after the last move. */
static void repeated_by_the_programs_clock(bool without_thread)
{
    enum { MOVES = 40 };
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct rdma_event_channel *channel = rdma_create_event_channel(), *others = rdma_create_event_channel();
    struct rdma_conn_param param = {.qp_num = 7, .retry_count = 7};
    struct rdma_cm_id *listener, *id;
    uint64_t now = 1;
    int moves = 0;

    CHECK(channel && others);
    OK(rdma_create_id(others, &listener, NULL, RDMA_PS_TCP));
    OK(rdma_bind_addr(listener, (struct sockaddr *)&here));
    OK(rdma_listen(listener, 1));
    here.sin_port = rdma_get_src_port(listener);
    softdev_clock(now);
    OK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
    OK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&here, 10000));
    next_is(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
    OK(rdma_resolve_route(id, 10000));
    next_is(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
    OK(rdma_connect(id, &param));
    next_is(others, RDMA_CM_EVENT_CONNECT_REQUEST); /* and says nothing */
    atomic_store(&kept, without_thread);
    while (moves < MOVES) {
        const uint64_t due = softdev_clock(now);
        CHECK(!readable(channel->fd));
        if (due == UINT64_MAX)
            continue; /* the connection manager's thread is about to say it */
        if (!moves++)
            CHECK_EQ(due, 1 + UINT64_C(250000000));
        now = due;
        softdev_clock(now);
    }
    CHECK(now > UINT64_C(20000000000));
    atomic_store(&kept, false);
    OK(rdma_destroy_id(id));
    OK(rdma_destroy_id(listener));
    rdma_destroy_event_channel(channel);
    softdev_clock(0);
}

static void by_the_programs_clock(void)
{
    repeated_by_the_programs_clock(false);
}

static void by_the_programs_clock_alone(void)
{
    repeated_by_the_programs_clock(true);
}

TEST_MAIN(TEST(a_channel_ends_soon), TEST(time_limits), TEST(by_the_programs_clock),
          TEST(by_the_programs_clock_alone))

/* Faults that last or strike once: ports, addresses, the link's MTU, slow peers, queue pairs that die, events; and
 * completions that are lost, late, or come twice. Most by a clock that the test moves. */
#include "tests/harness.h"

#include "softdev.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SECOND = 1000000000 };

static struct end a, b;
static uint64_t now = 1;

static void fault(const char *request)
{
    char answer[200];

    if (softdev_fault(request, answer, sizeof answer))
        FAIL("%s: %s", request, answer);
}

/* Moves the clock; the time of the next change. */
static uint64_t later(uint64_t by)
{
    now += by;
    return softdev_clock(now);
}

static void open_pair(const struct connect_options *options)
{
    OK(softdev_faults(NULL));
    later(1);
    pair_open(&a, &b, NULL);
    pair_connect(&a, &b, options);
}

static void close_pair(void)
{
    OK(softdev_faults(NULL));
    pair_close(&a, &b);
    softdev_clock(0);
}

static enum ibv_event_type next_event(struct ibv_context *context)
{
    struct ibv_async_event event;

    OK(ibv_get_async_event(context, &event));
    ibv_ack_async_event(&event);
    return event.event_type;
}

static enum ibv_port_state port_state(const struct end *end)
{
    struct ibv_port_attr attr;

    OK(ibv_query_port(end->context, 1, &attr));
    return attr.state;
}

/* Many looks: nothing comes by itself where time stands still. */
static void expect_nothing(struct ibv_cq *cq)
{
    for (int i = 0; i < 1000; i++)
        expect_empty(cq);
}

static void a_flap_holds_messages_back(void)
{
    struct connect_options options = CONNECT_DEFAULTS;

    options.timeout = 20; /* eight times 4.3 s */
    open_pair(&options);
    post_recv(&b, 1, 0, 64);
    fault("at=1s port=down for=2s");
    CHECK_EQ(softdev_clock(now), now + SECOND);
    CHECK_EQ(port_state(&a), IBV_PORT_ACTIVE);
    CHECK_EQ(later(SECOND), now + 2 * (uint64_t)SECOND);
    CHECK_EQ(port_state(&a), IBV_PORT_DOWN);
    CHECK_EQ(next_event(a.context), IBV_EVENT_PORT_ERR);
    post_send(&a, 2, 0, 64, IBV_SEND_SIGNALED);
    expect_nothing(a.send_cq);
    expect_nothing(b.recv_cq);
    later(2 * (uint64_t)SECOND);
    CHECK_EQ(port_state(&a), IBV_PORT_ACTIVE);
    CHECK_EQ(next_event(a.context), IBV_EVENT_PORT_ACTIVE);
    expect_wc(a.send_cq, 2, IBV_WC_SUCCESS);
    expect_wc(b.recv_cq, 1, IBV_WC_SUCCESS);
    close_pair();
}

static void retries_end(void)
{
    struct connect_options options = CONNECT_DEFAULTS;

    options.timeout = 14; /* 67 ms */
    options.retry_cnt = 2;
    open_pair(&options);
    post_recv(&b, 1, 0, 64);
    fault("port=down");
    post_send(&a, 2, 0, 64, IBV_SEND_SIGNALED);
    const uint64_t due = softdev_clock(now);
    CHECK_EQ(due, now + 3 * (UINT64_C(4096) << 14));
    later(due - now - 1);
    expect_nothing(a.send_cq);
    later(1);
    expect_wc(a.send_cq, 2, IBV_WC_RETRY_EXC_ERR);
    CHECK_EQ(end_state(&a), IBV_QPS_ERR);
    CHECK_EQ(end_state(&b), IBV_QPS_RTS);
    close_pair();
}

static void flaps_repeat(void)
{
    open_pair(NULL);
    fault("port=down for=10ms every=1s");
    for (int i = 0; i < 5; i++) {
        CHECK_EQ(next_event(a.context), IBV_EVENT_PORT_ERR);
        later(10000000);
        CHECK_EQ(next_event(a.context), IBV_EVENT_PORT_ACTIVE);
        later(SECOND - 10000000);
    }
    CHECK_EQ(next_event(a.context), IBV_EVENT_PORT_ERR);
    close_pair();
}

/* One that would be over by the next look is seen all the same. */
static void no_fault_is_skipped(void)
{
    open_pair(NULL);
    fault("at=1s port=down for=1ms");
    later(10 * (uint64_t)SECOND);
    CHECK_EQ(next_event(a.context), IBV_EVENT_PORT_ERR);
    CHECK_EQ(next_event(a.context), IBV_EVENT_PORT_ACTIVE);
    CHECK_EQ(port_state(&a), IBV_PORT_ACTIVE);
    close_pair();
}

static void of_one_device(void)
{
    open_pair(NULL);
    fault("port=down device=soft1");
    CHECK_EQ(port_state(&a), IBV_PORT_ACTIVE);
    fault("port=down device=soft0");
    CHECK_EQ(port_state(&a), IBV_PORT_DOWN);
    fault("port=up for=1s");
    CHECK_EQ(port_state(&a), IBV_PORT_ACTIVE);
    later(SECOND);
    CHECK_EQ(port_state(&a), IBV_PORT_DOWN);
    close_pair();
}

static void an_address_goes(void)
{
    union ibv_gid zero = {.raw = {0}}, gid;

    open_pair(NULL);
    fault("gid=0 for=1s");
    CHECK_EQ(next_event(a.context), IBV_EVENT_GID_CHANGE);
    OK(ibv_query_gid(a.context, 1, 0, &gid));
    CHECK(!memcmp(&gid, &zero, sizeof gid));
    struct ibv_ah_attr attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = b.gid}};
    CHECK(!ibv_create_ah(a.pd, &attr));
    later(SECOND);
    CHECK_EQ(next_event(a.context), IBV_EVENT_GID_CHANGE);
    OK(ibv_query_gid(a.context, 1, 0, &gid));
    CHECK(!memcmp(&gid, &a.gid, sizeof gid));
    close_pair();
}

static void the_link_gets_narrow(void)
{
    struct connect_options options = CONNECT_DEFAULTS;
    struct ibv_port_attr attr;

    options.timeout = 10;
    open_pair(&options); /* path MTU 1024 */
    fault("mtu=512");
    OK(ibv_query_port(a.context, 1, &attr));
    CHECK_EQ(attr.active_mtu, IBV_MTU_512);
    post_recv(&b, 1, 0, 4096);
    do_send(&a, 0, 512);
    expect_wc(b.recv_cq, 1, IBV_WC_SUCCESS);
    post_recv(&b, 2, 0, 4096);
    post_send(&a, 3, 0, 513, IBV_SEND_SIGNALED);
    expect_nothing(a.send_cq);
    later(SECOND);
    expect_wc(a.send_cq, 3, IBV_WC_RETRY_EXC_ERR);
    close_pair();
}

static void a_slow_device(void)
{
    open_pair(NULL);
    fault("slow=5ms");
    for (uint64_t i = 0; i < 3; i++)
        post_recv(&b, i, 0, 64);
    for (uint64_t i = 0; i < 3; i++)
        post_send(&a, i, 0, 64, IBV_SEND_SIGNALED);
    for (uint64_t i = 0; i < 3; i++) {
        expect_wc(a.send_cq, i, IBV_WC_SUCCESS);
        expect_wc(b.recv_cq, i, IBV_WC_SUCCESS);
        expect_nothing(a.send_cq);
        later(5000000);
    }
    close_pair();
}

static void a_queue_pair_dies(void)
{
    char request[40];

    open_pair(NULL);
    post_recv(&b, 1, 0, 64);
    snprintf(request, sizeof request, "qp=0x%x", b.qp->qp_num);
    fault(request);
    CHECK_EQ(end_state(&b), IBV_QPS_ERR);
    CHECK_EQ(end_state(&a), IBV_QPS_RTS);
    CHECK_EQ(next_event(b.context), IBV_EVENT_QP_FATAL);
    expect_wc(b.recv_cq, 1, IBV_WC_WR_FLUSH_ERR);
    /* It is dead already: who has mistyped a number hears of it. */
    CHECK_EQ(softdev_fault(request, NULL, 0), ENOENT);
    fault("qp=any");
    CHECK_EQ(end_state(&a), IBV_QPS_ERR);
    CHECK_EQ(softdev_fault("qp=any", NULL, 0), ENOENT);
    CHECK_EQ(softdev_fault("qp=0x1 for=1s", NULL, 0), ENOENT);
    fault("qp=any at=1s"); /* there may be one by then */
    close_pair();
}

static void events_alone(void)
{
    open_pair(NULL);
    fault("async=lid_change");
    CHECK_EQ(next_event(a.context), IBV_EVENT_LID_CHANGE);
    fault("at=1s async=device_fatal");
    CHECK(!readable(a.context->async_fd));
    later(SECOND);
    CHECK_EQ(next_event(a.context), IBV_EVENT_DEVICE_FATAL);
    close_pair();
}

static void completions_get_lost(void)
{
    open_pair(NULL);
    fault("cqe_lost=1 for=1s");
    post_recv(&b, 1, 0, 64);
    post_send(&a, 2, 0, 64, IBV_SEND_SIGNALED);
    expect_nothing(a.send_cq);
    expect_nothing(b.recv_cq);
    later(SECOND);
    expect_nothing(a.send_cq);
    post_recv(&b, 3, 0, 64);
    do_send(&a, 0, 64);
    expect_wc(b.recv_cq, 3, IBV_WC_SUCCESS);
    close_pair();
}

static void completions_come_twice(void)
{
    open_pair(NULL);
    fault("cqe_twice=1");
    post_recv(&b, 1, 0, 64);
    post_send(&a, 2, 0, 64, IBV_SEND_SIGNALED);
    for (int i = 0; i < 2; i++) {
        expect_wc(a.send_cq, 2, IBV_WC_SUCCESS);
        expect_wc(b.recv_cq, 1, IBV_WC_SUCCESS);
    }
    expect_nothing(b.recv_cq);
    close_pair();
}

static void completions_come_late(void)
{
    open_pair(NULL);
    fault("cqe_late=1 late=20ms for=1ms");
    post_recv(&b, 1, 0, 64);
    post_send(&a, 2, 0, 64, IBV_SEND_SIGNALED);
    later(1000000);
    /* None overtakes them, also when the fault is over. */
    post_recv(&b, 3, 0, 64);
    post_send(&a, 4, 0, 64, IBV_SEND_SIGNALED);
    expect_nothing(a.send_cq);
    expect_nothing(b.recv_cq);
    CHECK_EQ(later(18000000), now + 1000000);
    expect_nothing(a.send_cq);
    later(1000000);
    expect_wc(a.send_cq, 2, IBV_WC_SUCCESS);
    expect_wc(a.send_cq, 4, IBV_WC_SUCCESS);
    expect_wc(b.recv_cq, 1, IBV_WC_SUCCESS);
    expect_wc(b.recv_cq, 3, IBV_WC_SUCCESS);
    close_pair();
}

static void late_ones_go_with_their_queue_pair(void)
{
    open_pair(NULL);
    fault("cqe_late=1 late=20ms");
    post_recv(&b, 1, 0, 64);
    post_send(&a, 2, 0, 64, IBV_SEND_SIGNALED);
    expect_nothing(a.send_cq);
    OK(ibv_destroy_qp(a.qp));
    a.qp = NULL;
    later(SECOND);
    expect_empty(a.send_cq);
    expect_wc(b.recv_cq, 1, IBV_WC_SUCCESS);
    close_pair();
}

/* In real time: the requester waits by its own timer. */
static void receivers_are_not_ready(void)
{
    struct connect_options options = CONNECT_DEFAULTS;

    options.rnr_retry = 2;
    OK(softdev_faults(NULL));
    pair_open(&a, &b, NULL);
    pair_connect(&a, &b, &options);
    post_recv(&b, 1, 0, 64);
    const uint64_t before = softdev_rnr();
    fault("rnr=1");
    post_send(&a, 2, 0, 64, IBV_SEND_SIGNALED);
    expect_wc(a.send_cq, 2, IBV_WC_RNR_RETRY_EXC_ERR);
    CHECK(softdev_rnr() > before);
    close_pair();

    open_pair(NULL); /* repeats without end */
    post_recv(&b, 1, 0, 64);
    fault("rnr=1 for=1s");
    post_send(&a, 2, 0, 64, IBV_SEND_SIGNALED);
    expect_nothing(a.send_cq);
    later(SECOND);
    expect_wc(a.send_cq, 2, IBV_WC_SUCCESS);
    expect_wc(b.recv_cq, 1, IBV_WC_SUCCESS);
    close_pair();
}

static void work_requests_are_not_answered(void)
{
    open_pair(NULL);
    fault("retry=1");
    post_send(&a, 2, 0, 64, IBV_SEND_SIGNALED);
    expect_wc(a.send_cq, 2, IBV_WC_RETRY_EXC_ERR);
    close_pair();
}

static void lists_and_clears(void)
{
    char answer[8192];

    open_pair(NULL);
    fault("port=down at=1m");
    fault("slow=5ms for=2s");
    OK(softdev_fault("list", answer, sizeof answer));
    CHECK(strstr(answer, "port=down at=1m (begins in 60.000 s)"));
    CHECK(strstr(answer, "slow=5ms for=2s (now, 2.000 s left)"));
    CHECK(strstr(answer, "RC RTS to 0x"));
    const unsigned int number = (unsigned int)strtoul(answer, NULL, 10);
    char request[40];
    snprintf(request, sizeof request, "clear %u", number);
    OK(softdev_fault(request, answer, sizeof answer));
    CHECK_EQ(softdev_fault(request, answer, sizeof answer), ENOENT);
    OK(softdev_fault("clear", NULL, 0));
    OK(softdev_fault("list", answer, sizeof answer));
    CHECK(strstr(answer, "no faults"));
    CHECK_EQ(softdev_fault("clear x", answer, sizeof answer), EINVAL);
    CHECK_EQ(softdev_fault("port=left", answer, sizeof answer), EINVAL);
    CHECK(strstr(answer, "down or up"));
    for (int i = 0; i < 64; i++)
        fault("at=1m port=down");
    CHECK_EQ(softdev_fault("at=1m port=down", answer, sizeof answer), ENOSPC);
    /* Never more than there is room for. */
    memset(answer, 'x', sizeof answer);
    OK(softdev_fault("list", answer, 10));
    CHECK(memchr(answer, 0, 10));
    CHECK_EQ(answer[10], 'x');
    close_pair();
}

static void a_plan_from_a_file(void)
{
    static const char plan[] = "seed = 7   # the same each time\n"
                               "[[fault]]\nat = \"1s\"\nport = \"down\"\nfor = '2s'\n"
                               "[[fault]]\nmtu = 1024\n";
    char path[] = "/tmp/softdev-plan-XXXXXX", spec[64];
    const int fd = mkstemp(path);
    struct ibv_port_attr attr;

    CHECK(fd >= 0 && write(fd, plan, sizeof plan - 1) == (ssize_t)sizeof plan - 1);
    close(fd);
    open_pair(NULL);
    snprintf(spec, sizeof spec, "@%s", path);
    OK(softdev_faults(spec));
    unlink(path);
    OK(ibv_query_port(a.context, 1, &attr));
    CHECK_EQ(attr.active_mtu, IBV_MTU_1024);
    CHECK_EQ(attr.state, IBV_PORT_ACTIVE);
    later(SECOND);
    CHECK_EQ(port_state(&a), IBV_PORT_DOWN);
    later(2 * (uint64_t)SECOND);
    CHECK_EQ(port_state(&a), IBV_PORT_ACTIVE);
    close_pair();
}

TEST_MAIN(TEST(a_flap_holds_messages_back), TEST(retries_end), TEST(flaps_repeat), TEST(no_fault_is_skipped),
          TEST(of_one_device), TEST(an_address_goes), TEST(the_link_gets_narrow), TEST(a_slow_device),
          TEST(a_queue_pair_dies), TEST(events_alone), TEST(completions_get_lost),
          TEST(completions_come_twice), TEST(completions_come_late), TEST(late_ones_go_with_their_queue_pair),
          TEST(receivers_are_not_ready), TEST(work_requests_are_not_answered), TEST(lists_and_clears),
          TEST(a_plan_from_a_file))

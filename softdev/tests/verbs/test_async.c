/* Asynchronous events: queueing, acknowledgement, destruction, non-blocking descriptors. */
#include "tests/harness.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

static struct end a, b;

static void break_b(void)
{
    struct address of_b = end_address(&b);

    of_b.rkey ^= 1;
    post_rdma(&a, 1, IBV_WR_RDMA_WRITE, 0, 8, &of_b, 0, IBV_SEND_SIGNALED);
    expect_wc(a.send_cq, 1, IBV_WC_REM_ACCESS_ERR);
}

static void nonblocking(void)
{
    struct ibv_async_event event;

    pair_open(&a, &b, NULL);
    pair_connect(&a, &b, NULL);
    set_nonblocking(b.context->async_fd);
    CHECK_EQ(ibv_get_async_event(b.context, &event), -1);
    CHECK_EQ(errno, EAGAIN);
    break_b();
    while (!readable(b.context->async_fd))
        ;
    OK(ibv_get_async_event(b.context, &event));
    CHECK_EQ(event.event_type, IBV_EVENT_QP_ACCESS_ERR);
    CHECK(event.element.qp == b.qp);
    CHECK(!readable(b.context->async_fd));
    CHECK_EQ(ibv_get_async_event(b.context, &event), -1);
    event.event_type = IBV_EVENT_QP_ACCESS_ERR;
    event.element.qp = b.qp;
    ibv_ack_async_event(&event);
    pair_close(&a, &b);
}

static void *get_one(void *argument)
{
    OK(ibv_get_async_event(b.context, argument));
    return NULL;
}

/* An event wakes a waiting thread. */
static void blocking(void)
{
    struct ibv_async_event event;
    pthread_t thread;

    pair_open(&a, &b, NULL);
    pair_connect(&a, &b, NULL);
    CHECK(!pthread_create(&thread, NULL, get_one, &event));
    break_b();
    CHECK(!pthread_join(thread, NULL));
    CHECK_EQ(event.event_type, IBV_EVENT_QP_ACCESS_ERR);
    ibv_ack_async_event(&event);
    pair_close(&a, &b);
}

/* Events that were not retrieved disappear with their object. */
static void dropped_with_its_object(void)
{
    pair_open(&a, &b, NULL);
    pair_connect(&a, &b, NULL);
    break_b();
    while (!readable(b.context->async_fd))
        ;
    OK(ibv_destroy_qp(b.qp));
    b.qp = NULL;
    CHECK(!readable(b.context->async_fd));
    pair_close(&a, &b);
}

static atomic_bool destroyed;

static void *destroy(void *argument)
{
    OK(ibv_destroy_qp(argument));
    atomic_store(&destroyed, true);
    return NULL;
}

static void destroy_waits_for_the_acknowledgement(void)
{
    struct ibv_async_event event;
    pthread_t thread;

    pair_open(&a, &b, NULL);
    pair_connect(&a, &b, NULL);
    break_b();
    OK(ibv_get_async_event(b.context, &event));
    CHECK(!pthread_create(&thread, NULL, destroy, b.qp));
    for (int i = 0; i < 1000; i++)
        CHECK(!atomic_load(&destroyed));
    ibv_ack_async_event(&event);
    CHECK(!pthread_join(thread, NULL));
    b.qp = NULL;
    pair_close(&a, &b);
}

static void port_events_need_no_object(void)
{
    struct ibv_async_event event = {.event_type = IBV_EVENT_PORT_ACTIVE, .element = {.port_num = 1}};

    ibv_ack_async_event(&event);
}

TEST_MAIN(TEST(nonblocking), TEST(blocking), TEST(dropped_with_its_object),
          TEST(destroy_waits_for_the_acknowledgement), TEST(port_events_need_no_object))

/* Completion queues: arming, solicited events, acknowledgement, resizing, overflow, sharing. */
#include "tests/harness.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

static struct end a, b;

static void open_pair(const struct end_options *options)
{
    pair_open(&a, &b, options);
    pair_connect(&a, &b, NULL);
}

static void send_one(uint64_t wr_id, unsigned int flags)
{
    post_send(&a, wr_id, 0, 8, flags | IBV_SEND_SIGNALED);
    expect_wc(a.send_cq, wr_id, IBV_WC_SUCCESS);
}

/* One event for each arming, and none for earlier or unrequested completions. */
static void one_event_per_arming(void)
{
    open_pair(&(struct end_options){.channel = true});
    for (int i = 0; i < 4; i++)
        post_recv(&b, 1, 0, 8);
    send_one(1, 0);
    CHECK(!readable(b.channel->fd)); /* never armed */
    expect_wc(b.recv_cq, 1, IBV_WC_SUCCESS);

    OK(ibv_req_notify_cq(b.recv_cq, 0));
    CHECK(!readable(b.channel->fd));
    send_one(2, 0);
    send_one(3, 0);
    expect_event(b.channel, b.recv_cq);
    CHECK(!readable(b.channel->fd));
    expect_wc(b.recv_cq, 1, IBV_WC_SUCCESS);
    expect_wc(b.recv_cq, 1, IBV_WC_SUCCESS);
    send_one(4, 0); /* not armed again */
    expect_wc(b.recv_cq, 1, IBV_WC_SUCCESS);
    CHECK(!readable(b.channel->fd));
    /* Arming twice is one arming. */
    post_recv(&b, 1, 0, 8);
    OK(ibv_req_notify_cq(b.recv_cq, 0));
    OK(ibv_req_notify_cq(b.recv_cq, 0));
    send_one(5, 0);
    expect_event(b.channel, b.recv_cq);
    CHECK(!readable(b.channel->fd));
    pair_close(&a, &b);
}

static void solicited_only(void)
{
    open_pair(&(struct end_options){.channel = true});
    for (int i = 0; i < 8; i++)
        post_recv(&b, 1, 0, 8);
    OK(ibv_req_notify_cq(b.recv_cq, 1));
    send_one(1, 0);
    expect_wc(b.recv_cq, 1, IBV_WC_SUCCESS);
    CHECK(!readable(b.channel->fd));
    send_one(2, IBV_SEND_SOLICITED);
    expect_event(b.channel, b.recv_cq);
    expect_wc(b.recv_cq, 1, IBV_WC_SUCCESS);

    /* "Any completion" is the wider request: a later solicited-only one does not narrow it. */
    OK(ibv_req_notify_cq(b.recv_cq, 0));
    OK(ibv_req_notify_cq(b.recv_cq, 1));
    send_one(3, 0);
    expect_event(b.channel, b.recv_cq);
    expect_wc(b.recv_cq, 1, IBV_WC_SUCCESS);

    /* WRITE with immediate can be solicited too; a plain WRITE cannot. */
    struct address of_b = end_address(&b);
    OK(ibv_req_notify_cq(b.recv_cq, 1));
    post_rdma(&a, 4, IBV_WR_RDMA_WRITE, 0, 8, &of_b, 0, IBV_SEND_SIGNALED | IBV_SEND_SOLICITED);
    expect_wc(a.send_cq, 4, IBV_WC_SUCCESS);
    CHECK(!readable(b.channel->fd));
    post_rdma(&a, 5, IBV_WR_RDMA_WRITE_WITH_IMM, 0, 8, &of_b, 0, IBV_SEND_SIGNALED | IBV_SEND_SOLICITED);
    expect_event(b.channel, b.recv_cq);
    expect_wc(a.send_cq, 5, IBV_WC_SUCCESS);
    expect_wc(b.recv_cq, 1, IBV_WC_SUCCESS);

    /* An error always causes an event. */
    OK(ibv_req_notify_cq(b.recv_cq, 1));
    end_to_error(&b);
    expect_event(b.channel, b.recv_cq);
    pair_close(&a, &b);
}

static void send_queue_events(void)
{
    open_pair(&(struct end_options){.channel = true});
    struct address of_b = end_address(&b);

    OK(ibv_req_notify_cq(a.send_cq, 0));
    post_rdma(&a, 1, IBV_WR_RDMA_WRITE, 0, 8, &of_b, 0, 0); /* unsignalled: no completion, no event */
    post_rdma(&a, 2, IBV_WR_RDMA_WRITE, 0, 8, &of_b, 0, IBV_SEND_SIGNALED);
    expect_event(a.channel, a.send_cq);
    expect_wc(a.send_cq, 2, IBV_WC_SUCCESS);
    CHECK(!readable(a.channel->fd));
    pair_close(&a, &b);
}

static void channel_nonblocking(void)
{
    struct ibv_cq *cq;
    void *context;

    open_pair(&(struct end_options){.channel = true});
    set_nonblocking(b.channel->fd);
    CHECK_EQ(ibv_get_cq_event(b.channel, &cq, &context), -1);
    CHECK_EQ(errno, EAGAIN);
    post_recv(&b, 1, 0, 8);
    OK(ibv_req_notify_cq(b.recv_cq, 0));
    send_one(1, 0);
    while (!readable(b.channel->fd))
        ;
    expect_event(b.channel, b.recv_cq);
    CHECK_EQ(ibv_get_cq_event(b.channel, &cq, &context), -1);
    CHECK_EQ(errno, EAGAIN);
    CHECK_EQ(ibv_destroy_comp_channel(b.channel), EBUSY);
    pair_close(&a, &b);
}

struct destruction {
    struct ibv_cq *cq;
    atomic_bool done;
};

static void *destroy(void *argument)
{
    struct destruction *destruction = argument;

    OK(ibv_destroy_cq(destruction->cq));
    atomic_store(&destruction->done, true);
    return NULL;
}

/* Destruction waits until retrieved events are acknowledged, and drops events that were not retrieved. */
static void destroy_waits(void)
{
    struct destruction destruction = {0};
    struct ibv_cq *cq;
    void *context;
    pthread_t thread;

    open_pair(&(struct end_options){.channel = true});
    post_recv(&b, 1, 0, 8);
    post_recv(&b, 1, 0, 8);
    OK(ibv_req_notify_cq(b.recv_cq, 0));
    send_one(1, 0);
    CHECK(!ibv_get_cq_event(b.channel, &cq, &context));
    OK(ibv_req_notify_cq(b.recv_cq, 0));
    send_one(2, 0);
    CHECK(readable(b.channel->fd));
    OK(ibv_destroy_qp(b.qp));
    b.qp = NULL;
    destruction.cq = b.recv_cq;
    CHECK(!pthread_create(&thread, NULL, destroy, &destruction));
    for (int i = 0; i < 1000; i++)
        CHECK(!atomic_load(&destruction.done));
    ibv_ack_cq_events(cq, 1);
    CHECK(!pthread_join(thread, NULL));
    CHECK(atomic_load(&destruction.done));
    CHECK(!readable(b.channel->fd));
    b.recv_cq = b.send_cq;
    pair_close(&a, &b);
}

/* Two CQs on one channel: each event names its CQ. */
static void shared_channel(void)
{
    open_pair(&(struct end_options){.channel = true});
    struct address of_a = end_address(&a);

    for (int round = 0; round < 10; round++) {
        OK(ibv_req_notify_cq(b.recv_cq, 0));
        OK(ibv_req_notify_cq(b.send_cq, 0));
        post_recv(&b, 1, 0, 8);
        send_one(1, 0);
        expect_event(b.channel, b.recv_cq);
        post_rdma(&b, 2, IBV_WR_RDMA_WRITE, 0, 8, &of_a, 0, IBV_SEND_SIGNALED);
        expect_event(b.channel, b.send_cq);
        expect_wc(b.recv_cq, 1, IBV_WC_SUCCESS);
        expect_wc(b.send_cq, 2, IBV_WC_SUCCESS);
    }
    pair_close(&a, &b);
}

static void batches(void)
{
    struct ibv_wc wc[64];
    int total = 0;

    open_pair(&(struct end_options){.recv_wr = 64, .one_cq = true, .cqe = 256});
    for (uint64_t i = 0; i < 40; i++)
        post_recv(&b, i, 0, 8);
    for (uint64_t i = 0; i < 40; i++)
        send_one(i, 0);
    CHECK_EQ(ibv_poll_cq(b.recv_cq, 0, wc), 0);
    CHECK_EQ(ibv_poll_cq(b.recv_cq, 7, wc), 7);
    for (int i = 0; i < 7; i++)
        CHECK_EQ(wc[i].wr_id, i);
    for (total = 7; total < 40;) {
        int n = ibv_poll_cq(b.recv_cq, 64, wc);

        CHECK(n >= 0);
        for (int i = 0; i < n; i++)
            CHECK_EQ(wc[i].wr_id, total + i);
        total += n;
    }
    CHECK_EQ(total, 40);
    expect_empty(b.recv_cq);
    pair_close(&a, &b);
}

static void resize(void)
{
    open_pair(&(struct end_options){.recv_wr = 64, .cqe = 64});
    for (uint64_t i = 0; i < 20; i++)
        post_recv(&b, i, 0, 8);
    for (uint64_t i = 0; i < 20; i++)
        send_one(i, 0);
    expect_wc(b.recv_cq, 0, IBV_WC_SUCCESS);
    OK(ibv_resize_cq(b.recv_cq, 1000));
    CHECK(b.recv_cq->cqe >= 1000);
    expect_wc(b.recv_cq, 1, IBV_WC_SUCCESS);
    CHECK_EQ(ibv_resize_cq(b.recv_cq, 17), EINVAL); /* one entry would be lost */
    OK(ibv_resize_cq(b.recv_cq, 18));               /* its entries fit exactly */
    CHECK(b.recv_cq->cqe >= 18);
    for (uint64_t i = 2; i < 20; i++)
        expect_wc(b.recv_cq, i, IBV_WC_SUCCESS);
    expect_empty(b.recv_cq);
    CHECK(ibv_resize_cq(b.recv_cq, 0) != 0);
    CHECK(ibv_resize_cq(b.recv_cq, 1 << 30) != 0);
    pair_close(&a, &b);
}

static void creation(void)
{
    struct ibv_context *context = test_open();
    struct ibv_device_attr attr;
    struct ibv_cq *cq;

    OK(ibv_query_device(context, &attr));
    CHECK(!ibv_create_cq(context, 0, NULL, NULL, 0));
    CHECK_EQ(errno, EINVAL);
    CHECK(!ibv_create_cq(context, -1, NULL, NULL, 0));
    CHECK(!ibv_create_cq(context, attr.max_cqe + 1, NULL, NULL, 0));
    CHECK(!ibv_create_cq(context, 1, NULL, NULL, context->num_comp_vectors));
    CHECK(!ibv_create_cq(context, 1, NULL, NULL, -1));
    cq = ibv_create_cq(context, 1, context, NULL, 0);
    CHECK(cq && cq->cqe >= 1 && cq->cq_context == context && cq->context == context && !cq->channel);
    expect_empty(cq);
    OK(ibv_destroy_cq(cq));
    OK(ibv_close_device(context));
}

/* More completions than it holds: one event reports the overflow, and the completions that fitted can
 * still be read. */
static void overflow(void)
{
    struct ibv_async_event event;
    struct ibv_wc wc;
    int got = 0;

    open_pair(&(struct end_options){.cqe = 4, .recv_wr = 512, .send_wr = 512});
    struct address of_b = end_address(&b);
    int room = a.send_cq->cqe;

    CHECK(room >= 4 && room < 400);
    for (int i = 0; i < room + 5; i++)
        post_rdma(&a, (uint64_t)i, IBV_WR_RDMA_WRITE, 0, 8, &of_b, 0, IBV_SEND_SIGNALED);
    OK(ibv_get_async_event(a.context, &event));
    CHECK_EQ(event.event_type, IBV_EVENT_CQ_ERR);
    CHECK(event.element.cq == a.send_cq);
    ibv_ack_async_event(&event);
    while (ibv_poll_cq(a.send_cq, 1, &wc) == 1)
        CHECK_EQ(wc.wr_id, got++);
    CHECK(got <= room);
    CHECK(ibv_poll_cq(a.send_cq, 1, &wc) < 0); /* so that no program waits for those that are lost */
    pair_close(&a, &b);

    /* Other queues of the device are unaffected. */
    open_pair(NULL);
    post_recv(&b, 1, 0, 8);
    send_one(1, 0);
    expect_wc(b.recv_cq, 1, IBV_WC_SUCCESS);
    pair_close(&a, &b);
}

/* Posts until the send queue has no room. */
static int post_all(const struct address *peer, unsigned int flags)
{
    struct ibv_sge sge = end_sge(&a, 0, 8);
    struct ibv_send_wr wr = {.sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_RDMA_WRITE,
                             .send_flags = flags,
                             .wr = {.rdma = {.remote_addr = peer->addr, .rkey = peer->rkey}}},
                       *bad;
    int posted = 0, error;

    while (!(error = ibv_post_send(a.qp, &wr, &bad)))
        posted++;
    CHECK_EQ(error, ENOMEM);
    CHECK(bad == &wr);
    return posted;
}

/* Room in a send queue comes by polling, as with a card: what is complete and not polled takes its place. */
static void room_by_polling(void)
{
    enum { WRS = 16 };

    open_pair(&(struct end_options){.send_wr = WRS, .cqe = 64});
    struct address of_b = end_address(&b);

    for (int round = 0; round < 3; round++) {
        CHECK_EQ(post_all(&of_b, IBV_SEND_SIGNALED), WRS);
        for (int i = 0; i < 5; i++)
            expect_wc(a.send_cq, 0, IBV_WC_SUCCESS);
        CHECK_EQ(post_all(&of_b, IBV_SEND_SIGNALED), 5);
        for (int i = 0; i < WRS; i++)
            expect_wc(a.send_cq, 0, IBV_WC_SUCCESS);
        expect_empty(a.send_cq);
    }
    /* Those without a completion are free when a later one with a completion was polled. */
    for (int i = 0; i < WRS - 3; i++)
        post_rdma(&a, 0, IBV_WR_RDMA_WRITE, 0, 8, &of_b, 0, 0);
    post_rdma(&a, 7, IBV_WR_RDMA_WRITE, 0, 8, &of_b, 0, IBV_SEND_SIGNALED);
    expect_wc(a.send_cq, 7, IBV_WC_SUCCESS);
    CHECK_EQ(post_all(&of_b, 0), WRS);
    expect_empty(a.send_cq);
    /* The end of a queue pair frees them, too. */
    end_to_error(&a);
    CHECK_EQ(post_all(&of_b, 0), 0);
    OK(ibv_modify_qp(a.qp, &(struct ibv_qp_attr){.qp_state = IBV_QPS_RESET}, IBV_QP_STATE));
    OK(ibv_modify_qp(b.qp, &(struct ibv_qp_attr){.qp_state = IBV_QPS_RESET}, IBV_QP_STATE));
    pair_connect(&a, &b, NULL);
    CHECK_EQ(post_all(&of_b, IBV_SEND_SIGNALED), WRS);
    pair_close(&a, &b);
}

TEST_MAIN(TEST(one_event_per_arming), TEST(solicited_only), TEST(send_queue_events),
          TEST(channel_nonblocking), TEST(destroy_waits), TEST(shared_channel), TEST(batches), TEST(resize),
          TEST(creation), TEST(overflow), TEST(room_by_polling))

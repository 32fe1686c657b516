/* Planted mistakes: wake-ups and acknowledgements, rdma_cm, what is left behind; and programs that are right. */
#include "tests/trace/mistakes.h"

#include <arpa/inet.h>
#include <rdma/rdma_cma.h>

static struct end a, b;

static void open_pair(void)
{
    const struct end_options options = {.channel = true, .one_cq = true};

    pair_open(&a, &b, &options);
    pair_connect(&a, &b, NULL);
}

static void take_event(bool acknowledge)
{
    struct ibv_cq *cq;
    void *context;

    OK(ibv_get_cq_event(a.channel, &cq, &context));
    if (acknowledge)
        ibv_ack_cq_events(cq, 1);
}

/* The second message makes no event: the queue was armed for one. */
static void not_armed_again(void)
{
    open_pair();
    post_recv(&a, 1, 0, 8);
    post_recv(&a, 2, 0, 8);
    OK(ibv_req_notify_cq(a.recv_cq, 0));
    do_send(&b, 0, 8);
    take_event(true);
    expect_wc(a.recv_cq, 1, IBV_WC_SUCCESS);
    expect_empty(a.recv_cq);
    do_send(&b, 0, 8);
    last_call();
    take_event(true);
}

/* The message has come before the queue was armed, and after it was polled. */
static void armed_too_late(void)
{
    open_pair();
    post_recv(&a, 1, 0, 8);
    expect_empty(a.recv_cq);
    do_send(&b, 0, 8);
    OK(ibv_req_notify_cq(a.recv_cq, 0));
    last_call();
    take_event(true);
}

static void never_acknowledged(void)
{
    open_pair();
    post_recv(&a, 1, 0, 8);
    OK(ibv_req_notify_cq(a.recv_cq, 0));
    do_send(&b, 0, 8);
    take_event(false);
    expect_wc(a.recv_cq, 1, IBV_WC_SUCCESS);
    OK(ibv_destroy_qp(a.qp));
    last_call();
    ibv_destroy_cq(a.recv_cq);
}

/* ---- rdma_cm ---- */

static struct rdma_cm_event *next_event(struct rdma_event_channel *channel)
{
    struct rdma_cm_event *event;

    OK(rdma_get_cm_event(channel, &event));
    return event;
}

static struct rdma_cm_id *resolved(struct rdma_event_channel *channel)
{
    struct sockaddr_in there = {
        .sin_family = AF_INET, .sin_port = htons(7), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct rdma_cm_id *id;

    OK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
    OK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&there, 2000));
    OK(rdma_ack_cm_event(next_event(channel)));
    return id;
}

static void nobody_listens(void)
{
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_conn_param param = {.retry_count = 1};
    struct ibv_qp_init_attr attr = {
        .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC};
    struct rdma_cm_id *id = resolved(channel);

    OK(rdma_resolve_route(id, 2000));
    OK(rdma_ack_cm_event(next_event(channel)));
    OK(rdma_create_qp(id, NULL, &attr));
    OK(rdma_connect(id, &param));
    struct rdma_cm_event *event = next_event(channel);
    CHECK_EQ(event->event, RDMA_CM_EVENT_REJECTED);
    OK(rdma_ack_cm_event(event));
    rdma_destroy_qp(id);
    OK(rdma_destroy_id(id));
    rdma_destroy_event_channel(channel);
}

static void cm_event_kept(void)
{
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_cm_id *id = resolved(channel);

    OK(rdma_resolve_route(id, 2000));
    next_event(channel);
    last_call();
    rdma_destroy_id(id);
}

/* ---- what is left ---- */

static void left_behind(void)
{
    open_pair();
    post_recv(&b, 1, 0, 8);
    do_send(&a, 0, 8);
}

static void no_mistake(void)
{
    open_pair();
    struct address there = end_address(&b);
    for (unsigned i = 0; i < 100; i++) {
        post_recv(&b, i, 0, 64);
        do_send(&a, 0, 64);
        sleep_wc(b.channel, b.recv_cq);
        do_rdma(&a, IBV_WR_RDMA_WRITE, 0, 64, &there, 0);
    }
    pair_close(&a, &b);
}

const struct mistake mistakes_events[] = {
    {"a queue that is not armed again", "not-rearmed", not_armed_again, true},
    {"a queue armed after it was polled", "armed-too-late", armed_too_late, true},
    {"an event that is not acknowledged", "unacked-events", never_acknowledged, true},
    {"an event of rdma_cm that is not acknowledged", "unacked-cm-events", cm_event_kept, true},
    {"no program listens", "cm-no-listener", nobody_listens, false},
    {"objects left behind", "leaked", left_behind, false},
    {"no mistake", NULL, no_mistake, false},
    MISTAKES_END,
};

/* Two processes that connect hundreds of times at once: more messages at a time than a socket of the kernel takes. */
#include "tests/harness.h"

#include <arpa/inet.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdlib.h>

enum { MANY = 200, LIMIT_MS = 60000 };

static struct rdma_conn_param param = {.responder_resources = 1, .initiator_depth = 1};

static struct rdma_cm_event *next_event(struct rdma_event_channel *channel)
{
    struct pollfd ready = {.fd = channel->fd, .events = POLLIN};
    struct rdma_cm_event *event;

    CHECK_EQ(poll(&ready, 1, LIMIT_MS), 1);
    OK(rdma_get_cm_event(channel, &event));
    return event;
}

static void expect(struct rdma_event_channel *channel, enum rdma_cm_event_type wanted)
{
    struct rdma_cm_event *event = next_event(channel);

    if (event->event != wanted)
        FAIL("%s instead of %s", rdma_event_str(event->event), rdma_event_str(wanted));
    OK(rdma_ack_cm_event(event));
}

static void add_qp(struct rdma_cm_id *id)
{
    struct ibv_qp_init_attr init = {.cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1}};

    init.qp_type = IBV_QPT_RC;
    OK(rdma_create_qp(id, NULL, &init));
}

/* Accepts no request before all have come, then all at once. */
static void serve(int fd, void *unused)
{
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_cm_id *listener, *ids[MANY];

    (void)unused;
    CHECK(channel);
    OK(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP));
    OK(rdma_bind_addr(listener, (struct sockaddr *)&here));
    OK(rdma_listen(listener, 0));
    const __be16 port = rdma_get_src_port(listener);
    give(fd, &port, sizeof port);
    for (int i = 0; i < MANY; i++) {
        struct rdma_cm_event *event = next_event(channel);
        CHECK_EQ(event->event, RDMA_CM_EVENT_CONNECT_REQUEST);
        ids[i] = event->id;
        OK(rdma_ack_cm_event(event));
        add_qp(ids[i]);
    }
    for (int i = 0; i < MANY; i++)
        OK(rdma_accept(ids[i], &param));
    for (int i = 0; i < MANY; i++)
        expect(channel, RDMA_CM_EVENT_ESTABLISHED);
    for (int i = 0; i < MANY; i++)
        expect(channel, RDMA_CM_EVENT_DISCONNECTED);
    give(fd, &port, 1);
    take(fd, &(char){0}, 1); /* both ends are there until both are done */
    exit(0);
}

static void resolve(struct rdma_event_channel *channel, struct rdma_cm_id *id, __be16 port)
{
    struct sockaddr_in there = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = port};

    OK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&there, LIMIT_MS));
    expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
    OK(rdma_resolve_route(id, LIMIT_MS));
    expect(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
    add_qp(id);
}

static void all_connect(void)
{
    struct child child = child_start(serve, NULL); /* before this process has threads */
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_cm_id *ids[MANY];
    __be16 port;

    take(child.fd, &port, sizeof port);
    for (int i = 0; i < MANY; i++) {
        OK(rdma_create_id(channel, &ids[i], NULL, RDMA_PS_TCP));
        resolve(channel, ids[i], port);
    }
    for (int i = 0; i < MANY; i++)
        OK(rdma_connect(ids[i], &param));
    for (int i = 0; i < MANY; i++)
        expect(channel, RDMA_CM_EVENT_ESTABLISHED);
    for (int i = 0; i < MANY; i++)
        OK(rdma_disconnect(ids[i]));
    for (int i = 0; i < MANY; i++)
        expect(channel, RDMA_CM_EVENT_DISCONNECTED);
    take(child.fd, &(char){0}, 1);
    give(child.fd, "x", 1);
    child_join(&child);
}

TEST_MAIN(TEST(all_connect))

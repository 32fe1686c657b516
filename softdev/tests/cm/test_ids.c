/* rdma_cm: addresses without a lookup, and the attributes of queue pairs that a program moves itself. */
#include "tests/harness.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

/* libfabric asks so for a listener on any address. */
static void addresses_as_given(void)
{
    struct rdma_addrinfo hints = {.ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP}, *found = NULL;
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

    OK(rdma_getaddrinfo(NULL, NULL, &hints, &found));
    CHECK(found && !found->ai_src_addr && !found->ai_dst_addr && !found->ai_next);
    CHECK_EQ(found->ai_flags, RAI_PASSIVE);
    CHECK_EQ(found->ai_port_space, RDMA_PS_TCP);
    rdma_freeaddrinfo(found);

    hints.ai_src_addr = (struct sockaddr *)&here;
    hints.ai_src_len = sizeof here;
    OK(rdma_getaddrinfo(NULL, NULL, &hints, &found));
    CHECK_EQ(found->ai_src_len, sizeof here);
    CHECK(found->ai_src_addr->sa_family == AF_INET && found->ai_src_addr != (struct sockaddr *)&here);
    rdma_freeaddrinfo(found);

    errno = 0;
    CHECK_EQ(rdma_getaddrinfo(NULL, NULL, NULL, &found), -1);
    CHECK_EQ(errno, EINVAL);
}

static void no_address_to_bind(void)
{
    struct rdma_cm_id *id;

    OK(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
    CHECK_EQ(rdma_bind_addr(id, NULL), -1);
    CHECK_EQ(errno, EINVAL);
    OK(rdma_destroy_id(id));
}

/* libfabric takes the addresses of the interfaces, unless the id of "localhost" belongs to a device. */
static void loopback_is_no_device(void)
{
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct rdma_cm_id *id;

    OK(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
    OK(rdma_bind_addr(id, (struct sockaddr *)&here));
    CHECK(!id->verbs);
    CHECK(rdma_get_src_port(id) != 0);
    /* A connection from there is on a device, as any other. */
    here.sin_port = htons(1);
    OK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&here, 10000));
    CHECK(id->verbs);
    OK(rdma_destroy_id(id));
}

/* A peer that sends before this side posts its first receive waits long enough: 655 ms each time. */
static void rnr_timer(void)
{
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR};
    struct rdma_cm_id *id;
    int mask = 0;

    OK(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
    OK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&here, 10000));
    OK(rdma_init_qp_attr(id, &attr, &mask));
    CHECK(mask & IBV_QP_MIN_RNR_TIMER);
    CHECK_EQ(attr.min_rnr_timer, 0);
    OK(rdma_destroy_id(id));
}

static void connected(int fd, void *unused)
{
    struct rdma_conn_param param = {.responder_resources = 1, .initiator_depth = 1};
    struct sockaddr_in there = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct ibv_qp_init_attr init = {.cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1}};
    struct rdma_cm_id *id;

    (void)unused;
    init.qp_type = IBV_QPT_RC;
    take(fd, &there.sin_port, sizeof there.sin_port);
    OK(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
    OK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&there, 10000));
    OK(rdma_resolve_route(id, 10000));
    OK(rdma_create_qp(id, NULL, &init));
    OK(rdma_connect(id, &param));
    exit(0);
}

static struct rdma_cm_event *next_event(struct rdma_event_channel *channel, enum rdma_cm_event_type wanted)
{
    struct pollfd ready = {.fd = channel->fd, .events = POLLIN};
    struct rdma_cm_event *event;

    CHECK_EQ(poll(&ready, 1, 30000), 1);
    OK(rdma_get_cm_event(channel, &event));
    CHECK_EQ(event->event, wanted);
    return event;
}

/* As the kernel does for a process that ends, whatever it has left undone. */
static void process_that_ends(void)
{
    struct rdma_conn_param param = {.responder_resources = 1, .initiator_depth = 1};
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct ibv_qp_init_attr init = {.cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1}};
    struct child child = child_start(connected, NULL);
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_cm_id *listener, *id;

    CHECK(channel);
    init.qp_type = IBV_QPT_RC;
    OK(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP));
    OK(rdma_bind_addr(listener, (struct sockaddr *)&here));
    OK(rdma_listen(listener, 1));
    const __be16 port = rdma_get_src_port(listener);
    give(child.fd, &port, sizeof port);
    struct rdma_cm_event *event = next_event(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
    id = event->id;
    OK(rdma_ack_cm_event(event));
    OK(rdma_create_qp(id, NULL, &init));
    OK(rdma_accept(id, &param));
    OK(rdma_ack_cm_event(next_event(channel, RDMA_CM_EVENT_ESTABLISHED)));
    OK(rdma_ack_cm_event(next_event(channel, RDMA_CM_EVENT_DISCONNECTED)));
    child_join(&child);
    rdma_destroy_qp(id);
    OK(rdma_destroy_id(id));
    OK(rdma_destroy_id(listener));
    rdma_destroy_event_channel(channel);
}

static void exit_disconnects(void)
{
    run_as(NULL, process_that_ends);
}

/* An id that is bound to any address of that family. NULL: its port is taken. */
static struct rdma_cm_id *any_of(struct rdma_event_channel *channel, int family, int only, __be16 port)
{
    struct sockaddr_in6 any = {.sin6_family = (sa_family_t)family,
                               .sin6_port = port}; /* at the same offset */
    struct rdma_cm_id *id;

    OK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
    OK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &only, sizeof only));
    if (!rdma_bind_addr(id, (struct sockaddr *)&any))
        return id;
    CHECK_EQ(errno, EADDRINUSE);
    OK(rdma_destroy_id(id));
    return NULL;
}

/* As with sockets: one port for each family, or one for both. */
static void any_address_of_one_family(void)
{
    struct rdma_cm_id *four = any_of(NULL, AF_INET, 1, 0), *six;
    const __be16 port = rdma_get_src_port(four);
    int both = 0;

    CHECK(port);
    CHECK(!any_of(NULL, AF_INET, 1, port));
    CHECK(!any_of(NULL, AF_INET, 0, port) && !any_of(NULL, AF_INET6, 0, port));
    six = any_of(NULL, AF_INET6, 1, port);
    CHECK(six && rdma_get_src_port(six) == port);
    /* A bound id may still say otherwise, if the port is free for it. */
    CHECK_EQ(rdma_set_option(six, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &both, sizeof both), -1);
    CHECK_EQ(errno, EADDRINUSE);
    OK(rdma_destroy_id(four));
    OK(rdma_set_option(six, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &both, sizeof both));
    CHECK(!any_of(NULL, AF_INET, 1, port));
    OK(rdma_listen(six, 1));
    CHECK_EQ(rdma_set_option(six, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &both, sizeof both), -1);
    CHECK_EQ(errno, EINVAL);
    OK(rdma_destroy_id(six));
    four = any_of(NULL, AF_INET, 1, port);
    CHECK(four);
    OK(rdma_destroy_id(four));
}

/* How a request to that address of this host ends. */
static enum rdma_cm_event_type answer(struct sockaddr *to)
{
    struct ibv_qp_init_attr init = {.cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1}};
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_conn_param param = {.responder_resources = 1, .initiator_depth = 1};
    struct pollfd ready = {.fd = channel->fd, .events = POLLIN};
    struct rdma_cm_event *event;
    struct rdma_cm_id *id;

    init.qp_type = IBV_QPT_RC;
    OK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
    OK(rdma_resolve_addr(id, NULL, to, 10000));
    OK(rdma_ack_cm_event(next_event(channel, RDMA_CM_EVENT_ADDR_RESOLVED)));
    OK(rdma_resolve_route(id, 10000));
    OK(rdma_ack_cm_event(next_event(channel, RDMA_CM_EVENT_ROUTE_RESOLVED)));
    OK(rdma_create_qp(id, NULL, &init));
    OK(rdma_connect(id, &param));
    CHECK_EQ(poll(&ready, 1, 60000), 1);
    OK(rdma_get_cm_event(channel, &event));
    const enum rdma_cm_event_type type = event->event;
    OK(rdma_ack_cm_event(event));
    rdma_destroy_qp(id);
    OK(rdma_destroy_id(id));
    rdma_destroy_event_channel(channel);
    return type;
}

/* Refuses the first request, and says which listener got it. */
static void refuse_one(struct rdma_event_channel *channel, struct rdma_cm_id *wanted)
{
    struct rdma_cm_event *event = next_event(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
    struct rdma_cm_id *id = event->id;

    CHECK(event->listen_id == wanted);
    OK(rdma_ack_cm_event(event));
    OK(rdma_reject(id, NULL, 0));
    OK(rdma_destroy_id(id));
}

static void asks(int fd, void *unused)
{
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};

    (void)unused;
    for (char family; try_take(fd, &family, 1);) {
        take(fd, &four.sin_port, sizeof four.sin_port);
        six.sin6_port = four.sin_port;
        const enum rdma_cm_event_type type =
            answer(family == 4 ? (struct sockaddr *)&four : (struct sockaddr *)&six);
        give(fd, &type, sizeof type);
    }
    exit(0);
}

static bool has_ipv6(void)
{
    const struct sockaddr_in6 here = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int fd = socket(AF_INET6, SOCK_DGRAM, 0);
    const bool has = fd >= 0 && !bind(fd, (const struct sockaddr *)&here, sizeof here);

    if (fd >= 0)
        close(fd);
    return has;
}

/* Requests go to the listener of their family, and where that is not there, to none. */
static void requests_of_one_family(void)
{
    if (!has_ipv6())
        return;
    struct child child = child_start(asks, NULL);
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_cm_id *six = any_of(channel, AF_INET6, 1, 0), *four;
    const __be16 port = rdma_get_src_port(six);
    enum rdma_cm_event_type type;

    OK(rdma_listen(six, 1));
    give(child.fd, "\4", 1);
    give(child.fd, &port, sizeof port);
    take(child.fd, &type, sizeof type);
    CHECK_EQ(type, RDMA_CM_EVENT_REJECTED);
    CHECK(!readable(channel->fd)); /* not by this listener */
    give(child.fd, "\6", 1);
    give(child.fd, &port, sizeof port);
    refuse_one(channel, six);
    take(child.fd, &type, sizeof type);
    CHECK_EQ(type, RDMA_CM_EVENT_REJECTED);
    four = any_of(channel, AF_INET, 1, port);
    CHECK(four);
    OK(rdma_listen(four, 1));
    give(child.fd, "\4", 1);
    give(child.fd, &port, sizeof port);
    refuse_one(channel, four);
    take(child.fd, &type, sizeof type);
    child_kill(&child);
    OK(rdma_destroy_id(four));
    OK(rdma_destroy_id(six));
    rdma_destroy_event_channel(channel);
}

static struct rdma_cm_id *bound(struct rdma_event_channel *channel, struct sockaddr_in *where)
{
    struct rdma_cm_id *id;

    *where = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    OK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
    OK(rdma_bind_addr(id, (struct sockaddr *)where));
    where->sin_port = rdma_get_src_port(id);
    return id;
}

/* A listener that could not listen for want of descriptors does not listen; later it may. */
static void listens_later(void)
{
    enum { PLACES = 256 };
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_conn_param param = {.qp_num = 77};
    struct sockaddr_in here, other;
    struct rdma_cm_event *event;
    struct rdma_cm_id *id, *client;
    struct rlimit limit;
    int taken[PLACES], n = 0;

    CHECK(channel);
    struct rdma_cm_id *first =
        bound(channel, &other); /* from here on there is nothing more to open but for listeners */
    OK(rdma_listen(first, 1));
    id = bound(channel, &here);
    CHECK(!getrlimit(RLIMIT_NOFILE, &limit));
    CHECK(!setrlimit(RLIMIT_NOFILE, &(struct rlimit){PLACES, limit.rlim_max}));
    while (n < PLACES && (taken[n] = fcntl(0, F_DUPFD_CLOEXEC, 0)) >= 0)
        n++;
    CHECK_EQ(errno, EMFILE);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(rdma_listen(id, 8), -1);
        CHECK_EQ(errno, EMFILE);
    }
    while (n)
        close(taken[--n]);
    CHECK(!setrlimit(RLIMIT_NOFILE, &limit));
    OK(rdma_listen(id, 8));

    OK(rdma_create_id(NULL, &client, NULL, RDMA_PS_TCP));
    OK(rdma_resolve_addr(client, NULL, (struct sockaddr *)&here, 10000));
    OK(rdma_resolve_route(client, 10000));
    OK(rdma_migrate_id(client, channel));
    OK(rdma_connect(client, &param));
    OK(rdma_get_cm_event(channel, &event));
    CHECK_EQ(event->event, RDMA_CM_EVENT_CONNECT_REQUEST);
    CHECK(event->listen_id == id);
    struct rdma_cm_id *asked = event->id;
    OK(rdma_ack_cm_event(event));
    OK(rdma_destroy_id(asked));
    OK(rdma_get_cm_event(channel, &event));
    OK(rdma_ack_cm_event(event));
    OK(rdma_destroy_id(client));
    OK(rdma_destroy_id(id));
    OK(rdma_destroy_id(first));
    rdma_destroy_event_channel(channel);
}

TEST_MAIN(TEST(exit_disconnects), TEST(requests_of_one_family), TEST(any_address_of_one_family),
          TEST(addresses_as_given), TEST(no_address_to_bind), TEST(loopback_is_no_device), TEST(rnr_timer),
          TEST(listens_later))

/* Another user binds the abstract names that rdma_cm's processes and listeners would take: connections are made all
 * the same, and that user receives no message. In a network namespace of its own; needs root. */
#include "base/names.h"
#include "tests/harness.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <rdma/rdma_cma.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { SLOTS = 1024, NOBODY = 65534, PORT = 4000 };

static const char *const addresses[] = {"any", "00000000000000000000ffff7f000001"};

static bool alone_on_a_network(void)
{
    struct ifreq lo = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    int fd;

    if (geteuid() || unshare(CLONE_NEWNET))
        return false;
    fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    CHECK(!ioctl(fd, SIOCSIFFLAGS, &lo));
    close(fd);
    return true;
}

static int fds[SLOTS + 4], nfds;

static void squat(const char *name)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int n = snprintf(address.sun_path + 1, sizeof address.sun_path - 1, SOFT_CM_NAME ".0.%s", name);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0);

    CHECK(fd >= 0);
    if (bind(fd, (struct sockaddr *)&address,
             (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n)))
        CHECK_EQ(errno, EADDRINUSE);
    fds[nfds++] = fd;
}

static void squatter(int fd, void *argument)
{
    struct rlimit many = {2 * SLOTS, 2 * SLOTS};
    char name[80], byte;

    (void)argument;
    take(fd, &byte, 1);
    CHECK(!setrlimit(RLIMIT_NOFILE, &many));
    CHECK(!setgid(NOBODY) && !setuid(NOBODY));
    for (unsigned slot = 0; slot < SLOTS; slot++) {
        snprintf(name, sizeof name, "%u", slot);
        squat(name);
    }
    for (int i = 0; i < 2; i++) {
        snprintf(name, sizeof name, "106.%u.%s", PORT, addresses[i]);
        squat(name);
        snprintf(name, sizeof name, "106.%u.%s.listen", PORT, addresses[i]);
        squat(name);
    }
    give(fd, "s", 1);
    take(fd, &byte, 1);
    for (int i = 0; i < nfds; i++)
        CHECK_EQ(recv(fds[i], name, sizeof name, 0), -1); /* nothing came here */
}

static const struct sockaddr_in there = {.sin_family = AF_INET,
                                         .sin_port = __builtin_bswap16(PORT),
                                         .sin_addr.s_addr = __builtin_bswap32(INADDR_LOOPBACK)};

static void client(int fd, void *argument)
{
    struct rdma_conn_param param = {.responder_resources = 1, .initiator_depth = 1};
    struct ibv_qp_init_attr init = {.cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1}};
    struct sockaddr_in to = there;
    struct rdma_cm_id *id;
    char byte;

    (void)argument;
    init.qp_type = IBV_QPT_RC;
    take(fd, &byte, 1);
    OK(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
    OK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 10000));
    OK(rdma_resolve_route(id, 10000));
    OK(rdma_create_qp(id, NULL, &init));
    OK(rdma_connect(id, &param));
    give(fd, "c", 1);
    take(fd, &byte, 1);
    OK(rdma_disconnect(id));
    rdma_destroy_qp(id);
    OK(rdma_destroy_id(id));
}

static void expect(struct rdma_event_channel *channel, enum rdma_cm_event_type wanted, struct rdma_cm_id **id)
{
    struct rdma_cm_event *event;

    OK(rdma_get_cm_event(channel, &event));
    CHECK_EQ(event->event, wanted);
    if (id)
        *id = event->id;
    OK(rdma_ack_cm_event(event));
}

/* meanwhile: this process listens before the names are taken (which it then has itself; the client's are not). */
static void converse(bool meanwhile, bool any)
{
    struct rdma_conn_param param = {.responder_resources = 1, .initiator_depth = 1};
    struct ibv_qp_init_attr init = {.cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1}};
    struct child squat = child_start(squatter, NULL), other = child_start(client, NULL);
    struct rdma_event_channel *channel = NULL;
    struct rdma_cm_id *listener = NULL, *second, *id;
    struct sockaddr_in here = there;
    char byte;

    init.qp_type = IBV_QPT_RC;
    if (any)
        here.sin_addr.s_addr = INADDR_ANY;
    for (int step = 0; step < 2; step++) {
        if (step == meanwhile) {
            give(squat.fd, "b", 1);
            take(squat.fd, &byte, 1);
            continue;
        }
        channel = rdma_create_event_channel();
        CHECK(channel);
        OK(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP));
        OK(rdma_bind_addr(listener, (struct sockaddr *)&here));
        OK(rdma_listen(listener, 4));
    }
    /* The port is taken, by this process, whoever holds its abstract name. */
    OK(rdma_create_id(channel, &second, NULL, RDMA_PS_TCP));
    CHECK_EQ(rdma_bind_addr(second, (struct sockaddr *)&here), -1);
    CHECK_EQ(errno, EADDRINUSE);
    OK(rdma_destroy_id(second));
    give(other.fd, "b", 1);
    expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST, &id);
    OK(rdma_create_qp(id, NULL, &init));
    OK(rdma_accept(id, &param));
    expect(channel, RDMA_CM_EVENT_ESTABLISHED, NULL);
    take(other.fd, &byte, 1);
    give(other.fd, "e", 1);
    expect(channel, RDMA_CM_EVENT_DISCONNECTED, NULL);
    child_join(&other);
    rdma_destroy_qp(id);
    OK(rdma_destroy_id(id));
    OK(rdma_destroy_id(listener));
    rdma_destroy_event_channel(channel);
    give(squat.fd, "e", 1);
    child_join(&squat);
}

static void in_child(int fd, void *argument)
{
    const int *how = argument;

    (void)fd;
    converse(how[0], how[1]);
}

/* Each in a process of its own, whose names are fresh. */
static void names_taken(int meanwhile)
{
    for (int any = 0; any < 2; any++) {
        int how[2] = {meanwhile, any};
        struct child child = child_start(in_child, how);

        child_join(&child);
    }
}

static void names_taken_before(void)
{
    names_taken(0);
}

static void names_taken_meanwhile(void)
{
    names_taken(1);
}

/* The file of a listener that was killed does not keep its port. */
static void killed_listener(int fd, void *argument)
{
    struct rdma_cm_id *id;
    struct sockaddr_in here = there;

    (void)argument;
    OK(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
    OK(rdma_bind_addr(id, (struct sockaddr *)&here));
    OK(rdma_listen(id, 1));
    give(fd, "l", 1);
    pause();
}

static void a_killed_listeners_port_is_free(void)
{
    for (int i = 0; i < 2; i++) {
        struct child child = child_start(killed_listener, NULL);
        char byte;

        take(child.fd, &byte, 1);
        child_kill(&child);
    }
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {TEST(names_taken_before), TEST(names_taken_meanwhile),
                                        TEST(a_killed_listeners_port_is_free)};

    if (!alone_on_a_network())
        return 77;
    return test_main(argc, argv, tests, sizeof tests / sizeof *tests);
}

/* A peer rejects its own request before the program has heard of it: what becomes of both events when the listener goes,
 * or changes its channel. The peer speaks the protocol itself. */
#include "base/names.h"
#include "cm/bus.h"
#include "cm/mad.h"
#include "tests/harness.h"

#include <arpa/inet.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { SLOT = 1000, MINE = SLOT << CM_ID_BITS | 1 };

/* As in cm/bus.c. */
struct message {
    char magic[8];
    uint8_t src[16], dst[16];
    uint16_t src_port;
    uint8_t net;
    uint8_t reserved[5];
    uint8_t mad[CM_MAD_BYTES];
};

static const uint8_t loopback[16] = {[10] = 0xff, [11] = 0xff, [12] = 127, [15] = 1};
static uint16_t port;
static uint64_t tid; /* of a request, and what belongs to it */

static socklen_t name(struct sockaddr_un *to, const char *format, unsigned number)
{
    char last[64];

    *to = (struct sockaddr_un){.sun_family = AF_UNIX};
    snprintf(last, sizeof last, format, number);
    int n =
        snprintf(to->sun_path + 1, sizeof to->sun_path - 1, SOFT_CM_NAME ".%u.%s", (unsigned)getuid(), last);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

static void tell(int fd, struct cm_mad *mad, const char *format, unsigned number)
{
    struct message message = {.magic = "aiordmc1"};
    struct sockaddr_un to;
    socklen_t length = name(&to, format, number);

    memcpy(message.src, loopback, sizeof loopback);
    memcpy(message.dst, loopback, sizeof loopback);
    mad->tid = tid;
    mad->local_id = MINE;
    cm_mad_pack(mad, message.mad);
    CHECK_EQ(sendto(fd, &message, sizeof message, 0, (struct sockaddr *)&to, length), sizeof message);
}

/* Has a listener of this process get a request that has been rejected since. */
static void ask_and_reject(void)
{
    struct cm_mad req = {
        .attribute = CM_REQ, .qpn = 77, .mtu = IBV_MTU_1024, .guid = 3, .private_length = CM_IP_BYTES};
    const int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
    struct cm_ip ip = {.src_port = 5};
    struct message got;
    struct cm_mad mra;
    struct sockaddr_un here;
    socklen_t length = name(&here, "%u", SLOT);

    tid++;
    CHECK(fd >= 0 && !bind(fd, (struct sockaddr *)&here, length));
    req.service = cm_service(RDMA_PS_TCP, port);
    memcpy(ip.src, loopback, sizeof loopback);
    memcpy(ip.dst, loopback, sizeof loopback);
    cm_ip_pack(&ip, req.private_data);
    /* The second one is answered by what tells its number: the program has not answered yet. */
    tell(fd, &req, "106.%u.00000000000000000000ffff7f000001.listen", port);
    tell(fd, &req, "106.%u.00000000000000000000ffff7f000001.listen", port);
    CHECK_EQ(recv(fd, &got, sizeof got, 0), sizeof got);
    CHECK(cm_mad_parse(got.mad, CM_MAD_BYTES, &mra));
    CHECK_EQ(mra.attribute, CM_MRA);
    struct cm_mad rej = {
        .attribute = CM_REJ, .remote_id = mra.local_id, .about = CM_ABOUT_OTHER, .reason = 4};
    tell(fd, &rej, "%u", mra.local_id >> CM_ID_BITS);
    /* A rejected request is repeated: its answer says that the rejection has been taken. */
    for (;;) {
        struct pollfd answer = {fd, POLLIN, 0};
        tell(fd, &req, "106.%u.00000000000000000000ffff7f000001.listen", port);
        if (!poll(&answer, 1, 20))
            break;
        CHECK_EQ(recv(fd, &got, sizeof got, 0), sizeof got);
    }
    close(fd);
}

static struct rdma_cm_id *listen_on(struct rdma_event_channel *channel)
{
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct rdma_cm_id *listener;

    OK(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP));
    OK(rdma_bind_addr(listener, (struct sockaddr *)&here));
    OK(rdma_listen(listener, 4));
    port = ntohs(rdma_get_src_port(listener));
    return listener;
}

static void with_the_listener(void)
{
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_cm_id *other, *listener;

    CHECK(channel);
    OK(rdma_create_id(channel, &other, NULL, RDMA_PS_TCP));
    listener = listen_on(channel);
    ask_and_reject();
    CHECK(readable(channel->fd));
    OK(rdma_destroy_id(listener));
    CHECK(!readable(channel->fd)); /* nor an event of the id that went with it */
    OK(rdma_destroy_id(other));
    rdma_destroy_event_channel(channel);
}

static void in_order_on_another_channel(void)
{
    struct rdma_event_channel *channel = rdma_create_event_channel(), *to = rdma_create_event_channel();
    struct rdma_cm_event *event;
    struct rdma_cm_id *listener, *child;

    CHECK(channel && to);
    listener = listen_on(channel);
    ask_and_reject();
    OK(rdma_migrate_id(listener, to));
    OK(rdma_get_cm_event(to, &event));
    CHECK_EQ(event->event, RDMA_CM_EVENT_CONNECT_REQUEST);
    child = event->id;
    OK(rdma_ack_cm_event(event));
    OK(rdma_get_cm_event(to, &event));
    CHECK_EQ(event->event, RDMA_CM_EVENT_REJECTED);
    CHECK(event->id == child);
    OK(rdma_ack_cm_event(event));
    OK(rdma_destroy_id(child));
    OK(rdma_destroy_id(listener));
    rdma_destroy_event_channel(channel);
    rdma_destroy_event_channel(to);
}

TEST_MAIN(TEST(with_the_listener), TEST(in_order_on_another_channel))

#include "tests/shm/raw_peer.h"

#include "base/names.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define MUST(condition)                                                                                      \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "%s:%d: not true: %s (errno: %m)\n", __FILE__, __LINE__, #condition);            \
            abort();                                                                                         \
        }                                                                                                    \
    } while (0)

static socklen_t name_of(uint32_t slot, struct sockaddr_un *address)
{
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    const int n = snprintf(address->sun_path + 1, sizeof address->sun_path - 1, SOFT_SLOT_NAME ".%u.%u",
                           (unsigned)getuid(), slot);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

static int make_socket(void)
{
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    MUST(fd >= 0);
    return fd;
}

static int segment(size_t length, void **map)
{
    const int fd = memfd_create("raw-peer", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    MUST(fd >= 0 && !ftruncate(fd, (off_t)length));
    MUST(!fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW));
    *map = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    MUST(*map != MAP_FAILED);
    return fd;
}

void raw_open(struct raw_peer *peer)
{
    struct sockaddr_un address;
    void *map;

    *peer = (struct raw_peer){.slot = 1, .listen_fd = make_socket(), .ask_fd = -1, .answer_fd = -1};
    while (bind(peer->listen_fd, (struct sockaddr *)&address, name_of(peer->slot, &address)))
        MUST(++peer->slot < SOFT_MAX_SLOT);
    MUST(!listen(peer->listen_fd, 16));
    peer->doors_fd = segment(sizeof(struct soft_doors), &map);
    munmap(map, sizeof(struct soft_doors));
    peer->published_fd = segment(sizeof(struct soft_published), &map);
    peer->own = map;
}

static void hello(const struct raw_peer *peer, int fd)
{
    struct soft_message msg = {.type = SOFT_HELLO, .slot = peer->slot};
    const int fds[] = {peer->doors_fd, peer->published_fd};

    MUST(raw_send(fd, &msg, fds, 2));
}

int raw_connect(uint32_t slot)
{
    struct sockaddr_un address;
    const int fd = make_socket();

    MUST(!connect(fd, (struct sockaddr *)&address, name_of(slot, &address)));
    return fd;
}

void raw_dial(struct raw_peer *peer, uint32_t slot)
{
    peer->ask_fd = raw_connect(slot);
    hello(peer, peer->ask_fd);
}

void raw_accept(struct raw_peer *peer)
{
    peer->answer_fd = accept4(peer->listen_fd, NULL, NULL, SOCK_CLOEXEC);
    MUST(peer->answer_fd >= 0);
    hello(peer, peer->answer_fd);
}

void raw_greeted(struct raw_peer *peer)
{
    struct soft_message msg;
    int fds[SOFT_PACKET_FDS];

    MUST(raw_wait(peer->ask_fd, &msg, fds) && msg.type == SOFT_HELLO);
    peer->doors = mmap(NULL, sizeof *peer->doors, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
    MUST(peer->doors != MAP_FAILED);
    raw_close_all(fds);
}

void raw_meet(struct raw_peer *peer, uint32_t slot)
{
    raw_open(peer);
    raw_dial(peer, slot);
    raw_accept(peer);
    raw_greeted(peer);
}

void raw_hang_up(struct raw_peer *peer)
{
    if (peer->ask_fd >= 0)
        close(peer->ask_fd);
    if (peer->answer_fd >= 0)
        close(peer->answer_fd);
    if (peer->doors)
        munmap(peer->doors, sizeof *peer->doors);
    peer->ask_fd = peer->answer_fd = -1;
    peer->doors = NULL;
}

void raw_close(struct raw_peer *peer)
{
    raw_hang_up(peer);
    close(peer->listen_fd);
    close(peer->doors_fd);
    close(peer->published_fd);
    munmap(peer->own, sizeof *peer->own);
}

uint32_t raw_qpn(const struct raw_peer *peer, uint32_t n)
{
    return peer->slot << SOFT_QPN_INDEX_BITS | n;
}

/* ---- messages ----------------------------------------------------------------------------------------- */

bool raw_send(int fd, struct soft_message *msg, const int *fds, unsigned int nfds)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int) * SOFT_PACKET_FDS)];
        struct cmsghdr align;
    } control;
    struct iovec iov = {.iov_base = msg, .iov_len = sizeof *msg};
    struct msghdr header = {.msg_iov = &iov, .msg_iovlen = 1};

    if (!msg->magic)
        msg->magic = SOFT_LINK_MAGIC;
    if (nfds) {
        memset(&control, 0, sizeof control);
        header.msg_control = control.bytes;
        header.msg_controllen = CMSG_SPACE(sizeof(int) * nfds);
        struct cmsghdr *c = CMSG_FIRSTHDR(&header);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * nfds);
        memcpy(CMSG_DATA(c), fds, sizeof(int) * nfds);
    }
    return sendmsg(fd, &header, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof *msg;
}

int raw_receive(int fd, struct soft_message *msg, int fds[SOFT_PACKET_FDS])
{
    union {
        char bytes[CMSG_SPACE(sizeof(int) * SOFT_PACKET_FDS)];
        struct cmsghdr align;
    } control;
    struct iovec iov = {.iov_base = msg, .iov_len = sizeof *msg};
    ssize_t n;

    for (unsigned int i = 0; i < SOFT_PACKET_FDS; i++)
        fds[i] = -1;
    do {
        struct msghdr header = {
            .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control};
        n = recvmsg(fd, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (n < 0)
            return errno == EAGAIN ? 0 : -1;
        for (struct cmsghdr *c = CMSG_FIRSTHDR(&header); c; c = CMSG_NXTHDR(&header, c))
            if (c->cmsg_type == SCM_RIGHTS)
                memcpy(fds, CMSG_DATA(c), c->cmsg_len - CMSG_LEN(0));
    } while (n == 1); /* a kick */
    return n == (ssize_t)sizeof *msg ? 1 : -1;
}

bool raw_wait(int fd, struct soft_message *msg, int fds[SOFT_PACKET_FDS])
{
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    int got;

    while (!(got = raw_receive(fd, msg, fds)))
        MUST(poll(&ready, 1, -1) == 1);
    return got > 0;
}

void raw_close_all(int fds[SOFT_PACKET_FDS])
{
    for (unsigned int i = 0; i < SOFT_PACKET_FDS; i++) {
        if (fds[i] >= 0)
            close(fds[i]);
        fds[i] = -1;
    }
}

/* ---- lanes -------------------------------------------------------------------------------------------- */

void raw_lane_take(struct raw_lane *lane, const struct raw_peer *peer, const struct soft_message *msg, int fd)
{
    lane->seg = mmap(NULL, sizeof *lane->seg, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    MUST(lane->seg != MAP_FAILED && msg->cq < SOFT_MAX_CQ);
    lane->door = &peer->doors->cq[msg->cq];
    lane->bit = msg->bit;
    lane->tail = 0;
    lane->fd = peer->ask_fd;
}

void raw_attach(struct raw_lane *lane, const struct raw_peer *peer, uint32_t from, uint32_t to,
                enum ibv_qp_type type)
{
    struct soft_message msg = {
        .type = SOFT_ATTACH, .src_qpn = from, .dst_qpn = to, .qp_type = type, .attempt = 1, .rnr_retry = 7};
    int fds[SOFT_PACKET_FDS];

    MUST(raw_send(peer->ask_fd, &msg, NULL, 0));
    do
        MUST(raw_wait(peer->ask_fd, &msg, fds));
    while (msg.type == SOFT_ABSENT);
    MUST(msg.type == SOFT_ATTACHED);
    raw_lane_take(lane, peer, &msg, fds[0]);
    raw_close_all(fds);
}

void raw_lane_drop(struct raw_lane *lane)
{
    munmap(lane->seg, sizeof *lane->seg);
    lane->seg = NULL;
}

void raw_record(struct raw_lane *lane, struct soft_rec rec, const struct soft_reth *reth, const void *payload)
{
    const uint32_t head = sizeof rec + (rec.flags & SOFT_REC_REMOTE ? sizeof *reth : 0);
    const uint32_t stored = payload ? rec.length : 0;
    const uint32_t size = (head + stored + SOFT_RECORD_ALIGN - 1) & ~(uint32_t)(SOFT_RECORD_ALIGN - 1);
    const uint32_t left = SOFT_REQ_RING - (uint32_t)(lane->tail % SOFT_REQ_RING);

    if (left < size) {
        lane->seg->req[lane->tail % SOFT_REQ_RING + offsetof(struct soft_rec, op)] = SOFT_OP_PAD;
        lane->tail += left;
    }
    unsigned char *at = lane->seg->req + lane->tail % SOFT_REQ_RING;
    memcpy(at, &rec, sizeof rec);
    if (rec.flags & SOFT_REC_REMOTE)
        memcpy(at + sizeof rec, reth, sizeof *reth);
    if (stored)
        memcpy(at + head, payload, stored);
    lane->tail += size;
}

void raw_publish(struct raw_lane *lane)
{
    atomic_store(&lane->seg->tail, lane->tail);
    soft_door_ring(lane->door, lane->bit);
    (void)!send(lane->fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* A peer that asks without end, answers what it was not asked, or does not read its answers: it costs the device no more
 * than a peer may, and others go on beside it. */
#include "softdev.h"
#include "tests/harness.h"
#include "tests/shm/raw_peer.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MANY = 3000, FEW_FDS = 40, SIZE = 200, SLAB_BYTES = 4096 };

/* ---- the device's calls come here: the program is first in the linker's scope ------------------------- */

static atomic_bool deny;
static atomic_uint denied;
static pthread_t program;
static pthread_mutex_t refilling = PTHREAD_MUTEX_INITIALIZER;
static int refilled = -1; /* when the device receives a byte, another is sent here */

static void refill(int fd)
{
    pthread_mutex_lock(&refilling);
    refilled = fd;
    pthread_mutex_unlock(&refilling);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    if (atomic_load(&deny) && message->msg_controllen) {
        atomic_fetch_add(&denied, 1);
        errno = ETOOMANYREFS;
        return -1;
    }
    return syscall(SYS_sendmsg, fd, message, flags);
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
    const ssize_t got = syscall(SYS_recvmsg, fd, message, flags);

    if (got == 1 && !pthread_equal(pthread_self(), program)) {
        pthread_mutex_lock(&refilling);
        if (refilled >= 0)
            (void)!send(refilled, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
        pthread_mutex_unlock(&refilling);
    }
    return got;
}

/* ---- what it costs ------------------------------------------------------------------------------------ */

/* Mappings of memory with that name. */
static int count_maps(const char *name)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512];
    int count = 0;

    CHECK(maps != NULL);
    while (fgets(line, sizeof line, maps))
        count += strstr(line, name) != NULL;
    fclose(maps);
    return count;
}

static int memory(const char *name, size_t length)
{
    const int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);

    CHECK(fd >= 0 && !ftruncate(fd, (off_t)length));
    CHECK(!fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW));
    return fd;
}

/* ---- a victim, a peer, and bystanders ----------------------------------------------------------------- */

struct scene {
    struct end victim, calm[2];
    struct raw_peer peer;
    struct address self;
    /* The end of the lane from the victim, which raw_peer.h does not have. */
    struct soft_seg *seg;
    struct soft_doors *doors;
    struct soft_message asked;
};

static void *map(int fd, size_t length)
{
    void *at = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    CHECK(at != MAP_FAILED);
    return at;
}

static void grant(struct scene *scene)
{
    const int fd = memory("floods-lane", sizeof *scene->seg);
    struct soft_message msg;
    int fds[SOFT_PACKET_FDS];

    do {
        CHECK(raw_wait(scene->peer.answer_fd, &msg, fds));
        if (msg.type == SOFT_HELLO)
            scene->doors = map(fds[0], sizeof *scene->doors);
        raw_close_all(fds);
    } while (msg.type != SOFT_ATTACH);
    scene->asked = msg;
    scene->seg = map(fd, sizeof *scene->seg);
    atomic_store(&scene->seg->gate, 1);
    msg.type = SOFT_ATTACHED;
    msg.event_id = SOFT_NO_EVENT;
    CHECK(raw_send(scene->peer.answer_fd, &msg, &fd, 1));
    close(fd);
}

/* The victim has a lane to the peer, unless it is of datagrams. */
static void open_scene(struct scene *scene, enum ibv_qp_type type)
{
    const struct end_options options = {.type = type};

    *scene = (struct scene){0};
    program = pthread_self();
    end_open(&scene->victim, &options);
    scene->self = end_address(&scene->victim);
    raw_meet(&scene->peer, scene->self.qpn >> SOFT_QPN_INDEX_BITS);
    struct address to = scene->self;
    to.qpn = raw_qpn(&scene->peer, 7);
    end_connect(&scene->victim, &to, NULL);
    pair_open(&scene->calm[0], &scene->calm[1], NULL);
    pair_connect(&scene->calm[0], &scene->calm[1], NULL);
    if (type != IBV_QPT_UD)
        grant(scene);
}

static void bystanders(struct scene *scene)
{
    post_recv(&scene->calm[1], 1, 0, SIZE);
    fill(scene->calm[0].buf, SIZE, 5);
    do_send(&scene->calm[0], 0, SIZE);
    expect_wc(scene->calm[1].recv_cq, 1, IBV_WC_SUCCESS);
    CHECK(holds(scene->calm[1].buf, SIZE, 5));
}

static void close_scene(struct scene *scene)
{
    bystanders(scene);
    pair_close(&scene->calm[0], &scene->calm[1]);
    if (scene->seg) {
        munmap(scene->seg, sizeof *scene->seg);
        munmap(scene->doors, sizeof *scene->doors);
    }
    raw_close(&scene->peer);
    end_close(&scene->victim);
}

/* Until the device has taken every message of this socket but the last, at least. */
static void wait_taken(int fd)
{
    int left = 1;

    while (left) {
        CHECK(!ioctl(fd, SIOCOUTQ, &left));
        sched_yield();
    }
}

/* Waits for room in the socket as long as the device reads. */
static void send_all(int fd, struct soft_message *msg, const int *fds, unsigned int nfds)
{
    struct pollfd room = {.fd = fd, .events = POLLOUT};

    while (!raw_send(fd, msg, fds, nfds)) {
        CHECK(errno == EAGAIN || errno == ETOOMANYREFS);
        CHECK(poll(&room, 1, -1) == 1 && !(room.revents & POLLHUP));
    }
}

/* ---- memory -------------------------------------------------------------------------------------------- */

static struct soft_message resolved(const struct scene *scene, uint32_t rkey, uint64_t slab)
{
    struct soft_message msg = scene->asked;

    msg.type = SOFT_RESOLVED;
    msg.rkey = rkey;
    msg.index = soft_key_index(rkey);
    msg.access = ACCESS_ALL & ~IBV_ACCESS_LOCAL_WRITE;
    msg.gate = 1;
    msg.length = msg.slab_length = SLAB_BYTES;
    msg.slab = slab;
    return msg;
}

/* Carries out, as far as its sender sees, what the victim has put into the ring. */
static void acknowledge(struct scene *scene)
{
    struct soft_seg *seg = scene->seg;

    atomic_store(&seg->head, atomic_load(&seg->tail));
    atomic_store(&seg->acked, atomic_load(&seg->acked) + 1);
    soft_door_ring(&scene->doors->cq[scene->asked.cq], scene->asked.bit);
}

/* The victim writes to memory with that key, and asks what the key opens. */
static void write_and_ask(struct scene *scene, uint32_t rkey)
{
    const struct address to = {.addr = 0, .rkey = rkey};
    int fds[SOFT_PACKET_FDS];
    struct soft_message msg;

    post_rdma(&scene->victim, rkey, IBV_WR_RDMA_WRITE, 0, 8, &to, 0, IBV_SEND_SIGNALED);
    CHECK(raw_wait(scene->peer.answer_fd, &msg, fds));
    raw_close_all(fds);
    CHECK_EQ(msg.type, SOFT_RESOLVE);
    CHECK_EQ(msg.rkey, rkey);
    acknowledge(scene);
    expect_wc(scene->victim.send_cq, rkey, IBV_WC_SUCCESS);
}

/* The answer is a slab of its own. */
static void answer(const struct scene *scene, uint32_t rkey, uint64_t id, uint64_t length, int slab)
{
    struct soft_message msg = resolved(scene, rkey, id);

    msg.slab_length = length;
    send_all(scene->peer.answer_fd, &msg, &slab, 1);
}

/* The victim has not asked what these keys open, or only once. */
static void unasked_answers(void)
{
    const int slab = memory("floods-slab", SLAB_BYTES);
    struct scene scene;

    open_scene(&scene, IBV_QPT_RC);
    for (uint32_t i = 0; i < MANY; i++)
        answer(&scene, i << 8, i, SLAB_BYTES, slab);
    wait_taken(scene.peer.answer_fd);
    CHECK_EQ(count_maps("floods-slab"), 0);
    write_and_ask(&scene, 0x100);
    for (uint32_t i = 0; i < MANY; i++)
        answer(&scene, 0x100, i, SLAB_BYTES, slab);
    write_and_ask(&scene, 0x200);
    wait_taken(scene.peer.answer_fd);
    CHECK(count_maps("floods-slab") <= 1);
    CHECK_EQ(end_state(&scene.victim), IBV_QPS_RTS);
    close_scene(&scene);
    close(slab);
}

static void endless(uint32_t keys, uint64_t length, int least, int most)
{
    const int slab = memory("floods-slab", length);
    struct scene scene;

    open_scene(&scene, IBV_QPT_RC);
    for (uint32_t i = 1; i <= keys; i++) {
        write_and_ask(&scene, i << 8);
        answer(&scene, i << 8, i, length, slab);
        wait_taken(scene.peer.answer_fd); /* the victim has only so many questions at a time */
    }
    write_and_ask(&scene, keys << 8 | 1);
    CHECK(count_maps("floods-slab") >= least);
    CHECK(count_maps("floods-slab") <= most);
    CHECK_EQ(end_state(&scene.victim), IBV_QPS_RTS);
    close_scene(&scene);
    CHECK_EQ(count_maps("floods-slab"), 0);
    close(slab);
}

/* A slab for each key that the victim's program was given: so many are mapped, and the others pass the ring. */
static void endless_slabs(void)
{
    endless(4096 + 100, SLAB_BYTES, 4096 - 1, 4096);
}

/* Sparse files as large as address space. */
static void endless_bytes(void)
{
    endless(64, UINT64_C(1) << 36, 15, 16);
}

/* ---- an honest peer ----------------------------------------------------------------------------------- */

enum { REGIONS = 1000 };

struct region {
    uint64_t addr;
    uint32_t rkey;
};

static void owner(int fd, void *argument)
{
    static struct region regions[REGIONS];
    static struct ibv_mr *mrs[REGIONS];
    const struct rlimit many = {2 * REGIONS, 2 * REGIONS};
    struct address peer;
    struct end end;
    char byte;

    (void)argument;
    CHECK(!setrlimit(RLIMIT_NOFILE, &many));
    end_open(&end, NULL);
    for (int i = 0; i < REGIONS; i++) {
        void *slab = softdev_alloc(end.pd, SLAB_BYTES);

        CHECK(slab != NULL);
        mrs[i] = ibv_reg_mr(end.pd, slab, SLAB_BYTES, ACCESS_ALL);
        CHECK(mrs[i] != NULL);
        regions[i] = (struct region){(uintptr_t)slab, mrs[i]->rkey};
    }
    peer = exchange(fd, &end);
    end_connect(&end, &peer, NULL);
    give(fd, regions, sizeof regions);
    take(fd, &byte, 1);
    for (int i = 0; i < REGIONS; i++) {
        const uint8_t *slab = mrs[i]->addr;

        CHECK(holds(slab, 100, (unsigned int)i));
        OK(ibv_dereg_mr(mrs[i]));
        OK(softdev_free(end.pd, (void *)(uintptr_t)regions[i].addr, SLAB_BYTES));
    }
    end_close(&end);
}

/* Its thousand regions are mapped, all of them, sooner or later. */
static void thousand_regions(void)
{
    static struct region regions[REGIONS];
    struct child child = child_start(owner, NULL);
    struct address peer;
    struct end end;

    end_open(&end, NULL);
    peer = exchange(child.fd, &end);
    end_connect(&end, &peer, NULL);
    take(child.fd, regions, sizeof regions);
    do
        for (unsigned int i = 0; i < REGIONS; i++) {
            const struct address to = {.addr = regions[i].addr, .rkey = regions[i].rkey};

            fill(end.buf, 100, i);
            do_rdma(&end, IBV_WR_RDMA_WRITE, 0, 100, &to, 0);
        }
    while (count_maps("softdev-slab") < REGIONS);
    give(child.fd, "e", 1);
    child_join(&child);
    end_close(&end);
}

/* ---- datagrams ---------------------------------------------------------------------------------------- */

static struct soft_message attach(const struct scene *scene, uint32_t n, enum ibv_qp_type type)
{
    return (struct soft_message){.type = SOFT_ATTACH,
                                 .src_qpn = raw_qpn(&scene->peer, n),
                                 .dst_qpn = scene->self.qpn,
                                 .qp_type = type,
                                 .attempt = 1,
                                 .rnr_retry = 7};
}

/* A process has one lane to a queue pair of datagrams; what it has sent in the one before is not lost. */
static void datagram_lanes(void)
{
    struct {
        struct soft_deth deth;
        char payload[8];
    } datagram = {.payload = "payload"};
    const struct soft_rec rec = {.op = SOFT_OP_SEND, .length = sizeof datagram, .total = 8};
    const int before = count_maps("softdev-ud");
    struct raw_lane lane = {0};
    struct scene scene;

    open_scene(&scene, IBV_QPT_UD);
    datagram.deth = (struct soft_deth){.src_qpn = raw_qpn(&scene.peer, 3), .qkey = 0x11111111};
    for (uint64_t i = 0; i < MANY; i++) {
        raw_attach(&lane, &scene.peer, raw_qpn(&scene.peer, 0), scene.self.qpn, IBV_QPT_UD);
        CHECK(count_maps("softdev-ud") <= before + 2); /* ours, and the device's */
        if (i % 100 == 0) {
            post_recv(&scene.victim, i, 0, SIZE);
            raw_record(&lane, rec, NULL, &datagram);
            memcpy(lane.seg->req, &(uint32_t){8}, 4); /* its length is that of the payload alone */
            atomic_store(&lane.seg->tail, lane.tail);
        } else if (i % 100 == 1) {
            expect_wc(scene.victim.recv_cq, i - 1, IBV_WC_SUCCESS);
        }
        raw_lane_drop(&lane);
    }
    close_scene(&scene);
}

/* ---- answers that are not read ------------------------------------------------------------------------ */

/* Asks until the device takes no more, and reads nothing. How many questions it has sent. */
static unsigned int ask_deaf(const struct scene *scene, struct soft_message msg, int before)
{
    struct pollfd room = {.fd = scene->peer.ask_fd, .events = POLLOUT};

    for (unsigned int n = 0; n < 100 * MANY; n++) {
        while (!raw_send(scene->peer.ask_fd, &msg, NULL, 0)) {
            CHECK(errno == EAGAIN);
            /* If the device is only slow, fewer questions are asked. */
            if (!poll(&room, 1, 200))
                return n;
        }
        if (n % 64 == 0)
            CHECK(test_count_fds() <= before + FEW_FDS);
    }
    FAIL("it takes questions without end");
}

/* Every question has its answer, once the peer reads. How many have that type. */
static unsigned int read_answers(const struct scene *scene, unsigned int n, uint32_t type)
{
    unsigned int found = 0;
    int fds[SOFT_PACKET_FDS];
    struct soft_message msg;

    for (unsigned int i = 0; i < n; i++) {
        CHECK(raw_wait(scene->peer.ask_fd, &msg, fds));
        found += msg.type == type;
        raw_close_all(fds);
    }
    return found;
}

static void unread_lanes(void)
{
    struct scene scene;

    open_scene(&scene, IBV_QPT_UD);
    const int before = test_count_fds();
    const unsigned int n = ask_deaf(&scene, attach(&scene, 0, IBV_QPT_UD), before);
    CHECK(test_count_fds() <= before + FEW_FDS);
    bystanders(&scene);
    CHECK_EQ(read_answers(&scene, n, SOFT_ATTACHED), n);
    CHECK(test_count_fds() <= before + FEW_FDS);
    close_scene(&scene);
}

static void unread_keys(void)
{
    struct scene scene;

    open_scene(&scene, IBV_QPT_RC);
    struct soft_message msg = attach(&scene, 7, IBV_QPT_RC);
    msg.type = SOFT_RESOLVE;
    msg.rkey = scene.self.rkey;
    const unsigned int n = ask_deaf(&scene, msg, test_count_fds());
    CHECK_EQ(read_answers(&scene, n, SOFT_RESOLVED), n);
    close_scene(&scene);
}

/* A lane that was asked for early is granted when the answers before it are read. */
static void held_lane(void)
{
    struct scene scene;
    struct address to;

    open_scene(&scene, IBV_QPT_RC);
    struct end late = {0};
    end_open(&late, &(struct end_options){.context = scene.victim.context});
    to = end_address(&late);
    end_to_init(&late, 0);
    struct soft_message early = attach(&scene, 9, IBV_QPT_RC), msg = attach(&scene, 7, IBV_QPT_RC);
    early.dst_qpn = to.qpn;
    CHECK(raw_send(scene.peer.ask_fd, &early, NULL, 0));
    CHECK_EQ(read_answers(&scene, 1, SOFT_ABSENT), 1);
    msg.type = SOFT_RESOLVE;
    msg.rkey = scene.self.rkey;
    const unsigned int n = ask_deaf(&scene, msg, test_count_fds());
    to.qpn = raw_qpn(&scene.peer, 9);
    end_to_rtr(&late, &to, &(struct connect_options)CONNECT_DEFAULTS);
    CHECK_EQ(read_answers(&scene, n + 1, SOFT_ATTACHED), 1);
    end_close(&late);
    close_scene(&scene);
}

/* The user has too many descriptors in flight: the device waits without a busy thread, and goes on. */
static void descriptors_in_flight(void)
{
    struct scene scene;

    open_scene(&scene, IBV_QPT_UD);
    struct soft_message msg = attach(&scene, 0, IBV_QPT_UD);
    const uint64_t begin = test_now_ns();
    atomic_store(&denied, 0);
    atomic_store(&deny, true);
    CHECK(raw_send(scene.peer.ask_fd, &msg, NULL, 0));
    while (atomic_load(&denied) < 3)
        bystanders(&scene);
    atomic_store(&deny, false);
    const unsigned int most = 2 * (unsigned int)((test_now_ns() - begin) / 5000000) + 8;
    CHECK_EQ(read_answers(&scene, 1, SOFT_ATTACHED), 1);
    CHECK(atomic_load(&denied) <= most);
    close_scene(&scene);
}

/* A bell is a descriptor: one process has so many, on all its links. */
static void many_bells(void)
{
    enum { LINKS = 4, BELLS = 300, MOST = 512 };
    struct raw_peer links[LINKS];
    struct scene scene;
    int ends[2], fds[SOFT_PACKET_FDS];

    open_scene(&scene, IBV_QPT_RC);
    CHECK(!pipe2(ends, O_CLOEXEC | O_NONBLOCK));
    const int before = test_count_fds();
    for (unsigned int i = 0; i < LINKS; i++) {
        links[i] = scene.peer;
        raw_dial(&links[i], scene.self.qpn >> SOFT_QPN_INDEX_BITS);
        raw_greeted(&links[i]);
        for (unsigned int n = 0; n < BELLS; n++) {
            struct soft_message msg = attach(&scene, 16 + n, IBV_QPT_RC);
            msg.event_id = 1 + n;
            CHECK(raw_send(links[i].ask_fd, &msg, &ends[1], 1));
            CHECK(raw_wait(links[i].ask_fd, &msg, fds));
            CHECK(msg.type == SOFT_ABSENT || (msg.type == SOFT_REFUSED && msg.error == EMFILE));
        }
    }
    CHECK(test_count_fds() <= before + MOST + FEW_FDS);
    CHECK_EQ(end_state(&scene.victim), IBV_QPS_RTS);
    for (unsigned int i = 0; i < LINKS; i++) {
        links[i].answer_fd = -1;
        raw_hang_up(&links[i]);
    }
    close(ends[0]);
    close(ends[1]);
    close_scene(&scene);
}

/* ---- without end -------------------------------------------------------------------------------------- */

/* A peer is so fast that the device never finds its link empty. Another meets it meanwhile, many times. */
static void others_have_their_turn(void)
{
    struct scene scene;

    open_scene(&scene, IBV_QPT_UD);
    refill(scene.peer.ask_fd);
    (void)!send(scene.peer.ask_fd, "", 1, MSG_NOSIGNAL);
    for (int i = 0; i < 20; i++) {
        struct raw_lane lane = {0};
        struct raw_peer other;

        raw_meet(&other, scene.self.qpn >> SOFT_QPN_INDEX_BITS);
        raw_attach(&lane, &other, raw_qpn(&other, 0), scene.self.qpn, IBV_QPT_UD);
        raw_lane_drop(&lane);
        raw_close(&other);
    }
    refill(-1);
    close_scene(&scene);
}

TEST_MAIN(TEST(thousand_regions), TEST(unasked_answers), TEST(endless_slabs), TEST(endless_bytes),
          TEST(datagram_lanes), TEST(unread_lanes), TEST(unread_keys), TEST(held_lane), TEST(many_bells),
          TEST(descriptors_in_flight), TEST(others_have_their_turn))

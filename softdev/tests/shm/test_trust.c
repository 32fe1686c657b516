/* A peer process of the same user that destroys all it was given: it overwrites every word of every segment that it
 * can map, and takes, fills and blocks every descriptor. This process's connection to another peer goes on, with both
 * sides asleep on their completion channels between messages: one lost wake-up, and the test hangs. */
#include "softdev.h"
#include "tests/harness.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

enum { MESSAGES = 1500, GIVEN = 64, MAPPINGS = 64, BAD = 1000 };

/* ---- what the peer was given ------------------------------------------------------------------------ */

static bool keep_given;
static int given[GIVEN];
static atomic_size_t ngiven; /* by threads of the device; read when no more is expected */
static pthread_mutex_t giving = PTHREAD_MUTEX_INITIALIZER;

/* The device's calls come here: the program is first in the linker's scope. */
ssize_t recvmsg(int fd, struct msghdr *header, int flags)
{
    ssize_t got = syscall(SYS_recvmsg, fd, header, flags);

    for (struct cmsghdr *c = got > 0 && keep_given ? CMSG_FIRSTHDR(header) : NULL; c;
         c = CMSG_NXTHDR(header, c)) {
        int fds[8];
        size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof *fds;

        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS || n > 8)
            continue;
        memcpy(fds, CMSG_DATA(c), n * sizeof *fds);
        pthread_mutex_lock(&giving);
        for (size_t i = 0; i < n && ngiven < GIVEN; i++) {
            given[ngiven] = fcntl(fds[i], F_DUPFD_CLOEXEC, 100);
            ngiven++; /* last: it tells readers of the entry */
        }
        pthread_mutex_unlock(&giving);
    }
    return got;
}

struct mapping {
    uint8_t *start;
    size_t length;
};

static void add(struct mapping *mappings, size_t *count, int fd)
{
    struct stat st;
    void *map;

    if (*count == MAPPINGS || fd < 0 || fstat(fd, &st) || !S_ISREG(st.st_mode) || !st.st_size)
        return;
    map = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map != MAP_FAILED)
        mappings[(*count)++] = (struct mapping){map, (size_t)st.st_size};
}

/* Every way to write to the memory behind the descriptors that came from the victim. */
static size_t seize(struct mapping *mappings)
{
    size_t count = 0;

    for (size_t i = 0; i < ngiven; i++) {
        char path[64];

        snprintf(path, sizeof path, "/proc/self/fd/%d", given[i]);
        (void)fchmod(given[i], 0777);
        add(mappings, &count, given[i]);
        int again = open(path, O_RDWR | O_CLOEXEC); /* fails for what is not a file */
        add(mappings, &count, again);
        if (again >= 0) {
            (void)fcntl(again, F_ADD_SEALS, F_SEAL_FUTURE_WRITE);
            (void)ftruncate(again, 0);
            close(again);
        }
    }
    return count;
}

static void abuse_descriptors(bool block)
{
    for (size_t i = 0; i < ngiven; i++) {
        struct pollfd ready = {.fd = given[i], .events = POLLIN | POLLOUT};
        struct stat st;
        uint64_t word = UINT64_MAX - 1;
        int flags = fcntl(given[i], F_GETFL);

        if (fstat(given[i], &st) || S_ISREG(st.st_mode) || poll(&ready, 1, 0) < 1)
            continue;
        (void)fcntl(given[i], F_SETFL, flags | O_NONBLOCK);
        (void)!read(given[i], &word, sizeof word); /* another peer's wake-up */
        if (block) {
            word = UINT64_MAX - 1;
            (void)!write(given[i], &word, sizeof word);
            (void)fcntl(given[i], F_SETFL, flags & ~O_NONBLOCK); /* the victim's next write waits for ever */
        }
    }
}

/* ---- the three processes ---------------------------------------------------------------------------- */

enum pattern { ZEROS, ONES, RANDOM };
struct plan {
    struct end_options options;
    enum pattern pattern;
    bool block;
};

static void overwrite(const struct mapping *one, enum pattern pattern, uint32_t *seed)
{
    if (pattern != RANDOM)
        memset(one->start, pattern == ONES ? 0xff : 0, one->length);
    for (size_t i = 0; pattern == RANDOM && i + 4 <= one->length; i += 4) {
        uint32_t word = test_random(seed);
        memcpy(one->start + i, &word, sizeof word);
    }
}

static void bad_peer(int fd, void *argument)
{
    struct plan *plan = argument;
    struct mapping mappings[MAPPINGS];
    uint32_t seed = 77;
    struct address peer;
    struct end end;

    keep_given = true;
    end_open(&end, &plan->options);
    end_to_init(&end, 0);
    peer = exchange(fd, &end);
    end_connect(&end, &peer, NULL);
    give(fd, "r", 1);
    take(fd, &seed, 1);
    do_send(&end, 0, 100);
    for (int i = 0; i < 4; i++)
        do_rdma(&end, i % 2 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, 0, 4000, &peer, 4096);
    size_t count = seize(mappings);
    CHECK(count);
    give(fd, "s", 1);
    for (;;) {
        for (size_t i = 0; i < count; i++)
            overwrite(&mappings[i], plan->pattern, &seed);
        abuse_descriptors(plan->block);
    }
}

static void good_peer(int fd, void *argument)
{
    struct plan *plan = argument;
    struct address peer;
    struct end end;

    end_open(&end, &plan->options);
    end_to_init(&end, 0);
    post_recv(&end, 1, 0, 100);
    peer = exchange(fd, &end);
    end_connect(&end, &peer, NULL);
    give(fd, "r", 1);
    for (unsigned i = 0; i < MESSAGES; i++) {
        struct ibv_wc wc = sleep_wc(end.channel, end.recv_cq);

        CHECK_STATUS(&wc, IBV_WC_SUCCESS);
        CHECK(holds(end.buf, 100, i));
        post_recv(&end, 1, 0, 100);
        fill(end.buf + 1000, 100, i + 1);
        post_send(&end, 2, 1000, 100, IBV_SEND_SIGNALED);
        wc = sleep_wc(end.channel, end.send_cq);
        CHECK_STATUS(&wc, IBV_WC_SUCCESS);
    }
    char byte;
    take(fd, &byte, 1);
    end_close(&end);
}

/* The next completion of the good connection: of the other one, nothing is expected. */
static struct ibv_wc sleep_good(struct end *end)
{
    struct ibv_wc wc;

    do
        wc = sleep_wc(end->channel, end->recv_cq);
    while (wc.wr_id >= BAD);
    CHECK_STATUS(&wc, IBV_WC_SUCCESS);
    return wc;
}

/* Both connections share this process's CQ, so both peers ring for it. Each has memory of its own. */
static void open_second(struct end *second, const struct end *first)
{
    struct ibv_qp_init_attr attr = {
        .send_cq = first->recv_cq,
        .recv_cq = first->recv_cq,
        .cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC,
    };

    *second = *first;
    second->qp = ibv_create_qp(first->pd, &attr);
    CHECK(second->qp);
    second->buf = softdev_alloc(first->pd, first->size);
    CHECK(second->buf);
    second->mr = ibv_reg_mr(first->pd, second->buf, first->size, ACCESS_ALL);
    CHECK(second->mr);
}

static void converse(struct end *end, struct child *bad)
{
    char byte;

    for (unsigned i = 0; i < MESSAGES; i++) {
        bool sent = false, received = false;

        if (i == MESSAGES / 4) {
            give(bad->fd, "g", 1);
            take(bad->fd, &byte, 1); /* from here on it overwrites */
        }
        fill(end->buf + 1000, 100, i);
        post_send(end, 2, 1000, 100, IBV_SEND_SIGNALED);
        while (!sent || !received) {
            struct ibv_wc wc = sleep_good(end);
            *(wc.wr_id == 2 ? &sent : &received) = true;
        }
        CHECK(holds(end->buf, 100, i + 1));
        post_recv(end, 1, 0, 100);
    }
}

/* A peer that claims to be in the middle of a direct access for ever holds up a deregistration, but not each of them. */
static void deregister_often(const struct end *end)
{
    static char buf[4096];
    uint64_t begin = test_now_ns();

    for (int i = 0; i < 40; i++) {
        struct ibv_mr *mr = ibv_reg_mr(end->pd, buf, sizeof buf, ACCESS_ALL);
        CHECK(mr);
        OK(ibv_dereg_mr(mr));
    }
    CHECK(test_now_ns() - begin < UINT64_C(20000000000)); /* one second each would be forty */
}

static void attacked(enum pattern pattern, bool block)
{
    struct plan plan = {.options = {.channel = true, .one_cq = true, .cqe = 256, .slab = true},
                        .pattern = pattern,
                        .block = block};
    struct child good = child_start(good_peer, &plan), bad = child_start(bad_peer, &plan);
    struct address peer;
    struct end end, second;
    char byte;

    end_open(&end, &plan.options);
    end_to_init(&end, 0);
    post_recv(&end, 1, 0, 100);
    peer = exchange(good.fd, &end);
    end_connect(&end, &peer, NULL);
    open_second(&second, &end);
    end_to_init(&second, 0);
    for (uint64_t i = 0; i < 8; i++)
        post_recv(&second, BAD + i, 20000, 1000);
    peer = exchange(bad.fd, &second);
    end_connect(&second, &peer, NULL);
    take(good.fd, &byte, 1);
    take(bad.fd, &byte, 1);
    converse(&end, &bad);
    if (pattern == ONES)
        deregister_often(&end);
    child_kill(&bad);
    OK(ibv_destroy_qp(second.qp));
    OK(ibv_dereg_mr(second.mr));
    OK(softdev_free(second.pd, second.buf, second.size));
    give(good.fd, "e", 1);
    child_join(&good);
    end_close(&end);
}

static void zeros(void)
{
    attacked(ZEROS, false);
}
static void ones(void)
{
    attacked(ONES, false);
}
static void random_words(void)
{
    attacked(RANDOM, false);
}
static void blocking_descriptors(void)
{
    attacked(ZEROS, true);
}

TEST_MAIN(TEST(zeros), TEST(ones), TEST(random_words), TEST(blocking_descriptors))

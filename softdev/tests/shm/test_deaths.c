/* Two processes, one of which dies: what it had sent and seen, what the other learns, and that it is woken. */
#include "tests/harness.h"

#include "softdev.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SIZE = 1 << 20 };

static const struct end_options memory_kinds[] = {{.size = SIZE}, {.size = SIZE, .slab = true}};

static void exits(int fd, void *argument)
{
    struct end end;

    end_open(&end, argument);
    end_meet(fd, &end);
    rendezvous(fd);
    /* Exits without destroying anything. */
    _exit(0);
}

static void expect_broken(struct end *end, const struct address *peer)
{
    struct ibv_wc wc;

    post_rdma(end, 1, IBV_WR_RDMA_WRITE, 0, 8, peer, 0, IBV_SEND_SIGNALED);
    wc = next_wc(end->send_cq);
    /* The first ones may have succeeded: the memory lives as long as we map it. */
    for (int i = 0; i < 1000000 && wc.status == IBV_WC_SUCCESS; i++) {
        post_rdma(end, 1, IBV_WR_RDMA_WRITE, 0, 8, peer, 0, IBV_SEND_SIGNALED);
        wc = next_wc(end->send_cq);
    }
    /* Flushed, if the QP was found broken before this request began. */
    CHECK(wc.status == IBV_WC_RETRY_EXC_ERR || wc.status == IBV_WC_WR_FLUSH_ERR);
    CHECK_EQ(end_state(end), IBV_QPS_ERR);
}

static void peer_exits(void)
{
    for (size_t kind = 0; kind < 2; kind++) {
        struct end_options options = memory_kinds[kind];
        struct child child = child_start(exits, &options);
        struct end end;
        struct address peer;

        end_open(&end, &options);
        peer = end_meet(child.fd, &end);
        rendezvous(child.fd);
        child_join(&child);
        expect_broken(&end, &peer);
        end_close(&end);
    }
}

/* Sends, writes and reads forever, in both directions. */
static void work_for_ever(int fd, void *argument)
{
    struct end end;
    uint32_t seed = 99;

    end_open(&end, argument);
    end_to_init(&end, 0);
    for (uint64_t i = 0; i < 8; i++)
        post_recv(&end, i, i * 1024, 1024);
    struct address peer = end_meet(fd, &end);
    rendezvous(fd);
    for (uint64_t i = 0;; i++) {
        struct ibv_wc wc;
        size_t length = test_random(&seed) % 100000;

        switch (test_random(&seed) % 3) {
        case 0: post_rdma(&end, 100, IBV_WR_RDMA_WRITE, 0, length, &peer, 262144, IBV_SEND_SIGNALED); break;
        case 1: post_rdma(&end, 100, IBV_WR_RDMA_READ, 262144, length, &peer, 0, IBV_SEND_SIGNALED); break;
        default: post_send(&end, 100, 0, length % 1024, IBV_SEND_SIGNALED); break;
        }
        do
            if (ibv_poll_cq(end.recv_cq, 1, &wc) == 1)
                post_recv(&end, wc.wr_id, wc.wr_id * 1024, 1024);
        while (ibv_poll_cq(end.send_cq, 1, &wc) != 1);
    }
}

/* Kills the child after a given number of our completions, wherever it is then. */
static void peer_is_killed(void)
{
    uint32_t seed = 4711;

    for (int round = 0; round < TIMES(24); round++) {
        struct end_options options = memory_kinds[round % 2];
        uint32_t life = test_random(&seed) % 300, failed = 0;
        struct child child;
        struct end end;
        struct ibv_wc wc;

        options.one_cq = true;
        child = child_start(work_for_ever, &options);
        end_open(&end, &options);
        end_to_init(&end, 0);
        for (uint64_t i = 0; i < 8; i++)
            post_recv(&end, i, i * 1024, 1024);
        struct address peer = end_meet(child.fd, &end);
        rendezvous(child.fd);
        for (uint32_t i = 0; i < 4; i++)
            post_rdma(&end, 100 + i, i % 2 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, 524288, 50000, &peer,
                      524288, IBV_SEND_SIGNALED);
        for (uint32_t seen = 0; seen < life;) {
            if (ibv_poll_cq(end.recv_cq, 1, &wc) != 1)
                continue;
            CHECK_STATUS(&wc, IBV_WC_SUCCESS);
            seen++;
            if (wc.wr_id >= 100)
                post_rdma(&end, wc.wr_id, wc.wr_id % 2 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, 524288,
                          test_random(&seed) % 60000, &peer, 524288, IBV_SEND_SIGNALED);
            else
                post_recv(&end, wc.wr_id, wc.wr_id * 1024, 1024);
        }
        child_kill(&child);
        /* Every outstanding request completes, eventually with an error, and the device continues to work. */
        while (!failed) {
            wc = next_wc(end.recv_cq);
            if (wc.status != IBV_WC_SUCCESS)
                failed++;
            else if (wc.wr_id >= 100)
                post_rdma(&end, wc.wr_id, IBV_WR_RDMA_WRITE, 524288, 8, &peer, 524288, IBV_SEND_SIGNALED);
        }
        CHECK_EQ(end_state(&end), IBV_QPS_ERR);
        end_close(&end);
    }
    struct end a, b;

    pair_open(&a, &b, NULL);
    pair_connect(&a, &b, NULL);
    post_recv(&b, 1, 0, 100);
    do_send(&a, 0, 100);
    expect_wc(b.recv_cq, 1, IBV_WC_SUCCESS);
    pair_close(&a, &b);
}

static void ends_when_it_has_received(int fd, void *argument)
{
    const int answers = *(const int *)argument;
    struct end end;

    end_open(&end, &(struct end_options){.recv_wr = 64});
    end_to_init(&end, 0);
    for (uint64_t i = 0; i < 64; i++)
        post_recv(&end, i, 0, 64);
    end_meet(fd, &end);
    rendezvous(fd);
    for (uint64_t i = 0;; i++) {
        expect_wc(end.recv_cq, i, IBV_WC_SUCCESS);
        if (i == 40)
            _exit(0);
        if (i < (uint64_t)answers)
            do_send(&end, 4096, 64);
    }
}

/* What a process has seen is acknowledged, although it ends at once, without exit(). */
static void receiver_ends_at_once(void)
{
    for (int answers = 0; answers < 20; answers += 9) {
        struct child child = child_start(ends_when_it_has_received, &answers);
        struct end end;

        end_open(&end, &(struct end_options){.recv_wr = 64});
        end_to_init(&end, 0);
        for (uint64_t i = 0; i < 64; i++)
            post_recv(&end, i, 0, 64);
        end_meet(child.fd, &end);
        rendezvous(child.fd);
        for (int i = 0; i <= 40; i++) {
            do_send(&end, 4096, 64);
            if (i < answers)
                expect_wc(end.recv_cq, (uint64_t)i, IBV_WC_SUCCESS);
        }
        child_join(&child);
        end_close(&end);
    }
}

/* What a process had posted when it ended is carried out, whichever of the two ways it is lost by first. */
struct last_words {
    int holds;   /* of softdev_holds(); -1: it says nothing */
    int held_up; /* its last requests wait in its own memory */
};

static void says_last_words(int fd, void *argument)
{
    const struct last_words *words = argument;
    struct end end;

    end_open(&end, NULL);
    struct address peer = end_meet(fd, &end);
    do_send(&end, 0, 64); /* the lane is there */
    rendezvous(fd);
    if (words->holds >= 0)
        softdev_holds(end.qp, words->holds);
    fill(end.buf, 40000, 3);
    post_rdma(&end, 1, IBV_WR_RDMA_WRITE, 0, 40000, &peer, 0, 0);
    /* More than a lane has room for, as nobody polls there. */
    for (int i = 0; i < (words->held_up ? 12 : 4); i++)
        post_send(&end, 2, 0, 16384, 0);
    _exit(0);
}

static void last_words_arrive(void)
{
    static const struct {
        struct last_words words;
        int whole;
    } cases[] = {{{0, 0}, 1}, {{1, 0}, 0}, {{-1, 0}, 0}, {{0, 1}, 0}};
    const char *wire = getenv("SOFTDEV_WIRE");

    if (wire && !strcmp(wire, "only"))
        return; /* on the wire nothing of a dead process is left to be carried out */
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct last_words words = cases[i].words;
        struct end_options options = {.size = SIZE};
        struct child child = child_start(says_last_words, &words);
        struct end end;
        struct ibv_wc wc;

        end_open(&end, &options);
        end_to_init(&end, 0);
        for (uint64_t n = 0; n < 5; n++)
            post_recv(&end, n, 65536 + n * 16384, 16384);
        end_meet(child.fd, &end);
        CHECK_EQ(expect_wc(end.recv_cq, 0, IBV_WC_SUCCESS).byte_len, 64);
        CHECK_EQ(softdev_left_whole(end.qp), -1);
        rendezvous(child.fd);
        child_join(&child);
        for (uint64_t n = 1; n < 5; n++)
            CHECK_EQ(expect_wc(end.recv_cq, n, IBV_WC_SUCCESS).byte_len, 16384);
        CHECK(holds(end.buf, 40000, 3));
        do
            usleep(1000);
        while (end_state(&end) != IBV_QPS_ERR);
        CHECK_EQ(softdev_left_whole(end.qp), cases[i].whole);
        if (ibv_poll_cq(end.recv_cq, 1, &wc))
            CHECK_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
        end_close(&end);
    }
}

/* If a peer dies while we sleep and wait for a message, the failure of our own outstanding work wakes us. */
static void death_wakes_the_sleeper(void)
{
    struct end_options options = {.channel = true};
    struct child child = child_start(exits, &options);
    struct end end;
    struct ibv_wc wc;

    end_open(&end, &options);
    end_meet(child.fd, &end);
    post_send(&end, 5, 0, 8, IBV_SEND_SIGNALED); /* never received: the child posts no receives */
    rendezvous(child.fd);
    child_join(&child);
    wc = sleep_wc(end.channel, end.send_cq);
    CHECK_EQ(wc.wr_id, 5);
    CHECK_STATUS(&wc, IBV_WC_RETRY_EXC_ERR);
    end_close(&end);
}

TEST_MAIN(TEST(peer_exits), TEST(receiver_ends_at_once), TEST(peer_is_killed), TEST(death_wakes_the_sleeper),
          TEST(last_words_arrive))

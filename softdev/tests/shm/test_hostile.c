/* A peer process that overwrites all shared memory at random: it may break its own connections and the
 * memory that it may write to, but never this process. */
#include "tests/harness.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SIZE = 1 << 18, ROUNDS = 20, MAPPINGS = 64, STEPS = 30000 };

struct mapping {
    uint8_t *start;
    size_t length;
};

/* This process's writable shared mappings: the memory that the device shares with other processes. */
static size_t find_shared(struct mapping *found)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512], mode[8];
    size_t count = 0;

    CHECK(maps);
    while (count < MAPPINGS && fgets(line, sizeof line, maps)) {
        unsigned long start, end;

        /* NOLINTNEXTLINE(cert-err34-c): the kernel's own format */
        if (sscanf(line, "%lx-%lx %7s", &start, &end, mode) == 3 && mode[1] == 'w' && mode[3] == 's')
            found[count++] =
                (struct mapping){(uint8_t *)start, end - start}; // NOLINT(performance-no-int-to-ptr)
    }
    fclose(maps);
    return count;
}

static void scribble(const struct mapping *mappings, size_t count, uint32_t *seed)
{
    const struct mapping *one = &mappings[test_random(seed) % count];
    /* Control fields lie at the start of mappings, so most writes go there. */
    size_t reach = test_random(seed) % 3 ? (one->length < 4096 ? one->length : 4096) : one->length;
    size_t at = (((size_t)test_random(seed) << 8) ^ test_random(seed)) % (reach - 7);
    uint64_t value;

    switch (test_random(seed) % 4) {
    case 0: value = UINT64_MAX; break;
    case 1: value = test_random(seed) % 256; break;
    default: value = (uint64_t)test_random(seed) << 32 | test_random(seed); break;
    }
    memcpy(one->start + at, &value, 1 + test_random(seed) % 8);
}

struct plan {
    struct end_options options;
    uint32_t seed;
};

static void hostile(int fd, void *argument)
{
    struct plan *plan = argument;
    struct mapping mappings[MAPPINGS];
    struct address peer;
    struct end end;
    size_t count;
    char byte;

    end_open(&end, &plan->options);
    end_to_init(&end, 0);
    for (uint64_t i = 0; i < 8; i++)
        post_recv(&end, i, i * 1024, 1024);
    peer = exchange(fd, &end);
    end_connect(&end, &peer, NULL);
    give(fd, "r", 1);
    take(fd, &byte, 1);
    /* A little real traffic first, so that everything is set up and mapped. */
    for (int i = 0; i < 4; i++) {
        post_rdma(&end, 1, i % 2 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, 0, 4000, &peer, 4096,
                  IBV_SEND_SIGNALED);
        next_wc(end.send_cq);
    }
    count = find_shared(mappings);
    CHECK(count);
    give(fd, "s", 1);
    for (uint32_t step = 0;; step++) {
        struct ibv_sge sge = end_sge(&end, 0, 512);
        struct ibv_send_wr wr = {.sg_list = &sge,
                                 .num_sge = 1,
                                 .opcode = step % 3   ? IBV_WR_SEND
                                           : step % 2 ? IBV_WR_RDMA_WRITE
                                                      : IBV_WR_RDMA_READ,
                                 .wr = {.rdma = {.remote_addr = peer.addr + 4096, .rkey = peer.rkey}}},
                           *bad;
        struct ibv_wc wc;

        scribble(mappings, count, &plan->seed);
        ibv_post_send(end.qp, &wr, &bad);
        ibv_poll_cq(end.send_cq, 1, &wc);
        ibv_poll_cq(end.recv_cq, 1, &wc);
    }
}

/* Accepts any completion with any status; the hostile process sometimes crashes from its own writes. */
static void survive(void)
{
    for (uint32_t round = 0; round < ROUNDS; round++) {
        struct plan plan = {.options = {.size = SIZE, .slab = round % 2, .one_cq = true, .cqe = 1024},
                            .seed = round * 7919 + 1};
        struct child child = child_start(hostile, &plan);
        struct address peer;
        struct end end;
        struct ibv_wc wc;
        char byte;

        end_open(&end, &plan.options);
        end_to_init(&end, 0);
        for (uint64_t i = 0; i < 8; i++)
            post_recv(&end, i, i * 1024, 1024);
        peer = exchange(child.fd, &end);
        end_connect(&end, &peer, NULL);
        take(child.fd, &byte, 1);
        give(child.fd, "r", 1);
        if (try_take(child.fd, &byte, 1)) {
            for (uint32_t step = 0; step < STEPS; step++) {
                struct ibv_sge sge = end_sge(&end, 65536, 2000);
                struct ibv_send_wr wr = {.wr_id = 100,
                                         .sg_list = &sge,
                                         .num_sge = 1,
                                         .opcode = step % 3 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ,
                                         .send_flags = IBV_SEND_SIGNALED,
                                         .wr = {.rdma = {.remote_addr = peer.addr + 65536,
                                                         .rkey = peer.rkey}}},
                                   *bad;

                if (step % 16 == 0)
                    ibv_post_send(end.qp, &wr, &bad);
                if (ibv_poll_cq(end.recv_cq, 1, &wc) == 1 && wc.wr_id < 8 && wc.status == IBV_WC_SUCCESS)
                    post_recv(&end, wc.wr_id, wc.wr_id * 1024, 1024);
                if (step % 256 == 0)
                    sched_yield();
            }
        }
        child_kill(&child);
        end_close(&end);
    }
    struct end a, b;

    pair_open(&a, &b, NULL);
    pair_connect(&a, &b, NULL);
    for (unsigned i = 0; i < 100; i++) {
        fill(a.buf, 100, i);
        post_recv(&b, 1, 0, 100);
        do_send(&a, 0, 100);
        expect_wc(b.recv_cq, 1, IBV_WC_SUCCESS);
        CHECK(holds(b.buf, 100, i));
    }
    pair_close(&a, &b);
}

TEST_MAIN(TEST(survive))

/* Memory that a program unmaps or protects after it has registered it: whatever reaches it ends with an error
 * completion, and never with a signal. Between queue pairs of one process, and of two. */
#include "tests/harness.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* The kernel gives the highest hole that is large enough to who asks for memory next, and with a sanitizer many ask for
 * a page. So that the hole in the middle stays one, there is a larger one above it. */
enum { PAGES = 16, MIDDLE = 7, ABOVE = 64 };

static size_t page;

struct memory {
    uint8_t *at; /* PAGES, and ABOVE more until the middle is unmapped */
    struct ibv_mr *mr;
};

static struct memory take_memory(struct end *end)
{
    struct memory m;

    page = (size_t)sysconf(_SC_PAGESIZE);
    m.at = mmap(NULL, (PAGES + ABOVE) * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(m.at != MAP_FAILED);
    memset(m.at, 1, PAGES * page);
    m.mr = ibv_reg_mr(end->pd, m.at, PAGES * page, ACCESS_ALL);
    CHECK(m.mr);
    return m;
}

static void free_memory(struct memory *m)
{
    OK(ibv_dereg_mr(m->mr));
    munmap(m->at, PAGES * page); /* what is above may be somebody else's by now */
}

/* Takes away the page in the middle: all of it, its reading, or its writing. */
static void spoil(const struct memory *m, int how)
{
    uint8_t *middle = m->at + MIDDLE * page;

    if (how < 0) {
        OK(munmap(m->at + PAGES * page, ABOVE * page));
        OK(munmap(middle, page));
    } else {
        OK(mprotect(middle, page, how));
    }
}

static void post(struct end *end, enum ibv_wr_opcode opcode, const struct memory *own, size_t length,
                 uint64_t raddr, uint32_t rkey)
{
    struct ibv_sge sge = {.addr = (uintptr_t)own->at, .length = (uint32_t)length, .lkey = own->mr->lkey};
    struct ibv_send_wr wr = {.wr_id = 9,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = opcode,
                             .send_flags = IBV_SEND_SIGNALED},
                       *bad;

    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        wr.wr.atomic.remote_addr = raddr;
        wr.wr.atomic.rkey = rkey;
        wr.wr.atomic.compare_add = 1;
    } else {
        wr.wr.rdma.remote_addr = raddr;
        wr.wr.rdma.rkey = rkey;
    }
    OK(ibv_post_send(end->qp, &wr, &bad));
}

/* ---- the peer's memory, in this process ---- */

static void of_the_peer(enum ibv_wr_opcode opcode, size_t length, size_t from, int how)
{
    struct end a, b;

    pair_open(&a, &b, NULL);
    pair_connect(&a, &b, NULL);
    struct memory own = take_memory(&a), gone = take_memory(&b);
    spoil(&gone, how);
    post(&a, opcode, &own, length, (uintptr_t)gone.at + from, gone.mr->rkey);
    expect_wc(a.send_cq, 9, IBV_WC_REM_OP_ERR);
    free_memory(&own);
    free_memory(&gone);
    pair_close(&a, &b);
}

static void writes(void)
{
    of_the_peer(IBV_WR_RDMA_WRITE, 64, MIDDLE * 4096, PROT_NONE);
    of_the_peer(IBV_WR_RDMA_WRITE, 64, MIDDLE * 4096, PROT_READ);
    of_the_peer(IBV_WR_RDMA_WRITE, 64, MIDDLE * 4096, -1);
    of_the_peer(IBV_WR_RDMA_WRITE, 16 * 4096, 0, PROT_NONE);
    of_the_peer(IBV_WR_RDMA_WRITE, 16 * 4096, 0, -1);
}

/* A WRITE of a few bytes, the first of which are in the missing page: those behind it would say that all are there. */
static void last_bytes_come_last(void)
{
    struct end a, b;

    for (size_t length = 2; length < 70; length++) {
        for (size_t missing = 1; missing < length; missing += missing < 10 || missing + 10 > length ? 1 : 7) {
            pair_open(&a, &b, NULL);
            pair_connect(&a, &b, NULL);
            struct memory own = take_memory(&a), gone = take_memory(&b);
            uint8_t *behind = gone.at + (MIDDLE + 1) * page;
            memset(own.at, 2, length);
            spoil(&gone, PROT_NONE);
            post(&a, IBV_WR_RDMA_WRITE, &own, length, (uintptr_t)behind - missing, gone.mr->rkey);
            expect_wc(a.send_cq, 9, IBV_WC_REM_OP_ERR);
            CHECK_EQ(behind[length - missing - 1], 1);
            free_memory(&own);
            free_memory(&gone);
            pair_close(&a, &b);
        }
        if (length == 20)
            length = 62;
    }
}

static void reads(void)
{
    of_the_peer(IBV_WR_RDMA_READ, 64, MIDDLE * 4096, PROT_NONE);
    of_the_peer(IBV_WR_RDMA_READ, 16 * 4096, 0, -1);
}

static void atomics(void)
{
    of_the_peer(IBV_WR_ATOMIC_FETCH_AND_ADD, 8, MIDDLE * 4096, PROT_NONE);
    of_the_peer(IBV_WR_ATOMIC_FETCH_AND_ADD, 8, MIDDLE * 4096, PROT_READ);
}

/* ---- one's own ---- */

static void of_ones_own(enum ibv_wr_opcode opcode, int how)
{
    struct end a, b;

    pair_open(&a, &b, NULL);
    pair_connect(&a, &b, NULL);
    post_recv(&b, 1, 0, 65536);
    struct memory gone = take_memory(&a), there = take_memory(&b);
    spoil(&gone, how);
    post(&a, opcode, &gone, PAGES * page, (uintptr_t)there.at, there.mr->rkey);
    const struct ibv_wc wc = next_wc(a.send_cq);
    if (opcode == IBV_WR_SEND) /* what places it at the receiver cannot say whose memory was missing */
        CHECK(wc.status == IBV_WC_LOC_PROT_ERR || wc.status == IBV_WC_REM_OP_ERR);
    else
        CHECK_STATUS(&wc, IBV_WC_LOC_PROT_ERR);
    free_memory(&gone);
    free_memory(&there);
    pair_close(&a, &b);
}

static void ones_own(void)
{
    of_ones_own(IBV_WR_RDMA_WRITE, PROT_NONE);
    of_ones_own(IBV_WR_RDMA_WRITE, -1);
    of_ones_own(IBV_WR_RDMA_READ, PROT_READ);
    of_ones_own(IBV_WR_SEND, -1);
}

static void receives(void)
{
    struct end a, b;

    pair_open(&a, &b, NULL);
    pair_connect(&a, &b, NULL);
    struct memory gone = take_memory(&b);
    struct ibv_sge sge = {.addr = (uintptr_t)gone.at, .length = 65536, .lkey = gone.mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1}, *bad;
    OK(ibv_post_recv(b.qp, &wr, &bad));
    spoil(&gone, PROT_READ);
    post_send(&a, 2, 0, 65536, IBV_SEND_SIGNALED);
    expect_wc(a.send_cq, 2, IBV_WC_REM_OP_ERR);
    expect_wc(b.recv_cq, 1, IBV_WC_LOC_PROT_ERR);
    free_memory(&gone);
    pair_close(&a, &b);
}

/* ---- of another process: what is copied for it, and what it takes from the ring ---- */

struct told {
    uint64_t addr;
    uint32_t rkey;
};

static void owner(int fd, void *how)
{
    struct end end;
    char byte;

    end_open(&end, NULL);
    end_to_init(&end, 0);
    struct memory gone = take_memory(&end);
    struct address peer = exchange(fd, &end);
    end_connect(&end, &peer, NULL);
    struct told told = {(uintptr_t)gone.at, gone.mr->rkey};
    give(fd, &told, sizeof told);
    take(fd, &byte, 1);
    spoil(&gone, *(int *)how);
    give(fd, "s", 1);
    /* It sleeps: the progress thread finds the memory missing. */
    take(fd, &byte, 1);
    free_memory(&gone);
    end_close(&end);
}

static void of_another(enum ibv_wr_opcode opcode, size_t length, int how)
{
    struct child child = child_start(owner, &how);
    struct end end;
    struct told told;
    char byte;

    end_open(&end, NULL);
    struct memory own = take_memory(&end);
    struct address peer = exchange(child.fd, &end);
    end_connect(&end, &peer, NULL);
    take(child.fd, &told, sizeof told);
    for (int i = 0; i < 100; i++) { /* by now the kernel copies */
        post(&end, IBV_WR_RDMA_WRITE, &own, 64, told.addr, told.rkey);
        expect_wc(end.send_cq, 9, IBV_WC_SUCCESS);
    }
    give(child.fd, "n", 1);
    take(child.fd, &byte, 1);
    post(&end, opcode, &own, length, told.addr + (length < 4096 ? MIDDLE * page : 0), told.rkey);
    expect_wc(end.send_cq, 9, IBV_WC_REM_OP_ERR);
    give(child.fd, "q", 1);
    child_join(&child);
    free_memory(&own);
    end_close(&end);
}

static void another_process(void)
{
    of_another(IBV_WR_RDMA_WRITE, 64, PROT_NONE);
    of_another(IBV_WR_RDMA_WRITE, 65536, -1);
    of_another(IBV_WR_RDMA_WRITE, 65536, PROT_READ);
    of_another(IBV_WR_RDMA_READ, 65536, PROT_NONE);
    of_another(IBV_WR_RDMA_READ, 64, -1);
    of_another(IBV_WR_ATOMIC_FETCH_AND_ADD, 8, PROT_NONE);
}

/* ---- signals that are none of ours ---- */

static void die(int how)
{
    struct end end;

    end_open(&end, NULL); /* registers memory */
    if (how == 0)
        *(volatile int *)NULL = 1; // NOLINT: on purpose
    else
        raise(SIGSEGV);
    _exit(0);
}

/* A program that is broken ends as it does without the device. */
static void others_signals(void)
{
    for (int how = 0; how < 2; how++) {
        int status;
        const pid_t pid = fork();

        CHECK(pid >= 0);
        if (!pid)
            die(how);
        CHECK_EQ(waitpid(pid, &status, 0), pid);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* they end it in their own way */
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
#else
        CHECK(!WIFEXITED(status) || WEXITSTATUS(status));
#endif
    }
}

TEST_MAIN(TEST(writes), TEST(last_bytes_come_last), TEST(reads), TEST(atomics), TEST(ones_own),
          TEST(receives), TEST(another_process), TEST(others_signals))

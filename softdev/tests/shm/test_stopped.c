/* A peer whose process is stopped in the middle of an access to this process's memory, and goes on later: when memory
 * was taken back meanwhile, by whatever call, that peer changes nothing in it any more and learns that its request
 * failed. Other peers, and threads of this process, use the same memory meanwhile and lose nothing. */
#include "softdev.h"
#include "tests/harness.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 4 << 20, LENGTH = 1 << 20, AT = 2 << 20, PAGE = 4096, WORD = AT + 512 * 1024, REUSED = 0xaa };

/* ---- a peer that stops ------------------------------------------------------------------------------- */

static uint8_t *_Atomic trap; /* a page of the peer's own memory: to touch it stops the process */
static atomic_bool stop_in_call;

static void stop(int signal)
{
    uint8_t *page = atomic_exchange(&trap, NULL);

    (void)signal;
    if (!page || mprotect(page, PAGE, PROT_READ | PROT_WRITE))
        _exit(99);
    raise(SIGSTOP);
}

/* The device's calls come here: the program is first in the linker's scope. */
ssize_t process_vm_writev(pid_t pid, const struct iovec *local, unsigned long n, const struct iovec *remote,
                          unsigned long m, unsigned long flags)
{
    if (atomic_exchange(&stop_in_call, false))
        raise(SIGSTOP);
    return syscall(SYS_process_vm_writev, pid, local, n, remote, m, flags);
}

struct plan {
    struct end_options options; /* of the owner */
    enum ibv_wr_opcode opcode;
};

static void post(struct end *end, uint64_t wr_id, const struct plan *plan, const struct address *peer)
{
    bool atomic = plan->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
    struct ibv_sge sge = end_sge(end, atomic ? WORD - AT : 0, atomic ? 8 : LENGTH);
    struct ibv_send_wr *bad, wr = {.wr_id = wr_id,
                                   .sg_list = &sge,
                                   .num_sge = 1,
                                   .opcode = plan->opcode,
                                   .send_flags = IBV_SEND_SIGNALED};

    if (atomic) {
        wr.wr.atomic.remote_addr = peer->addr + WORD;
        wr.wr.atomic.rkey = peer->rkey;
        wr.wr.atomic.compare_add = 1;
    } else {
        wr.wr.rdma.remote_addr = peer->addr + AT;
        wr.wr.rdma.rkey = peer->rkey;
    }
    OK(ibv_post_send(end->qp, &wr, &bad));
}

/* Until the memory is known, the owner carries requests out. */
static void until_direct(struct end *end, const struct plan *plan, const struct address *peer)
{
    const volatile uint64_t *astray = softdev_astray(end->qp);
    struct plan write = *plan;
    uint64_t before;

    write.opcode = IBV_WR_RDMA_WRITE;
    do {
        before = *astray;
        post(end, 1, &write, peer);
        expect_wc(end->send_cq, 1, IBV_WC_SUCCESS);
    } while (*astray != before);
}

/* Tells the status of the request in the middle of which it was stopped. */
static void stopping_peer(int fd, void *argument)
{
    const struct plan *plan = argument;
    struct end_options options = {.size = SIZE, .slab = true};
    struct sigaction action = {.sa_handler = stop};
    struct end end;

    end_open(&end, &options);
    struct address peer = exchange(fd, &end);
    end_connect(&end, &peer, NULL);
    give(fd, "c", 1);
    until_direct(&end, plan, &peer);
    memset(end.buf, 0x55, SIZE);
    CHECK(!sigaction(SIGSEGV, &action, NULL));
    if (plan->options.slab) {
        atomic_store(&trap, end.buf + (WORD - AT));
        CHECK(!mprotect(end.buf + (WORD - AT), PAGE, PROT_NONE));
    } else {
        atomic_store(&stop_in_call, true);
    }
    post(&end, 2, plan, &peer);
    struct ibv_wc wc = next_wc(end.send_cq);
    uint32_t status = wc.status;
    give(fd, &status, sizeof status);
    take(fd, &status, 1);
    end_close(&end);
}

static struct child meet_stopped(struct end *end, struct plan *plan)
{
    struct child child = child_start(stopping_peer, plan);
    char byte;
    int status;

    end_open(end, &plan->options);
    struct address peer = exchange(child.fd, end);
    end_connect(end, &peer, NULL);
    take(child.fd, &byte, 1);
    CHECK_EQ(waitpid(child.pid, &status, WUNTRACED), child.pid);
    CHECK(WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP);
    return child;
}

/* ---- ways to take memory back ------------------------------------------------------------------------ */

static void deregister(struct end *end)
{
    OK(ibv_dereg_mr(end->mr));
    end->mr = NULL;
}

static void register_elsewhere(struct end *end)
{
    CHECK(!ibv_rereg_mr(end->mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, end->buf, PAGE, 0));
}

static void take_rights(struct end *end)
{
    struct ibv_qp_attr attr = {.qp_access_flags = 0};

    OK(ibv_modify_qp(end->qp, &attr, IBV_QP_ACCESS_FLAGS));
}

static void destroy(struct end *end)
{
    OK(ibv_destroy_qp(end->qp));
    end->qp = NULL;
}

static void reset(struct end *end)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};

    OK(ibv_modify_qp(end->qp, &attr, IBV_QP_STATE));
}

static void free_all(struct end *end)
{
    destroy(end);
    deregister(end);
    OK(softdev_free(end->pd, end->buf, end->size));
    end->buf = softdev_alloc(end->pd, end->size); /* most likely at the same address */
    CHECK(end->buf);
}

static void (*const ways[])(struct end *) = {
    deregister, register_elsewhere, take_rights, end_to_error, destroy, reset, free_all};

/* ---- tests ------------------------------------------------------------------------------------------- */

static void mapped(enum ibv_wr_opcode opcode)
{
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct plan plan = {.options = {.size = SIZE, .slab = true}, .opcode = opcode};
        struct end end;
        struct child child = meet_stopped(&end, &plan);
        uint32_t status;

        ways[i](&end);
        memset(end.buf, REUSED, SIZE);
        CHECK(!kill(child.pid, SIGCONT));
        take(child.fd, &status, sizeof status);
        CHECK(status != IBV_WC_SUCCESS);
        CHECK(all_bytes(end.buf, SIZE, REUSED));
        give(child.fd, "e", 1);
        child_join(&child);
        end_close(&end);
    }
}

static void mapped_write(void)
{
    mapped(IBV_WR_RDMA_WRITE);
}
static void mapped_read(void)
{
    mapped(IBV_WR_RDMA_READ);
}
static void mapped_atomic(void)
{
    mapped(IBV_WR_ATOMIC_FETCH_AND_ADD);
}

/* The kernel copies to the owner's address: the memory is not free before the peer has gone on. */
static void by_address(void)
{
    for (int way = 0; way < 4; way++) {
        struct plan plan = {.options = {.size = SIZE}, .opcode = IBV_WR_RDMA_WRITE};
        struct end end;
        struct child child = meet_stopped(&end, &plan);
        uint32_t status;

        memset(end.buf, REUSED, SIZE);
        if (way % 2)
            destroy(&end);
        for (int i = 0; i < 3; i++)
            CHECK_EQ(ibv_dereg_mr(end.mr), EBUSY);
        CHECK_EQ(ibv_rereg_mr(end.mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, end.buf, PAGE, 0),
                 IBV_REREG_MR_ERR_INPUT);
        CHECK(all_bytes(end.buf, SIZE, REUSED));
        if (way < 2) {
            CHECK(!kill(child.pid, SIGCONT));
            take(child.fd, &status, sizeof status);
            deregister(&end);
            give(child.fd, "e", 1);
            child_join(&child);
        } else {
            child_kill(&child);
            deregister(&end);
            CHECK(all_bytes(end.buf, SIZE, REUSED));
        }
        end_close(&end);
    }
}

/* Other memory can be taken back, however long a peer is inside of this one. */
static void elsewhere(void)
{
    struct plan plan = {.options = {.size = SIZE}, .opcode = IBV_WR_RDMA_WRITE};
    static uint8_t other[PAGE];
    struct end end;
    struct child child = meet_stopped(&end, &plan);
    struct ibv_mr *mr = ibv_reg_mr(end.pd, other, sizeof other, ACCESS_ALL);
    uint32_t status;

    CHECK(mr);
    OK(ibv_dereg_mr(mr));
    CHECK(!kill(child.pid, SIGCONT));
    take(child.fd, &status, sizeof status);
    CHECK_EQ(status, IBV_WC_SUCCESS); /* nobody took it back */
    CHECK(all_bytes(end.buf + AT, LENGTH, 0x55));
    give(child.fd, "e", 1);
    child_join(&child);
    end_close(&end);
}

/* ---- others use the memory meanwhile ----------------------------------------------------------------- */

enum { COUNTED = 256, STEP = PAGE };

struct counting {
    uint8_t *buf;
    uint64_t rounds;
    atomic_bool ends;
};

/* Counts in each page, as fast as it can. (To TSan, mapping memory anew is writing to it.) */
__attribute__((no_sanitize("thread"))) static void *count(void *argument)
{
    struct counting *counting = argument;

    while (!atomic_load(&counting->ends)) {
        for (size_t i = 0; i < COUNTED; i++)
            ++*(volatile uint64_t *)(void *)(counting->buf + AT + i * STEP + 64);
        counting->rounds++;
    }
    return NULL;
}

/* Writes numbers into one place until told to end, and tells the last that was written. */
static void counting_peer(int fd, void *argument)
{
    struct end_options options = {.size = PAGE, .slab = true};
    struct end end;
    struct address peer;
    uint64_t n = 0;

    (void)argument;
    end_open(&end, &options);
    peer = exchange(fd, &end);
    end_connect(&end, &peer, NULL);
    give(fd, "c", 1);
    set_nonblocking(fd);
    for (char byte; read(fd, &byte, 1) != 1;) {
        *(uint64_t *)(void *)end.buf = ++n;
        do_rdma(&end, IBV_WR_RDMA_WRITE, 0, 8, &peer, AT);
    }
    give(fd, &n, sizeof n);
    n = 0;
    do_rdma(&end, IBV_WR_RDMA_READ, 8, 8, &peer, AT);
    CHECK_EQ(*(uint64_t *)(void *)(end.buf + 8), *(uint64_t *)(void *)end.buf);
    end_close(&end);
}

/* A second queue pair and region over the same memory as the first. */
static void open_beside(struct end *second, const struct end *first)
{
    struct ibv_qp_init_attr attr = {
        .send_cq = first->send_cq,
        .recv_cq = first->recv_cq,
        .cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC,
    };

    *second = *first;
    second->qp = ibv_create_qp(first->pd, &attr);
    CHECK(second->qp);
    second->mr = ibv_reg_mr(first->pd, first->buf, first->size, ACCESS_ALL);
    CHECK(second->mr);
}

static void others_lose_nothing(void)
{
    struct plan plan = {.options = {.size = SIZE, .slab = true}, .opcode = IBV_WR_RDMA_WRITE};
    struct end end, second;
    struct child other = child_start(counting_peer, NULL), child = meet_stopped(&end, &plan);
    struct counting counting = {.buf = end.buf};
    uint64_t before, last;
    uint32_t status;
    pthread_t thread;
    char byte;

    open_beside(&second, &end);
    struct address peer = exchange(other.fd, &second);
    end_connect(&second, &peer, NULL);
    take(other.fd, &byte, 1);
    volatile uint64_t *written = (volatile uint64_t *)(void *)(end.buf + AT);
    memset(end.buf + AT, 0, LENGTH);
    CHECK(!pthread_create(&thread, NULL, count, &counting));
    while (*written < 1000)
        ;
    deregister(&end);
    before = *written;
    while (*written < before + 1000)
        ;
    atomic_store(&counting.ends, true);
    CHECK(!pthread_join(thread, NULL));
    for (size_t i = 0; i < COUNTED; i++)
        CHECK_EQ(*(uint64_t *)(void *)(end.buf + AT + i * STEP + 64), counting.rounds);
    CHECK(!kill(child.pid, SIGCONT));
    take(child.fd, &status, sizeof status);
    CHECK(status != IBV_WC_SUCCESS);
    for (size_t i = 0; i < COUNTED; i++)
        CHECK_EQ(*(uint64_t *)(void *)(end.buf + AT + i * STEP + 64), counting.rounds);
    give(other.fd, "e", 1);
    take(other.fd, &last, sizeof last);
    CHECK_EQ(*written, last);
    child_join(&other);
    give(child.fd, "e", 1);
    child_join(&child);
    OK(ibv_destroy_qp(second.qp));
    OK(ibv_dereg_mr(second.mr));
    end_close(&end);
}

TEST_MAIN(TEST(mapped_write), TEST(mapped_read), TEST(mapped_atomic), TEST(by_address), TEST(elsewhere),
          TEST(others_lose_nothing))

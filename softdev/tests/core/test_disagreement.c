/*
 * Two ends that were told different things: sequence numbers, and MTUs. What a card gives then, within a process and
 * between two of them.
 */
#include <sys/wait.h>
#include <unistd.h>

#include "softdev.h"
#include "tests/harness.h"

enum { PSN = 0xffffff };

static struct end a;

struct told {
    uint32_t psn_off; /* added to the PSN that the other end begins with */
    enum ibv_mtu mtu;
    bool no_reads; /* max_dest_rd_atomic is 0 */
};

static void connect_end(struct end *end, struct address there, struct told told)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = told.mtu,
        .dest_qp_num = there.qpn,
        .rq_psn = (there.psn + told.psn_off) & PSN,
        .max_dest_rd_atomic = told.no_reads ? 0 : 4,
        .min_rnr_timer = 1,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = there.gid, .hop_limit = 64}}};
    const struct connect_options impatient = {
        .timeout = 10, .retry_cnt = 1, .rnr_retry = 7, .min_rnr_timer = 1, .max_rd_atomic = 4};

    end_to_init(end, 0);
    OK(ibv_modify_qp(end->qp, &attr,
                     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                         IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    end_to_rts(end, &there, &impatient);
}

/* The other end: connects as it is told, and waits until it may go. */
static void serve(int fd, void *told)
{
    struct end end;
    char go;

    end_open(&end, &(struct end_options){.slab = true});
    struct address there = exchange(fd, &end);
    connect_end(&end, there, *(const struct told *)told);
    for (int i = 0; i < 4; i++)
        post_recv(&end, 7, 0, 4096);
    give(fd, "r", 1);
    take(fd, &go, 1);
    end_close(&end);
}

/* What a request of `length` bytes ends with, of an end whose MTU is 1024, after one of `before` that is right. */
static enum ibv_wc_status ends_with(struct told there, enum ibv_wr_opcode opcode, size_t before,
                                    size_t length, bool processes)
{
    const struct told here = {.mtu = IBV_MTU_1024};
    struct child child;
    struct address to;
    struct end b;
    char ready;

    if (processes)
        child = child_start(serve, &there);
    end_open(&a, NULL);
    if (processes) {
        to = exchange(child.fd, &a);
        connect_end(&a, to, here);
        take(child.fd, &ready, 1);
    } else {
        end_open(&b, NULL);
        to = end_address(&b);
        connect_end(&b, end_address(&a), there);
        connect_end(&a, to, here);
        for (int i = 0; i < 4; i++)
            post_recv(&b, 7, 0, 4096);
    }
    for (int k = before ? 0 : 1; k < 2; k++) {
        const size_t bytes = k ? length : before;
        if (opcode == IBV_WR_SEND)
            post_send(&a, (uint64_t)k, 0, bytes, IBV_SEND_SIGNALED);
        else
            post_rdma(&a, (uint64_t)k, opcode, 0, bytes, &to, 0, IBV_SEND_SIGNALED);
        if (!k)
            expect_wc(a.send_cq, 0, IBV_WC_SUCCESS);
    }
    const struct ibv_wc wc = next_wc(a.send_cq);
    CHECK_EQ(wc.wr_id, 1);
    if (processes) {
        give(child.fd, "g", 1);
        child_join(&child);
    } else {
        end_close(&b);
    }
    end_close(&a);
    return wc.status;
}

static void psns(bool processes)
{
    const struct told same = {.mtu = IBV_MTU_1024}, later = {.psn_off = 1000, .mtu = IBV_MTU_1024},
                      earlier = {.psn_off = (uint32_t)-1000 & PSN, .mtu = IBV_MTU_1024};

    CHECK_EQ(ends_with(same, IBV_WR_SEND, 8, 8, processes), IBV_WC_SUCCESS);
    CHECK_EQ(ends_with(later, IBV_WR_SEND, 0, 8, processes), IBV_WC_RETRY_EXC_ERR);
    CHECK_EQ(ends_with(earlier, IBV_WR_SEND, 0, 8, processes), IBV_WC_RETRY_EXC_ERR);
    CHECK_EQ(ends_with(later, IBV_WR_RDMA_WRITE, 0, 8, processes), IBV_WC_RETRY_EXC_ERR);
    CHECK_EQ(ends_with(earlier, IBV_WR_RDMA_READ, 0, 8, processes), IBV_WC_RETRY_EXC_ERR);
}

/* What fits into a packet of either passes. */
static void mtus(bool processes)
{
    const struct told smaller = {.mtu = IBV_MTU_256}, larger = {.mtu = IBV_MTU_4096};

    CHECK_EQ(ends_with(smaller, IBV_WR_SEND, 256, 257, processes), IBV_WC_REM_INV_REQ_ERR);
    CHECK_EQ(ends_with(smaller, IBV_WR_RDMA_WRITE, 256, 600, processes), IBV_WC_REM_INV_REQ_ERR);
    CHECK_EQ(ends_with(smaller, IBV_WR_RDMA_READ, 256, 600, processes), IBV_WC_RETRY_EXC_ERR);
    CHECK_EQ(ends_with(larger, IBV_WR_SEND, 1024, 1025, processes), IBV_WC_REM_INV_REQ_ERR);
    CHECK_EQ(ends_with(larger, IBV_WR_RDMA_WRITE, 1024, 4096, processes), IBV_WC_REM_INV_REQ_ERR);
}

/* Memory that a process writes to by itself, and may not read. */
static void reads_that_are_not_answered(void)
{
    struct told there = {.mtu = IBV_MTU_1024, .no_reads = true};
    struct child child = child_start(serve, &there);
    uint64_t before;
    char ready;

    end_open(&a, NULL);
    struct address to = exchange(child.fd, &a);
    connect_end(&a, to, (struct told){.mtu = IBV_MTU_1024});
    take(child.fd, &ready, 1);
    const volatile uint64_t *astray = softdev_astray(a.qp);
    do { /* until this process writes by itself */
        before = *astray;
        post_rdma(&a, 9, IBV_WR_RDMA_WRITE, 0, 8, &to, 0, IBV_SEND_SIGNALED);
        expect_wc(a.send_cq, 9, IBV_WC_SUCCESS);
    } while (*astray != before);
    post_rdma(&a, 1, IBV_WR_RDMA_READ, 0, 8, &to, 0, IBV_SEND_SIGNALED);
    expect_wc(a.send_cq, 1, IBV_WC_REM_INV_REQ_ERR);
    give(child.fd, "g", 1);
    child_join(&child);
    end_close(&a);
}

static void sequence_numbers(void)
{
    psns(false);
}

static void packets(void)
{
    mtus(false);
}

static void sequence_numbers_of_processes(void)
{
    psns(true);
}

static void packets_of_processes(void)
{
    mtus(true);
}

TEST_MAIN(TEST(sequence_numbers), TEST(packets), TEST(reads_that_are_not_answered),
          TEST(sequence_numbers_of_processes), TEST(packets_of_processes))

/* Unreliable connections between processes: a message that fails at either end is lost, and both go on. */
#include "tests/harness.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>

enum { HALF = 32768, REGION = 1 << 18, SMALL = 100, FAR = 200000 };

static const struct end_options unreliable = {.type = IBV_QPT_UC, .size = REGION};

/* Waits for a byte that stands behind everything before it. */
static void last_message(int fd, struct end *end, bool sends)
{
    if (sends) {
        fill(end->buf, SMALL, 5);
        post_send(end, 9, 0, SMALL, IBV_SEND_SIGNALED);
        expect_wc(end->send_cq, 9, IBV_WC_SUCCESS);
    } else {
        expect_wc(end->recv_cq, 1, IBV_WC_SUCCESS);
        CHECK(holds(end->buf, SMALL, 5));
        expect_empty(end->recv_cq);
        CHECK_EQ(end_state(end), IBV_QPS_RTS);
        CHECK(!readable(end->context->async_fd));
    }
    rendezvous(fd);
}

static void (*sends)(int fd, struct end *end, const struct address *peer);

static void sender_process(int fd, void *unused)
{
    struct end end;

    (void)unused;
    end_open(&end, &unreliable);
    const struct address peer = end_meet(fd, &end);
    rendezvous(fd); /* the receives are posted: what has none is lost */
    sends(fd, &end, &peer);
    last_message(fd, &end, true);
    end_close(&end);
}

/* immediates: how many WRITEs take a receive before the last message. */
static void run(void (*sender)(int fd, struct end *end, const struct address *peer), int immediates,
                void (*receiver)(const struct end *end))
{
    struct end end;

    sends = sender;
    struct child child = child_start(sender_process, NULL);
    end_open(&end, &unreliable);
    end_meet(child.fd, &end);
    for (int i = 0; i <= immediates; i++)
        post_recv(&end, 1, 0, 2 * HALF);
    rendezvous(child.fd);
    for (int i = 0; i < immediates; i++)
        expect_wc(end.recv_cq, 1, IBV_WC_SUCCESS);
    last_message(child.fd, &end, false);
    receiver(&end);
    child_join(&child);
    end_close(&end);
}

/* ---- keys ---------------------------------------------------------------------------------------------- */

static void send_with_wrong_keys(int fd, struct end *end, const struct address *peer)
{
    static const struct {
        enum ibv_wr_opcode opcode;
        uint32_t length, offset, wrong_key;
    } cases[] = {
        {IBV_WR_RDMA_WRITE, 8, FAR, 1},
        {IBV_WR_RDMA_WRITE_WITH_IMM, 8, FAR, 0x100},
        {IBV_WR_RDMA_WRITE, 2 * HALF, FAR, 0}, /* the first pieces would fit */
        {IBV_WR_RDMA_WRITE_WITH_IMM, 2 * HALF, FAR, 0},
    };

    (void)fd;
    memset(end->buf, 1, end->size);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct address wrong = *peer;
        wrong.rkey ^= cases[i].wrong_key;
        post_rdma(end, i, cases[i].opcode, 0, cases[i].length, &wrong, cases[i].offset, IBV_SEND_SIGNALED);
        expect_wc(end->send_cq, i, IBV_WC_SUCCESS);
    }
}

static void nothing_was_written(const struct end *end)
{
    CHECK(all_bytes(end->buf + SMALL, REGION - SMALL, 0));
}

static void wrong_keys(void)
{
    run(send_with_wrong_keys, 0, nothing_was_written);
}

/* ---- halves -------------------------------------------------------------------------------------------- */

static const enum ibv_wr_opcode halves[] = {IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE,
                                            IBV_WR_RDMA_WRITE_WITH_IMM};
static unsigned int which;

/* The second half of the message is in memory that is no longer registered: the first is on its way when it fails. */
static void send_half(int fd, struct end *end, const struct address *peer)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS};
    struct ibv_mr *gone = ibv_reg_mr(end->pd, end->buf, HALF, 0);

    (void)fd;
    CHECK(gone);
    struct ibv_sge sge[] = {end_sge(end, 0, HALF), {(uintptr_t)end->buf, HALF, gone->lkey}};
    struct ibv_send_wr wr = {.wr_id = 3,
                             .sg_list = sge,
                             .num_sge = 2,
                             .opcode = halves[which],
                             .wr.rdma = {peer->addr + FAR - HALF, peer->rkey}},
                       *bad;
    OK(ibv_dereg_mr(gone));
    OK(ibv_post_send(end->qp, &wr, &bad));
    expect_wc(end->send_cq, 3, IBV_WC_LOC_PROT_ERR);
    CHECK_EQ(end_state(end), IBV_QPS_SQE);
    OK(ibv_modify_qp(end->qp, &attr, IBV_QP_STATE));
    memset(end->buf, 4, SMALL);
    post_rdma(end, 4, which % 2 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_WRITE_WITH_IMM, 0, SMALL, peer,
              REGION - SMALL, IBV_SEND_SIGNALED);
    expect_wc(end->send_cq, 4, IBV_WC_SUCCESS);
}

static void the_next_was_written(const struct end *end)
{
    CHECK(all_bytes(end->buf + REGION - SMALL, SMALL, 4));
}

static void half_messages(void)
{
    for (which = 0; which < sizeof halves / sizeof *halves; which++)
        run(send_half, which % 2 == 0, the_next_was_written);
}

/* ---- receives that fail --------------------------------------------------------------------------------- */

enum broken { TOO_SHORT, NO_KEY, NO_SECOND_KEY, ALL };
static enum broken how;

/* The message is on its way when the receiver's end does not take it: that is nothing to its sender. */
static void send_in_vain(int fd, void *unused)
{
    struct end end;

    (void)unused;
    end_open(&end, &unreliable);
    end_meet(fd, &end);
    rendezvous(fd); /* the receive is posted */
    post_send(&end, 1, 0, how == NO_SECOND_KEY ? 2 * HALF : SMALL, IBV_SEND_SIGNALED);
    post_send(&end, 2, 0, SMALL, IBV_SEND_SIGNALED);
    rendezvous(fd); /* the messages are posted */
    expect_wc(end.send_cq, 1, IBV_WC_SUCCESS);
    expect_wc(end.send_cq, 2, IBV_WC_SUCCESS);
    CHECK_EQ(end_state(&end), IBV_QPS_RTS);
    rendezvous(fd);
    /* Nor is what follows, as nobody is there. */
    post_send(&end, 3, 0, SMALL, IBV_SEND_SIGNALED);
    expect_wc(end.send_cq, 3, IBV_WC_SUCCESS);
    CHECK_EQ(end_state(&end), IBV_QPS_RTS);
    CHECK(!readable(end.context->async_fd));
    end_close(&end);
}

static void post_broken(struct end *end)
{
    struct ibv_mr *gone = ibv_reg_mr(end->pd, end->buf, end->size, IBV_ACCESS_LOCAL_WRITE);

    CHECK(gone);
    const struct ibv_sge own = end_sge(end, 0, how == TOO_SHORT ? SMALL - 1 : HALF);
    const struct ibv_sge other = {(uintptr_t)end->buf + HALF, HALF, gone->lkey};
    struct ibv_sge sge[] = {how == NO_KEY ? other : own, other};
    struct ibv_recv_wr wr = {.wr_id = 1, .sg_list = sge, .num_sge = how == NO_SECOND_KEY ? 2 : 1}, *bad;
    OK(ibv_dereg_mr(gone));
    OK(ibv_post_recv(end->qp, &wr, &bad));
    post_recv(end, 2, 0, HALF);
}

static void receives_fail(void)
{
    for (how = TOO_SHORT; how < ALL; how++) {
        struct end end;
        struct child child = child_start(send_in_vain, NULL);

        end_open(&end, &unreliable);
        end_meet(child.fd, &end);
        post_broken(&end);
        rendezvous(child.fd);
        rendezvous(child.fd);
        expect_wc(end.recv_cq, 1, how == TOO_SHORT ? IBV_WC_LOC_LEN_ERR : IBV_WC_LOC_PROT_ERR);
        expect_wc(end.recv_cq, 2, IBV_WC_WR_FLUSH_ERR);
        CHECK_EQ(end_state(&end), IBV_QPS_ERR);
        rendezvous(child.fd);
        child_join(&child);
        end_close(&end);
    }
}

static void stopping_process(int fd, void *unused)
{
    struct end end;

    (void)unused;
    end_open(&end, &unreliable);
    end_meet(fd, &end);
    post_recv(&end, 1, 0, SMALL);
    rendezvous(fd);
    expect_wc(end.recv_cq, 1, IBV_WC_SUCCESS); /* the sender has its lane */
    raise(SIGSTOP);
}

/* The receiver's process is killed, with messages in the ring and more that wait for room. */
static void receiver_is_killed(void)
{
    enum { MESSAGES = 16 };
    struct end end;
    int status;

    struct child child = child_start(stopping_process, NULL);
    end_open(&end, &unreliable);
    end_meet(child.fd, &end);
    rendezvous(child.fd);
    post_send(&end, MESSAGES, 0, SMALL, IBV_SEND_SIGNALED);
    expect_wc(end.send_cq, MESSAGES, IBV_WC_SUCCESS);
    CHECK_EQ(waitpid(child.pid, &status, WUNTRACED), child.pid);
    CHECK(WIFSTOPPED(status));
    for (uint64_t i = 0; i < MESSAGES; i++)
        post_send(&end, i, 0, HALF, IBV_SEND_SIGNALED);
    expect_empty(end.send_cq);
    child_kill(&child);
    for (uint64_t i = 0; i < MESSAGES; i++)
        expect_wc(end.send_cq, i, IBV_WC_SUCCESS);
    post_send(&end, MESSAGES, 0, SMALL, IBV_SEND_SIGNALED);
    expect_wc(end.send_cq, MESSAGES, IBV_WC_SUCCESS);
    CHECK_EQ(end_state(&end), IBV_QPS_RTS);
    CHECK(!readable(end.context->async_fd));
    end_close(&end);
}

TEST_MAIN(TEST(wrong_keys), TEST(half_messages), TEST(receives_fail), TEST(receiver_is_killed))

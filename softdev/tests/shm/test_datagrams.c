/* UD between processes: delivery and headers, several senders to one QP, sleepers, and QPs that do not
 * exist, go and return. */
#include "tests/harness.h"

#include "softdev.h"

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

enum { QKEY = 0x11111111, SLOT = 256, RECEIVES = 128, SEQUENCE = 500, PAUSE_NS = 300000000, ATTEMPTS = 20 };

static const struct end_options datagrams = {
    .type = IBV_QPT_UD, .recv_wr = RECEIVES, .send_wr = 16, .cqe = 512, .channel = true};

static void open_ready(struct end *end)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY};

    end_open(end, &datagrams);
    OK(ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
    attr.qp_state = IBV_QPS_RTR;
    OK(ibv_modify_qp(end->qp, &attr, IBV_QP_STATE));
    attr.qp_state = IBV_QPS_RTS;
    OK(ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
    for (uint64_t i = 0; i < RECEIVES; i++)
        post_recv(end, i, i * SLOT, SLOT);
}

static struct ibv_ah *route(struct end *end, const struct address *peer)
{
    struct ibv_ah_attr attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = peer->gid}};
    struct ibv_ah *ah = ibv_create_ah(end->pd, &attr);

    CHECK(ah);
    return ah;
}

static void post_datagram(struct end *end, struct ibv_ah *ah, uint32_t qpn, uint32_t imm)
{
    struct ibv_sge sge = end_sge(end, 40000, 100);
    struct ibv_send_wr wr = {.wr_id = imm,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_SEND_WITH_IMM,
                             .send_flags = IBV_SEND_SIGNALED,
                             .imm_data = imm,
                             .wr.ud = {ah, qpn, QKEY}},
                       *bad;

    OK(ibv_post_send(end->qp, &wr, &bad));
}

static void send_datagram(struct end *end, struct ibv_ah *ah, uint32_t qpn, uint32_t imm)
{
    post_datagram(end, ah, qpn, imm);
    expect_wc(end->send_cq, imm, IBV_WC_SUCCESS);
}

/* Takes one, checks it, reposts its receive. */
static uint32_t take_datagram(struct end *end, const struct ibv_wc *wc)
{
    uint8_t *at = end->buf + wc->wr_id * SLOT;

    CHECK_STATUS(wc, IBV_WC_SUCCESS);
    CHECK_EQ(wc->byte_len, 140);
    CHECK(wc->wc_flags & IBV_WC_GRH);
    CHECK(holds(at + 40, 100, 6));
    memset(at, 0, SLOT);
    post_recv(end, wc->wr_id, wc->wr_id * SLOT, SLOT);
    return wc->imm_data;
}

/* Each number makes a round trip before the next one, so none may be lost. */
static void echo(int fd, void *unused)
{
    struct end end;

    (void)unused;
    open_ready(&end);
    struct address peer = exchange(fd, &end);
    struct ibv_ah *ah = route(&end, &peer);
    fill(end.buf + 40000, 100, 6);
    for (uint32_t i = 0; i < SEQUENCE; i++) {
        struct ibv_wc wc = i % 2 ? next_wc(end.recv_cq) : sleep_wc(end.channel, end.recv_cq);
        CHECK_EQ(wc.src_qp, peer.qpn);
        CHECK_EQ(take_datagram(&end, &wc), i);
        send_datagram(&end, ah, peer.qpn, i);
    }
    give(fd, "d", 1);
    OK(ibv_destroy_ah(ah));
    end_close(&end);
}

static void there_and_back(void)
{
    struct child child = child_start(echo, NULL);
    struct end end;
    char byte;

    open_ready(&end);
    struct address peer = exchange(child.fd, &end);
    struct ibv_ah *ah = route(&end, &peer);
    fill(end.buf + 40000, 100, 6);
    for (uint32_t i = 0; i < SEQUENCE; i++) {
        send_datagram(&end, ah, peer.qpn, i);
        struct ibv_wc wc = i % 3 ? next_wc(end.recv_cq) : sleep_wc(end.channel, end.recv_cq);
        CHECK_EQ(wc.src_qp, peer.qpn);
        CHECK_EQ(take_datagram(&end, &wc), i);
    }
    take(child.fd, &byte, 1);
    child_join(&child);
    OK(ibv_destroy_ah(ah));
    end_close(&end);
}

/* To unused numbers, of a process that lives and of one that never existed: sent, and lost. */
static void nobody(void)
{
    struct child child = child_start(echo, NULL);
    struct end end;

    open_ready(&end);
    struct address peer = exchange(child.fd, &end);
    struct ibv_ah *ah = route(&end, &peer);
    for (uint32_t i = 0; i < 5; i++) {
        send_datagram(&end, ah, peer.qpn ^ 0x1000, i);
        send_datagram(&end, ah, peer.qpn ^ 0x400000, i);
    }
    expect_empty(end.recv_cq);
    child_kill(&child);
    for (uint32_t i = 0; i < 5; i++)
        send_datagram(&end, ah, peer.qpn, i);
    OK(ibv_destroy_ah(ah));
    end_close(&end);
}

/* More than a ring holds, to a process that does not look: the surplus is lost, and the sender continues. */
static void deaf(int fd, void *unused)
{
    struct end end;
    struct ibv_wc wc;
    uint32_t before = 0, count = 0;
    char byte;

    (void)unused;
    open_ready(&end);
    exchange(fd, &end);
    take(fd, &byte, 1);
    while (ibv_poll_cq(end.recv_cq, 1, &wc) == 1) {
        uint32_t number = take_datagram(&end, &wc);
        CHECK(!count++ || number > before); /* in order, some missing */
        before = number;
    }
    CHECK(count >= RECEIVES);
    end_close(&end);
}

static void flood(void)
{
    struct child child = child_start(deaf, NULL);
    struct end end;

    open_ready(&end);
    struct address peer = exchange(child.fd, &end);
    struct ibv_ah *ah = route(&end, &peer);
    fill(end.buf + 40000, 100, 6);
    for (uint32_t i = 0; i < 3000; i++)
        send_datagram(&end, ah, peer.qpn, i);
    give(child.fd, "f", 1);
    child_join(&child);
    OK(ibv_destroy_ah(ah));
    end_close(&end);
}

/* Checks whether a datagram is present once its sender has reported that it left. */
static void looks(int fd, void *unused)
{
    struct end end;
    struct ibv_wc wc;
    char byte;

    (void)unused;
    open_ready(&end);
    exchange(fd, &end);
    take(fd, &byte, 1);
    const bool there = ibv_poll_cq(end.recv_cq, 1, &wc) == 1;
    if (there)
        CHECK_EQ(take_datagram(&end, &wc), 1);
    give(fd, &there, 1);
    end_close(&end);
}

static bool arrives_after_a_pause(void)
{
    struct child child = child_start(looks, NULL);
    struct end end;
    int status;
    bool there;

    open_ready(&end);
    const struct address peer = exchange(child.fd, &end);
    struct ibv_ah *ah = route(&end, &peer);
    fill(end.buf + 40000, 100, 6);
    CHECK(!kill(child.pid, SIGSTOP));
    CHECK_EQ(waitpid(child.pid, &status, WUNTRACED), child.pid);
    post_datagram(&end, ah, peer.qpn, 1);
    /* Pauses longer than a sender waits for a full ring. */
    for (const uint64_t until = test_now_ns() + PAUSE_NS; test_now_ns() < until;)
        sched_yield();
    CHECK(!kill(child.pid, SIGCONT));
    expect_wc(end.send_cq, 1, IBV_WC_SUCCESS);
    give(child.fd, "s", 1);
    take(child.fd, &there, 1);
    child_join(&child);
    OK(ibv_destroy_ah(ah));
    end_close(&end);
    return there;
}

/* The first datagram to a process that pauses for a moment is not lost. On a busy machine a pause may have
 * any length. */
static void first_contact(void)
{
    for (int attempts = 0; !arrives_after_a_pause();)
        CHECK(++attempts < ATTEMPTS);
}

/* Later ones to a process that stays paused are lost, and other processes receive theirs. */
static void no_contact(void)
{
    struct child still = child_start(looks, NULL), child = child_start(echo, NULL);
    struct end end;
    int status;

    open_ready(&end);
    const struct address silent = exchange(still.fd, &end), peer = exchange(child.fd, &end);
    struct ibv_ah *to_silent = route(&end, &silent), *ah = route(&end, &peer);
    fill(end.buf + 40000, 100, 6);
    CHECK(!kill(still.pid, SIGSTOP));
    CHECK_EQ(waitpid(still.pid, &status, WUNTRACED), still.pid);
    for (uint32_t i = 0; i < SEQUENCE; i++) {
        send_datagram(&end, to_silent, silent.qpn, 1);
        send_datagram(&end, ah, peer.qpn, i);
        const struct ibv_wc wc = next_wc(end.recv_cq);
        CHECK_EQ(take_datagram(&end, &wc), i);
    }
    char byte;
    take(child.fd, &byte, 1);
    child_join(&child);
    child_kill(&still);
    OK(ibv_destroy_ah(to_silent));
    OK(ibv_destroy_ah(ah));
    end_close(&end);
}

/* Faults of the receiving process: pairs change places, and one bit of each changes. */
static void faulty(int fd, void *unused)
{
    struct end end;

    (void)unused;
    OK(softdev_faults("reorder=1,corrupt=1"));
    open_ready(&end);
    exchange(fd, &end);
    for (uint32_t i = 0; i < 20; i++) {
        struct ibv_wc wc = next_wc(end.recv_cq);
        uint8_t *at = end.buf + wc.wr_id * SLOT;
        CHECK_STATUS(&wc, IBV_WC_SUCCESS);
        CHECK_EQ(wc.imm_data, i ^ 1);
        CHECK(!holds(at + 40, 100, 6));
        at[40 + 50] ^= 0x40;
        CHECK(holds(at + 40, 100, 6));
    }
    expect_empty(end.recv_cq);
    end_close(&end);
}

static void faults(void)
{
    struct child child = child_start(faulty, NULL);
    struct end end;

    open_ready(&end);
    struct address peer = exchange(child.fd, &end);
    struct ibv_ah *ah = route(&end, &peer);
    fill(end.buf + 40000, 100, 6);
    for (uint32_t i = 0; i < 20; i++)
        send_datagram(&end, ah, peer.qpn, i);
    child_join(&child);
    OK(ibv_destroy_ah(ah));
    end_close(&end);
}

TEST_MAIN(TEST(there_and_back), TEST(nobody), TEST(flood), TEST(first_contact), TEST(no_contact),
          TEST(faults))

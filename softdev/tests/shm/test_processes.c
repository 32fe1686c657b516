/* Two processes: every operation, errors, sleeping on events. */
#include "tests/harness.h"

#include "softdev.h"

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 1 << 20 };

static const struct end_options memory_kinds[] = {{.size = SIZE}, {.size = SIZE, .slab = true}};

/* ---- every operation ---- */

static void passive(int fd, void *argument)
{
    struct end end;

    end_open(&end, argument);
    end_to_init(&end, 0);
    for (uint64_t i = 0; i < 4; i++)
        post_recv(&end, i, i * 4096, 4096);
    fill(end.buf + 65536, 4096, 9);
    end_meet(fd, &end);
    rendezvous(fd);

    CHECK_EQ(expect_wc(end.recv_cq, 0, IBV_WC_SUCCESS).byte_len, 1000);
    CHECK(holds(end.buf, 1000, 1));
    struct ibv_wc wc = expect_wc(end.recv_cq, 1, IBV_WC_SUCCESS);
    CHECK_EQ(wc.imm_data, htobe32(1));
    CHECK(holds(end.buf + 4096, 1000, 1));
    wc = expect_wc(end.recv_cq, 2, IBV_WC_SUCCESS);
    CHECK_EQ(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
    CHECK(holds(end.buf + 131072, 1000, 1));
    rendezvous(fd); /* the other side has written and added */
    CHECK(holds(end.buf + 200001, 300000, 2));
    CHECK_EQ(*(uint64_t *)(void *)(end.buf + 524288), 8);
    fill(end.buf, SIZE, 7);
    rendezvous(fd);
    rendezvous(fd);
    end_close(&end);
}

static void every_operation(void)
{
    for (size_t kind = 0; kind < 2; kind++) {
        struct end_options options = memory_kinds[kind];
        struct child child = child_start(passive, &options);
        struct end end;
        struct address peer;

        end_open(&end, &options);
        peer = end_meet(child.fd, &end);
        rendezvous(child.fd);
        fill(end.buf, 1000, 1);
        do_send(&end, 0, 1000);
        do_rdma(&end, IBV_WR_SEND_WITH_IMM, 0, 1000, &peer, 0);
        do_rdma(&end, IBV_WR_RDMA_WRITE_WITH_IMM, 0, 1000, &peer, 131072);
        do_rdma(&end, IBV_WR_RDMA_READ, 65536, 4096, &peer, 65536);
        CHECK(holds(end.buf + 65536, 4096, 9));
        fill(end.buf, 300000, 2);
        do_rdma(&end, IBV_WR_RDMA_WRITE, 0, 300000, &peer, 200001);
        for (uint64_t i = 0; i < 9; i++) {
            struct ibv_sge sge = end_sge(&end, 0, 8);
            struct ibv_send_wr wr =
                                   {
                                       .wr_id = i,
                                       .sg_list = &sge,
                                       .num_sge = 1,
                                       .opcode =
                                           i < 5 ? IBV_WR_ATOMIC_FETCH_AND_ADD : IBV_WR_ATOMIC_CMP_AND_SWP,
                                       .send_flags = IBV_SEND_SIGNALED,
                                       .wr = {.atomic = {.remote_addr = peer.addr + 524288,
                                                         .rkey = peer.rkey,
                                                         .compare_add = i < 5 ? 1 : i,
                                                         .swap = i + 1}},
                                   },
                               *bad;

            OK(ibv_post_send(end.qp, &wr, &bad));
            expect_wc(end.send_cq, i, IBV_WC_SUCCESS);
            CHECK_EQ(*(uint64_t *)(void *)end.buf, i < 8 ? i : 8);
            if (i == 7)
                break;
        }
        rendezvous(child.fd);
        rendezvous(child.fd);
        memset(end.buf, 0, SIZE);
        do_rdma(&end, IBV_WR_RDMA_READ, 0, SIZE, &peer, 0);
        CHECK(holds(end.buf, SIZE, 7));
        rendezvous(child.fd);
        child_join(&child);
        end_close(&end);
    }
}

/* ---- events ---- */

enum { EXCHANGES = TIMES(2000), IN_FLIGHT = 4 };

/* Gets an event, arms, polls until nothing is left, and waits for the descriptor, as event loops of programs do. */
static void exchange_by_events(int fd, void *argument)
{
    struct end end;
    struct address peer;
    int sent = 0, received = 0, completed = 0;

    (void)argument;
    end_open(&end, &(struct end_options){.one_cq = true, .channel = true});
    set_nonblocking(end.channel->fd);
    end_to_init(&end, 0);
    for (uint64_t i = 0; i < 2 * IN_FLIGHT; i++)
        post_recv(&end, i, 0, 0);
    peer = end_meet(fd, &end);
    OK(ibv_req_notify_cq(end.recv_cq, 0));
    rendezvous(fd);
    while (received < EXCHANGES || completed < EXCHANGES) {
        struct ibv_wc wc;

        for (; sent < EXCHANGES && sent < received + IN_FLIGHT && sent < completed + IN_FLIGHT; sent++)
            post_rdma(&end, 0, IBV_WR_RDMA_WRITE_WITH_IMM, 0, 4000, &peer, 4096, IBV_SEND_SIGNALED);
        while (!readable(end.channel->fd))
            sched_yield();
        expect_event(end.channel, end.recv_cq);
        OK(ibv_req_notify_cq(end.recv_cq, 0));
        while (ibv_poll_cq(end.recv_cq, 1, &wc)) {
            CHECK_STATUS(&wc, IBV_WC_SUCCESS);
            if (wc.opcode == IBV_WC_RDMA_WRITE) {
                completed++;
                continue;
            }
            received++;
            post_recv(&end, 0, 0, 0);
        }
    }
    rendezvous(fd);
    end_close(&end);
}

/* A channel that is readable has an event, also if another look has taken what its bell was rung for. */
static void readable_means_an_event(void)
{
    struct child child = child_start(exchange_by_events, NULL);

    exchange_by_events(child.fd, NULL);
    child_join(&child);
}

/* ---- questions and answers ---- */

enum { QUESTIONS = TIMES(2000) };

static void answer_questions(int fd, void *argument)
{
    struct end end;

    (void)argument;
    end_open(&end, NULL);
    end_to_init(&end, 0);
    post_recv(&end, 0, 0, 64);
    end_meet(fd, &end);
    rendezvous(fd);
    for (uint64_t i = 0; i < QUESTIONS; i++) {
        expect_wc(end.recv_cq, i, IBV_WC_SUCCESS);
        post_recv(&end, i + 1, 0, 64);
        post_send(&end, i, 4096, 64, IBV_SEND_SIGNALED);
        expect_wc(end.send_cq, i, IBV_WC_SUCCESS);
    }
    rendezvous(fd);
    end_close(&end);
}

/* What is asked completes before its answer arrives. */
static void questions_complete_first(void)
{
    struct child child = child_start(answer_questions, NULL);
    struct end end;

    end_open(&end, &(struct end_options){.one_cq = true});
    end_to_init(&end, 0);
    end_meet(child.fd, &end);
    rendezvous(child.fd);
    for (uint64_t i = 0; i < QUESTIONS; i++) {
        post_recv(&end, i, 0, 64);
        post_send(&end, i, 4096, 64, IBV_SEND_SIGNALED);
        CHECK_EQ(expect_wc(end.send_cq, i, IBV_WC_SUCCESS).opcode, IBV_WC_SEND);
        CHECK_EQ(expect_wc(end.send_cq, i, IBV_WC_SUCCESS).opcode, IBV_WC_RECV);
    }
    rendezvous(child.fd);
    child_join(&child);
    end_close(&end);
}

/* ---- a stream of checked messages both ways at once ---- */

enum { MESSAGES = TIMES(3000), SLOT = 2048, SLOTS = 8 };

static uint32_t length_of(uint32_t message)
{
    uint32_t state = message * 2654435761u + 1;

    return test_random(&state) % (SLOT - 1) + 1;
}

static void converse(int fd, struct end *end)
{
    uint32_t sent = 0, done = 0, received = 0;

    end_to_init(end, 0);
    for (uint64_t i = 0; i < SLOTS; i++)
        post_recv(end, i, i * SLOT, SLOT);
    end_meet(fd, end);
    rendezvous(fd);
    while (done < MESSAGES || received < MESSAGES) {
        struct ibv_wc wc;

        if (sent < MESSAGES && sent - done < SLOTS) {
            size_t offset = 65536 + (sent % SLOTS) * SLOT;

            fill(end->buf + offset, length_of(sent), sent);
            post_send(end, sent, offset, length_of(sent), IBV_SEND_SIGNALED);
            sent++;
        }
        if (ibv_poll_cq(end->send_cq, 1, &wc) == 1) {
            CHECK_STATUS(&wc, IBV_WC_SUCCESS);
            CHECK_EQ(wc.wr_id, done);
            done++;
        }
        if (ibv_poll_cq(end->recv_cq, 1, &wc) == 1) {
            size_t offset = (received % SLOTS) * SLOT;

            CHECK_STATUS(&wc, IBV_WC_SUCCESS);
            CHECK_EQ(wc.byte_len, length_of(received));
            CHECK(holds(end->buf + offset, wc.byte_len, received));
            post_recv(end, 0, offset, SLOT);
            received++;
        }
    }
    rendezvous(fd);
}

static void converse_child(int fd, void *argument)
{
    struct end end;

    end_open(&end, argument);
    converse(fd, &end);
    end_close(&end);
}

static void both_ways(void)
{
    for (size_t kind = 0; kind < 2; kind++) {
        struct end_options options = memory_kinds[kind];
        struct child child = child_start(converse_child, &options);
        struct end end;

        end_open(&end, &options);
        converse(child.fd, &end);
        child_join(&child);
        end_close(&end);
    }
}

/* ---- lost wake-ups: both sides sleep whenever they can; one lost event, and both sleep forever ---- */

enum { ROUNDS = TIMES(4000) };

static void volley(int fd, struct end *end, bool serves, uint32_t seed)
{
    end_to_init(end, 0);
    for (uint64_t i = 0; i < 4; i++)
        post_recv(end, i, i * 64, 64);
    end_meet(fd, end);
    rendezvous(fd);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        struct ibv_wc wc;

        if (serves || round) {
            wc = sleep_wc(end->channel, end->recv_cq);
            CHECK_STATUS(&wc, IBV_WC_SUCCESS);
            post_recv(end, wc.wr_id, wc.wr_id * 64, 64);
        }
        /* Wait a little, in different ways: the other side is polling, arming, or asleep. */
        for (uint32_t delay = test_random(&seed) % 400; delay; delay--)
            __atomic_signal_fence(__ATOMIC_SEQ_CST);
        if (round % 64 == 0)
            sched_yield();
        post_send(end, 1, 4096, 8, IBV_SEND_SIGNALED);
        wc = sleep_wc(end->channel, end->send_cq);
        CHECK_STATUS(&wc, IBV_WC_SUCCESS);
    }
    if (!serves)
        CHECK_EQ(sleep_wc(end->channel, end->recv_cq).status, IBV_WC_SUCCESS);
    rendezvous(fd);
}

static const struct end_options sleepers[] = {{.channel = true, .one_cq = false},
                                              {.channel = true, .slab = true}};

static void volley_child(int fd, void *argument)
{
    struct end end;

    end_open(&end, argument);
    volley(fd, &end, true, 12345);
    end_close(&end);
}

static void no_lost_wakeups(void)
{
    for (size_t kind = 0; kind < 2; kind++) {
        struct end_options options = sleepers[kind];
        struct child child = child_start(volley_child, &options);
        struct end end;

        end_open(&end, &options);
        volley(child.fd, &end, false, 54321);
        child_join(&child);
        end_close(&end);
    }
}

/* ---- errors across processes ---- */

static void restricted(int fd, void *argument)
{
    struct ibv_async_event event;
    struct end end;

    (void)argument;
    end_open(&end, &(struct end_options){.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ});
    end_to_init(&end, 0);
    post_recv(&end, 3, 0, 100);
    end_meet(fd, &end);
    rendezvous(fd);
    OK(ibv_get_async_event(end.context, &event));
    CHECK_EQ(event.event_type, IBV_EVENT_QP_ACCESS_ERR);
    CHECK(event.element.qp == end.qp);
    ibv_ack_async_event(&event);
    expect_wc(end.recv_cq, 3, IBV_WC_WR_FLUSH_ERR);
    CHECK_EQ(end_state(&end), IBV_QPS_ERR);
    CHECK(all_bytes(end.buf, end.size, 0));
    rendezvous(fd);
    end_close(&end);
}

static void access_error(void)
{
    struct child child = child_start(restricted, NULL);
    struct end end;
    struct address peer;

    end_open(&end, NULL);
    fill(end.buf, 64, 1);
    peer = end_meet(child.fd, &end);
    rendezvous(child.fd);
    do_rdma(&end, IBV_WR_RDMA_READ, 4096, 64, &peer, 0);
    post_rdma(&end, 2, IBV_WR_RDMA_WRITE, 0, 64, &peer, 0, 0);
    post_rdma(&end, 3, IBV_WR_RDMA_WRITE, 0, 64, &peer, 0, 0);
    expect_wc(end.send_cq, 2, IBV_WC_REM_ACCESS_ERR);
    expect_wc(end.send_cq, 3, IBV_WC_WR_FLUSH_ERR);
    rendezvous(child.fd);
    child_join(&child);
    end_close(&end);
}

static void small_receives(int fd, void *argument)
{
    struct end end;

    (void)argument;
    end_open(&end, NULL);
    end_meet(fd, &end);
    rendezvous(fd);
    rendezvous(fd); /* the message is in flight, and no receive is posted here */
    post_recv(&end, 1, 0, 100);
    expect_wc(end.recv_cq, 1, IBV_WC_SUCCESS);
    CHECK(holds(end.buf, 100, 4));
    post_recv(&end, 2, 0, 99);
    rendezvous(fd);
    expect_wc(end.recv_cq, 2, IBV_WC_LOC_LEN_ERR);
    rendezvous(fd);
    end_close(&end);
}

static void not_ready_and_too_small(void)
{
    struct child child = child_start(small_receives, NULL);
    struct end end;

    end_open(&end, NULL);
    fill(end.buf, 100, 4);
    end_meet(child.fd, &end);
    rendezvous(child.fd);
    post_send(&end, 1, 0, 100, IBV_SEND_SIGNALED);
    expect_empty(end.send_cq);
    rendezvous(child.fd);
    expect_wc(end.send_cq, 1, IBV_WC_SUCCESS);
    rendezvous(child.fd);
    post_send(&end, 2, 0, 100, IBV_SEND_SIGNALED);
    expect_wc(end.send_cq, 2, IBV_WC_REM_INV_REQ_ERR);
    rendezvous(child.fd);
    child_join(&child);
    end_close(&end);
}

/* ---- a pause ---- */

static void receives_two(int fd, void *argument)
{
    struct end end;

    (void)argument;
    end_open(&end, NULL);
    end_to_init(&end, 0);
    post_recv(&end, 1, 0, 8);
    post_recv(&end, 2, 0, 8);
    end_meet(fd, &end);
    rendezvous(fd);
    expect_wc(end.recv_cq, 1, IBV_WC_SUCCESS);
    rendezvous(fd);
    expect_wc(end.recv_cq, 2, IBV_WC_SUCCESS);
    rendezvous(fd);
    end_close(&end);
}

static void send_to_one_that_stands_still(struct end *end, const struct child *child, uint64_t wr_id)
{
    post_send(end, wr_id, 0, 8, IBV_SEND_SIGNALED);
    /* many times the wait for a peer that is gone */
    for (const uint64_t until = test_now_ns() + 200000000; test_now_ns() < until;) {
        expect_empty(end->send_cq);
        sched_yield();
    }
    CHECK(!kill(child->pid, SIGCONT));
    expect_wc(end->send_cq, wr_id, IBV_WC_SUCCESS);
}

static void stop_child(const struct child *child)
{
    int status;

    CHECK(!kill(child->pid, SIGSTOP));
    CHECK_EQ(waitpid(child->pid, &status, WUNTRACED), child->pid);
    CHECK(WIFSTOPPED(status));
}

/* A process that does not run for a while is not gone: neither before its first answer, nor later. */
static void peer_stands_still(void)
{
    struct connect_options options = CONNECT_DEFAULTS;
    struct child child = child_start(receives_two, NULL);
    struct end end;

    options.timeout = 10; /* 4 ms */
    options.retry_cnt = 1;
    end_open(&end, NULL);
    struct address peer = exchange(child.fd, &end);
    rendezvous(child.fd);
    stop_child(&child);
    end_connect(&end, &peer, &options);
    send_to_one_that_stands_still(&end, &child, 1);
    rendezvous(child.fd);
    stop_child(&child);
    send_to_one_that_stands_still(&end, &child, 2);
    rendezvous(child.fd);
    child_join(&child);
    end_close(&end);
}

TEST_MAIN(TEST(every_operation), TEST(readable_means_an_event), TEST(questions_complete_first),
          TEST(both_ways), TEST(no_lost_wakeups), TEST(access_error), TEST(not_ready_and_too_small),
          TEST(peer_stands_still))

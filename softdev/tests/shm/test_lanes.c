/* Lanes between processes: many lanes, lanes taken back and recreated, and packets that are early,
 * late or missing. */
#include "tests/harness.h"

#include "softdev.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <unistd.h>

static const struct end_options slab = {.size = 1 << 20, .slab = true, .inline_bytes = 4096};

/* ---- QPs reused ---- */

static void one_of_each(int fd, struct end *end, const struct address *peer, bool first)
{
    for (int i = 0; i < 2; i++) {
        if ((i == 0) == first) {
            do_send(end, 0, 100);
            do_rdma(end, IBV_WR_RDMA_WRITE, 0, 4096, peer, 65536);
        } else {
            expect_wc(end->recv_cq, 9, IBV_WC_SUCCESS);
        }
    }
    rendezvous(fd);
}

static void reuse(int fd, bool first)
{
    struct end end;

    end_open(&end, &slab);
    for (int round = 0; round < 30; round++) {
        struct address peer = exchange(fd, &end);

        end_to_init(&end, 0);
        /* Not the memory that we send from: TSan does not see the ordering through the peer. */
        post_recv(&end, 9, 32768, 4096);
        end_to_rtr(&end, &peer, NULL);
        end_to_rts(&end, &peer, NULL);
        rendezvous(fd);
        one_of_each(fd, &end, &peer, first);
        struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};
        OK(ibv_modify_qp(end.qp, &attr, IBV_QP_STATE));
        rendezvous(fd);
    }
    end_close(&end);
}

static void reuse_child(int fd, void *unused)
{
    (void)unused;
    reuse(fd, false);
}

static void reset_and_connect_again(void)
{
    struct child child = child_start(reuse_child, NULL);

    reuse(child.fd, true);
    child_join(&child);
}

/* ---- many ---- */

enum { MANY = 600 };

struct crowd {
    struct end end;
    struct ibv_qp *qps[MANY];
};

static void crowd_open(struct crowd *crowd)
{
    struct ibv_qp_init_attr attr = {.qp_type = IBV_QPT_RC, .cap = {4, 4, 1, 1, 64}};

    end_open(&crowd->end,
             &(struct end_options){.slab = true, .size = 1 << 20, .cqe = 4 * MANY, .one_cq = true});
    attr.send_cq = attr.recv_cq = crowd->end.recv_cq;
    for (int i = 0; i < MANY; i++) {
        crowd->qps[i] = ibv_create_qp(crowd->end.pd, &attr);
        CHECK(crowd->qps[i]);
    }
}

static void crowd_connect(int fd, struct crowd *crowd, uint64_t *addr, uint32_t *rkey)
{
    struct ibv_qp *own = crowd->end.qp;
    struct address peer;

    for (int i = 0; i < MANY; i++) {
        crowd->end.qp = crowd->qps[i];
        peer = exchange(fd, &crowd->end);
        end_to_init(&crowd->end, 0);
        post_recv(&crowd->end, (uint64_t)i, 524288 + 64 * (size_t)i, 64);
        end_to_rtr(&crowd->end, &peer, NULL);
        end_to_rts(&crowd->end, &peer, NULL);
    }
    crowd->end.qp = own;
    *addr = peer.addr;
    *rkey = peer.rkey;
}

static void crowd_close(struct crowd *crowd)
{
    for (int i = 0; i < MANY; i++)
        OK(ibv_destroy_qp(crowd->qps[i]));
    end_close(&crowd->end);
}

/* Sends one message on each QP and receives one on each, in any order. */
static void crowd_talk(struct crowd *crowd, uint64_t addr, uint32_t rkey)
{
    bool sent[MANY] = {false}, received[MANY] = {false};
    struct ibv_wc wc;

    for (int i = 0; i < MANY; i++) {
        struct ibv_sge sge = end_sge(&crowd->end, 1000000, 16);
        struct ibv_send_wr send = {.wr_id = (uint64_t)(MANY + i),
                                   .sg_list = &sge,
                                   .num_sge = 1,
                                   .opcode = IBV_WR_SEND,
                                   .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE},
                           write = {.next = &send,
                                    .sg_list = &sge,
                                    .num_sge = 1,
                                    .opcode = IBV_WR_RDMA_WRITE,
                                    .wr.rdma = {addr + 64 * (uint64_t)i, rkey}},
                           *bad;
        OK(ibv_post_send(crowd->qps[i], &write, &bad));
    }
    for (int left = 2 * MANY; left; left--) {
        wc = next_wc(crowd->end.recv_cq);
        CHECK_STATUS(&wc, IBV_WC_SUCCESS);
        bool *done = wc.wr_id < MANY ? &received[wc.wr_id] : &sent[wc.wr_id - MANY];
        CHECK(!*done);
        *done = true;
    }
}

static void crowd_child(int fd, void *unused)
{
    static struct crowd crowd;
    uint64_t addr;
    uint32_t rkey;

    (void)unused;
    crowd_open(&crowd);
    crowd_connect(fd, &crowd, &addr, &rkey);
    rendezvous(fd);
    crowd_talk(&crowd, addr, rkey);
    rendezvous(fd);
    crowd_close(&crowd);
}

static void many_lanes(void)
{
    static struct crowd crowd;
    struct child child = child_start(crowd_child, NULL);
    uint64_t addr;
    uint32_t rkey;

    crowd_open(&crowd);
    crowd_connect(child.fd, &crowd, &addr, &rkey);
    rendezvous(child.fd);
    crowd_talk(&crowd, addr, rkey);
    rendezvous(child.fd);
    child_join(&child);
    crowd_close(&crowd);
}

/* ---- requests of an earlier life ---- */

static void responder_of_two_lives(int fd, void *unused)
{
    struct end end;

    (void)unused;
    end_open(&end, &slab);
    end_to_init(&end, 0);
    struct address peer = exchange(fd, &end);
    post_recv(&end, 2, 0, 8);
    rendezvous(fd); /* the progress thread stands still, with the second request before it */
    end_to_rtr(&end, &peer, NULL);
    end_to_rts(&end, &peer, NULL);
    rendezvous(fd);
    expect_wc(end.recv_cq, 2, IBV_WC_SUCCESS);
    rendezvous(fd);
    end_close(&end);
}

/* A requester gave up before the responder was ready, and asks again as the same QP. Its first request still waits
 * there. When the second one has been granted, the first one must not take the lane away. */
static void a_request_of_an_earlier_life(void)
{
    static const struct connect_options brief = {
        .rnr_retry = 7, .retry_cnt = 1, .timeout = 12, .min_rnr_timer = 1, .max_rd_atomic = 1};
    struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};
    if (!can_stop_threads())
        return;
    struct child child = child_start(responder_of_two_lives, NULL);
    struct end end;

    end_open(&end, &slab);
    struct address peer = exchange(child.fd, &end);
    end_connect(&end, &peer, &brief);
    post_send(&end, 1, 0, 8, IBV_SEND_SIGNALED);
    expect_wc(end.send_cq, 1, IBV_WC_RETRY_EXC_ERR); /* it has been told that nobody is there */
    OK(ibv_modify_qp(end.qp, &reset, IBV_QP_STATE));
    int thread = stop_progress(child.pid);
    end_connect(&end, &peer, NULL);
    usleep(200000); /* for the second request to arrive; if it is late, this tests nothing */
    rendezvous(child.fd);
    rendezvous(child.fd); /* now the responder is ready */
    CHECK(!ptrace(PTRACE_DETACH, thread, NULL, NULL));
    usleep(100000); /* both have been looked at */
    post_send(&end, 2, 0, 8, IBV_SEND_SIGNALED);
    expect_wc(end.send_cq, 2, IBV_WC_SUCCESS);
    rendezvous(child.fd);
    child_join(&child);
    end_close(&end);
}

/* ---- order of READs, and wake-ups ---- */

struct two_keys {
    uint64_t addr;
    uint32_t rkey;
};

static void owner_of_two_keys(int fd, void *unused)
{
    struct end end;
    uint64_t *other = NULL;

    (void)unused;
    end_open(&end, &slab);
    end_meet(fd, &end);
    CHECK(!posix_memalign((void **)&other, 4096, 4096));
    struct ibv_mr *mr = ibv_reg_mr(end.pd, other, 4096, ACCESS_ALL);
    CHECK(mr);
    struct two_keys second = {(uintptr_t)other, mr->rkey};
    give(fd, &second, sizeof second);
    rendezvous(fd); /* both READs are posted, and this process has not looked at them */
    *(volatile uint64_t *)(void *)end.buf = 1;
    rendezvous(fd);
    rendezvous(fd);
    OK(ibv_dereg_mr(mr));
    free(other);
    end_close(&end);
}

/* A READ that waits for the responder, because its key is new here, and one after it that could go directly: READs of
 * a queue pair are carried out in order (IBTA's table of ordering), so what the later one finds is not older. */
static void reads_keep_their_order(void)
{
    if (!can_stop_threads())
        return;
    struct child child = child_start(owner_of_two_keys, NULL);
    struct two_keys second;
    struct end end;

    end_open(&end, &slab);
    struct address peer = end_meet(child.fd, &end);
    for (int i = 0; i < 100; i++)
        do_rdma(&end, IBV_WR_RDMA_READ, 0, 8, &peer, 0);
    take(child.fd, &second, sizeof second);
    int thread = stop_progress(child.pid);
    struct address to_second = {.addr = second.addr, .rkey = second.rkey};
    post_rdma(&end, 1, IBV_WR_RDMA_READ, 64, 8, &to_second, 0, IBV_SEND_SIGNALED);
    post_rdma(&end, 2, IBV_WR_RDMA_READ, 0, 8, &peer, 0, IBV_SEND_SIGNALED);
    rendezvous(child.fd);
    rendezvous(child.fd);
    CHECK(!ptrace(PTRACE_DETACH, thread, NULL, NULL));
    expect_wc(end.send_cq, 1, IBV_WC_SUCCESS);
    expect_wc(end.send_cq, 2, IBV_WC_SUCCESS);
    CHECK_EQ(*(uint64_t *)(void *)end.buf, 1);
    rendezvous(child.fd);
    child_join(&child);
    end_close(&end);
}

/* Large READs that follow each other without a pause, the first one of a key that is new here: it is carried out by the
 * owner, and the others wait for it instead of following it through the ring, where each would keep the next one. So
 * they go on when the owner's process is stopped. */
static void large_reads_leave_the_ring(void)
{
    enum { LARGE = 65536, AHEAD = 8, BEFORE = 500, AFTER = 100 };
    if (kernel_lacks(process_vm_writev(getpid(), NULL, 0, NULL, 0, 0), "process_vm_writev"))
        return;
    struct child child = child_start(owner_of_two_keys, NULL);
    struct two_keys second;
    struct end end;

    end_open(&end, &slab);
    struct address peer = end_meet(child.fd, &end);
    for (int i = 0; i < 100; i++)
        do_rdma(&end, IBV_WR_RDMA_READ, 0, 8, &peer, 0);
    take(child.fd, &second, sizeof second);
    struct address to_second = {.addr = second.addr, .rkey = second.rkey};
    post_rdma(&end, 0, IBV_WR_RDMA_READ, 0, 8, &to_second, 0, IBV_SEND_SIGNALED);
    for (unsigned i = 1; i <= BEFORE + AFTER; i++) {
        post_rdma(&end, i, IBV_WR_RDMA_READ, 0, LARGE, &peer, 0, IBV_SEND_SIGNALED);
        if (i >= AHEAD)
            expect_wc(end.send_cq, i - AHEAD, IBV_WC_SUCCESS);
        if (i == BEFORE)
            CHECK(!kill(child.pid, SIGSTOP));
    }
    for (unsigned i = BEFORE + AFTER - AHEAD + 1; i <= BEFORE + AFTER; i++)
        expect_wc(end.send_cq, i, IBV_WC_SUCCESS);
    CHECK(!kill(child.pid, SIGCONT));
    for (int i = 0; i < 3; i++)
        rendezvous(child.fd);
    child_join(&child);
    end_close(&end);
}

/* The acknowledgement of a message is late, its answer is not. The two queues of a queue pair are not ordered against
 * each other, not even on one completion queue: programs that expect this order would fail on adapters, too. */
static void quick_to_answer(int fd, void *unused)
{
    struct end end;

    (void)unused;
    OK(softdev_faults("delay=1"));
    end_open(&end, &slab);
    end_to_init(&end, 0);
    struct address peer = exchange(fd, &end);
    post_recv(&end, 1, 4096, 64);
    end_connect(&end, &peer, NULL);
    rendezvous(fd);
    expect_wc(end.recv_cq, 1, IBV_WC_SUCCESS);
    post_send(&end, 2, 0, 64, 0);
    rendezvous(fd); /* the answer was seen, and the message has not completed */
    OK(softdev_faults(""));
    while (!readable(fd))
        expect_empty(end.recv_cq);
    rendezvous(fd);
    end_close(&end);
}

static void a_reply_before_its_message(void)
{
    struct child child = child_start(quick_to_answer, NULL);
    struct end end;

    end_open(&end, &(struct end_options){.one_cq = true});
    end_to_init(&end, 0);
    struct address peer = exchange(child.fd, &end);
    post_recv(&end, 3, 4096, 64);
    end_connect(&end, &peer, NULL);
    rendezvous(child.fd);
    post_send(&end, 4, 0, 64, IBV_SEND_SIGNALED);
    expect_wc(end.recv_cq, 3, IBV_WC_SUCCESS);
    expect_empty(end.recv_cq);
    rendezvous(child.fd);
    expect_wc(end.recv_cq, 4, IBV_WC_SUCCESS);
    rendezvous(child.fd);
    child_join(&child);
    end_close(&end);
}

static const struct end_options sleeper = {.channel = true};

/* Taking an event makes none: the channel is readable once for each. (Now and then the progress thread is woken as well,
 * by a sender that has waited for long, and finds the completion first.) */
static void sleep_for_each(int fd, bool first)
{
    enum { EVENTS = 200 };
    struct end end;
    int again = 0;

    end_open(&end, &sleeper);
    end_meet(fd, &end);
    for (int round = 0; round < EVENTS; round++) {
        OK(ibv_req_notify_cq(end.recv_cq, 0));
        post_recv(&end, 1, 0, 64);
        rendezvous(fd);
        if (first)
            do_send(&end, 128, 8);
        expect_event(end.channel, end.recv_cq);
        again += readable(end.channel->fd);
        expect_wc(end.recv_cq, 1, IBV_WC_SUCCESS);
        if (!first)
            do_send(&end, 128, 8);
    }
    CHECK(again < EVENTS / 2);
    rendezvous(fd);
    end_close(&end);
}

static void second_sleeper(int fd, void *unused)
{
    (void)unused;
    sleep_for_each(fd, false);
}

static void one_wake_up_for_each_event(void)
{
    struct child child = child_start(second_sleeper, NULL);

    sleep_for_each(child.fd, true);
    child_join(&child);
}

/* ---- no peer ---- */

static void leaves_a_number(int fd, void *unused)
{
    struct end end;

    (void)unused;
    end_open(&end, &slab);
    exchange(fd, &end);
    rendezvous(fd);
    end_close(&end);
}

/* A QP number of a process that has ended, and one of a process that never existed: the retry timeout, as
 * on a network. */
static void destination_that_is_not(void)
{
    static const struct connect_options options = {
        .rnr_retry = 7, .retry_cnt = 1, .timeout = 12, .min_rnr_timer = 1, .max_rd_atomic = 1};

    for (int never = 0; never < 2; never++) {
        struct child child = child_start(leaves_a_number, NULL);
        struct end end;

        end_open(&end, &slab);
        struct address peer = exchange(child.fd, &end);
        if (never)
            peer.qpn ^= 0x1000;
        else
            rendezvous(child.fd);
        if (!never)
            child_join(&child);
        end_connect(&end, &peer, &options);
        post_send(&end, 3, 0, 8, IBV_SEND_SIGNALED);
        expect_wc(end.send_cq, 3, IBV_WC_RETRY_EXC_ERR);
        if (never) {
            rendezvous(child.fd);
            child_join(&child);
        }
        end_close(&end);
    }
}

TEST_MAIN(TEST(reset_and_connect_again), TEST(many_lanes), TEST(a_request_of_an_earlier_life),
          TEST(reads_keep_their_order), TEST(large_reads_leave_the_ring), TEST(a_reply_before_its_message),
          TEST(one_wake_up_for_each_event), TEST(destination_that_is_not))

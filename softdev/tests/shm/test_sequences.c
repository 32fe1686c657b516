/* Sequences of records that no requester of the device writes: each costs its peer the queue pair it has a lane to, and
 * nothing else. The device neither dies nor completes a receive with more bytes than it has room for. */
#include "tests/harness.h"
#include "tests/shm/raw_peer.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { RECEIVE = 200, REGION = 40000, MOST = 4 };

/* The device's end, which the raw peer has a lane to, and two ends that talk only to each other. */
struct scene {
    struct end victim, calm[2];
    struct raw_peer peer;
    struct raw_lane lane;
    struct address self;
};

static void open_scene(struct scene *scene, bool srq)
{
    const struct end_options options = {.srq = srq};

    end_open(&scene->victim, &options);
    scene->self = end_address(&scene->victim);
    raw_meet(&scene->peer, scene->self.qpn >> SOFT_QPN_INDEX_BITS);
    struct address to = scene->self;
    to.qpn = raw_qpn(&scene->peer, 7);
    end_connect(&scene->victim, &to, NULL);
    pair_open(&scene->calm[0], &scene->calm[1], NULL);
    pair_connect(&scene->calm[0], &scene->calm[1], NULL);
    raw_attach(&scene->lane, &scene->peer, to.qpn, scene->self.qpn, IBV_QPT_RC);
}

static void close_scene(struct scene *scene)
{
    post_recv(&scene->calm[1], 1, 0, RECEIVE);
    fill(scene->calm[0].buf, RECEIVE, 5);
    do_send(&scene->calm[0], 0, RECEIVE);
    expect_wc(scene->calm[1].recv_cq, 1, IBV_WC_SUCCESS);
    CHECK(holds(scene->calm[1].buf, RECEIVE, 5));
    pair_close(&scene->calm[0], &scene->calm[1]);
    raw_lane_drop(&scene->lane);
    raw_close(&scene->peer);
    end_close(&scene->victim);
}

/* What a step of a sequence is, besides a record: the peer takes a new lane in place of the first. */
enum { ATTACH_AGAIN = 200 };

struct sequence {
    const char *name;
    bool srq;
    struct soft_rec steps[MOST];
};

enum {
    FIRST = SOFT_REC_FIRST,
    LAST = SOFT_REC_LAST,
    WHOLE = FIRST | LAST,
    IMM = SOFT_REC_IMM,
    INV = SOFT_REC_INV
};
enum { REMOTE = SOFT_REC_REMOTE };

#define SEND_(bits, size)                                                                                    \
    {                                                                                                        \
        .op = SOFT_OP_SEND, .flags = (bits), .total = (size)                                                 \
    }
#define WRITE_(bits, size)                                                                                   \
    {                                                                                                        \
        .op = SOFT_OP_WRITE, .flags = REMOTE | (bits), .total = (size)                                       \
    }
#define OTHER_(what, bits, size)                                                                             \
    {                                                                                                        \
        .op = SOFT_OP_##what, .flags = (bits), .total = (size)                                               \
    }
#define AGAIN_                                                                                               \
    {                                                                                                        \
        .op = ATTACH_AGAIN                                                                                   \
    }

static const struct sequence refused[] = {
    {"a WRITE that a SEND ends", false, {WRITE_(FIRST, 0), SEND_(LAST, 0)}},
    {"the same on a shared queue", true, {WRITE_(FIRST, 0), SEND_(LAST, 0)}},
    {"the same with data of a WRITE", false, {WRITE_(FIRST, 8), SEND_(LAST, 8)}},
    {"the same with a receive left over", false, {SEND_(FIRST, 8), AGAIN_, WRITE_(FIRST, 0), SEND_(LAST, 0)}},
    {"the same left over of a shared queue",
     true,
     {SEND_(FIRST, 8), AGAIN_, WRITE_(FIRST, 0), SEND_(LAST, 0)}},
    {"a SEND that a WRITE ends", false, {SEND_(FIRST, 0), WRITE_(LAST, 0)}},
    {"a SEND that a WRITE with immediate ends", false, {SEND_(FIRST, 0), WRITE_(LAST | IMM, 0)}},
    {"a SEND in a WRITE", false, {WRITE_(FIRST, 8), SEND_(WHOLE, 0)}},
    {"an immediate in a SEND", false, {SEND_(FIRST, 8), OTHER_(IMM, WHOLE | IMM, 8)}},
    {"a READ in a SEND", false, {SEND_(FIRST, 8), OTHER_(READ, WHOLE | REMOTE, 8)}},
    {"an atomic in a WRITE", false, {WRITE_(FIRST, 8), OTHER_(FETCH_ADD, WHOLE | REMOTE, 8)}},
    {"the end of a SEND", false, {SEND_(LAST, 0)}},
    {"the end of a WRITE", false, {WRITE_(LAST, 0)}},
    {"an immediate that is none", false, {OTHER_(IMM, WHOLE, REGION)}},
    {"an immediate that invalidates", false, {OTHER_(IMM, WHOLE | IMM | INV, REGION)}},
    {"a WRITE that invalidates", false, {WRITE_(WHOLE | INV, 0)}},
    {"a WRITE with immediate that invalidates", false, {WRITE_(WHOLE | IMM | INV, 0)}},
    {"a SEND with both", false, {SEND_(WHOLE | IMM | INV, 0)}},
    {"a SEND to an address", false, {SEND_(WHOLE | REMOTE, 0)}},
    {"half a READ", false, {OTHER_(READ, FIRST | REMOTE, 8)}},
    {"a READ of nowhere", false, {OTHER_(READ, WHOLE, 0)}},
    {"an operation that does not exist", false, {OTHER_(DATA, WHOLE, 0)}},
};

static void write_steps(struct scene *scene, const struct sequence *one)
{
    const struct soft_reth reth = {.addr = scene->self.addr + 16384, .rkey = scene->self.rkey};

    for (int i = 0; i < MOST && one->steps[i].op; i++) {
        if (one->steps[i].op != ATTACH_AGAIN) {
            raw_record(&scene->lane, one->steps[i], &reth, NULL);
            raw_publish(&scene->lane);
            continue;
        }
        while (atomic_load(&scene->lane.seg->head) != scene->lane.tail) {
            struct ibv_wc wc;
            CHECK_EQ(ibv_poll_cq(scene->victim.recv_cq, 1, &wc), 0);
        }
        raw_lane_drop(&scene->lane);
        raw_attach(&scene->lane, &scene->peer, raw_qpn(&scene->peer, 7), scene->self.qpn, IBV_QPT_RC);
    }
}

/* The first receive's completion, if there is one, is of an error. */
static void expect_failure(struct scene *scene)
{
    struct ibv_wc wc;

    while (end_state(&scene->victim) != IBV_QPS_ERR)
        if (ibv_poll_cq(scene->victim.recv_cq, 1, &wc) == 1)
            CHECK(wc.status != IBV_WC_SUCCESS);
    while (ibv_poll_cq(scene->victim.recv_cq, 1, &wc) == 1)
        CHECK(wc.status != IBV_WC_SUCCESS);
    CHECK_EQ(atomic_load(&scene->lane.seg->nak), IBV_WC_REM_INV_REQ_ERR);
    CHECK_EQ(atomic_load(&scene->lane.seg->acked), 0);
}

static void out_of_order(void)
{
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct scene scene;

        printf("  %s\n", refused[i].name);
        fflush(stdout);
        open_scene(&scene, refused[i].srq);
        post_recv(&scene.victim, 1, 0, RECEIVE);
        write_steps(&scene, &refused[i]);
        expect_failure(&scene);
        CHECK(all_bytes(scene.victim.buf + 16384, 8192, 0));
        close_scene(&scene);
    }
}

/* A peer may change a READ that waits for room into another, or into something else. */
static void a_read_that_changes(void)
{
    static const struct soft_rec others[] = {SEND_(WHOLE, 0), OTHER_(READ, WHOLE | REMOTE, 100),
                                             OTHER_(FETCH_ADD, WHOLE | REMOTE, 8)};

    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        struct scene scene;
        struct ibv_wc wc;

        open_scene(&scene, false);
        const struct soft_reth reth = {.addr = scene.self.addr, .rkey = scene.self.rkey};
        const struct soft_rec all = {.op = SOFT_OP_READ, .flags = WHOLE | REMOTE, .total = 65536};

        post_recv(&scene.victim, 1, 0, RECEIVE);
        raw_record(&scene.lane, all, &reth, NULL);
        raw_publish(&scene.lane);
        while (!atomic_load(&scene.lane.seg->resp_blocked))
            CHECK_EQ(ibv_poll_cq(scene.victim.recv_cq, 1, &wc), 0);
        scene.lane.tail = 0;
        raw_record(&scene.lane, others[i], &reth, NULL);
        scene.lane.tail = SOFT_RECORD_ALIGN;
        atomic_store(&scene.lane.seg->resp_head, atomic_load(&scene.lane.seg->resp_tail));
        raw_publish(&scene.lane);
        expect_failure(&scene);
        close_scene(&scene);
    }
}

/* What requesters do write goes on to work. */
static void in_order(void)
{
    static const uint8_t data[60] = {[59] = 9};
    struct scene scene;

    open_scene(&scene, false);
    const struct soft_reth reth = {.addr = scene.self.addr + 16384, .rkey = scene.self.rkey};
    struct soft_rec rec = {.op = SOFT_OP_SEND, .flags = FIRST, .length = 60, .total = 100};

    for (uint64_t i = 0; i < 3; i++)
        post_recv(&scene.victim, i, i * 1000, RECEIVE);
    raw_record(&scene.lane, rec, NULL, data);
    rec = (struct soft_rec){.op = SOFT_OP_SEND, .flags = LAST, .length = 40, .total = 100};
    raw_record(&scene.lane, rec, NULL, data + 20);
    rec = (struct soft_rec){.op = SOFT_OP_WRITE, .flags = FIRST | REMOTE | IMM, .length = 60, .total = 60};
    raw_record(&scene.lane, rec, &reth, data);
    rec = (struct soft_rec){.op = SOFT_OP_WRITE, .flags = LAST | REMOTE | IMM, .total = 60};
    raw_record(&scene.lane, rec, &reth, NULL);
    rec = (struct soft_rec){.op = SOFT_OP_IMM, .flags = WHOLE | IMM, .total = REGION};
    raw_record(&scene.lane, rec, NULL, NULL);
    raw_publish(&scene.lane);
    CHECK_EQ(expect_wc(scene.victim.recv_cq, 0, IBV_WC_SUCCESS).byte_len, 100);
    CHECK_EQ(expect_wc(scene.victim.recv_cq, 1, IBV_WC_SUCCESS).opcode, IBV_WC_RECV_RDMA_WITH_IMM);
    CHECK_EQ(expect_wc(scene.victim.recv_cq, 2, IBV_WC_SUCCESS).byte_len, REGION);
    CHECK(scene.victim.buf[99] == 9 && scene.victim.buf[16384 + 59] == 9);
    CHECK_EQ(atomic_load(&scene.lane.seg->acked), 3);
    close_scene(&scene);
}

/* ---- in another's name -------------------------------------------------------------------------------- */

/* A datagram names the queue pair it is from: one of its sender's process. */
static void datagrams(void)
{
    struct {
        struct soft_deth deth;
        char payload[8];
    } datagram = {.deth = {.qkey = 0x11111111}, .payload = "payload"};
    const struct soft_rec rec = {.op = SOFT_OP_SEND, .length = sizeof datagram, .total = 8};
    const struct end_options options = {.type = IBV_QPT_UD};
    struct raw_peer peer;
    struct raw_lane lane;
    struct end end;

    end_open(&end, &options);
    const struct address self = end_address(&end);
    raw_meet(&peer, self.qpn >> SOFT_QPN_INDEX_BITS);
    end_connect(&end, &self, NULL);
    for (uint64_t i = 0; i < 4; i++)
        post_recv(&end, i, i * 1000, RECEIVE);
    raw_attach(&lane, &peer, raw_qpn(&peer, 0), self.qpn, IBV_QPT_UD);
    for (uint32_t i = 0; i < 2; i++) {
        datagram.deth.src_qpn = i ? raw_qpn(&peer, 3) + SOFT_MAX_QP : raw_qpn(&peer, 3);
        raw_record(&lane, rec, NULL, &datagram);
        /* Its length is that of the payload alone. */
        memcpy(lane.seg->req + lane.tail - 128, &(uint32_t){8}, 4);
        raw_publish(&lane);
    }
    CHECK_EQ(expect_wc(end.recv_cq, 0, IBV_WC_SUCCESS).src_qp, raw_qpn(&peer, 3));
    while (atomic_load(&lane.seg->gate)) /* closed */
        expect_empty(end.recv_cq);
    expect_empty(end.recv_cq);
    raw_lane_drop(&lane);
    raw_close(&peer);
    end_close(&end);
}

/* The refusal of a lane, and that its queue pair is not there, come from whom the lane was to go to. */
static void answers(void)
{
    const struct connect_options patient = {
        .rnr_retry = 7, .retry_cnt = 7, .timeout = 31, .min_rnr_timer = 1, .max_rd_atomic = 16};
    static const uint32_t types[] = {SOFT_REFUSED, SOFT_ABSENT};

    for (int i = 0; i < 2; i++) {
        struct raw_peer asked, other;
        struct soft_message question, answer;
        int fds[SOFT_PACKET_FDS];
        struct end end;

        end_open(&end, NULL);
        const struct address self = end_address(&end);
        struct address to = self;
        raw_meet(&asked, self.qpn >> SOFT_QPN_INDEX_BITS);
        raw_meet(&other, self.qpn >> SOFT_QPN_INDEX_BITS);
        to.qpn = raw_qpn(&asked, 7);
        end_connect(&end, &to, &patient);
        post_send(&end, 1, 0, 100, IBV_SEND_SIGNALED);
        do {
            CHECK(raw_wait(asked.answer_fd, &question, fds));
            raw_close_all(fds);
        } while (question.type != SOFT_ATTACH);
        answer = question;
        answer.type = types[i];
        answer.error = ENOMEM;
        answer.event_id = SOFT_NO_EVENT;
        CHECK(raw_send(other.answer_fd, &answer, NULL, 0));
        while (raw_wait(other.answer_fd, &question, fds)) /* to its end: the link is closed */
            raw_close_all(fds);
        CHECK_EQ(end_state(&end), IBV_QPS_RTS);
        expect_empty(end.send_cq);
        answer.type = SOFT_REFUSED;
        CHECK(raw_send(asked.answer_fd, &answer, NULL, 0));
        expect_wc(end.send_cq, 1, IBV_WC_REM_OP_ERR);
        raw_close(&asked);
        raw_close(&other);
        end_close(&end);
    }
}

/* ---- claims ------------------------------------------------------------------------------------------- */

/* A peer that claims, on one link after another, to be inside of memory for ever keeps only so many descriptors. */
static void endless_claims(void)
{
    enum { TIMES = 100, MOST_KEPT = 64 };
    struct end stays;
    struct scene scene;

    end_open(&stays, NULL);
    open_scene(&scene, false);
    close_scene(&scene);
    const int before = test_count_fds();
    for (int i = 0; i < TIMES; i++) {
        open_scene(&scene, false);
        atomic_store(&scene.lane.seg->inside, SOFT_INSIDE_SOME);
        close_scene(&scene);
    }
    /* Links of the last peer may not have been noticed to have ended, and the device opens a file of /proc to see whether
     * a process has: the descriptors are as many only most of the time, so one look has to tell. */
    for (int i = 0; test_count_fds() > before + MOST_KEPT; i++) {
        CHECK(i < 1000);
        usleep(10000);
    }
    end_close(&stays);
}

TEST_MAIN(TEST(in_order), TEST(out_of_order), TEST(a_read_that_changes), TEST(datagrams), TEST(answers),
          TEST(endless_claims))

/*
 * Personalities by which completions become visible together, and those of several queue pairs in any order; with EFA's,
 * those of one queue pair, too. A process has one personality, so each test is a child of this program.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "softdev.h"
#include "tests/harness.h"

enum { QPS = 4, EACH = 4, ALL = QPS * EACH, ROUNDS = 32, AT_MOST_NS = 32000 };

static struct end all, from[QPS], to[QPS];
static uint64_t now = 1000000000;

/* The clock of the device stands still between two calls, and is moved. */
static void later(uint64_t ns)
{
    now += ns;
    softdev_clock(now);
}

static struct ibv_qp *another(struct ibv_cq *cq)
{
    struct ibv_qp_init_attr attr = {
        .send_cq = cq,
        .recv_cq = cq,
        .cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC,
        .sq_sig_all = 1};
    struct ibv_qp *qp = ibv_create_qp(all.pd, &attr);

    CHECK(qp);
    return qp;
}

/* Queue pairs with one completion queue for all that is sent, each to one of the other. */
static void open_all(void)
{
    end_open(&all, &(struct end_options){.cqe = 1024, .channel = true});
    for (int i = 0; i < QPS; i++) {
        from[i] = to[i] = all;
        from[i].qp = another(all.send_cq);
        to[i].qp = another(all.recv_cq);
        pair_connect(&from[i], &to[i], NULL);
    }
}

static void close_all(void)
{
    for (int i = 0; i < QPS; i++) {
        if (from[i].qp)
            OK(ibv_destroy_qp(from[i].qp));
        OK(ibv_destroy_qp(to[i].qp));
    }
    end_close(&all);
}

static void write_one(int qp, uint64_t wr_id)
{
    const struct address there = end_address(&all);

    post_rdma(&from[qp], wr_id, IBV_WR_RDMA_WRITE, 0, 8, &there, 4096, 0);
}

/* One after the other from each queue pair. */
static void write_all(void)
{
    for (int i = 0; i < ALL; i++)
        write_one(i % QPS, (uint64_t)i);
}

static int take_some(struct ibv_wc wc[ALL])
{
    int n = ibv_poll_cq(all.send_cq, ALL, wc);

    CHECK(n >= 0);
    for (int i = 0; i < n; i++)
        CHECK_STATUS(&wc[i], IBV_WC_SUCCESS);
    return n;
}

static void each_at_once(void)
{
    struct ibv_wc wc[ALL];

    softdev_clock(now);
    open_all();
    write_all();
    CHECK_EQ(take_some(wc), ALL);
    for (int i = 0; i < ALL; i++)
        CHECK_EQ(wc[i].wr_id, i);
    close_all();
}

/* Bit 0: some were held back; 1: one came before an earlier one of another queue pair. */
static unsigned seen_in_round(uint64_t *hash)
{
    struct ibv_wc wc[ALL];
    uint64_t next[QPS] = {0};
    unsigned seen = 0;

    write_all();
    int n = take_some(wc);
    seen |= n < ALL;
    later(AT_MOST_NS);
    n += take_some(wc + n);
    CHECK_EQ(n, ALL); /* none later */
    for (int i = 0; i < ALL; i++) {
        const int qp = (int)(wc[i].wr_id % QPS);
        CHECK_EQ(wc[i].qp_num, from[qp].qp->qp_num);
        CHECK_EQ(wc[i].wr_id / QPS, next[qp]); /* a queue pair keeps its order */
        next[qp]++;
        seen |= wc[i].wr_id != (uint64_t)i ? 2 : 0;
        *hash = *hash * 31 + wc[i].wr_id + 1;
    }
    return seen;
}

static uint64_t rounds(void)
{
    uint64_t hash = 0;
    unsigned seen = 0;

    softdev_clock(now);
    open_all();
    for (int i = 0; i < ROUNDS; i++)
        seen |= seen_in_round(&hash);
    close_all();
    CHECK_EQ(seen, 3);
    return hash;
}

static uint64_t *drawn; /* shared with the children */

static void together(void)
{
    *drawn = rounds();
}

static void another_seed(void)
{
    OK(softdev_faults("seed=7"));
    *drawn = rounds();
}

/* An armed queue has its event when entries are shown, and not before. */
static void events_come_with_them(void)
{
    struct ibv_wc wc[ALL];
    int held = 0;

    softdev_clock(now);
    open_all();
    for (int i = 0; i < ROUNDS; i++) {
        OK(ibv_req_notify_cq(all.send_cq, 0));
        CHECK_EQ(take_some(wc), 0);
        write_one(i % QPS, (uint64_t)i);
        if (!take_some(wc)) {
            CHECK(!readable(all.channel->fd));
            held++;
            later(AT_MOST_NS);
            expect_event(all.channel, all.send_cq);
            CHECK_EQ(take_some(wc), 1);
        } else {
            expect_event(all.channel, all.send_cq);
        }
    }
    close_all();
    CHECK(held > ROUNDS / 2);
}

/* What a queue pair leaves goes with it, and so does what a completion queue holds back. */
static void they_go_with_their_queue_pair(void)
{
    struct ibv_wc wc[ALL];
    int held = 0;

    softdev_clock(now);
    for (int i = 0; i < ROUNDS; i++) {
        open_all();
        write_one(0, 0);
        write_one(1, 1);
        const int early = take_some(wc);
        OK(ibv_destroy_qp(from[0].qp));
        from[0].qp = NULL;
        if (!early) {
            held++;
            later(AT_MOST_NS);
            CHECK_EQ(take_some(wc), 1);
            CHECK_EQ(wc[0].wr_id, 1);
        }
        write_one(1, 2);
        close_all();
    }
    CHECK(held > ROUNDS / 2);
}

/* The system's clock: programs that poll, and programs that sleep, have all of them. */
static void nothing_is_lost(void)
{
    open_all();
    for (int i = 0; i < TIMES(400); i++) {
        post_recv(&to[0], 2, 0, 64);
        post_send(&from[0], 1, 1024, 64, 0);
        expect_wc(all.send_cq, 1, IBV_WC_SUCCESS);
        CHECK_EQ(sleep_wc(all.channel, all.recv_cq).wr_id, 2);
    }
    close_all();
}

/* The other end sends back what it gets, asleep between two. */
static void echoing_end(int fd, void *unused)
{
    struct end end;

    (void)unused;
    end_open(&end, &(struct end_options){.channel = true});
    end_meet(fd, &end);
    post_recv(&end, 2, 0, 64);
    rendezvous(fd);
    for (int i = 0; i < TIMES(400); i++) {
        CHECK_EQ(sleep_wc(end.channel, end.recv_cq).wr_id, 2);
        post_recv(&end, 2, 0, 64);
        post_send(&end, 1, 0, 64, IBV_SEND_SIGNALED);
        CHECK_EQ(sleep_wc(end.channel, end.send_cq).wr_id, 1);
    }
    rendezvous(fd);
    end_close(&end);
}

static void nothing_is_lost_between_processes(void)
{
    struct child child = child_start(echoing_end, NULL);
    struct end end;

    end_open(&end, &(struct end_options){.channel = true});
    end_meet(child.fd, &end);
    rendezvous(child.fd);
    for (int i = 0; i < TIMES(400); i++) {
        post_recv(&end, 2, 0, 64);
        post_send(&end, 1, 1024, 64, IBV_SEND_SIGNALED);
        CHECK_EQ(sleep_wc(end.channel, end.send_cq).wr_id, 1);
        CHECK_EQ(sleep_wc(end.channel, end.recv_cq).wr_id, 2);
    }
    rendezvous(child.fd);
    child_join(&child);
    end_close(&end);
}

static void packets_are_not_lost(void)
{
    setenv("SOFTDEV_WIRE", "only", 1);
    nothing_is_lost_between_processes();
}

/* ---- those of one queue pair in any order: EFA's ------------------------------------------------------- */

enum { QKEY = 0x11111111, DATAGRAMS = 16, GRH = 40, SLOT = 64 };

static void open_datagrams(struct end *end)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY};

    end_open(
        end,
        &(struct end_options){
            .type = IBV_QPT_UD, .sge = 1, .inline_bytes = 32, .send_wr = DATAGRAMS, .recv_wr = DATAGRAMS});
    OK(ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
    attr.qp_state = IBV_QPS_RTR;
    OK(ibv_modify_qp(end->qp, &attr, IBV_QP_STATE));
    attr.qp_state = IBV_QPS_RTS;
    OK(ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
}

static struct ibv_ah *route(const struct end *end, const union ibv_gid *to)
{
    struct ibv_ah_attr attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = *to, .hop_limit = 7}};
    struct ibv_ah *ah = ibv_create_ah(end->pd, &attr);

    CHECK(ah);
    return ah;
}

static int send_datagram(struct end *end, struct ibv_ah *ah, uint32_t qpn, uint64_t wr_id)
{
    const size_t at = wr_id % DATAGRAMS * sizeof wr_id;
    struct ibv_sge sge = end_sge(end, at, sizeof wr_id);
    struct ibv_send_wr wr = {.wr_id = wr_id,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_SEND,
                             .send_flags = IBV_SEND_SIGNALED,
                             .wr.ud = {ah, qpn, QKEY}},
                       *bad;

    memcpy(end->buf + at, &wr_id, sizeof wr_id);
    return ibv_post_send(end->qp, &wr, &bad);
}

/* Polls one at a time until all have come, each once. Whether one came before an earlier one. */
static bool overtaken(struct ibv_cq *cq, unsigned count, void (*check)(const struct ibv_wc *wc))
{
    uint64_t seen = 0, last = 0;
    bool any = false;

    for (unsigned n = 0; n < count;) {
        struct ibv_wc wc;
        const int got = ibv_poll_cq(cq, 1, &wc);
        CHECK(got >= 0);
        if (!got) {
            later(1000);
            continue;
        }
        CHECK_STATUS(&wc, IBV_WC_SUCCESS);
        CHECK(wc.wr_id < count && !(seen >> wc.wr_id & 1));
        seen |= UINT64_C(1) << wc.wr_id;
        any |= n && wc.wr_id < last;
        last = wc.wr_id;
        n++;
        if (check)
            check(&wc);
    }
    return any;
}

/* Each gives back one place of the send queue, and not those of earlier ones, which have not been polled yet. */
static void sends_complete_in_any_order(void)
{
    struct end end;
    unsigned any = 0;

    softdev_clock(now);
    open_datagrams(&end);
    struct ibv_ah *ah = route(&end, &end.gid);
    for (int i = 0; i < ROUNDS; i++) {
        struct ibv_wc wc;
        for (unsigned n = 0; n < DATAGRAMS; n++)
            OK(send_datagram(&end, ah, end.qp->qp_num, n));
        any += overtaken(end.send_cq, DATAGRAMS, NULL);
        for (unsigned n = 0; n < DATAGRAMS; n++)
            OK(send_datagram(&end, ah, end.qp->qp_num, n));
        CHECK_EQ(send_datagram(&end, ah, end.qp->qp_num, 99), ENOMEM);
        while (!ibv_poll_cq(end.send_cq, 1, &wc))
            later(1000);
        CHECK_STATUS(&wc, IBV_WC_SUCCESS);
        OK(send_datagram(&end, ah, end.qp->qp_num, wc.wr_id));
        CHECK_EQ(send_datagram(&end, ah, end.qp->qp_num, 99), ENOMEM);
        overtaken(end.send_cq, DATAGRAMS, NULL);
    }
    CHECK(any > ROUNDS / 2);
    OK(ibv_destroy_ah(ah));
    end_close(&end);
}

/* A completion that comes twice gives back one place. */
static void twice_is_one_place(void)
{
    struct ibv_wc wc[2 * DATAGRAMS];
    struct end end;

    softdev_clock(now);
    OK(softdev_faults("seed=1,cqe_twice=1"));
    open_datagrams(&end);
    struct ibv_ah *ah = route(&end, &end.gid);
    for (unsigned n = 0; n < DATAGRAMS; n++)
        OK(send_datagram(&end, ah, end.qp->qp_num, n));
    later(AT_MOST_NS);
    CHECK_EQ(ibv_poll_cq(end.send_cq, 2 * DATAGRAMS, wc), 2 * DATAGRAMS);
    for (unsigned n = 0; n < DATAGRAMS; n++)
        OK(send_datagram(&end, ah, end.qp->qp_num, n));
    CHECK_EQ(send_datagram(&end, ah, end.qp->qp_num, 99), ENOMEM);
    OK(ibv_destroy_ah(ah));
    end_close(&end);
}

/* As another host's, which has no such personality: datagrams of this one would not arrive. */
static void sending_host(int fd, void *unused)
{
    struct end end;

    (void)unused;
    setenv("SOFTDEV_PERSONALITY", "soft", 1);
    open_datagrams(&end);
    const struct address there = exchange(fd, &end);
    struct ibv_ah *ah = route(&end, &there.gid);
    for (int i = 0; i < ROUNDS; i++) {
        rendezvous(fd);
        for (unsigned n = 0; n < DATAGRAMS; n++)
            OK(send_datagram(&end, ah, there.qpn, n));
        for (unsigned n = 0; n < DATAGRAMS; n++)
            expect_wc(end.send_cq, n, IBV_WC_SUCCESS);
    }
    rendezvous(fd);
    OK(ibv_destroy_ah(ah));
    end_close(&end);
}

static struct end receiving;

/* They were received in their order, as the first of the receives has the first. */
static void check_received(const struct ibv_wc *wc)
{
    uint64_t number;

    memcpy(&number, receiving.buf + wc->wr_id * SLOT + GRH, sizeof number);
    CHECK_EQ(number, wc->wr_id);
}

static void receives_complete_in_any_order(void)
{
    struct child child = child_start(sending_host, NULL);
    unsigned any = 0;

    softdev_clock(now);
    open_datagrams(&receiving);
    exchange(child.fd, &receiving);
    for (int i = 0; i < ROUNDS; i++) {
        for (unsigned n = 0; n < DATAGRAMS; n++)
            post_recv(&receiving, n, n * SLOT, SLOT);
        rendezvous(child.fd);
        any += overtaken(receiving.recv_cq, DATAGRAMS, check_received);
    }
    CHECK(any > 0);
    rendezvous(child.fd);
    child_join(&child);
    end_close(&receiving);
}

static uint64_t drawn_by(void (*body)(void))
{
    drawn = mmap(NULL, sizeof *drawn, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(drawn != MAP_FAILED);
    run_as("unordered", body);
    const uint64_t result = *drawn;
    OK(munmap(drawn, sizeof *drawn));
    return result;
}

static void a_seed_draws_the_same(void)
{
    const uint64_t first = drawn_by(together);

    CHECK(drawn_by(together) == first);
    CHECK(drawn_by(another_seed) != first);
}

AS(soft, each_at_once)
AS(unordered, events_come_with_them)
AS(unordered, they_go_with_their_queue_pair)
AS(unordered, nothing_is_lost)
AS(unordered, nothing_is_lost_between_processes)
AS(unordered, packets_are_not_lost)
AS(efa, sends_complete_in_any_order)
AS(efa, twice_is_one_place)
AS(efa, receives_complete_in_any_order)

static const struct test tests[] = {
    TEST(each_at_once_soft),
    TEST(a_seed_draws_the_same),
    TEST(events_come_with_them_unordered),
    TEST(they_go_with_their_queue_pair_unordered),
    TEST(nothing_is_lost_unordered),
    TEST(nothing_is_lost_between_processes_unordered),
    TEST(packets_are_not_lost_unordered),
    TEST(sends_complete_in_any_order_efa),
    TEST(twice_is_one_place_efa),
    TEST(receives_complete_in_any_order_efa),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, tests, sizeof tests / sizeof *tests);
}

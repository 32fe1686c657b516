/*
 * A personality that places messages in any order: what has arrived when one stops in its middle, and what stands first
 * of several WRITEs. A process has one personality, so each test is a child of this program.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "softdev.h"
#include "tests/harness.h"

/* Pieces of the path's MTU. What is missing at the source is a page of four of them. */
enum { PIECE = 1024, PIECES = 64, SIZE = PIECE * PIECES, MIDDLE = PIECES / 2, GAP = 4 };

static struct end a, b;
static char *from;
static struct ibv_mr *source;

static void take_memory(struct end *end)
{
    from = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(from != MAP_FAILED);
    source = ibv_reg_mr(end->pd, from, SIZE, IBV_ACCESS_LOCAL_WRITE);
    CHECK(source);
}

static void open_both(void)
{
    pair_open(&a, &b, &(struct end_options){.size = SIZE});
    pair_connect(&a, &b, NULL);
    take_memory(&a);
    memset(from, 'x', SIZE);
}

static void close_both(void)
{
    OK(ibv_dereg_mr(source));
    OK(munmap(from, SIZE));
    pair_close(&a, &b);
}

/* Bit n: piece n is there. */
static uint64_t pieces_of(const struct end *end)
{
    uint64_t pieces = 0;

    for (int i = 0; i < PIECES; i++)
        if (all_bytes(end->buf + i * PIECE, PIECE, 'x'))
            pieces |= UINT64_C(1) << i;
    return pieces;
}

/* A WRITE whose source is gone in the middle. */
static void write_with_gap(const struct address *there)
{
    struct ibv_sge sge = {.addr = (uintptr_t)from, .length = SIZE, .lkey = source->lkey};
    struct ibv_send_wr wr = {.wr_id = 1,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_RDMA_WRITE,
                             .send_flags = IBV_SEND_SIGNALED,
                             .wr = {.rdma = {.remote_addr = there->addr, .rkey = there->rkey}}},
                       *bad;

    OK(mprotect(from + MIDDLE * PIECE, GAP * PIECE, PROT_NONE));
    OK(ibv_post_send(a.qp, &wr, &bad));
    expect_wc(a.send_cq, 1, IBV_WC_LOC_PROT_ERR);
}

static uint64_t arrived(struct end *to, const struct address *there)
{
    memset(to->buf, 0, SIZE);
    write_with_gap(there);
    return pieces_of(to);
}

static const uint64_t before_middle = (UINT64_C(1) << MIDDLE) - 1;

static uint64_t within(void)
{
    open_both();
    struct address there = end_address(&b);
    uint64_t pieces = arrived(&b, &there);

    CHECK(!(pieces >> MIDDLE & 1));
    close_both();
    return pieces;
}

/* In order, all that stands before the gap has arrived, and nothing behind it. */
static void in_order(void)
{
    CHECK_EQ(within(), before_middle);
}

static void in_any_order(void)
{
    uint64_t pieces = within();

    CHECK(pieces >> (MIDDLE + GAP));                  /* something behind the gap, */
    CHECK((pieces & before_middle) != before_middle); /* and not all before it */
    CHECK_EQ(within(), pieces);                       /* the seed's order */
}

/* Only memory that was registered with IBV_ACCESS_RELAXED_ORDERING. */
static void relaxed(void)
{
    open_both();
    struct ibv_mr *mr = ibv_reg_mr(b.pd, b.buf, SIZE, ACCESS_ALL | IBV_ACCESS_RELAXED_ORDERING);
    struct address there = end_address(&b);

    CHECK(mr);
    there.rkey = mr->rkey;
    CHECK(arrived(&b, &there) >> (MIDDLE + GAP));
    OK(ibv_dereg_mr(mr));
    close_both();
    in_order();
}

/* Two WRITEs at once, of which the first cannot be carried out. */
static bool second_is_there(struct end *to)
{
    struct address there = end_address(to);
    struct ibv_sge none = {.addr = (uintptr_t)from, .length = 64, .lkey = source->lkey + 1};
    struct ibv_sge whole = {.addr = (uintptr_t)from, .length = 64, .lkey = source->lkey};
    struct ibv_send_wr second = {.wr_id = 2,
                                 .sg_list = &whole,
                                 .num_sge = 1,
                                 .opcode = IBV_WR_RDMA_WRITE,
                                 .send_flags = IBV_SEND_SIGNALED,
                                 .wr = {.rdma = {.remote_addr = there.addr + 64, .rkey = there.rkey}}},
                       first = second, *bad;

    first.wr_id = 1;
    first.next = &second;
    first.sg_list = &none;
    first.wr.rdma.remote_addr = there.addr;
    memset(to->buf, 0, 128);
    OK(ibv_post_send(a.qp, &first, &bad));
    expect_wc(a.send_cq, 1, IBV_WC_LOC_PROT_ERR);
    expect_wc(a.send_cq, 2, IBV_WC_WR_FLUSH_ERR);
    CHECK(all_bytes(to->buf, 64, 0));
    return all_bytes(to->buf + 64, 64, 'x');
}

static int seconds_of(int tries)
{
    int there = 0;

    for (int i = 0; i < tries; i++) {
        open_both();
        /* Draws before it, so that it is another one each time. */
        struct address to = end_address(&b);
        for (int k = 0; k < i; k++) {
            post_rdma(&a, 9, IBV_WR_RDMA_WRITE, 0, 8, &to, 1024, IBV_SEND_SIGNALED);
            expect_wc(a.send_cq, 9, IBV_WC_SUCCESS);
        }
        there += second_is_there(&b);
        close_both();
    }
    return there;
}

static void messages_in_order(void)
{
    CHECK_EQ(seconds_of(16), 0);
}

static void messages_in_any_order(void)
{
    int there = seconds_of(16);

    CHECK(there > 0 && there < 16);
}

/* What completes is there, and later bytes are above earlier ones. */
static void completions_hold(void)
{
    open_both();
    struct address there = end_address(&b);
    struct ibv_sge sges[8];
    struct ibv_send_wr wrs[8], *bad;

    for (int round = 0; round < 64; round++) {
        for (int i = 0; i < 8; i++) {
            memset(from + i * PIECE, 'a' + i, PIECE);
            sges[i] = (struct ibv_sge){
                .addr = (uintptr_t)from + (unsigned)i * PIECE, .length = PIECE, .lkey = source->lkey};
            wrs[i] = (struct ibv_send_wr){
                .wr_id = (unsigned)i,
                .next = i < 7 ? &wrs[i + 1] : NULL,
                .sg_list = &sges[i],
                .num_sge = 1,
                .opcode = IBV_WR_RDMA_WRITE,
                .send_flags = i == 7 ? IBV_SEND_SIGNALED : 0,
                .wr = {.rdma = {.remote_addr = there.addr + (unsigned)i * 64, .rkey = there.rkey}}};
        }
        OK(ibv_post_send(a.qp, wrs, &bad));
        expect_wc(a.send_cq, 7, IBV_WC_SUCCESS);
        for (int i = 0; i < 7; i++)
            CHECK(all_bytes(b.buf + i * 64, 64, (uint8_t)('a' + i)));
        CHECK(all_bytes(b.buf + 7 * 64, PIECE, 'h'));
    }
    close_both();
}

/* The other end, in a process of its own. */
static void other_end(int fd, void *slab)
{
    struct end end;
    char done;

    end_open(&end, &(struct end_options){.size = SIZE, .slab = slab != NULL});
    struct address there = exchange(fd, &end);
    end_connect(&end, &there, NULL);
    memset(end.buf, 0, SIZE);
    give(fd, "r", 1);
    take(fd, &done, 1);
    uint64_t pieces = pieces_of(&end);
    give(fd, &pieces, sizeof pieces);
    take(fd, &done, 1);
    end_close(&end);
}

/* Writes until this process reaches that memory by itself. */
static void reach(const struct address *there)
{
    const volatile uint64_t *astray = softdev_astray(a.qp);
    uint64_t before;

    do {
        before = *astray;
        post_rdma(&a, 9, IBV_WR_RDMA_WRITE, 0, 8, there, 0, IBV_SEND_SIGNALED);
        expect_wc(a.send_cq, 9, IBV_WC_SUCCESS);
    } while (*astray != before);
}

static uint64_t to_process(bool slab)
{
    struct child child = child_start(other_end, slab ? &child : NULL);
    uint64_t pieces;
    char ready;

    end_open(&a, &(struct end_options){.size = SIZE});
    take_memory(&a);
    memset(from, 'x', SIZE);
    struct address there = exchange(child.fd, &a);
    end_connect(&a, &there, NULL);
    take(child.fd, &ready, 1);
    reach(&there);
    write_with_gap(&there);
    give(child.fd, "d", 1);
    take(child.fd, &pieces, sizeof pieces);
    give(child.fd, "e", 1);
    child_join(&child);
    OK(ibv_dereg_mr(source));
    OK(munmap(from, SIZE));
    end_close(&a);
    return pieces;
}

static void process_in_order(void)
{
    CHECK_EQ(to_process(true), before_middle);
}

static void process_in_any_order(void)
{
    uint64_t pieces = to_process(true);

    CHECK(pieces >> (MIDDLE + GAP));
    CHECK((pieces & before_middle) != before_middle);
}

/* The kernel copies, where it may. */
static void memory_of_its_own_in_any_order(void)
{
    CHECK(to_process(false) >> (MIDDLE + GAP));
}

/* ---- SENDs and READs: the gap is in the buffers that they come to ----------------------------------------- */

/*
 * Where they begin, so that a packet reaches from one piece into the next: one of them is half in the gap. The gap is a
 * buffer of its own: a copy that ends in a fault may have begun anywhere.
 */
enum {
    BEGIN = PIECE / 2,
    FIRST = MIDDLE * PIECE - BEGIN,
    SECOND = GAP * PIECE,
    LENGTH = SIZE - BEGIN,
    LISTED = 3
};

static void close_gap(void)
{
    OK(mprotect(from + MIDDLE * PIECE, GAP * PIECE, PROT_READ | PROT_WRITE));
}

static void open_gap(void)
{
    memset(from, 'x', BEGIN);
    memset(from + BEGIN, 0, LENGTH);
    OK(mprotect(from + MIDDLE * PIECE, GAP * PIECE, PROT_NONE));
}

/* The memory as three buffers. */
static void list_of(struct ibv_sge sges[LISTED], char *at, uint32_t key)
{
    const uint32_t lengths[LISTED] = {FIRST, SECOND, LENGTH - FIRST - SECOND};

    at += BEGIN;
    for (int i = 0; i < LISTED; i++) {
        sges[i] = (struct ibv_sge){.addr = (uintptr_t)at, .length = lengths[i], .lkey = key};
        at += lengths[i];
    }
}

static void receive_with_gap(struct end *end)
{
    struct ibv_sge sges[LISTED];
    struct ibv_recv_wr wr = {.wr_id = 2, .sg_list = sges, .num_sge = LISTED}, *bad;

    list_of(sges, from, source->lkey);
    open_gap();
    OK(ibv_post_recv(end->qp, &wr, &bad));
}

static void send_all(struct end *end)
{
    struct ibv_sge sges[LISTED];
    struct ibv_send_wr wr = {.wr_id = 1,
                             .sg_list = sges,
                             .num_sge = LISTED,
                             .opcode = IBV_WR_SEND,
                             .send_flags = IBV_SEND_SIGNALED},
                       *bad;

    memset(end->buf, 'x', SIZE);
    list_of(sges, (char *)end->buf, end->mr->lkey);
    OK(ibv_post_send(end->qp, &wr, &bad));
    expect_wc(end->send_cq, 1, IBV_WC_REM_OP_ERR);
}

static uint64_t pieces_here(void)
{
    close_gap();
    const struct end here = {.buf = (uint8_t *)from};
    return pieces_of(&here);
}

static uint64_t sent(void)
{
    pair_open(&a, &b, &(struct end_options){.size = SIZE});
    pair_connect(&a, &b, NULL);
    take_memory(&b);
    receive_with_gap(&b);
    send_all(&a);
    expect_wc(b.recv_cq, 2, IBV_WC_LOC_PROT_ERR);
    const uint64_t pieces = pieces_here();
    close_both();
    return pieces;
}

static void read_with_gap(const struct address *there)
{
    struct ibv_sge sges[LISTED];
    struct ibv_send_wr wr = {.wr_id = 1,
                             .sg_list = sges,
                             .num_sge = LISTED,
                             .opcode = IBV_WR_RDMA_READ,
                             .send_flags = IBV_SEND_SIGNALED,
                             .wr = {.rdma = {.remote_addr = there->addr + BEGIN, .rkey = there->rkey}}},
                       *bad;

    list_of(sges, from, source->lkey);
    open_gap();
    OK(ibv_post_send(a.qp, &wr, &bad));
    expect_wc(a.send_cq, 1, IBV_WC_LOC_PROT_ERR);
}

static uint64_t read_by(void)
{
    open_both();
    struct address there = end_address(&b);
    memset(b.buf, 'x', SIZE);
    read_with_gap(&there);
    const uint64_t pieces = pieces_here();
    close_both();
    return pieces;
}

static void two_sided_in_order(void)
{
    CHECK_EQ(sent(), before_middle);
    CHECK_EQ(read_by(), before_middle);
}

static void two_sided_in_any_order(void)
{
    CHECK((sent() & before_middle) != before_middle);
    CHECK((read_by() & before_middle) != before_middle);
}

/* Something behind the gap, by some of the orders that seeds draw. */
static void whole_message_in_any_order(void)
{
    int sends = 0, reads = 0;

    for (int seed = 1; seed <= 8; seed++) {
        char spec[32];
        snprintf(spec, sizeof spec, "seed=%d", seed);
        OK(softdev_faults(spec));
        sends += sent() >> (MIDDLE + GAP) != 0;
        reads += read_by() >> (MIDDLE + GAP) != 0;
    }
    CHECK(sends > 0 && reads > 0);
}

/* Only buffers that were all registered with IBV_ACCESS_RELAXED_ORDERING. */
static void two_sided_relaxed(void)
{
    two_sided_in_order();
    open_both();
    struct address there = end_address(&b);
    struct ibv_mr *strict = source;
    source = ibv_reg_mr(a.pd, from, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING);
    CHECK(source);
    memset(b.buf, 'x', SIZE);
    read_with_gap(&there);
    CHECK((pieces_here() & before_middle) != before_middle);
    OK(ibv_dereg_mr(strict));
    close_both();
}

/* With packets, of which each is cut into lines. */
static void packets_in_order(void)
{
    setenv("SOFTDEV_WIRE", "only", 1);
    two_sided_in_order();
}

/* The other end sends when it is told to, and has what is read. */
static void sending_end(int fd, void *slab)
{
    struct end end;
    char word;

    end_open(&end, &(struct end_options){.size = SIZE, .slab = slab != NULL});
    memset(end.buf, 'x', SIZE);
    struct address there = exchange(fd, &end);
    end_connect(&end, &there, NULL);
    give(fd, "r", 1);
    take(fd, &word, 1);
    if (word == 's')
        send_all(&end);
    take(fd, &word, 1);
    end_close(&end);
}

static uint64_t from_process(bool slab, bool sends)
{
    struct child child = child_start(sending_end, slab ? &child : NULL);
    char ready;

    end_open(&a, &(struct end_options){.size = SIZE});
    take_memory(&a);
    struct address there = exchange(child.fd, &a);
    end_connect(&a, &there, NULL);
    take(child.fd, &ready, 1);
    if (sends) {
        receive_with_gap(&a);
        give(child.fd, "s", 1);
        expect_wc(a.recv_cq, 2, IBV_WC_LOC_PROT_ERR);
    } else {
        reach(&there);
        read_with_gap(&there);
        give(child.fd, "n", 1);
    }
    const uint64_t pieces = pieces_here();
    give(child.fd, "e", 1);
    child_join(&child);
    OK(ibv_dereg_mr(source));
    OK(munmap(from, SIZE));
    end_close(&a);
    return pieces;
}

static void two_sided_process_in_order(void)
{
    CHECK_EQ(from_process(true, true), before_middle);
    CHECK_EQ(from_process(true, false), before_middle);
    CHECK_EQ(from_process(false, false), before_middle);
}

static void two_sided_process_in_any_order(void)
{
    CHECK((from_process(true, true) & before_middle) != before_middle);
    CHECK((from_process(true, false) & before_middle) != before_middle);
    CHECK((from_process(false, false) & before_middle) != before_middle);
}

/* What completes is there, whatever the order was. */
static void two_sided_completions_hold(void)
{
    open_both();
    struct address there = end_address(&b);

    for (unsigned round = 0; round < 64; round++) {
        const size_t length = 1 + round * 997 % (SIZE / 2);
        fill(a.buf, length, round);
        post_recv(&b, 2, SIZE / 2, length);
        post_send(&a, 1, 0, length, IBV_SEND_SIGNALED);
        expect_wc(b.recv_cq, 2, IBV_WC_SUCCESS);
        CHECK(holds(b.buf + SIZE / 2, length, round));
        expect_wc(a.send_cq, 1, IBV_WC_SUCCESS);
        do_rdma(&a, IBV_WR_RDMA_READ, SIZE / 2, length, &there, SIZE / 2);
        CHECK(holds(a.buf + SIZE / 2, length, round));
    }
    close_both();
}

static void packets_in_any_order(void)
{
    setenv("SOFTDEV_WIRE", "only", 1);
    two_sided_in_any_order();
    two_sided_completions_hold();
}

AS(soft, in_order)
AS(unordered, in_any_order)
AS(mlx5, relaxed)
AS(soft, messages_in_order)
AS(unordered, messages_in_any_order)
AS(unordered, completions_hold)
AS(soft, process_in_order)
AS(unordered, process_in_any_order)
AS(unordered, memory_of_its_own_in_any_order)
AS(soft, two_sided_in_order)
AS(unordered, two_sided_in_any_order)
AS(unordered, whole_message_in_any_order)
AS(mlx5, two_sided_relaxed)
AS(soft, packets_in_order)
AS(unordered, packets_in_any_order)
AS(soft, two_sided_process_in_order)
AS(unordered, two_sided_process_in_any_order)
AS(unordered, two_sided_completions_hold)

static const struct test tests[] = {
    TEST(in_order_soft),
    TEST(in_any_order_unordered),
    TEST(relaxed_mlx5),
    TEST(messages_in_order_soft),
    TEST(messages_in_any_order_unordered),
    TEST(completions_hold_unordered),
    TEST(process_in_order_soft),
    TEST(process_in_any_order_unordered),
    TEST(memory_of_its_own_in_any_order_unordered),
    TEST(two_sided_in_order_soft),
    TEST(two_sided_in_any_order_unordered),
    TEST(whole_message_in_any_order_unordered),
    TEST(two_sided_relaxed_mlx5),
    TEST(packets_in_order_soft),
    TEST(packets_in_any_order_unordered),
    TEST(two_sided_process_in_order_soft),
    TEST(two_sided_process_in_any_order_unordered),
    TEST(two_sided_completions_hold_unordered),
};

int main(int argc, char **argv)
{
    return test_main(argc, argv, tests, sizeof tests / sizeof *tests);
}

/* Long READs and WRITEs: other work of the process gets its turn in between, and every byte arrives. In one process;
 * in two, through a mapping, through the kernel, and carried by the responder. */
#include "tests/harness.h"

#include <stdlib.h>
#include <string.h>

enum {
    PIECE = 8 << 20,
#ifdef __SANITIZE_THREAD__ /* it copies byte by byte */
    PIECES = 4,
#else
    PIECES = 16,
#endif
    LONG = PIECES * PIECE, /* takes longer than any pause between two lines of this test */
    ODD = (5 << 20) + 1234,
};

static void open_end(struct end *end, size_t size, bool slab, struct ibv_context *context)
{
    end_open(end, &(struct end_options){
                      .context = context, .size = size, .slab = slab, .sge = PIECES, .channel = true});
}

/* All pieces of it go to, or come from, the same few megabytes here. */
static void post_long(struct end *end, uint64_t wr_id, enum ibv_wr_opcode opcode, const struct address *peer)
{
    struct ibv_sge sges[PIECES];
    struct ibv_send_wr wr = {.wr_id = wr_id,
                             .sg_list = sges,
                             .num_sge = PIECES,
                             .opcode = opcode,
                             .send_flags = IBV_SEND_SIGNALED,
                             .wr.rdma = {peer->addr, peer->rkey}},
                       *bad;

    for (int i = 0; i < PIECES; i++)
        sges[i] = end_sge(end, 0, PIECE);
    OK(ibv_post_send(end->qp, &wr, &bad));
    memset(sges, 0, sizeof sges); /* the list is the caller's again */
}

/* A short message between two other queue pairs of this process is there before the long one, however often both are
 * looked for. */
static void others_go_on(struct end *end, enum ibv_wr_opcode opcode, const struct address *peer)
{
    struct end c, d;

    pair_open(&c, &d, &(struct end_options){.context = end->context});
    pair_connect(&c, &d, NULL);
    post_recv(&d, 5, 0, 64);
    post_long(end, 7, opcode, peer);
    expect_empty(end->send_cq);
    do_send(&c, 0, 64);
    expect_wc(d.recv_cq, 5, IBV_WC_SUCCESS);
    expect_empty(end->send_cq);
    expect_wc(end->send_cq, 7, IBV_WC_SUCCESS);
    pair_close(&c, &d);
}

/* Nobody polls. */
static void it_ends_while_all_sleep(struct end *end, enum ibv_wr_opcode opcode, const struct address *peer)
{
    post_long(end, 8, opcode, peer);
    struct ibv_wc wc = sleep_wc(end->channel, end->send_cq);
    CHECK_EQ(wc.wr_id, 8);
    CHECK_STATUS(&wc, IBV_WC_SUCCESS);
}

/* In pieces of different lengths; what follows comes after it. */
static void every_byte(struct end *end, enum ibv_wr_opcode opcode, const struct address *peer)
{
    struct ibv_sge sges[] = {end_sge(end, 0, 100), end_sge(end, 200, 3 << 20),
                             end_sge(end, (3 << 20) + 200, ODD - 100 - (3 << 20))};
    struct ibv_send_wr wr = {.wr_id = 1,
                             .sg_list = sges,
                             .num_sge = 3,
                             .opcode = opcode,
                             .send_flags = IBV_SEND_SIGNALED,
                             .wr.rdma = {peer->addr + 64, peer->rkey}},
                       *bad;

    OK(ibv_post_send(end->qp, &wr, &bad));
    post_rdma(end, 2, IBV_WR_RDMA_READ, PIECE - 8, 8, peer, 0, IBV_SEND_SIGNALED);
    expect_wc(end->send_cq, 1, IBV_WC_SUCCESS);
    expect_wc(end->send_cq, 2, IBV_WC_SUCCESS);
}

/* The bytes of one message, as every_byte() lays them out. */
static void lay(uint8_t *to, unsigned seed)
{
    uint8_t *all = malloc(ODD);

    CHECK(all);
    fill(all, ODD, seed);
    memcpy(to, all, 100);
    memcpy(to + 200, all + 100, ODD - 100);
    free(all);
}

static bool lies(const uint8_t *from, unsigned seed)
{
    uint8_t *all = malloc(ODD);

    CHECK(all);
    memcpy(all, from, 100);
    memcpy(all + 100, from + 200, ODD - 100);
    bool good = holds(all, ODD, seed);
    free(all);
    return good;
}

static void in_one_process(void)
{
    struct end a, b;

    open_end(&a, PIECE, false, NULL);
    open_end(&b, LONG, false, NULL);
    pair_connect(&a, &b, NULL);
    struct address peer = end_address(&b);
    fill(b.buf + 64, ODD, 1);
    every_byte(&a, IBV_WR_RDMA_READ, &peer);
    CHECK(lies(a.buf, 1));
    lay(a.buf, 2);
    every_byte(&a, IBV_WR_RDMA_WRITE, &peer);
    CHECK(holds(b.buf + 64, ODD, 2));
    others_go_on(&a, IBV_WR_RDMA_READ, &peer);
    others_go_on(&a, IBV_WR_RDMA_WRITE, &peer);
    it_ends_while_all_sleep(&a, IBV_WR_RDMA_READ, &peer);
    pair_close(&a, &b);
}

static void owner(int fd, void *argument)
{
    const bool *slab = argument;
    struct end end;
    char byte;

    open_end(&end, LONG, *slab, NULL);
    fill(end.buf + 64, ODD, 1);
    struct address peer = exchange(fd, &end);
    end_connect(&end, &peer, NULL);
    give(fd, "c", 1);
    take(fd, &byte, 1);
    CHECK(holds(end.buf + 64, ODD, 2));
    give(fd, "h", 1);
    take(fd, &byte, 1);
    end_close(&end);
}

static void in_two(bool slab)
{
    struct child child = child_start(owner, &slab);
    struct end a;
    char byte;

    open_end(&a, PIECE, false, NULL);
    struct address peer = exchange(child.fd, &a);
    end_connect(&a, &peer, NULL);
    take(child.fd, &byte, 1);
    /* The key is not known here yet: the owner carries this one out, and the others go directly. */
    every_byte(&a, IBV_WR_RDMA_READ, &peer);
    CHECK(lies(a.buf, 1));
    for (int i = 0; i < 50; i++)
        do_rdma(&a, IBV_WR_RDMA_READ, 0, 8, &peer, 0);
    every_byte(&a, IBV_WR_RDMA_READ, &peer);
    CHECK(lies(a.buf, 1));
    lay(a.buf, 2);
    every_byte(&a, IBV_WR_RDMA_WRITE, &peer);
    give(child.fd, "w", 1);
    take(child.fd, &byte, 1);
    others_go_on(&a, IBV_WR_RDMA_READ, &peer);
    it_ends_while_all_sleep(&a, IBV_WR_RDMA_WRITE, &peer);
    give(child.fd, "e", 1);
    child_join(&child);
    end_close(&a);
}

static void through_a_mapping(void)
{
    in_two(true);
}

static void through_the_kernel(void)
{
    in_two(false);
}

TEST_MAIN(TEST(in_one_process), TEST(through_a_mapping), TEST(through_the_kernel))

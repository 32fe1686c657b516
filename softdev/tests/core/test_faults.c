/* Injected faults: which plans are accepted, that they are carried out, and that a seed repeats them. */
#include "tests/harness.h"

#include "softdev.h"

#include <errno.h>
#include <string.h>

static void plans(void)
{
    static const char *const good[] = {"",
                                       ",",
                                       "drop=0",
                                       "drop=1",
                                       "seed=0x10,event=0.5,spurious=.5",
                                       "delay=1e-3,reorder=1,corrupt=0.5",
                                       "drop=0.1;error=0.1",
                                       "port=down for=2s; at=1m gid=3",
                                       "[[fault]]\nmtu = 1024\nfor = \"5ms\" # a while\n"};
    static const char *const bad[] = {"drop",
                                      "drop=",
                                      "drop=2",
                                      "drop=-1",
                                      "drop=nan",
                                      "drop=0.5x",
                                      "loss=0.1",
                                      "seed=x",
                                      "port=left",
                                      "for=2s",
                                      "port=down for=2",
                                      "port=down every=1s",
                                      "slow=0s",
                                      "qp=-1",
                                      "gid=64",
                                      "mtu=1000",
                                      "device=soft4 port=down",
                                      "async=rain",
                                      "at=1s",
                                      "every=1s",
                                      "device=soft0",
                                      "port=down port=up",
                                      "drop=0.1,drop=0.2",
                                      "seed=1 seed=2",
                                      "[[falt]]\nport = \"down\"\n",
                                      "[[fault]]\nmtu = 1024\n[[fault]]\nat = \"1s\"\n",
                                      "@/nonexistent"};

    for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++)
        CHECK_EQ(softdev_faults(good[i]), 0);
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        CHECK_EQ(softdev_faults(bad[i]), EINVAL);
    OK(softdev_faults(NULL));
}

static void work_requests_fail(void)
{
    struct end a, b;

    pair_open(&a, &b, NULL);
    pair_connect(&a, &b, NULL);
    OK(softdev_faults("error=1"));
    post_send(&a, 1, 0, 8, 0);
    expect_wc(a.send_cq, 1, IBV_WC_GENERAL_ERR);
    OK(softdev_faults(NULL));
    CHECK_EQ(end_state(&a), IBV_QPS_ERR);
    pair_close(&a, &b);
}

enum { GRH_BYTES = 40 };

/* Arrivals out of 64 datagrams: which, as bits; how many; in which order; how many with changed bytes
 * among their 8. */
struct arrivals {
    uint64_t came;
    unsigned int copies, changed;
    uint32_t order[130];
};

static struct arrivals send_64(const char *spec)
{
    struct arrivals found = {0};
    struct end_options options = {.type = IBV_QPT_UD, .recv_wr = 256, .cqe = 256};
    struct end a, b;
    struct ibv_wc wc;

    pair_open(&a, &b, &options);
    fill(a.buf, 8, 3);
    pair_connect(&a, &b, NULL);
    struct ibv_ah_attr attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = b.gid}};
    struct ibv_ah *ah = ibv_create_ah(a.pd, &attr);
    CHECK(ah);
    for (uint64_t i = 0; i < 130; i++)
        post_recv(&b, i, i * 256, 256);
    struct ibv_qp_attr of_b;
    struct ibv_qp_init_attr init;
    OK(ibv_query_qp(b.qp, &of_b, IBV_QP_QKEY, &init));
    OK(softdev_faults(spec));
    for (uint32_t i = 0; i < 64; i++) {
        struct ibv_sge sge = end_sge(&a, 0, 8);
        struct ibv_send_wr wr = {.sg_list = &sge,
                                 .num_sge = 1,
                                 .opcode = IBV_WR_SEND_WITH_IMM,
                                 .imm_data = i,
                                 .send_flags = IBV_SEND_SIGNALED,
                                 .wr.ud = {ah, b.qp->qp_num, of_b.qkey}},
                           *bad;
        OK(ibv_post_send(a.qp, &wr, &bad));
        expect_wc(a.send_cq, 0, IBV_WC_SUCCESS);
    }
    OK(softdev_faults(NULL));
    while (ibv_poll_cq(b.recv_cq, 1, &wc) == 1) {
        CHECK_STATUS(&wc, IBV_WC_SUCCESS);
        CHECK_EQ(wc.byte_len, GRH_BYTES + 8);
        found.came |= UINT64_C(1) << wc.imm_data;
        found.order[found.copies++] = wc.imm_data;
        for (unsigned int i = 0; i < 8; i++)
            found.changed += b.buf[wc.wr_id * 256 + GRH_BYTES + i] != a.buf[i];
    }
    OK(ibv_destroy_ah(ah));
    pair_close(&a, &b);
    return found;
}

static uint64_t arrivals(const char *spec, unsigned int *copies)
{
    struct arrivals found = send_64(spec);

    CHECK_EQ(found.changed, 0);
    *copies = found.copies;
    return found.came;
}

static void a_seed_repeats(void)
{
    unsigned int copies;
    uint64_t first = arrivals("seed=11,drop=0.5", &copies);

    CHECK(first != 0 && first != UINT64_MAX);
    CHECK_EQ(copies, __builtin_popcountll(first));
    CHECK_EQ(arrivals("seed=11,drop=0.5", &copies), first);
    CHECK(arrivals("seed=12,drop=0.5", &copies) != first);
    CHECK_EQ(arrivals("drop=1", &copies), 0);
    CHECK_EQ(arrivals("duplicate=1", &copies), UINT64_MAX);
    CHECK_EQ(copies, 128);
}

static void datagrams_change_places(void)
{
    struct arrivals found = send_64("reorder=1");

    CHECK_EQ(found.copies, 64);
    for (uint32_t i = 0; i < 64; i++)
        CHECK_EQ(found.order[i], i ^ 1); /* each that is overtaken lets one pass */
    found = send_64("seed=3,reorder=0.2");
    CHECK(found.copies >= 63); /* the last one waits for a successor */
    unsigned int late = 0;
    for (uint32_t i = 1; i < found.copies; i++)
        late += found.order[i] < found.order[i - 1];
    CHECK(late > 0 && late < 32);
}

static void datagrams_change(void)
{
    struct arrivals found = send_64("corrupt=1");

    CHECK_EQ(found.came, UINT64_MAX);
    CHECK_EQ(found.changed, 64);
    found = send_64("seed=3,corrupt=0.25,duplicate=1");
    CHECK_EQ(found.copies, 128);
    CHECK(found.changed > 0 && found.changed < 128 && found.changed % 2 == 0);
}

static void channel_faults(void)
{
    struct end_options options = {.channel = true};
    struct end a, b;
    struct ibv_cq *cq;
    void *context;

    pair_open(&a, &b, &options);
    pair_connect(&a, &b, NULL);
    set_nonblocking(b.channel->fd);
    OK(softdev_faults("spurious=1"));
    OK(ibv_req_notify_cq(b.recv_cq, 0));
    expect_event(b.channel, b.recv_cq); /* of an empty queue */
    CHECK(ibv_get_cq_event(b.channel, &cq, &context) != 0);
    CHECK_EQ(errno, EAGAIN);
    OK(softdev_faults("event=1"));
    OK(ibv_req_notify_cq(b.recv_cq, 0));

    post_recv(&b, 1, 0, 8);
    do_send(&a, 0, 8);
    CHECK(!readable(b.channel->fd)); /* armed, a completion arrived, but no event */
    OK(softdev_faults(NULL));
    expect_wc(b.recv_cq, 1, IBV_WC_SUCCESS);
    pair_close(&a, &b);
}

/* Acknowledgements of another process are late, but arrive. */
static void delayed_child(int fd, void *unused)
{
    struct end end;
    char byte;

    (void)unused;
    OK(softdev_faults("seed=5,delay=0.5"));
    end_open(&end, NULL);
    end_to_init(&end, 0);
    for (uint64_t i = 0; i < 10; i++)
        post_recv(&end, i, i * 64, 64);
    struct address peer = exchange(fd, &end);
    end_connect(&end, &peer, NULL);
    give(fd, "r", 1);
    for (uint64_t i = 0; i < 10; i++)
        expect_wc(end.recv_cq, i, IBV_WC_SUCCESS);
    take(fd, &byte, 1);
    end_close(&end);
}

static void delayed_acknowledgements(void)
{
    struct child child = child_start(delayed_child, NULL);
    struct end end;
    char byte;

    end_open(&end, NULL);
    struct address peer = exchange(child.fd, &end);
    end_connect(&end, &peer, NULL);
    take(child.fd, &byte, 1);
    for (int i = 0; i < 10; i++)
        do_send(&end, 0, 64);
    give(child.fd, "d", 1);
    child_join(&child);
    end_close(&end);
}

TEST_MAIN(TEST(plans), TEST(work_requests_fail), TEST(a_seed_repeats), TEST(datagrams_change_places),
          TEST(datagrams_change), TEST(channel_faults), TEST(delayed_acknowledgements))

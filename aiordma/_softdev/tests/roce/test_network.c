/* RoCE from the outside: all traffic through sockets (AIORDMA_SOFT_WIRE=only), counters, congestion,
 * strangers. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "aiordma_soft.h"
#include "roce/icrc.h"
#include "roce/packet.h"
#include "tests/harness.h"

static struct end a, b, c;
static struct address to_b;

static void open_pair(void)
{
    pair_open(&a, &b, &(struct end_options){.size = 1 << 20});
    pair_connect(&a, &b, NULL);
    to_b = end_address(&b);
}

/* Sent messages arrive, and the counters show it. */
static void counted(void)
{
    const uint64_t sent = aiordma_soft_wire_count("sent"), received = aiordma_soft_wire_count("received");

    open_pair();
    fill(a.buf, 100000, 3);
    do_rdma(&a, IBV_WR_RDMA_WRITE, 0, 100000, &to_b, 200000);
    CHECK(holds(b.buf + 200000, 100000, 3));
    CHECK(aiordma_soft_wire_count("sent") > sent + 20);
    CHECK(aiordma_soft_wire_count("received") > received + 20);
    CHECK_EQ(aiordma_soft_wire_count("nonsense"), UINT64_MAX);
    pair_close(&a, &b);
}

/* Every packet is marked: the receiver sends notifications, at most one per 50 us, and the sender receives
 * them. */
static void congestion(void)
{
    open_pair();
    OK(aiordma_soft_faults("wire_mark=1"));
    const uint64_t begin = test_now_ns(), before = aiordma_soft_wire_count("cnps_sent"),
                   heard = aiordma_soft_wire_count("cnps_received"),
                   marked = aiordma_soft_wire_count("marked");
    for (int i = 0; i < 20; i++)
        do_rdma(&a, IBV_WR_RDMA_WRITE, 0, 200000, &to_b, 0);
    const uint64_t cnps = aiordma_soft_wire_count("cnps_sent") - before;
    OK(aiordma_soft_faults(NULL));
    CHECK(aiordma_soft_wire_count("marked") > marked + 100);
    CHECK(cnps >= 1 && cnps <= (test_now_ns() - begin) / 50000 + 1);
    do_rdma(&a, IBV_WR_RDMA_WRITE, 0, 8, &to_b, 0);
    CHECK(aiordma_soft_wire_count("cnps_received") > heard);
    pair_close(&a, &b);
}

/* READ responses are marked: the notification goes to the responder, which slows down. */
static void congestion_of_reads(void)
{
    open_pair();
    OK(aiordma_soft_faults("wire_mark=1"));
    const uint64_t heard = aiordma_soft_wire_count("cnps_received"), paced = aiordma_soft_wire_count("paced");
    fill(b.buf, 200000, 4);
    for (int i = 0; i < 3; i++)
        do_rdma(&a, IBV_WR_RDMA_READ, 300000, 200000, &to_b, 0);
    OK(aiordma_soft_faults(NULL));
    CHECK(holds(a.buf + 300000, 200000, 4));
    CHECK(aiordma_soft_wire_count("cnps_received") > heard);
    CHECK(aiordma_soft_wire_count("paced") > paced);
    pair_close(&a, &b);
}

/* Strangers can send anything to our ports without affecting queue pairs. */
static void strangers(void)
{
    static uint8_t bytes[4200];
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    uint32_t state = 5;

    CHECK(fd >= 0);
    open_pair();
    const uint64_t bad = aiordma_soft_wire_count("malformed") + aiordma_soft_wire_count("bad_icrc") +
                         aiordma_soft_wire_count("no_qp") + aiordma_soft_wire_count("wrong_peer");
    for (int i = 0; i < 4000; i++) {
        const size_t size = test_random(&state) % (i % 2 ? 80 : sizeof bytes);
        const uint32_t qpn = test_random(&state) % 4 ? b.qp->qp_num : test_random(&state);

        for (size_t k = 0; k < size; k++)
            bytes[k] = (uint8_t)test_random(&state);
        if (test_random(&state) % 4) { /* looks like RoCE, and for b */
            bytes[0] %= 0x18;
            bytes[1] &= 0xf0;
            bytes[2] = bytes[3] = 0xff;
            bytes[5] = (uint8_t)(qpn >> 16);
            bytes[6] = (uint8_t)(qpn >> 8);
            bytes[7] = (uint8_t)qpn;
        }
        to.sin_port = htons((uint16_t)(24791 + (b.qp->qp_num >> 14)));
        sendto(fd, bytes, size & ~3u, 0, (struct sockaddr *)&to, sizeof to);
        if (i % 100 == 0)
            do_rdma(&a, IBV_WR_RDMA_WRITE, 0, 5000, &to_b, 300000);
    }
    fill(a.buf, 5000, 8);
    do_rdma(&a, IBV_WR_RDMA_WRITE, 0, 5000, &to_b, 300000);
    CHECK(holds(b.buf + 300000, 5000, 8));
    CHECK_EQ(end_state(&a), IBV_QPS_RTS);
    CHECK_EQ(end_state(&b), IBV_QPS_RTS);
    CHECK(aiordma_soft_wire_count("malformed") + aiordma_soft_wire_count("bad_icrc") +
              aiordma_soft_wire_count("no_qp") + aiordma_soft_wire_count("wrong_peer") >
          bad + 100);
    close(fd);
    pair_close(&a, &b);
}

/* A side that closes after the last message does not answer again: its acknowledgement must not depend on
 * one packet. */
static void last_words(void)
{
    for (int received = 0; received < 2; received++) {
        struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};

        open_pair();
        if (received) {
            post_recv(&b, 1, 0, 10);
            do_send(&a, 0, 10);
            expect_wc(b.recv_cq, 1, IBV_WC_SUCCESS);
        }
        const uint64_t before = aiordma_soft_wire_count("sent");
        OK(ibv_modify_qp(b.qp, &attr, IBV_QP_STATE));
        CHECK(received ? aiordma_soft_wire_count("sent") >= before + 3
                       : aiordma_soft_wire_count("sent") == before);
        pair_close(&a, &b);
    }
}

/* A request for all of a large region, as from another kind of device: from any port, in the name of a. */
static void ask_for(const struct end *to, const struct address *from, uint32_t length)
{
    const struct address target = end_address(to);
    const int fd = socket(from->gid.raw[10] ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    uint8_t bytes[ROCE_MAX_HEADERS + ROCE_ICRC];
    union {
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } name = {.v6 = {.sin6_family = AF_INET6}};
    socklen_t size = sizeof name.v6;
    const struct roce_packet packet = {.opcode = ROCE_READ_REQUEST,
                                       .pkey = ROCE_PKEY,
                                       .migrated = true,
                                       .ack_request = true,
                                       .qpn = target.qpn,
                                       .psn = from->psn,
                                       .addr = target.addr,
                                       .rkey = target.rkey,
                                       .length = length};
    struct roce_path path = {.dst_port = (uint16_t)(24791 + (target.qpn >> 14))};

    CHECK(fd >= 0);
    memcpy(path.src, from->gid.raw, 16);
    memcpy(path.dst, target.gid.raw, 16);
    if (from->gid.raw[10]) {
        name.v4 = (struct sockaddr_in){.sin_family = AF_INET};
        memcpy(&name.v4.sin_addr, path.src + 12, 4);
        size = sizeof name.v4;
    } else {
        memcpy(&name.v6.sin6_addr, path.src, 16);
    }
    OK(bind(fd, (struct sockaddr *)&name, size));
    OK(getsockname(fd, (struct sockaddr *)&name, &size));
    path.src_port = ntohs(name.v4.sin_port);
    size_t n = roce_pack_headers(&packet, bytes);
    const uint32_t icrc = roce_icrc(&path, bytes, n);
    for (int i = 0; i < ROCE_ICRC; i++)
        bytes[n++] = (uint8_t)(icrc >> 8 * i);
    if (from->gid.raw[10])
        memcpy(&name.v4.sin_addr, path.dst + 12, 4);
    else
        memcpy(&name.v6.sin6_addr, path.dst, 16);
    name.v4.sin_port = htons(path.dst_port);
    CHECK_EQ(sendto(fd, bytes, n, 0, (struct sockaddr *)&name, size), n);
    close(fd);
}

/* A queue pair with a large response to send does not make others wait for its end. */
static void large_reads(void)
{
    enum { LARGE = 64 << 20, PACKETS = LARGE / 1024 };
    bool between = false;

    /* The whole test may run while this process is stopped: seeing it once is enough. */
    for (int attempt = 0; attempt < 20 && !between; attempt++) {
        struct end large;

        pair_open(&a, &large, &(struct end_options){.size = LARGE});
        pair_connect(&a, &large, NULL);
        const struct address from = end_address(&a);
        pair_open(&b, &c, &(struct end_options){.size = 4096});
        pair_connect(&b, &c, NULL);
        const struct address to_c = end_address(&c);
        const uint64_t before = aiordma_soft_wire_count("sent");

        ask_for(&large, &from, LARGE);
        while (aiordma_soft_wire_count("sent") == before)
            expect_empty(large.recv_cq);
        do_rdma(&b, IBV_WR_RDMA_WRITE, 0, 8, &to_c, 0);
        between = aiordma_soft_wire_count("sent") - before < PACKETS;
        while (aiordma_soft_wire_count("sent") - before < PACKETS)
            expect_empty(large.recv_cq);
        pair_close(&b, &c);
        pair_close(&a, &large);
    }
    CHECK(between);
}

static const struct test tests[] = {TEST(counted),   TEST(congestion), TEST(congestion_of_reads),
                                    TEST(strangers), TEST(last_words), TEST(large_reads)};

int main(int argc, char **argv)
{
    setenv("AIORDMA_SOFT_WIRE", "only", 1); /* before the device is opened */
    return test_main(argc, argv, tests, sizeof tests / sizeof *tests);
}

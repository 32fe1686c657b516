/* RoCE from the outside: all traffic through sockets (SOFTDEV_WIRE=only), counters, congestion,
 * strangers. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "roce/icrc.h"
#include "roce/packet.h"
#include "softdev.h"
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
    const uint64_t sent = softdev_wire_count("sent"), received = softdev_wire_count("received");

    open_pair();
    fill(a.buf, 100000, 3);
    do_rdma(&a, IBV_WR_RDMA_WRITE, 0, 100000, &to_b, 200000);
    CHECK(holds(b.buf + 200000, 100000, 3));
    CHECK(softdev_wire_count("sent") > sent + 20);
    CHECK(softdev_wire_count("received") > received + 20);
    CHECK_EQ(softdev_wire_count("nonsense"), UINT64_MAX);
    pair_close(&a, &b);
}

/* Every packet is marked: the receiver sends notifications, at most one per 50 us, and the sender receives
 * them. */
static void congestion(void)
{
    open_pair();
    do_rdma(&a, IBV_WR_RDMA_WRITE, 0, 8, &to_b, 0); /* its acknowledgement shows whose notifications count */
    OK(softdev_faults("wire_mark=1"));
    const uint64_t begin = test_now_ns(), before = softdev_wire_count("cnps_sent"),
                   heard = softdev_wire_count("cnps_received"), marked = softdev_wire_count("marked");
    while (softdev_wire_count("marked") <= marked + 100) /* each is slower than the one before */
        do_rdma(&a, IBV_WR_RDMA_WRITE, 0, 200000, &to_b, 0);
    const uint64_t cnps = softdev_wire_count("cnps_sent") - before;
    OK(softdev_faults(NULL));
    CHECK(cnps >= 1 && cnps <= (test_now_ns() - begin) / 50000 + 1);
    while (softdev_wire_count("cnps_received") <= heard)
        expect_empty(a.send_cq);
    pair_close(&a, &b);
}

/* READ responses are marked: the notification goes to the responder, which slows down. */
static void congestion_of_reads(void)
{
    open_pair();
    OK(softdev_faults("wire_mark=1"));
    const uint64_t heard = softdev_wire_count("cnps_received"), paced = softdev_wire_count("paced");
    fill(b.buf, 200000, 4);
    while (softdev_wire_count("cnps_received") <= heard || softdev_wire_count("paced") <= paced)
        do_rdma(&a, IBV_WR_RDMA_READ, 300000, 200000, &to_b, 0);
    OK(softdev_faults(NULL));
    CHECK(holds(a.buf + 300000, 200000, 4));
    pair_close(&a, &b);
}

static uint64_t refused(void)
{
    return softdev_wire_count("malformed") + softdev_wire_count("bad_icrc") + softdev_wire_count("no_qp") +
           softdev_wire_count("wrong_peer");
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
    const uint64_t bad = refused();
    for (int i = 0; i < TIMES(4000); i++) {
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
    while (refused() <= bad + 100) /* the progress thread reads that port, and may have to wait for a CPU */
        expect_empty(b.recv_cq);
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
        const uint64_t before = softdev_wire_count("sent");
        OK(ibv_modify_qp(b.qp, &attr, IBV_QP_STATE));
        CHECK(received ? softdev_wire_count("sent") >= before + 3 : softdev_wire_count("sent") == before);
        pair_close(&a, &b);
    }
}

/* ---- packets that the device did not send -------------------------------------------------------------- */

static socklen_t name_of(const uint8_t gid[16], uint16_t port, struct sockaddr_in6 *name)
{
    memset(name, 0, sizeof *name);
    if (gid[10]) {
        struct sockaddr_in *v4 = (struct sockaddr_in *)(void *)name;
        v4->sin_family = AF_INET;
        v4->sin_port = htons(port);
        memcpy(&v4->sin_addr, gid + 12, 4);
        return sizeof *v4;
    }
    name->sin6_family = AF_INET6;
    name->sin6_port = htons(port);
    memcpy(&name->sin6_addr, gid, 16);
    return sizeof *name;
}

static uint16_t own_port(uint32_t qpn)
{
    return (uint16_t)(24791 + (qpn >> 14));
}

/* A socket that any user of the host may open. port 0: any. */
struct stranger {
    int fd;
    struct roce_path path;
};

static struct stranger stranger_open(const struct address *from, const struct address *to, uint16_t port)
{
    struct stranger s = {.fd = socket(from->gid.raw[10] ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0)};
    struct sockaddr_in6 name;
    socklen_t size = name_of(from->gid.raw, port, &name);

    CHECK(s.fd >= 0);
    OK(bind(s.fd, (struct sockaddr *)&name, size));
    OK(getsockname(s.fd, (struct sockaddr *)&name, &size));
    memcpy(s.path.src, from->gid.raw, 16);
    memcpy(s.path.dst, to->gid.raw, 16);
    s.path.src_port = ntohs(name.sin6_port); /* at the same offset for IPv4 */
    s.path.dst_port = own_port(to->qpn);
    return s;
}

/* One of the ports that softdev devices send from, but no process has it. */
static struct stranger stranger_like_a_device(const struct address *from, const struct address *to)
{
    for (uint16_t slot = 1023; slot; slot--) {
        struct sockaddr_in6 name;
        const socklen_t size = name_of(from->gid.raw, (uint16_t)(24791 + slot), &name);
        const int fd = socket(from->gid.raw[10] ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        const bool is_free = !bind(fd, (struct sockaddr *)&name, size);

        close(fd);
        if (is_free)
            return stranger_open(from, to, (uint16_t)(24791 + slot));
    }
    FAIL("no port is free");
}

/* With a correct checksum. `size` bytes of payload, all 0xee. */
static void forge(const struct stranger *s, struct roce_packet packet)
{
    uint8_t bytes[ROCE_MAX_PACKET];
    struct sockaddr_in6 name;
    const socklen_t size = name_of(s->path.dst, s->path.dst_port, &name);

    packet.pkey = ROCE_PKEY;
    packet.migrated = true;
    size_t n = roce_pack_headers(&packet, bytes);
    memset(bytes + n, packet.opcode == ROCE_CNP_OPCODE ? 0 : 0xee, packet.payload_length);
    n += packet.payload_length;
    const uint32_t icrc = roce_icrc(&s->path, bytes, n);
    for (int i = 0; i < ROCE_ICRC; i++)
        bytes[n++] = (uint8_t)(icrc >> 8 * i);
    CHECK_EQ(sendto(s->fd, bytes, n, 0, (struct sockaddr *)&name, size), n);
}

static const struct roce_packet cnp = {
    .opcode = ROCE_CNP_OPCODE, .becn = true, .payload_length = ROCE_CNP_BYTES};

static uint64_t count(const char *what)
{
    return softdev_wire_count(what);
}

/* Waits until the device has handled what the stranger has sent so far. */
static void handled(const struct stranger *s)
{
    const uint64_t before = count("malformed");
    struct sockaddr_in6 name;
    const socklen_t size = name_of(s->path.dst, s->path.dst_port, &name);

    CHECK_EQ(sendto(s->fd, "", 1, 0, (struct sockaddr *)&name, size), 1); /* arrives after the others */
    while (count("malformed") == before)
        expect_empty(a.recv_cq);
}

/* Nothing may have come to the stranger's socket: loopback delivers before the sender's call returns. */
static void check_got_nothing(const struct stranger *s)
{
    uint8_t bytes[ROCE_MAX_PACKET];

    CHECK(recv(s->fd, bytes, sizeof bytes, MSG_DONTWAIT) < 0);
}

static struct roce_packet read_of(const struct address *target, uint32_t psn, uint32_t length)
{
    return (struct roce_packet){.opcode = ROCE_READ_REQUEST,
                                .ack_request = true,
                                .qpn = target->qpn,
                                .psn = psn,
                                .addr = target->addr,
                                .rkey = target->rkey,
                                .length = length};
}

/* A request for all of a large region, as from another kind of device: from any port, in the name of a. */
static void ask_for(const struct end *to, const struct address *from, uint32_t length)
{
    const struct address target = end_address(to);
    const struct stranger s = stranger_open(from, &target, 0);

    forge(&s, read_of(&target, from->psn, length));
    close(s.fd);
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
        const uint64_t before = softdev_wire_count("sent");

        ask_for(&large, &from, LARGE);
        while (softdev_wire_count("sent") == before)
            expect_empty(large.recv_cq);
        do_rdma(&b, IBV_WR_RDMA_WRITE, 0, 8, &to_c, 0);
        between = softdev_wire_count("sent") - before < PACKETS;
        while (softdev_wire_count("sent") - before < PACKETS)
            expect_empty(large.recv_cq);
        pair_close(&b, &c);
        pair_close(&a, &large);
    }
    CHECK(between);
}

/* A peer asks for more than it has a window for, and then for what is refused: before it is, not all of it is sent, since
 * the thread that sends it keeps all others from receiving. */
static bool refused_after_large_reads(uint64_t patience_ns)
{
    enum { LARGE = 64 << 20, READS = 4 };
    const uint64_t until = test_now_ns() + patience_ns;
    struct end large;
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;

    pair_open(&a, &large, &(struct end_options){.size = LARGE});
    pair_connect(&a, &large, NULL);
    const struct address from = end_address(&a), target = end_address(&large);
    const struct stranger s = stranger_open(&from, &target, 0);
    OK(ibv_query_qp(large.qp, &attr, IBV_QP_PATH_MTU, &init));
    const uint32_t packets = LARGE / (128u << attr.path_mtu);
    const uint64_t before = count("sent");

    for (uint32_t i = 0; i < READS; i++)
        forge(&s, read_of(&target, (from.psn + i * packets) & ROCE_24, LARGE));
    struct roce_packet wrong = read_of(&target, (from.psn + READS * packets) & ROCE_24, 64);
    wrong.rkey ^= 0xff;
    forge(&s, wrong);
    while (end_state(&large) != IBV_QPS_ERR && test_now_ns() < until)
        expect_empty(large.recv_cq);
    const bool refuses = end_state(&large) == IBV_QPS_ERR;
    if (refuses)
        CHECK(count("sent") - before < READS * packets / 2);
    close(s.fd);
    pair_close(&a, &large);
    return refuses;
}

/* A socket that is full drops packets, and nobody repeats forged ones: once is enough. Each attempt has
 * a second more than the last, as this process may be slow. */
static void large_reads_before_a_refusal(void)
{
    uint64_t attempt = 1;

    while (!refused_after_large_reads(attempt * 1000000000))
        CHECK(++attempt < 12);
}

/* A queue pair that its program has moved to ERR is silent, also where it was in the middle of an answer. */
static void large_reads_of_who_is_in_error(void)
{
    enum { LARGE = 64 << 20, PACKETS = LARGE / 1024 };
    bool between = false;

    /* As above. */
    for (int attempt = 0; attempt < 20 && !between; attempt++) {
        struct end large;

        pair_open(&a, &large, &(struct end_options){.size = LARGE});
        pair_connect(&a, &large, NULL);
        const struct address from = end_address(&a), target = end_address(&large);
        const struct stranger s = stranger_open(&from, &target, 0);
        const uint64_t before = count("sent");

        forge(&s, read_of(&target, from.psn, LARGE));
        while (count("sent") == before)
            expect_empty(large.recv_cq);
        end_to_error(&large);
        const uint64_t then = count("sent");
        between = then - before < PACKETS;
        for (int i = 0; i < 3; i++) {
            forge(&s, read_of(&target, from.psn, LARGE)); /* any packet would do */
            handled(&s);
        }
        if (between)
            CHECK_EQ(count("sent"), then);
        close(s.fd);
        pair_close(&a, &large);
    }
    CHECK(between);
}

/* ---- strangers at the peer's address --------------------------------------------------------------------- */

/* Of each kind that needs no knowledge but the queue pair's number, and with PSNs far from the expected one. */
static void send_everything(const struct stranger *s, const struct address *to, uint32_t psn)
{
    static const uint8_t opcodes[] = {ROCE_ACK,       ROCE_SEND_ONLY,    ROCE_WRITE_ONLY, ROCE_READ_REQUEST,
                                      ROCE_READ_ONLY, ROCE_COMPARE_SWAP, ROCE_CNP_OPCODE};
    static const uint8_t syndromes[] = {ROCE_NO_CREDITS, ROCE_AETH_RNR | 1, ROCE_AETH_NAK};

    for (unsigned int i = 0; i < sizeof opcodes * sizeof syndromes; i++) {
        struct roce_packet p = {.opcode = opcodes[i / sizeof syndromes],
                                .syndrome = syndromes[i % sizeof syndromes],
                                .becn = true,
                                .ack_request = true,
                                .qpn = to->qpn,
                                .psn = psn,
                                .addr = to->addr,
                                .rkey = to->rkey,
                                .length = 64,
                                .payload_length = 64};

        if (p.opcode == ROCE_ACK || p.opcode == ROCE_READ_REQUEST || p.opcode == ROCE_COMPARE_SWAP)
            p.payload_length = 0;
        if (p.opcode == ROCE_CNP_OPCODE)
            p.payload_length = ROCE_CNP_BYTES;
        forge(s, p);
    }
}

/* Another user of the peer's host knows the queue pair's number, and sends from a port like a device's. Whatever that
 * user sends, and whenever, no packet goes there. */
static void redirection(void)
{
    for (int connected = 0; connected < 2; connected++) {
        open_pair();
        const struct address from = end_address(&b), to = end_address(&a);
        struct stranger devices = stranger_like_a_device(&from, &to), any = stranger_open(&from, &to, 0);

        if (connected)
            do_rdma(&a, IBV_WR_RDMA_WRITE, 0, 8, &to_b, 0);
        for (int far = 0; far < 2; far++) {
            const uint32_t psn = far ? to.psn + 0x400000 : to.psn - 1;
            send_everything(&devices, &to, psn & ROCE_24);
            handled(&devices);
            send_everything(&any, &to, psn & ROCE_24);
            handled(&any);
            fill(a.buf, 100000, 5 + (unsigned int)far);
            do_rdma(&a, IBV_WR_RDMA_WRITE, 0, 100000, &to_b, 200000);
            CHECK(holds(b.buf + 200000, 100000, 5 + (unsigned int)far));
            check_got_nothing(&devices);
            check_got_nothing(&any);
        }
        CHECK_EQ(end_state(&a), IBV_QPS_RTS);
        close(devices.fd);
        close(any.fd);
        pair_close(&a, &b);
    }
}

/* Congestion notifications count only from the port that the peer has proved to send from. */
static void forged_notifications(void)
{
    enum { FLOOD = 500 };

    open_pair();
    const struct address from = end_address(&b), to = end_address(&a);
    const struct stranger strangers_of[] = {stranger_like_a_device(&from, &to), stranger_open(&from, &to, 0)};
    struct roce_packet packet = cnp;

    packet.qpn = to.qpn;
    for (int connected = 0; connected < 2; connected++) {
        const uint64_t heard = count("cnps_received"), before = count("wrong_peer"), paced = count("paced");
        for (int n = 0; n < 2 * FLOOD; n++) {
            forge(&strangers_of[n % 2], packet);
            if (n % 50 == 49)
                handled(&strangers_of[n % 2]); /* before the socket's buffer is full */
        }
        CHECK_EQ(count("cnps_received"), heard);
        CHECK_EQ(count("wrong_peer"), before + 2 * FLOOD);
        do_rdma(&a, IBV_WR_RDMA_WRITE, 0, 100000, &to_b, 0);
        CHECK_EQ(count("paced"), paced);
    }
    close(strangers_of[0].fd);
    close(strangers_of[1].fd);
    pair_close(&a, &b);
}

/* Once the peer has proved its port, even the right PSN and key are of no use elsewhere: nothing is written, nothing is
 * acknowledged, and the stranger's packets cause none to the peer. */
static void forged_writes(void)
{
    open_pair();
    const struct address from = end_address(&a);
    const struct stranger s[] = {stranger_like_a_device(&from, &to_b), stranger_open(&from, &to_b, 0)};

    do_rdma(&a, IBV_WR_RDMA_WRITE, 0, 8, &to_b, 0);
    memset(b.buf, 0, 4096);
    for (int i = 0; i < 2; i++) {
        /* the expected one, one that was executed, and one beyond a hole */
        for (int by = -1; by < 2; by++) {
            const uint64_t sent = count("sent"), before = count("wrong_peer");
            forge(&s[i], (struct roce_packet){.opcode = ROCE_WRITE_ONLY,
                                              .ack_request = true,
                                              .qpn = to_b.qpn,
                                              .psn = (from.psn + 1 + (uint32_t)by) & ROCE_24,
                                              .addr = to_b.addr,
                                              .rkey = to_b.rkey,
                                              .length = 64,
                                              .payload_length = 64});
            handled(&s[i]);
            CHECK_EQ(count("wrong_peer"), before + 1);
            CHECK_EQ(count("sent"), sent);
        }
    }
    CHECK(all_bytes(b.buf, 4096, 0));
    fill(a.buf, 5000, 9);
    do_rdma(&a, IBV_WR_RDMA_WRITE, 0, 5000, &to_b, 0);
    CHECK(holds(b.buf, 5000, 9));
    close(s[0].fd);
    close(s[1].fd);
    pair_close(&a, &b);
}

static const struct test tests[] = {TEST(counted),
                                    TEST(congestion),
                                    TEST(congestion_of_reads),
                                    TEST(strangers),
                                    TEST(last_words),
                                    TEST(large_reads),
                                    TEST(large_reads_before_a_refusal),
                                    TEST(large_reads_of_who_is_in_error),
                                    TEST(forged_notifications),
                                    TEST(redirection),
                                    TEST(forged_writes)};

int main(int argc, char **argv)
{
    setenv("SOFTDEV_WIRE", "only", 1); /* before the device is opened */
    return test_main(argc, argv, tests, sizeof tests / sizeof *tests);
}

/*
 * How soon what is lost goes out again: two ends in virtual time, a network of 1 ms each way that loses chosen packets,
 * and a timer of the queue pair (67 ms) that is to stay out of it.
 */
#include <string.h>

#include "../wire_rc.h"
#include "harness.h"

enum {
    MS = 1000000,
    ONE_WAY = MS,
    TIMEOUT = 67 * MS,
    MTU = 1024,
    QUEUE = 16,
    FETCHES = 4,
    MEMORY = 1 << 20,
    FLIGHT = 1 << 14,
    RETRIES = 3,
};

struct flying {
    uint64_t when;
    bool request;
    struct wire_packet packet;
    uint8_t payload[MTU];
};

static struct {
    uint64_t now;
    uint32_t loss, random; /* of 1000 */
    bool (*drops)(const struct wire_packet *packet, unsigned times);
    unsigned seen; /* how many of those that `drops` wanted to know of */
    struct flying flying[FLIGHT];
    unsigned head, tail;
    uint64_t requests, answers;
} net;

static struct wire_ask ask;
static struct wire_answer answer;
static struct wire_message ring[QUEUE];
static struct wire_fetch fetches[FETCHES];
static uint8_t from[MEMORY], to[MEMORY], *got;

static bool scatter(void *owner, uint32_t index, uint32_t offset, const uint8_t *bytes, uint32_t n)
{
    (void)owner;
    const struct wire_message *m = &ring[index % QUEUE];

    memcpy(got + m->addr - (uintptr_t)from + offset, bytes, n);
    return true;
}

static bool receive(void *owner)
{
    (void)owner;
    return true;
}

static char *remote(void *owner, uint8_t opcode, uint32_t rkey, uint64_t addr, uint32_t length, int *status)
{
    (void)owner;
    (void)opcode;
    (void)rkey;
    (void)length;
    *status = 0;
    return (char *)(uintptr_t)addr;
}

static void write_to(void *owner, char *at, const uint8_t *bytes, uint32_t n)
{
    (void)owner;
    memcpy(at, bytes, n);
}

static void broken(void *owner)
{
    (void)owner;
    FAIL("a request made no sense");
}

static uint64_t patience(void *owner, uint64_t shortest_ns)
{
    (void)owner;
    return shortest_ns;
}

static const struct wire_ask_owner ask_calls = {.scatter = scatter, .patience = patience};
static const struct wire_answer_owner answer_calls = {
    .receive = receive, .remote = remote, .write = write_to, .broken = broken};

static void start(bool (*drops)(const struct wire_packet *, unsigned))
{
    memset(&net, 0, sizeof net);
    net.now = 1000 * (uint64_t)MS;
    net.drops = drops;
    net.random = 1;
    memset(&ask, 0, sizeof ask);
    memset(&answer, 0, sizeof answer);
    memset(to, 0, sizeof to);
    got = to;
    ask = (struct wire_ask){
        .calls = &ask_calls, .ring = ring, .mask = QUEUE - 1, .reliable = true, .mtu = MTU, .qpn = 5};
    ask.retry_cnt = ask.rnr_retry = RETRIES;
    ask.max_fetches = FETCHES;
    ask.timeout_ns = TIMEOUT;
    ask.most = ask.window = 64;
    answer = (struct wire_answer){.calls = &answer_calls,
                                  .fetches = fetches,
                                  .max_fetches = FETCHES,
                                  .reliable = true,
                                  .mtu = MTU,
                                  .qpn = 5};
    wire_ask_start(&ask, 0xfffff0);
    wire_answer_start(&answer, 0xfffff0);
    fill(from, MEMORY, 3);
}

static void transmit(bool request, const struct wire_packet *packet, const uint8_t *payload)
{
    struct flying *f = &net.flying[net.tail % FLIGHT];

    *(request ? &net.requests : &net.answers) += 1;
    if (test_random(&net.random) % 1000 < net.loss || (net.drops && net.drops(packet, net.seen)))
        return;
    CHECK(net.tail - net.head < FLIGHT);
    *f = (struct flying){.when = net.now + ONE_WAY, .request = request, .packet = *packet};
    if (packet->payload_length)
        memcpy(f->payload, payload, packet->payload_length);
    net.tail++;
}

static void pump(void)
{
    struct wire_request r;
    struct wire_packet p;

    while (wire_answer_next(&answer, &p))
        transmit(false, &p, p.payload);
    while (wire_ask_next(&ask, net.now, &r))
        transmit(true, &r.packet, from + (ring[r.index % QUEUE].addr - (uintptr_t)to) + r.offset);
}

static void post(uint8_t opcode, uint32_t at, uint32_t length)
{
    const uint8_t *base = opcode == IBV_WR_RDMA_READ ? from : to;

    wire_ask_post(&ask,
                  &(struct wire_message){.opcode = opcode, .length = length, .addr = (uintptr_t)base + at});
}

/* Until all is complete. Returns how long it took. */
static uint64_t settle(void)
{
    const uint64_t begin = net.now;

    for (pump(); ask.head != ask.tail; pump()) {
        const uint64_t due = wire_ask_due(&ask);
        const bool flies = net.head != net.tail;
        struct flying *f = &net.flying[net.head % FLIGHT];

        CHECK_EQ(ask.status, 0);
        CHECK(flies || due);
        if (!flies || (due && due < f->when)) {
            net.now = due > net.now ? due : net.now;
            wire_ask_timer(&ask, net.now);
            continue;
        }
        net.head++;
        net.now = f->when;
        f->packet.payload = f->payload;
        if (f->request)
            wire_answer_take(&answer, &f->packet);
        else
            wire_ask_take(&ask, &f->packet, net.now);
    }
    return net.now - begin;
}

/* A round trip is known then. */
static void warm(void)
{
    for (int i = 0; i < 20; i++) {
        post(IBV_WR_RDMA_WRITE, 0, 8);
        CHECK_EQ(settle(), 2 * ONE_WAY);
    }
    CHECK_EQ(ask.trip.smoothed, 2 * ONE_WAY);
    CHECK_EQ(ask.trip.least, 2 * ONE_WAY);
    net.requests = net.answers = 0;
}

/* The first `times` sendings of the third packet of a message (and what else is like it) are lost. */
static bool third(const struct wire_packet *p, unsigned times)
{
    if (p->psn != ((0xfffff0 + 20 + 2) & 0xffffff) || p->opcode == WIRE_ACK)
        return false;
    net.seen = times + 1;
    return times < 2;
}

static void repetition_is_lost(void)
{
    start(third);
    warm();
    post(IBV_WR_RDMA_WRITE, 0, 10 * MTU);
    /* Each time a round trip to hear of it, and one for the rest. */
    CHECK_EQ(settle(), 3 * 2 * ONE_WAY);
    CHECK_EQ(ask.naks, 2);
    CHECK_EQ(ask.timeouts, 0);
    CHECK_EQ(ask.probes, 0);
    CHECK(!memcmp(to, from, 10 * MTU));
}

static bool last(const struct wire_packet *p, unsigned times)
{
    if (p->psn != ((0xfffff0 + 20 + 9) & 0xffffff) || p->opcode == WIRE_ACK)
        return false;
    net.seen = times + 1;
    return times < 1;
}

static void last_packet_is_lost(void)
{
    start(last);
    warm();
    post(IBV_WR_RDMA_WRITE, 0, 10 * MTU);
    CHECK(settle() < 10 * MS);
    CHECK_EQ(ask.probes, 1);
    CHECK_EQ(net.requests, 11);
    CHECK_EQ(ask.timeouts, 0);
    CHECK_EQ(ask.silent_ns, 0);
    CHECK_EQ(ask.window, 64); /* a lone packet is no congestion */
    CHECK(!memcmp(to, from, 10 * MTU));
}

static bool first_nak(const struct wire_packet *p, unsigned times)
{
    if (p->opcode == WIRE_ACK && (p->syndrome & WIRE_AETH_KIND) == WIRE_AETH_NAK) {
        net.seen = times + 1;
        return times < 2; /* the one of the lost packet is 0 */
    }
    if (p->psn != ((0xfffff0 + 20 + 2) & 0xffffff) || p->opcode == WIRE_ACK || times)
        return false;
    net.seen = 1;
    return true;
}

/* The answer to the last packet, sent once more, is the refusal again. */
static void refusal_is_lost(void)
{
    start(first_nak);
    warm();
    post(IBV_WR_RDMA_WRITE, 0, 10 * MTU);
    CHECK(settle() < 20 * MS);
    CHECK_EQ(ask.probes, 1);
    CHECK_EQ(ask.naks, 1);
    CHECK_EQ(ask.timeouts, 0);
    CHECK(!memcmp(to, from, 10 * MTU));
}

static bool third_answer(const struct wire_packet *p, unsigned times)
{
    if (p->psn != ((0xfffff0 + 20 + 2) & 0xffffff) || !(wire_traits(p->opcode) & WIRE_IS_RESPONSE))
        return false;
    net.seen = times + 1;
    return times < 2;
}

static void answers_to_a_read_are_lost(void)
{
    start(third_answer);
    warm();
    post(IBV_WR_RDMA_READ, 0, 10 * MTU);
    CHECK(settle() < 30 * MS);
    CHECK_EQ(ask.timeouts, 0);
    CHECK(!memcmp(to, from, 10 * MTU));
}

static bool everything(const struct wire_packet *p, unsigned times)
{
    (void)p;
    (void)times;
    return true;
}

/* Asking again costs no retry and puts nothing off: the queue pair gives up when its own timer has passed as often. */
static void nobody_is_there(void)
{
    start(NULL);
    warm();
    net.drops = everything;
    const uint64_t begin = net.now;
    post(IBV_WR_RDMA_WRITE, 0, 10 * MTU);
    uint64_t before = 0;
    for (pump(); !ask.status; pump()) {
        const uint64_t due = wire_ask_due(&ask);
        CHECK(due > before);
        before = net.now = due;
        wire_ask_timer(&ask, net.now);
    }
    CHECK_EQ(ask.status, IBV_WC_RETRY_EXC_ERR);
    CHECK_EQ(ask.timeouts, RETRIES + 1);
    CHECK_EQ(net.now - begin, (RETRIES + 1) * TIMEOUT);
    CHECK(ask.probes >= 2);
    CHECK(net.requests < 100);
    CHECK_EQ(wire_ask_due(&ask), 0);
}

/* A peer that does not run for a while is asked once more, and all goes on as if nothing had been. */
static void peer_is_slow(void)
{
    struct wire_request r;
    struct wire_packet p;

    start(NULL);
    warm();
    post(IBV_WR_RDMA_WRITE, 0, 8);
    CHECK(wire_ask_next(&ask, net.now, &r));
    struct wire_packet first = r.packet;
    net.now = wire_ask_due(&ask);
    wire_ask_timer(&ask, net.now);
    CHECK(wire_ask_next(&ask, net.now, &r));
    CHECK_EQ(r.packet.psn, first.psn);
    CHECK(!wire_ask_next(&ask, net.now, &r));
    first.payload = r.packet.payload = from;
    wire_answer_take(&answer, &first);
    wire_answer_take(&answer, &r.packet);
    while (wire_answer_next(&answer, &p))
        wire_ask_take(&ask, &p, net.now);
    CHECK(ask.head == ask.tail);
    CHECK_EQ(ask.window, 64);
    CHECK_EQ(wire_ask_due(&ask), 0);
}

/* One in a hundred both ways: no loss of any kind waits for the queue pair's timer. */
static void bulk(void)
{
    enum { EACH = 1 << 16 };
    static const uint8_t opcodes[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ};

    for (uint32_t seed = 1; seed <= 20; seed++) {
        start(NULL);
        warm();
        net.loss = 10;
        net.random = seed;
        const uint8_t opcode = opcodes[seed % 2];
        const uint64_t begin = net.now;
        for (uint32_t at = 0; at < MEMORY; at += QUEUE * EACH) {
            for (uint32_t i = 0; i < QUEUE; i++)
                post(opcode, at + i * EACH, EACH);
            settle();
        }
        CHECK_EQ(ask.timeouts, 0);
        CHECK(!memcmp(to, from, MEMORY));
        /* 1024 packets, ten of them lost, windows of 8 and more: some 130 round trips at worst. */
        CHECK(net.now - begin < 400 * (uint64_t)MS);
    }
}

TEST_MAIN(TEST(repetition_is_lost), TEST(last_packet_is_lost), TEST(refusal_is_lost),
          TEST(answers_to_a_read_are_lost), TEST(nobody_is_there), TEST(peer_is_slow), TEST(bulk))

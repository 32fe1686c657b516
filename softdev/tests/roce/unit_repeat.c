/*
 * How soon lost packets are retransmitted: two sides in virtual time, a network of 1 ms each way that loses
 * chosen packets, and a queue pair timer (67 ms) that must not be needed.
 */
#include "ends.h"

static bool (*drops)(const struct roce_packet *packet, unsigned times);
static unsigned seen; /* how many packets `drops` has counted */

static void start(bool (*what)(const struct roce_packet *, unsigned))
{
    start_ends(1000 * (uint64_t)MS);
    drops = what;
    seen = 0;
}

static void pump(void)
{
    struct roce_request r;
    struct roce_packet p;

    while (roce_answer_next(&answer, &p))
        transmit(false, &p, p.payload, drops && drops(&p, seen));
    while (roce_ask_next(&ask, net.now, &r))
        transmit(true, &r.packet, payload_of(&r), drops && drops(&r.packet, seen));
}

/* Runs until all is complete. Returns how long it took. */
static uint64_t settle(void)
{
    const uint64_t begin = net.now;

    for (pump(); ask.head != ask.tail; pump())
        step();
    return net.now - begin;
}

/* Afterwards the round trip is known. */
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

/* Loses the first `times` transmissions of the third packet of a message (and of packets like it). */
static bool third(const struct roce_packet *p, unsigned times)
{
    if (p->psn != ((FIRST_PSN + 20 + 2) & 0xffffff) || p->opcode == ROCE_ACK)
        return false;
    seen = times + 1;
    return times < 2;
}

static void repetition_is_lost(void)
{
    start(third);
    warm();
    post(IBV_WR_RDMA_WRITE, 0, 10 * MTU);
    /* Each time one round trip to learn of the loss, and one for the rest. */
    CHECK_EQ(settle(), 3 * 2 * ONE_WAY);
    CHECK_EQ(ask.naks, 2);
    CHECK_EQ(ask.timeouts, 0);
    CHECK_EQ(ask.probes, 0);
    CHECK(!memcmp(to, from, 10 * MTU));
}

static bool last(const struct roce_packet *p, unsigned times)
{
    if (p->psn != ((FIRST_PSN + 20 + 9) & 0xffffff) || p->opcode == ROCE_ACK)
        return false;
    seen = times + 1;
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
    CHECK_EQ(ask.window, 64); /* the loss of a lone packet is no congestion */
    CHECK(!memcmp(to, from, 10 * MTU));
}

static bool first_nak(const struct roce_packet *p, unsigned times)
{
    if (p->opcode == ROCE_ACK && (p->syndrome & ROCE_AETH_KIND) == ROCE_AETH_NAK) {
        seen = times + 1;
        return times < 2; /* 0 is the lost packet */
    }
    if (p->psn != ((FIRST_PSN + 20 + 2) & 0xffffff) || p->opcode == ROCE_ACK || times)
        return false;
    seen = 1;
    return true;
}

/* The answer to the resent last packet is the NAK again. */
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

static bool third_answer(const struct roce_packet *p, unsigned times)
{
    if (p->psn != ((FIRST_PSN + 20 + 2) & 0xffffff) || !(roce_traits(p->opcode) & ROCE_IS_RESPONSE))
        return false;
    seen = times + 1;
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

static bool everything(const struct roce_packet *p, unsigned times)
{
    (void)p;
    (void)times;
    return true;
}

/*
 * How rxe (6.12) treats a READ of no bytes that it has carried out: it drops a repetition with a key, and one
 * without a key fails the queue pair if a request for bytes has arrived since. The first `answers_lost`
 * answers are lost.
 */
static struct {
    bool carried_out, bytes_since;
    unsigned answers_lost;
} rxe;

static bool like_rxe(const struct roce_packet *p, unsigned times)
{
    const uint16_t traits = roce_traits(p->opcode);

    (void)times;
    if (p->opcode == ROCE_READ_ONLY && !p->payload_length)
        return rxe.answers_lost && rxe.answers_lost--;
    if (p->opcode == ROCE_READ_REQUEST && !p->length) {
        if (!rxe.carried_out) {
            rxe.carried_out = true;
            return false;
        }
        CHECK(p->rkey || !rxe.bytes_since);
        return p->rkey;
    }
    rxe.bytes_since |= rxe.carried_out && traits & ROCE_IS_WRITE && p->length;
    return false;
}

static void post_read_of_nothing(unsigned answers_lost)
{
    start(NULL);
    warm();
    drops = like_rxe;
    memset(&rxe, 0, sizeof rxe);
    rxe.answers_lost = answers_lost;
    roce_ask_post(&ask, &(struct roce_message){
                            .opcode = IBV_WR_RDMA_READ, .addr = (uintptr_t)from, .rkey = 7, .length = 0});
}

static void answer_to_a_read_of_nothing_is_lost(void)
{
    post_read_of_nothing(2);
    CHECK(settle() < 30 * MS);
    CHECK_EQ(rxe.answers_lost, 0);
    CHECK_EQ(ask.timeouts, 0);
}

/* An acknowledgement of a later packet is enough. */
static void read_of_nothing_in_front_of_others(void)
{
    static const uint32_t behind[] = {8, 10 * MTU};

    for (size_t i = 0; i < sizeof behind / sizeof *behind; i++) {
        post_read_of_nothing(1);
        post(IBV_WR_RDMA_WRITE, 0, behind[i]);
        CHECK_EQ(settle(), 2 * ONE_WAY);
        CHECK_EQ(rxe.answers_lost, 0);
        CHECK(!memcmp(to, from, behind[i]));
    }
}

/* The acknowledgement is lost, too, and so is the one for the resent last packet. */
static bool like_rxe_that_is_not_heard(const struct roce_packet *p, unsigned times)
{
    const bool lost = like_rxe(p, times);

    seen = times + (p->opcode == ROCE_ACK);
    return lost || (p->opcode == ROCE_ACK && times < 2);
}

static void read_of_nothing_is_asked_again_with_others_behind(void)
{
    post_read_of_nothing(1);
    drops = like_rxe_that_is_not_heard;
    post(IBV_WR_RDMA_WRITE, 0, 8);
    CHECK(settle() < 30 * MS);
    CHECK_EQ(seen, 3);
    CHECK_EQ(ask.timeouts, 0);
}

/* A repeated READ fails the queue pair if a request of no bytes has arrived since. */
static bool like_rxe_that_has_forgotten(const struct roce_packet *p, unsigned times)
{
    if (p->opcode == ROCE_READ_REQUEST)
        CHECK(!rxe.carried_out);
    rxe.carried_out |= p->opcode == ROCE_WRITE_ONLY;
    seen = times + (p->opcode == ROCE_READ_ONLY);
    return p->opcode == ROCE_READ_ONLY && !times;
}

static void read_in_front_of_a_write_of_nothing(void)
{
    memset(&rxe, 0, sizeof rxe);
    start(NULL);
    warm();
    drops = like_rxe_that_has_forgotten;
    post(IBV_WR_RDMA_READ, 0, 100);
    post(IBV_WR_RDMA_WRITE, 0, 0);
    CHECK(settle() < 30 * MS);
    CHECK_EQ(seen, 2);
    CHECK(!memcmp(to, from, 100));
}

static void only_others_are_waited_for(void)
{
    static const uint8_t opcodes[] = {IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM,
                                      IBV_WR_SEND};

    for (size_t i = 0; i < sizeof opcodes; i++)
        for (int kin = 0; kin < 2; kin++) {
            start(NULL);
            warm();
            ask.kin = kin;
            post(IBV_WR_RDMA_READ, 0, 100);
            post(opcodes[i], 0, 0);
            CHECK_EQ(settle(), (kin || opcodes[i] == IBV_WR_SEND ? 2 : 4) * ONE_WAY);
        }
}

/* Probing uses no retry and postpones nothing: the queue pair gives up after its own timer has expired
 * that often. */
static void nobody_is_there(void)
{
    start(NULL);
    warm();
    drops = everything;
    const uint64_t begin = net.now;
    post(IBV_WR_RDMA_WRITE, 0, 10 * MTU);
    uint64_t before = 0;
    for (pump(); !ask.status; pump()) {
        const uint64_t due = roce_ask_due(&ask);
        CHECK(due > before);
        before = net.now = due;
        roce_ask_timer(&ask, net.now);
    }
    CHECK_EQ(ask.status, IBV_WC_RETRY_EXC_ERR);
    CHECK_EQ(ask.timeouts, RETRIES + 1);
    CHECK_EQ(net.now - begin, (RETRIES + 1) * TIMEOUT);
    CHECK(ask.probes >= 2);
    CHECK(net.requests < 100);
    CHECK_EQ(roce_ask_due(&ask), 0);
}

/* A peer that does not run for a while gets one probe, and then traffic continues as before. */
static void peer_is_slow(void)
{
    struct roce_request r;
    struct roce_packet p;

    start(NULL);
    warm();
    post(IBV_WR_RDMA_WRITE, 0, 8);
    CHECK(roce_ask_next(&ask, net.now, &r));
    struct roce_packet first = r.packet;
    net.now = roce_ask_due(&ask);
    roce_ask_timer(&ask, net.now);
    CHECK(roce_ask_next(&ask, net.now, &r));
    CHECK_EQ(r.packet.psn, first.psn);
    CHECK(!roce_ask_next(&ask, net.now, &r));
    first.payload = r.packet.payload = from;
    roce_answer_take(&answer, &first);
    roce_answer_take(&answer, &r.packet);
    while (roce_answer_next(&answer, &p))
        roce_ask_take(&ask, &p, net.now);
    CHECK(ask.head == ask.tail);
    CHECK_EQ(ask.window, 64);
    CHECK_EQ(roce_ask_due(&ask), 0);
}

/* One in a hundred lost both ways: no loss of any kind waits for the queue pair's timer. */
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
        /* 1024 packets, ten of them lost, windows of 8 and more: about 130 round trips at worst. */
        CHECK(net.now - begin < 400 * (uint64_t)MS);
    }
}

TEST_MAIN(TEST(repetition_is_lost), TEST(last_packet_is_lost), TEST(refusal_is_lost),
          TEST(answers_to_a_read_are_lost), TEST(answer_to_a_read_of_nothing_is_lost),
          TEST(read_of_nothing_in_front_of_others), TEST(read_of_nothing_is_asked_again_with_others_behind),
          TEST(read_in_front_of_a_write_of_nothing), TEST(only_others_are_waited_for), TEST(nobody_is_there),
          TEST(peer_is_slow), TEST(bulk))

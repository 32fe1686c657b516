/*
 * Requester and responder of a queue pair in virtual time, over a network that loses, repeats, reorders,
 * damages and delays packets. Thousands of seeds; every operation must have its effect exactly once and in
 * order.
 */
#include "roce/icrc.h"
#include "sides.h"

enum { FLIGHT = 4096 };

struct flying {
    uint64_t when, order;
    struct side *to;
    uint8_t bytes[ROCE_MAX_PACKET];
    size_t size;
};

static struct {
    uint64_t now, order;
    uint32_t random;
    struct flying flying[FLIGHT];
    unsigned int nflying;
    uint32_t loss, duplicate, reorder, corrupt; /* of 1000 */
    uint64_t delay;
    uint64_t sent, lost;
} net;

static const struct roce_path path = {.src = {0xfd, 1}, .dst = {0xfd, 2}, .src_port = 4791, .dst_port = 4791};

static uint32_t draw(uint32_t n)
{
    return test_random(&net.random) % n;
}

static void transmit(struct side *to, const struct roce_packet *packet, const uint8_t *payload)
{
    struct flying f = {.to = to};

    f.size = roce_pack_headers(packet, f.bytes);
    if (packet->payload_length)
        memcpy(f.bytes + f.size, payload, packet->payload_length);
    f.size += packet->payload_length + roce_pad(packet->payload_length);
    const uint32_t icrc = roce_icrc(&path, f.bytes, f.size);
    for (int i = 0; i < 4; i++)
        f.bytes[f.size++] = (uint8_t)(icrc >> 8 * i);
    net.sent++;
    for (int copies = draw(1000) < net.duplicate ? 2 : 1; copies; copies--) {
        if (draw(1000) < net.loss || net.nflying == FLIGHT) {
            net.lost++;
            continue;
        }
        f.when = net.now + net.delay + (draw(1000) < net.reorder ? draw(20000) : 0);
        f.order = net.order++;
        net.flying[net.nflying] = f;
        if (draw(1000) < net.corrupt)
            net.flying[net.nflying].bytes[draw((uint32_t)f.size)] ^= (uint8_t)(1 << draw(8));
        net.nflying++;
    }
}

static void gather(struct side *me, const struct roce_request *r)
{
    static uint8_t whole[8192];
    const struct sent *what = &me->queued[r->index % QUEUE];

    fill(whole, what->length, what->seed);
    transmit(me->peer, &r->packet, whole + r->offset);
}

static void pump(struct side *me)
{
    struct roce_request request;
    struct roce_packet answer;

    while (roce_answer_next(&me->answer, &answer))
        transmit(me->peer, &answer, answer.payload);
    while (roce_ask_next(&me->ask, net.now, &request)) {
        if (draw(50) == 0) { /* the socket was full: the same packet again, later */
            roce_ask_unsent(&me->ask, &request);
            break;
        }
        gather(me, &request);
    }
}

static void arrive(struct flying *f)
{
    struct roce_packet packet;
    const uint8_t *icrc = f->bytes + f->size - 4;

    if (roce_icrc(&path, f->bytes, f->size - 4) !=
        (icrc[0] | (uint32_t)icrc[1] << 8 | (uint32_t)icrc[2] << 16 | (uint32_t)icrc[3] << 24))
        return;
    if (roce_parse(f->bytes, f->size, &packet) != ROCE_OK)
        return; /* congestion bits and others that the ICRC does not cover */
    if (roce_traits(packet.opcode) & ROCE_IS_RESPONSE)
        roce_ask_take(&f->to->ask, &packet, net.now);
    else
        roce_answer_take(&f->to->answer, &packet);
}

static void check_completed(struct side *me)
{
    CHECK_EQ(me->ask.status, 0);
    for (; me->completed != me->ask.head; me->completed++) {
        const struct roce_message *m = &me->posted[me->completed % QUEUE];
        const uint8_t *got = me->buffer[me->completed % QUEUE];
        if (m->opcode == IBV_WR_RDMA_READ)
            CHECK(!memcmp(got, me->peer->expected + m->addr, m->length));
        if (m->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
            uint64_t old;
            memcpy(&old, got, sizeof old);
            CHECK_EQ(old, me->counter);
            me->counter += m->compare_add;
        }
    }
}

static void post_some(struct side *me)
{
    static const uint8_t opcodes[] = {IBV_WR_SEND,
                                      IBV_WR_SEND_WITH_IMM,
                                      IBV_WR_SEND_WITH_INV,
                                      IBV_WR_RDMA_WRITE,
                                      IBV_WR_RDMA_WRITE_WITH_IMM,
                                      IBV_WR_RDMA_READ,
                                      IBV_WR_ATOMIC_FETCH_AND_ADD};

    while (me->to_post && me->ask.tail - me->completed < QUEUE && draw(4)) {
        struct roce_message m = {.opcode = opcodes[me->ask.reliable ? draw(7) : 1 + 3 * draw(2)],
                                 .rkey = RKEY,
                                 .fence = draw(10) == 0};
        const unsigned int seed = 1000 + me->to_post;

        m.imm = m.opcode == IBV_WR_SEND || m.opcode == IBV_WR_RDMA_WRITE ? 0 : me->to_post;
        m.length = draw(3) ? draw(6000) : draw(3) * me->ask.mtu;
        m.addr = 8 + draw(READ_ONLY - 8192 - 8);
        if (m.opcode == IBV_WR_RDMA_READ)
            m.addr = READ_ONLY + draw(MEMORY - READ_ONLY - 8192);
        if (m.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
            m.addr = 0;
            m.length = 8;
            m.compare_add = 1 + draw(5);
        }
        const struct sent what = {.opcode = m.opcode, .length = m.length, .imm = m.imm, .seed = seed};
        me->queued[me->ask.tail % QUEUE] = what;
        me->posted[me->ask.tail % QUEUE] = m;
        if (m.opcode == IBV_WR_RDMA_WRITE || m.opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
            fill(me->peer->expected + m.addr, m.length, seed);
        if (m.opcode != IBV_WR_RDMA_WRITE && m.opcode != IBV_WR_RDMA_READ &&
            m.opcode != IBV_WR_ATOMIC_FETCH_AND_ADD)
            me->log[me->nsent++] = what;
        roce_ask_post(&me->ask, &m);
        me->to_post--;
    }
}

/* Runs the next event. False: none is left. */
static bool step(struct side *a, struct side *b)
{
    uint64_t next = 0;
    unsigned int first = FLIGHT;

    for (unsigned int i = 0; i < net.nflying; i++)
        if (first == FLIGHT || net.flying[i].when < net.flying[first].when ||
            (net.flying[i].when == net.flying[first].when && net.flying[i].order < net.flying[first].order))
            first = i;
    if (first != FLIGHT)
        next = net.flying[first].when;
    struct side *sides[] = {a, b};
    for (int i = 0; i < 2; i++) {
        const uint64_t due = roce_ask_due(&sides[i]->ask);
        if (due && (!next || due < next)) {
            next = due;
            first = FLIGHT;
        }
    }
    if (!next)
        return false;
    if (next > net.now)
        net.now = next;
    if (first != FLIGHT) {
        static struct flying f;
        f = net.flying[first];
        net.flying[first] = net.flying[--net.nflying];
        arrive(&f);
    }
    roce_ask_timer(&a->ask, net.now);
    roce_ask_timer(&b->ask, net.now);
    return true;
}

static void converse(uint32_t seed, bool reliable)
{
    static const uint32_t mtus[] = {256, 512, 1024, 2048, 4096};
    const uint32_t mtu = mtus[seed % 5];

    memset(&net, 0, offsetof(__typeof__(net), flying));
    net.nflying = 0;
    net.random = seed * 2654435761u + 1;
    net.loss = seed % 7 ? draw(100) : 0;
    net.duplicate = seed % 3 ? draw(100) : 0;
    net.reorder = seed % 4 == 1 ? draw(200) : 0;
    net.corrupt = draw(20);
    net.delay = 1000 + draw(50000);
    const uint32_t psn = draw(2) ? 0xffffff - draw(40) : draw(1 << 24), other = draw(1 << 24);
    side_open(&one, &two, reliable, mtu, psn, other);
    side_open(&two, &one, reliable, mtu, other, psn);
    one.ask.singly = reliable && seed & 1;
    two.ask.singly = reliable && seed & 2;
    one.to_post = two.to_post = 1 + draw(MESSAGES - 1);
    for (uint64_t steps = 0;; steps++) {
        struct side *sides[] = {&one, &two};
        bool done = true;

        if (steps > 2000000)
            FAIL("seed %u does not come to an end", seed);
        for (int i = 0; i < 2; i++) {
            struct side *me = sides[i];
            post_some(me);
            if (me->receives < 8 && draw(3) == 0)
                me->receives += draw(4);
            pump(me);
            check_completed(me);
            done &= !me->to_post && me->completed == me->ask.tail;
        }
        if (done && !net.nflying)
            break;
        if (!step(&one, &two) && done)
            break;
    }
    struct side *sides[] = {&one, &two};
    for (int i = 0; i < 2; i++) {
        struct side *me = sides[i];
        if (!reliable)
            continue;
        uint64_t sum;
        memcpy(&sum, me->memory, sizeof sum);
        CHECK_EQ(sum, me->peer->counter);
        memcpy(me->expected, me->memory, sizeof sum);
        CHECK(!memcmp(me->memory, me->expected, MEMORY));
        CHECK_EQ(me->ndelivered, me->peer->nsent);
        for (unsigned int k = 0; k < me->ndelivered; k++)
            CHECK_EQ(me->deliveries[k], 1);
    }
}

enum { SEEDS = TIMES(3000) };

static void reliable(void)
{
    for (uint32_t seed = 1; seed <= SEEDS; seed++)
        converse(seed, true);
}

static void unreliable(void)
{
    for (uint32_t seed = 1; seed <= SEEDS / 3; seed++)
        converse(seed, false);
}

TEST_MAIN(TEST(reliable), TEST(unreliable))

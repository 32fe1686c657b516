/*
 * Two ends of a connected queue pair in virtual time, with a network between them that loses, repeats, reorders,
 * damages and delays packets. Thousands of seeds; every operation must have its effect exactly once and in order.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../wire_icrc.h"
#include "../wire_rc.h"
#include "harness.h"

enum {
    MEMORY = 1 << 16,
    READ_ONLY = 1 << 15,
    QUEUE = 32,
    MESSAGES = 60,
    FETCHES = 4,
    FLIGHT = 4096,
    RKEY = 77
};

struct sent {
    uint8_t opcode;
    uint32_t length, imm;
    unsigned int seed;
};

struct side {
    struct wire_ask ask;
    struct wire_answer answer;
    struct wire_message ring[QUEUE];
    struct wire_fetch fetches[FETCHES];
    /* What the program on this side has: memory that the other may use, what it sent, what it got. */
    uint8_t memory[MEMORY], expected[MEMORY], buffer[QUEUE][8192];
    struct sent log[MESSAGES], queued[QUEUE];
    struct wire_message posted[QUEUE];
    unsigned int nsent, ndelivered, deliveries[MESSAGES], receives;
    uint32_t completed, to_post;
    uint64_t counter; /* what FETCH_ADDs of this side have added up to */
    uint8_t incoming[8192];
    struct side *peer;
};

struct flying {
    uint64_t when, order;
    struct side *to;
    uint8_t bytes[WIRE_MAX_PACKET];
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

static const struct wire_path path = {.src = {0xfd, 1}, .dst = {0xfd, 2}, .src_port = 4791, .dst_port = 4791};

static uint32_t draw(uint32_t n)
{
    return test_random(&net.random) % n;
}

static void transmit(struct side *to, const struct wire_packet *packet, const uint8_t *payload)
{
    struct flying f = {.to = to};

    f.size = wire_pack_headers(packet, f.bytes);
    if (packet->payload_length)
        memcpy(f.bytes + f.size, payload, packet->payload_length);
    f.size += packet->payload_length + wire_pad(packet->payload_length);
    const uint32_t icrc = wire_icrc(&path, f.bytes, f.size);
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

/* ---- the program's calls ---------------------------------------------------------------------------- */

static bool scatter(void *owner, uint32_t index, uint32_t offset, const uint8_t *from, uint32_t n)
{
    struct side *me = owner;

    CHECK(offset + n <= sizeof me->buffer[0]);
    memcpy(me->buffer[index % QUEUE] + offset, from, n);
    return true;
}

static bool receive(void *owner)
{
    return ((struct side *)owner)->receives > 0;
}

static int place(void *owner, uint32_t offset, const uint8_t *from, uint32_t n)
{
    struct side *me = owner;

    CHECK(offset + n <= sizeof me->incoming);
    memcpy(me->incoming + offset, from, n);
    return 0;
}

static int deliver(void *owner, const struct wire_delivery *delivery)
{
    struct side *me = owner;

    CHECK(me->receives > 0);
    me->receives--;
    /* The next thing the peer sent that takes a receive: in order (and with UC, perhaps not the very next). */
    while (me->ndelivered < me->peer->nsent) {
        const struct sent *want = &me->peer->log[me->ndelivered];
        if (want->imm == delivery->imm && want->opcode == delivery->opcode)
            break;
        CHECK(!me->answer.reliable);
        me->ndelivered++;
    }
    CHECK(me->ndelivered < me->peer->nsent);
    const struct sent *want = &me->peer->log[me->ndelivered];
    CHECK_EQ(delivery->length, want->length);
    if (want->opcode != IBV_WR_RDMA_WRITE_WITH_IMM)
        CHECK(holds(me->incoming, want->length, want->seed));
    me->deliveries[me->ndelivered++]++;
    return 0;
}

static char *remote(void *owner, uint8_t opcode, uint32_t rkey, uint64_t addr, uint32_t length, int *status)
{
    struct side *me = owner;

    (void)opcode;
    *status = IBV_WC_REM_ACCESS_ERR;
    if (length && (rkey != RKEY || addr > MEMORY || length > MEMORY - addr)) /* C9-88 */
        return NULL;
    return (char *)me->memory + addr;
}

static void write_to(void *owner, char *to, const uint8_t *from, uint32_t n)
{
    (void)owner;
    if (n)
        memcpy(to, from, n);
}

static uint64_t atomic(void *owner, uint8_t opcode, char *at, uint64_t compare_add, uint64_t swap)
{
    uint64_t old, new;

    (void)owner;
    memcpy(&old, at, sizeof old);
    new = opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ? old + compare_add : old == compare_add ? swap : old;
    memcpy(at, &new, sizeof new);
    return old;
}

static void broken(void *owner)
{
    (void)owner;
}

static uint64_t longer = 1;

static uint64_t patience(void *owner, uint64_t shortest_ns)
{
    (void)owner;
    return longer * shortest_ns;
}

static const struct wire_ask_owner ask_calls = {.scatter = scatter, .patience = patience};
static const struct wire_answer_owner answer_calls = {.receive = receive,
                                                      .place = place,
                                                      .deliver = deliver,
                                                      .remote = remote,
                                                      .write = write_to,
                                                      .atomic = atomic,
                                                      .broken = broken};

/* ---- driving ---------------------------------------------------------------------------------------- */

static void side_open(struct side *me, struct side *peer, bool reliable, uint32_t mtu, uint32_t psn,
                      uint32_t peer_psn)
{
    memset(me, 0, sizeof *me);
    me->peer = peer;
    me->ask = (struct wire_ask){.calls = &ask_calls,
                                .owner = me,
                                .ring = me->ring,
                                .mask = QUEUE - 1,
                                .reliable = reliable,
                                .mtu = mtu,
                                .qpn = 5,
                                .retry_cnt = 7,
                                .rnr_retry = 7,
                                .max_fetches = FETCHES,
                                .timeout_ns = 500000};
    me->answer = (struct wire_answer){.calls = &answer_calls,
                                      .owner = me,
                                      .fetches = me->fetches,
                                      .max_fetches = FETCHES,
                                      .reliable = reliable,
                                      .rnr_timer = 1,
                                      .mtu = mtu,
                                      .qpn = 5};
    wire_ask_start(&me->ask, psn);
    wire_answer_start(&me->answer, peer_psn);
    fill(me->memory + READ_ONLY, MEMORY - READ_ONLY, 9);
    memcpy(me->expected, me->memory, MEMORY);
}

static void gather(struct side *me, const struct wire_request *r)
{
    static uint8_t whole[8192];
    const struct sent *what = &me->queued[r->index % QUEUE];

    fill(whole, what->length, what->seed);
    transmit(me->peer, &r->packet, whole + r->offset);
}

static void pump(struct side *me)
{
    struct wire_request request;
    struct wire_packet answer;

    while (wire_answer_next(&me->answer, &answer))
        transmit(me->peer, &answer, answer.payload);
    while (wire_ask_next(&me->ask, net.now, &request)) {
        if (draw(50) == 0) { /* the socket was full: the same packet again, later */
            wire_ask_unsent(&me->ask, &request);
            break;
        }
        gather(me, &request);
    }
}

static void arrive(struct flying *f)
{
    struct wire_packet packet;
    const uint8_t *icrc = f->bytes + f->size - 4;

    if (wire_icrc(&path, f->bytes, f->size - 4) !=
        (icrc[0] | (uint32_t)icrc[1] << 8 | (uint32_t)icrc[2] << 16 | (uint32_t)icrc[3] << 24))
        return;
    if (wire_parse(f->bytes, f->size, &packet) != WIRE_OK)
        return; /* congestion bits and others that the ICRC does not cover */
    if (wire_traits(packet.opcode) & WIRE_IS_RESPONSE)
        wire_ask_take(&f->to->ask, &packet, net.now);
    else
        wire_answer_take(&f->to->answer, &packet);
}

static void check_completed(struct side *me)
{
    CHECK_EQ(me->ask.status, 0);
    for (; me->completed != me->ask.head; me->completed++) {
        const struct wire_message *m = &me->posted[me->completed % QUEUE];
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
        struct wire_message m = {.opcode = opcodes[me->ask.reliable ? draw(7) : 1 + 3 * draw(2)],
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
        wire_ask_post(&me->ask, &m);
        me->to_post--;
    }
}

/* The next thing that happens. False: nothing ever will. */
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
        const uint64_t due = wire_ask_due(&sides[i]->ask);
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
    wire_ask_timer(&a->ask, net.now);
    wire_ask_timer(&b->ask, net.now);
    return true;
}

static struct side one, two;

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

#ifdef __SANITIZE_THREAD__ /* one thread, and a sanitizer that makes it twenty times slower */
enum { SEEDS = 200 };
#else
enum { SEEDS = 3000 };
#endif

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

/* ---- single packets --------------------------------------------------------------------------------- */

static void quiet_pair(uint32_t mtu)
{
    memset(&net, 0, sizeof net);
    net.random = 1;
    side_open(&one, &two, true, mtu, 100, 200);
    side_open(&two, &one, true, mtu, 200, 100);
    one.ask.retry_cnt = 2;
    one.ask.rnr_retry = one.ask.rnr_retries = 2;
}

static struct wire_request request_of(struct wire_ask *ask)
{
    struct wire_request r;

    CHECK(wire_ask_next(ask, net.now, &r));
    return r;
}

static struct wire_packet answer_of(struct wire_answer *answer)
{
    struct wire_packet p;

    CHECK(wire_answer_next(answer, &p));
    return p;
}

static void nothing_more(void)
{
    struct wire_request r;
    struct wire_packet p;

    CHECK(!wire_ask_next(&one.ask, net.now, &r));
    CHECK(!wire_answer_next(&two.answer, &p));
}

static void post(uint8_t opcode, uint32_t length, uint64_t addr, uint32_t rkey)
{
    const struct wire_message m = {.opcode = opcode, .length = length, .addr = addr, .rkey = rkey};

    one.queued[one.ask.tail % QUEUE] = (struct sent){.opcode = opcode, .length = length};
    if (opcode == IBV_WR_SEND)
        one.log[one.nsent++] = one.queued[one.ask.tail % QUEUE];
    wire_ask_post(&one.ask, &m);
}

/* Nobody answers: sends again so many times. */
static void say_again(int times)
{
    for (int i = 0; i < times; i++) {
        net.now = wire_ask_due(&one.ask);
        CHECK(net.now);
        wire_ask_timer(&one.ask, net.now);
        CHECK_EQ(request_of(&one.ask).packet.psn, 100);
    }
}

static void timeouts_end(void)
{
    for (longer = 1; longer <= 4; longer += 3) {
        quiet_pair(1024);
        post(IBV_WR_SEND, 4, 0, 0);
        request_of(&one.ask);
        say_again((int)longer * 3 - 1);
        net.now = wire_ask_due(&one.ask);
        wire_ask_timer(&one.ask, net.now);
        CHECK_EQ(one.ask.status, IBV_WC_RETRY_EXC_ERR);
        CHECK_EQ(wire_ask_due(&one.ask), 0);
        nothing_more();
    }
    longer = 1;
}

/* A process that stands still for an hour has waited for one timeout, not for thousands. */
static void standing_still_is_not_waiting(void)
{
    quiet_pair(1024);
    post(IBV_WR_SEND, 4, 0, 0);
    request_of(&one.ask);
    say_again(1);
    net.now += UINT64_C(3600000000000);
    wire_ask_timer(&one.ask, net.now);
    CHECK_EQ(request_of(&one.ask).packet.psn, 100);
    wire_ask_timer(&one.ask, net.now);
    CHECK_EQ(one.ask.status, IBV_WC_SUCCESS);
    CHECK(wire_ask_due(&one.ask) > net.now);
}

/* Packets get lost while the peer has no receive, for long: each of its refusals shows that it lives. */
static void refusals_are_signs_of_life(void)
{
    static uint8_t data[8];

    quiet_pair(1024);
    one.ask.rnr_retry = one.ask.rnr_retries = 7;
    post(IBV_WR_SEND, 4, 0, 0);
    request_of(&one.ask);
    for (int i = 0; i < 10; i++) {
        say_again(1);
        net.now = wire_ask_due(&one.ask);
        wire_ask_timer(&one.ask, net.now);
        struct wire_request r = request_of(&one.ask);
        r.packet.payload = data;
        wire_answer_take(&two.answer, &r.packet);
        struct wire_packet p = answer_of(&two.answer);
        CHECK_EQ(p.syndrome, WIRE_AETH_RNR | 1);
        wire_ask_take(&one.ask, &p, net.now);
        net.now = wire_ask_due(&one.ask);
        wire_ask_timer(&one.ask, net.now);
        CHECK_EQ(request_of(&one.ask).packet.psn, 100);
    }
    CHECK_EQ(one.ask.status, IBV_WC_SUCCESS);
}

static void receiver_not_ready(void)
{
    static uint8_t data[8];

    quiet_pair(1024);
    post(IBV_WR_SEND, 4, 0, 0);
    for (int i = 0; i < 3; i++) {
        struct wire_request r = request_of(&one.ask);
        r.packet.payload = data;
        wire_answer_take(&two.answer, &r.packet);
        struct wire_packet p = answer_of(&two.answer);
        CHECK_EQ(p.syndrome, WIRE_AETH_RNR | 1);
        CHECK_EQ(p.psn, 100);
        wire_ask_take(&one.ask, &p, net.now);
        if (i < 2) {
            nothing_more();
            CHECK_EQ(wire_ask_due(&one.ask), net.now + 10000);
            net.now += 10000;
            wire_ask_timer(&one.ask, net.now);
        }
    }
    CHECK_EQ(one.ask.status, IBV_WC_RNR_RETRY_EXC_ERR);
}

static void refused(uint8_t opcode, uint32_t rkey, enum ibv_wc_status status)
{
    static uint8_t data[1024];

    quiet_pair(1024);
    post(opcode, 8, 64, rkey);
    struct wire_request r = request_of(&one.ask);
    r.packet.payload = data;
    wire_answer_take(&two.answer, &r.packet);
    struct wire_packet p = answer_of(&two.answer);
    CHECK_EQ(p.syndrome & WIRE_AETH_KIND, WIRE_AETH_NAK);
    wire_ask_take(&one.ask, &p, net.now);
    CHECK_EQ(one.ask.status, status);
    CHECK(two.answer.stopped);
}

static void bad_keys(void)
{
    refused(IBV_WR_RDMA_WRITE, RKEY + 1, IBV_WC_REM_ACCESS_ERR);
    refused(IBV_WR_RDMA_READ, RKEY + 1, IBV_WC_REM_ACCESS_ERR);
    refused(IBV_WR_ATOMIC_FETCH_AND_ADD, RKEY + 1, IBV_WC_REM_ACCESS_ERR);
}

/* One NAK for a gap, however many packets come behind it; going back in the middle of a message. */
static void gap_in_the_middle(void)
{
    static uint8_t data[1024];
    struct wire_request r;

    quiet_pair(1024);
    two.receives = 1;
    post(IBV_WR_SEND, 5000, 0, 0);
    for (int i = 0; i < 5; i++) {
        r = request_of(&one.ask);
        r.packet.payload = data;
        if (i != 1)
            wire_answer_take(&two.answer, &r.packet);
    }
    struct wire_packet p = answer_of(&two.answer);
    CHECK_EQ(p.syndrome, WIRE_AETH_NAK | WIRE_NAK_SEQUENCE);
    CHECK_EQ(p.psn, 101);
    nothing_more();
    wire_ask_take(&one.ask, &p, net.now);
    for (int i = 1; i < 5; i++) {
        r = request_of(&one.ask);
        CHECK_EQ(r.packet.psn, 100 + i);
        CHECK_EQ(r.packet.opcode, i < 4 ? WIRE_SEND_MIDDLE : WIRE_SEND_LAST);
        CHECK_EQ(r.offset, i * 1024);
    }
    nothing_more();
}

/* A WRITE as WRITEs of a packet each; but one that takes a receive is one, as that tells how long it was. */
static void writes_of_one_packet(void)
{
    static uint8_t whole[3000];
    struct wire_request r;

    quiet_pair(1024);
    one.ask.singly = true;
    post(IBV_WR_RDMA_WRITE, sizeof whole, 64, RKEY);
    post(IBV_WR_RDMA_WRITE_WITH_IMM, sizeof whole, 64, RKEY);
    fill(whole, sizeof whole, 5);
    for (int i = 0; i < 3; i++) {
        r = request_of(&one.ask);
        CHECK_EQ(r.packet.opcode, WIRE_WRITE_ONLY);
        CHECK_EQ(r.packet.addr, 64 + i * 1024);
        CHECK_EQ(r.packet.length, i < 2 ? 1024 : 952);
        CHECK_EQ(r.packet.length, r.packet.payload_length);
        r.packet.payload = whole + r.offset;
        wire_answer_take(&two.answer, &r.packet);
    }
    CHECK(holds(two.memory + 64, sizeof whole, 5));
    r = request_of(&one.ask);
    CHECK_EQ(r.packet.opcode, WIRE_WRITE_FIRST);
    CHECK_EQ(r.packet.length, sizeof whole);
    const struct wire_packet ack = {.opcode = WIRE_ACK, .psn = 102};
    wire_ask_take(&one.ask, &ack, net.now);
    CHECK_EQ(one.ask.head, 1);
}

/* A READ whose answer was lost in the middle is asked for from there, and only that. */
static void rest_of_a_read(void)
{
    struct wire_packet p;

    quiet_pair(256);
    post(IBV_WR_RDMA_READ, 1000, READ_ONLY, RKEY);
    post(IBV_WR_SEND, 0, 0, 0);
    two.receives = 1;
    struct wire_request r = request_of(&one.ask);
    CHECK_EQ(r.packet.length, 1000);
    wire_answer_take(&two.answer, &r.packet);
    r = request_of(&one.ask);
    CHECK_EQ(r.packet.psn, 104);
    wire_answer_take(&two.answer, &r.packet);
    for (int i = 0; i < 4; i++) {
        p = answer_of(&two.answer);
        CHECK_EQ(p.psn, 100 + i);
        if (i != 1)
            wire_ask_take(&one.ask, &p, net.now);
    }
    r = request_of(&one.ask);
    CHECK_EQ(r.packet.opcode, WIRE_READ_REQUEST);
    CHECK_EQ(r.packet.psn, 101);
    CHECK_EQ(r.packet.addr, READ_ONLY + 256);
    CHECK_EQ(r.packet.length, 744);
    p = answer_of(&two.answer); /* of the SEND: beyond the READ, so it only says that the READ is missing */
    CHECK_EQ(p.opcode, WIRE_ACK);
    wire_ask_take(&one.ask, &p, net.now);
    CHECK_EQ(one.ask.head, 0);
    wire_answer_take(&two.answer, &r.packet);
    for (int i = 1; i < 4; i++) {
        p = answer_of(&two.answer);
        CHECK_EQ(p.psn, 100 + i);
        CHECK_EQ(p.opcode, i == 1 ? WIRE_READ_FIRST : i == 2 ? WIRE_READ_MIDDLE : WIRE_READ_LAST);
        wire_ask_take(&one.ask, &p, net.now);
    }
    CHECK_EQ(one.ask.head, 1);
    CHECK(holds(one.buffer[0], 1000, 9));
}

static void atomic_is_replayed(void)
{
    quiet_pair(1024);
    post(IBV_WR_ATOMIC_FETCH_AND_ADD, 8, 0, RKEY);
    one.ring[0].compare_add = 5;
    struct wire_request r = request_of(&one.ask);
    for (int i = 0; i < 3; i++) {
        wire_answer_take(&two.answer, &r.packet);
        CHECK_EQ(answer_of(&two.answer).original, 0);
    }
    CHECK_EQ(two.memory[0], 5);
    r.packet.compare = 1; /* the same number, another request: not ours */
    r.packet.addr += 8;
    wire_answer_take(&two.answer, &r.packet);
    nothing_more();
}

/* A SEND comes again when an atomic behind it has been carried out, whose answer may be lost: only the SEND is told of. */
static void atomics_are_not_acknowledged(void)
{
    static uint8_t data[8];

    quiet_pair(1024);
    two.receives = 1;
    post(IBV_WR_SEND, 4, 0, 0);
    post(IBV_WR_ATOMIC_FETCH_AND_ADD, 8, 0, RKEY);
    struct wire_request send = request_of(&one.ask), add = request_of(&one.ask);
    fill(data, 4, 0);
    send.packet.payload = data;
    for (int i = 0; i < 2; i++) {
        wire_answer_take(&two.answer, &send.packet);
        if (!i)
            wire_answer_take(&two.answer, &add.packet);
        struct wire_packet p = answer_of(&two.answer);
        if (!i) {
            CHECK_EQ(p.opcode, WIRE_ATOMIC_ACKNOWLEDGE);
            nothing_more(); /* it tells of the SEND, too */
            continue;
        }
        CHECK_EQ(p.opcode, WIRE_ACK);
        CHECK_EQ(p.psn, 100);
        CHECK_EQ(p.msn, 1);
        wire_ask_take(&one.ask, &p, net.now);
    }
    CHECK_EQ(one.ask.head, 1);
}

static void too_many_fetches(void)
{
    quiet_pair(1024);
    one.ask.max_fetches = FETCHES + 1;
    for (int i = 0; i <= FETCHES; i++)
        post(IBV_WR_RDMA_READ, 8, READ_ONLY, RKEY);
    for (int i = 0; i <= FETCHES; i++) {
        struct wire_request r = request_of(&one.ask);
        wire_answer_take(&two.answer, &r.packet);
    }
    CHECK(two.answer.stopped);
}

/* Whatever comes, from anybody who knows the numbers: no access beyond what was registered, no endless loop. */
static void nonsense(void)
{
    static uint8_t bytes[WIRE_MAX_PACKET];
    uint32_t state = 11;

    for (int round = 0; round < 300; round++) {
        quiet_pair(256);
        for (int i = 0; i < 8; i++)
            post(i % 2 ? IBV_WR_RDMA_READ : IBV_WR_SEND, 700, READ_ONLY, RKEY);
        for (int i = 0; i < 300; i++) {
            struct wire_packet p;
            struct wire_request r;
            const size_t size = 4 * (test_random(&state) % 80);

            two.receives = 2;
            for (size_t k = 0; k < size; k++)
                bytes[k] = (uint8_t)test_random(&state);
            bytes[0] &= 0x1f;
            bytes[1] &= 0xf0;
            bytes[2] = bytes[3] = 0xff;
            bytes[8] = bytes[9] = bytes[10] = 0;
            bytes[11] = (uint8_t)(100 + test_random(&state) % 24);
            if (size > 28 && test_random(&state) % 2)
                memcpy(bytes + 12, "\0\0\0\0\0\0\x40\0\0\0\0\x4d\0\0\0\x20", 16);
            wire_ask_next(&one.ask, net.now, &r);
            if (wire_parse(bytes, size, &p) != WIRE_OK)
                continue;
            if (wire_traits(p.opcode) & WIRE_IS_RESPONSE)
                wire_ask_take(&one.ask, &p, net.now);
            else if (!(wire_traits(p.opcode) & WIRE_IS_LAST) ||
                     (wire_traits(p.opcode) & (WIRE_HAS_RETH | WIRE_HAS_ATOMIC)))
                wire_answer_take(&two.answer, &p);
            for (int k = 0; k < 50 && wire_answer_next(&two.answer, &p); k++)
                CHECK(!p.payload_length || ((uint8_t *)p.payload >= two.memory &&
                                            p.payload + p.payload_length <= two.memory + MEMORY));
        }
    }
}

TEST_MAIN(TEST(timeouts_end), TEST(standing_still_is_not_waiting), TEST(refusals_are_signs_of_life),
          TEST(receiver_not_ready), TEST(bad_keys), TEST(gap_in_the_middle), TEST(writes_of_one_packet),
          TEST(rest_of_a_read), TEST(atomic_is_replayed), TEST(atomics_are_not_acknowledged),
          TEST(too_many_fetches), TEST(nonsense), TEST(reliable), TEST(unreliable))

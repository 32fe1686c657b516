/* Whether runs arrive: what is remembered of a pair of addresses, and two ends in virtual time that find it out. */
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
    EACH = 12 * MTU,
    FLIGHT = 1 << 14,
    BATCH = 15,
};
static const uint64_t second = 1000 * (uint64_t)MS, begin = 100000 * (uint64_t)MS;

static const uint8_t here[16] = {[10] = 0xff, [11] = 0xff, 10, 0, 0, 1};

static struct wire_runs *pair(unsigned int number)
{
    const uint8_t there[16] = {[10] = 0xff, [11] = 0xff, 10, 0, (uint8_t)(number >> 8), (uint8_t)number};
    struct wire_runs *runs = wire_runs_of(here, there, false);

    CHECK(runs);
    return runs;
}

static struct wire_runs *fresh_pair(void)
{
    static unsigned int number;

    return pair(++number);
}

/* ---- what is remembered ------------------------------------------------------------------------------ */

static void proof(void)
{
    struct wire_runs *runs = fresh_pair();
    uint64_t now = begin;

    CHECK_EQ(wire_runs_use(NULL, true, true, now), WIRE_RUNS_NONE);
    CHECK_EQ(wire_runs_use(runs, true, true, now), WIRE_RUNS_TRY);
    CHECK_EQ(wire_runs_use(runs, true, false, now), WIRE_RUNS_NONE);
    CHECK_EQ(wire_runs_use(runs, false, true, now), WIRE_RUNS_NONE);
    wire_runs_tried(runs, now);
    CHECK_EQ(wire_runs_use(runs, true, true, now), WIRE_RUNS_NONE); /* now and then */
    CHECK_EQ(wire_runs_use(runs, true, true, now + 10 * MS), WIRE_RUNS_TRY);
    wire_runs_heard(runs, WIRE_HEARD_ARRIVED, now);
    CHECK_EQ(wire_runs_use(runs, true, false, now), WIRE_RUNS_NEW);
    CHECK_EQ(wire_runs_use(runs, false, false, now), WIRE_RUNS_NEW);
    /* Who would not notice that the network has changed, relies on somebody who does, and did lately. */
    CHECK_EQ(wire_runs_use(runs, false, false, now + 11 * second), WIRE_RUNS_NONE);
    CHECK_EQ(wire_runs_use(runs, true, false, now + 3600 * second), WIRE_RUNS_NEW);
    wire_runs_release(runs);
}

static void off(struct wire_runs *runs, uint64_t *now, unsigned int trials, unsigned int seconds)
{
    for (unsigned int i = 0; i < trials; i++) {
        *now += 10 * MS;
        CHECK_EQ(wire_runs_use(runs, true, true, *now), WIRE_RUNS_TRY);
        wire_runs_tried(runs, *now);
        wire_runs_heard(runs, WIRE_HEARD_LOST, *now);
    }
    CHECK_EQ(wire_runs_use(runs, true, true, *now + seconds * second - 1), WIRE_RUNS_NONE);
    *now += seconds * second;
    CHECK_EQ(wire_runs_use(runs, true, true, *now), WIRE_RUNS_TRY);
}

/* Three trials, then none for a while; the next while is twice as long, up to about a minute. */
static void refusal(void)
{
    struct wire_runs *runs = fresh_pair();
    uint64_t now = begin;

    for (unsigned int seconds = 1; seconds <= 64; seconds *= 2)
        off(runs, &now, 3, seconds);
    off(runs, &now, 3, 64);
    wire_runs_heard(runs, WIRE_HEARD_ARRIVED, now);
    CHECK_EQ(wire_runs_use(runs, true, true, now), WIRE_RUNS_NEW);
    wire_runs_release(runs);
}

/* One that arrives makes good for those that did not; silence weighs less than a loss. */
static void doubt(void)
{
    struct wire_runs *runs = fresh_pair();
    uint64_t now = begin;

    for (int i = 0; i < 100; i++) {
        wire_runs_heard(runs, WIRE_HEARD_LOST, now);
        wire_runs_heard(runs, WIRE_HEARD_LOST, now);
        wire_runs_heard(runs, WIRE_HEARD_ARRIVED, now);
    }
    for (int i = 0; i < 5; i++)
        wire_runs_heard(runs, WIRE_HEARD_LOST, now);
    CHECK_EQ(wire_runs_use(runs, true, true, now), WIRE_RUNS_NEW);
    wire_runs_heard(runs, WIRE_HEARD_LOST, now);
    CHECK_EQ(wire_runs_use(runs, true, true, now), WIRE_RUNS_NONE);
    /* Others report what was on its way when the first one knew. */
    for (int i = 0; i < 50; i++)
        wire_runs_heard(runs, WIRE_HEARD_LOST, now);
    now += second;
    CHECK_EQ(wire_runs_use(runs, true, true, now), WIRE_RUNS_TRY);
    for (int i = 0; i < 11; i++)
        wire_runs_heard(runs, WIRE_HEARD_UNCLEAR, now);
    CHECK_EQ(wire_runs_use(runs, true, true, now), WIRE_RUNS_TRY);
    wire_runs_heard(runs, WIRE_HEARD_UNCLEAR, now);
    CHECK_EQ(wire_runs_use(runs, true, true, now + 2 * second - 1), WIRE_RUNS_NONE);
    /* Proven for long: what comes then is a new story. */
    now += 2 * second;
    wire_runs_heard(runs, WIRE_HEARD_ARRIVED, now);
    now += 11 * second;
    wire_runs_heard(runs, WIRE_HEARD_ARRIVED, now);
    for (int i = 0; i < 6; i++)
        wire_runs_heard(runs, WIRE_HEARD_LOST, now);
    CHECK_EQ(wire_runs_use(runs, true, true, now + second), WIRE_RUNS_TRY);
    wire_runs_release(runs);
}

/* Our own devices need no proof, and theirs is no proof for others. */
static void ours(void)
{
    struct wire_runs *foreign = fresh_pair(), *own = wire_runs_of(foreign->src, foreign->dst, true);

    CHECK(own && own != foreign);
    CHECK(wire_runs_of(foreign->src, foreign->dst, true) == own);
    CHECK_EQ(wire_runs_use(own, true, false, begin), WIRE_RUNS_NEW);
    CHECK_EQ(wire_runs_use(own, false, false, begin), WIRE_RUNS_NONE); /* nothing was heard of late */
    wire_runs_heard(own, WIRE_HEARD_ARRIVED, begin);
    CHECK_EQ(wire_runs_use(own, false, false, begin), WIRE_RUNS_NEW);
    CHECK_EQ(wire_runs_use(foreign, true, true, begin), WIRE_RUNS_TRY);
    for (int i = 0; i < 6; i++)
        wire_runs_heard(own, WIRE_HEARD_LOST, begin);
    CHECK_EQ(wire_runs_use(own, true, true, begin), WIRE_RUNS_NONE);
    CHECK_EQ(wire_runs_use(own, true, true, begin + second), WIRE_RUNS_TRY);
    CHECK_EQ(wire_runs_use(foreign, true, true, begin), WIRE_RUNS_TRY);
    wire_runs_release(foreign);
    wire_runs_release(own);
    wire_runs_release(own);
}

/* Those in use keep their places, one that nobody uses any more gives it to the next. */
static void many_pairs(void)
{
    enum { MANY = 512, FIRST = 1000 };
    static struct wire_runs *all[MANY];
    const uint8_t other[16] = {1};
    unsigned int n = 0;

    struct wire_runs *known = pair(FIRST - 1);
    wire_runs_heard(known, WIRE_HEARD_ARRIVED, begin);
    wire_runs_release(known);
    CHECK(pair(FIRST - 1) == known);
    CHECK_EQ(wire_runs_use(known, true, true, begin), WIRE_RUNS_NEW);
    for (struct wire_runs *runs; n < MANY; n++) {
        const uint8_t there[16] = {2, (uint8_t)n, (uint8_t)(n >> 8)};
        runs = wire_runs_of(here, there, false);
        if (!runs)
            break;
        CHECK(runs != known);
        CHECK_EQ(wire_runs_use(runs, true, true, begin), WIRE_RUNS_TRY);
        all[n] = runs;
    }
    CHECK_EQ(n, MANY - 1);
    CHECK(!wire_runs_of(here, other, false));
    wire_runs_release(all[7]);
    struct wire_runs *next = wire_runs_of(here, other, false);
    CHECK(next == all[7]);
    all[7] = next;
    for (unsigned int i = 0; i < n; i++)
        wire_runs_release(all[i]);
    wire_runs_release(known);
}

/* ---- two ends ----------------------------------------------------------------------------------------- */

struct flying {
    uint64_t when;
    bool request;
    struct wire_packet packet;
    uint8_t payload[MTU];
};

static struct {
    uint64_t now;
    uint32_t loss, random; /* of 1000 */
    bool renumbers;        /* nothing behind the first of a run arrives */
    struct flying flying[FLIGHT];
    unsigned head, tail;
    uint64_t packets, in_runs;
} net;

static struct wire_ask ask;
static struct wire_answer answer;
static struct wire_message ring[QUEUE];
static struct wire_fetch fetches[FETCHES];
static struct wire_runs *of_requests, *of_answers;
static uint8_t from[QUEUE * EACH], to[QUEUE * EACH];

static bool scatter(void *owner, uint32_t index, uint32_t offset, const uint8_t *bytes, uint32_t n)
{
    (void)owner;
    memcpy(to + (ring[index % QUEUE].addr - (uintptr_t)from) + offset, bytes, n);
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
    return 1000 * shortest_ns;
}

static const struct wire_ask_owner ask_calls = {.scatter = scatter, .patience = patience};
static const struct wire_answer_owner answer_calls = {.remote = remote, .write = write_to, .broken = broken};

static void start(void)
{
    memset(&net, 0, sizeof net);
    net.now = begin;
    net.random = 1;
    memset(&ask, 0, sizeof ask);
    memset(&answer, 0, sizeof answer);
    memset(fetches, 0, sizeof fetches);
    ask = (struct wire_ask){
        .calls = &ask_calls, .ring = ring, .mask = QUEUE - 1, .reliable = true, .mtu = MTU, .qpn = 5};
    ask.retry_cnt = ask.rnr_retry = 7;
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
    of_requests = fresh_pair();
    of_answers = fresh_pair();
}

static void stop(void)
{
    wire_runs_release(of_requests);
    wire_runs_release(of_answers);
}

static void transmit(bool request, const struct wire_packet *packet, const uint8_t *payload,
                     unsigned int place)
{
    struct flying *f = &net.flying[net.tail % FLIGHT];

    net.packets++;
    net.in_runs += place != 0;
    if (test_random(&net.random) % 1000 < net.loss || (net.renumbers && place))
        return;
    CHECK(net.tail - net.head < FLIGHT);
    *f = (struct flying){.when = net.now + ONE_WAY, .request = request, .packet = *packet};
    if (packet->payload_length)
        memcpy(f->payload, payload, packet->payload_length);
    net.tail++;
}

/* Batches, as the device makes them. */
static void pump_answers(void)
{
    enum wire_runs_use use = wire_runs_use(of_answers, true, answer.pending, net.now);
    struct wire_packet p;
    unsigned int n = 0;

    for (bool open = false; wire_answer_next(&answer, &p);) {
        const bool may = !answer.alone && (use == WIRE_RUNS_NEW || (use == WIRE_RUNS_TRY && answer.given));
        n = open && may && n + 1 < BATCH ? n + 1 : 0;
        open = may;
        transmit(false, &p, p.payload, n);
        if (!n)
            continue;
        wire_answer_in_run(&answer);
        if (use == WIRE_RUNS_TRY) {
            wire_runs_tried(of_answers, net.now);
            use = WIRE_RUNS_NONE;
        }
    }
}

static void pump_requests(void)
{
    for (bool more = true; more;) {
        const enum wire_runs_use use =
            wire_runs_use(of_requests, true, ask.trip.smoothed && !ask.watch.on, net.now);
        struct wire_request r[BATCH];
        unsigned int n = 0, place = 0, behind = 0, end = 0;

        for (bool open = false; n < BATCH && (more = wire_ask_next(&ask, net.now, &r[n])); n++) {
            const bool may = !r[n].again && (use == WIRE_RUNS_NEW || (use == WIRE_RUNS_TRY && !end));
            place = open && may ? place + 1 : 0;
            open = may;
            if (place == 1 && !end)
                behind = end = n;
            if (place && end == n)
                end++;
            transmit(true, &r[n].packet, from + ring[r[n].index % QUEUE].addr - (uintptr_t)to + r[n].offset,
                     place);
        }
        if (end && use == WIRE_RUNS_TRY)
            wire_runs_tried(of_requests, net.now);
        if (end && !ask.watch.on && ask.trip.smoothed)
            wire_ask_watch(&ask, &r[behind], &r[end - 1]);
    }
}

static void hear(struct wire_runs *runs, uint8_t *heard)
{
    wire_runs_heard(runs, *heard, net.now);
    *heard = WIRE_HEARD_NOTHING;
}

static void settle(void)
{
    for (;;) {
        pump_answers();
        pump_requests();
        if (ask.head == ask.tail)
            return;
        const uint64_t due = wire_ask_due(&ask);
        const bool flies = net.head != net.tail;
        struct flying *f = &net.flying[net.head % FLIGHT];

        CHECK_EQ(ask.status, 0);
        CHECK(flies || due);
        if (!flies || (due && due < f->when)) {
            net.now = due > net.now ? due : net.now;
            wire_ask_timer(&ask, net.now);
        } else {
            net.head++;
            net.now = f->when;
            f->packet.payload = f->payload;
            if (f->request)
                wire_answer_take(&answer, &f->packet);
            else
                wire_ask_take(&ask, &f->packet, net.now);
        }
        hear(of_requests, &ask.heard);
        hear(of_answers, &answer.heard);
    }
}

/* Messages of a few packets each, all of them at once. */
static void transfer(uint8_t opcode, uint32_t seed)
{
    const uint8_t *base = opcode == IBV_WR_RDMA_READ ? from : to;

    fill(from, sizeof from, (int)seed);
    memset(to, 0, sizeof to);
    for (uint32_t i = 0; i < QUEUE; i++)
        wire_ask_post(&ask, &(struct wire_message){
                                .opcode = opcode, .length = EACH, .addr = (uintptr_t)base + i * EACH});
    settle();
    CHECK(!memcmp(to, from, sizeof from));
}

static struct wire_runs *watched(uint8_t opcode)
{
    return opcode == IBV_WR_RDMA_READ ? of_answers : of_requests;
}

static const uint8_t opcodes[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ};

static void found_out(void)
{
    for (int i = 0; i < 2; i++) {
        start();
        for (uint32_t round = 0; round < 3; round++)
            transfer(opcodes[i], round);
        CHECK(atomic_load(&watched(opcodes[i])->proven));
        const uint64_t before = net.in_runs, all = net.packets;
        transfer(opcodes[i], 9);
        CHECK(net.in_runs - before > (net.packets - all) / 2);
        CHECK_EQ(ask.resent, 0);
        CHECK_EQ(ask.naks + ask.timeouts + ask.probes, 0);
        stop();
    }
}

/* Everything arrives, and after three trials nothing leaves in runs for a second. */
static void renumbered(void)
{
    for (int i = 0; i < 2; i++) {
        start();
        net.renumbers = true;
        while (!watched(opcodes[i])->pause_ns)
            transfer(opcodes[i], (uint32_t)net.now);
        CHECK_EQ(watched(opcodes[i])->pause_ns, second);
        CHECK(!atomic_load(&watched(opcodes[i])->proven));
        if (opcodes[i] == IBV_WR_RDMA_WRITE)
            CHECK_EQ(net.in_runs, 3);
        const uint64_t tried = net.in_runs, until = net.now + second - 200 * (uint64_t)MS,
                       resent = ask.resent;
        CHECK_EQ(ask.timeouts, 0);
        while (net.now < until)
            transfer(opcodes[i], (uint32_t)net.now);
        /* Those in the other direction may still be tried. */
        CHECK(net.in_runs - tried <= 3);
        if (opcodes[i] == IBV_WR_RDMA_WRITE)
            CHECK_EQ(ask.resent, resent);
        stop();
    }
}

/* The network changes behind a proof: it is found out, and all arrives. Then it changes back. */
static void another_way(void)
{
    for (int i = 0; i < 2; i++) {
        start();
        while (!atomic_load(&watched(opcodes[i])->proven))
            transfer(opcodes[i], (uint32_t)net.now);
        net.renumbers = true;
        for (uint32_t round = 0; round < 20; round++)
            transfer(opcodes[i], round);
        CHECK(!atomic_load(&watched(opcodes[i])->proven));
        net.renumbers = false;
        for (const uint64_t until = net.now + 10 * second; net.now < until;)
            transfer(opcodes[i], (uint32_t)net.now);
        CHECK(atomic_load(&watched(opcodes[i])->proven));
        stop();
    }
}

/* One in a hundred is lost: that is no reason, most of the time. */
static void lossy(void)
{
    for (int i = 0; i < 2; i++) {
        unsigned int proven = 0, all = 0;

        for (uint32_t seed = 1; seed <= 10; seed++) {
            start();
            net.loss = 10;
            net.random = seed;
            for (uint32_t round = 0; round < 40; round++) {
                transfer(opcodes[i], round);
                proven += atomic_load(&watched(opcodes[i])->proven);
                all++;
            }
            stop();
        }
        CHECK(proven > all / 2);
    }
}

/* Lossy and renumbering: nothing but losses is ever heard of runs, and all arrives. */
static void worst(void)
{
    for (uint32_t seed = 1; seed <= 20; seed++) {
        start();
        net.loss = 30;
        net.renumbers = true;
        net.random = seed;
        for (uint32_t round = 0; round < 10; round++)
            transfer(opcodes[seed % 2], round);
        CHECK(!atomic_load(&of_requests->proven));
        CHECK(!atomic_load(&of_answers->proven));
        stop();
    }
}

TEST_MAIN(TEST(proof), TEST(refusal), TEST(doubt), TEST(ours), TEST(many_pairs), TEST(found_out),
          TEST(renumbered), TEST(another_way), TEST(lossy), TEST(worst))

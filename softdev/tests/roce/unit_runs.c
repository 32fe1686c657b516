/* Whether runs arrive: the record of a pair of addresses, and two sides in virtual time that build it. */
#include "ends.h"

enum { EACH = 12 * MTU, BATCH = 15 };
static const uint64_t second = 1000 * (uint64_t)MS, begin = 100000 * (uint64_t)MS;

static const uint8_t here[16] = {[10] = 0xff, [11] = 0xff, 10, 0, 0, 1};

static struct roce_runs *pair(unsigned int number)
{
    const uint8_t there[16] = {[10] = 0xff, [11] = 0xff, 10, 0, (uint8_t)(number >> 8), (uint8_t)number};
    struct roce_runs *runs = roce_runs_of(here, there, false);

    CHECK(runs);
    return runs;
}

static struct roce_runs *fresh_pair(void)
{
    static unsigned int number;

    return pair(++number);
}

/* ---- the record -------------------------------------------------------------------------------------- */

static void proof(void)
{
    struct roce_runs *runs = fresh_pair();
    uint64_t now = begin;

    CHECK_EQ(roce_runs_use(NULL, true, true, now), ROCE_RUNS_NONE);
    CHECK_EQ(roce_runs_use(runs, true, true, now), ROCE_RUNS_TRY);
    CHECK_EQ(roce_runs_use(runs, true, false, now), ROCE_RUNS_NONE);
    CHECK_EQ(roce_runs_use(runs, false, true, now), ROCE_RUNS_NONE);
    roce_runs_tried(runs, now);
    CHECK_EQ(roce_runs_use(runs, true, true, now), ROCE_RUNS_NONE); /* only now and then */
    CHECK_EQ(roce_runs_use(runs, true, true, now + 10 * MS), ROCE_RUNS_TRY);
    roce_runs_heard(runs, ROCE_HEARD_ARRIVED, now);
    CHECK_EQ(roce_runs_use(runs, true, false, now), ROCE_RUNS_NEW);
    CHECK_EQ(roce_runs_use(runs, false, false, now), ROCE_RUNS_NEW);
    CHECK_EQ(roce_runs_use(runs, false, false, now - 1),
             ROCE_RUNS_NEW); /* another thread heard of it meanwhile */
    /* A flow that would not notice a change of the network relies on one that does, and did lately. */
    CHECK_EQ(roce_runs_use(runs, false, false, now + 11 * second), ROCE_RUNS_NONE);
    CHECK_EQ(roce_runs_use(runs, true, false, now + 3600 * second), ROCE_RUNS_NEW);
    roce_runs_release(runs);
}

static void off(struct roce_runs *runs, uint64_t *now, unsigned int trials, unsigned int seconds)
{
    for (unsigned int i = 0; i < trials; i++) {
        *now += 10 * MS;
        CHECK_EQ(roce_runs_use(runs, true, true, *now), ROCE_RUNS_TRY);
        roce_runs_tried(runs, *now);
        roce_runs_heard(runs, ROCE_HEARD_LOST, *now);
    }
    CHECK_EQ(roce_runs_use(runs, true, true, *now + seconds * second - 1), ROCE_RUNS_NONE);
    *now += seconds * second;
    CHECK_EQ(roce_runs_use(runs, true, true, *now), ROCE_RUNS_TRY);
}

/* Three trials, then none for a while; the next pause is twice as long, up to about a minute. */
static void refusal(void)
{
    struct roce_runs *runs = fresh_pair();
    uint64_t now = begin;

    for (unsigned int seconds = 1; seconds <= 64; seconds *= 2)
        off(runs, &now, 3, seconds);
    off(runs, &now, 3, 64);
    roce_runs_heard(runs, ROCE_HEARD_ARRIVED, now);
    CHECK_EQ(roce_runs_use(runs, true, true, now), ROCE_RUNS_NEW);
    roce_runs_release(runs);
}

/* One arrival makes up for earlier failures; silence weighs less than a loss. */
static void doubt(void)
{
    struct roce_runs *runs = fresh_pair();
    uint64_t now = begin;

    for (int i = 0; i < 100; i++) {
        roce_runs_heard(runs, ROCE_HEARD_LOST, now);
        roce_runs_heard(runs, ROCE_HEARD_LOST, now);
        roce_runs_heard(runs, ROCE_HEARD_ARRIVED, now);
    }
    for (int i = 0; i < 5; i++)
        roce_runs_heard(runs, ROCE_HEARD_LOST, now);
    CHECK_EQ(roce_runs_use(runs, true, true, now), ROCE_RUNS_NEW);
    roce_runs_heard(runs, ROCE_HEARD_LOST, now);
    CHECK_EQ(roce_runs_use(runs, true, true, now), ROCE_RUNS_NONE);
    /* Other flows report runs that were in flight when the first one reported. */
    for (int i = 0; i < 50; i++)
        roce_runs_heard(runs, ROCE_HEARD_LOST, now);
    now += second;
    CHECK_EQ(roce_runs_use(runs, true, true, now), ROCE_RUNS_TRY);
    for (int i = 0; i < 11; i++)
        roce_runs_heard(runs, ROCE_HEARD_UNCLEAR, now);
    CHECK_EQ(roce_runs_use(runs, true, true, now), ROCE_RUNS_TRY);
    roce_runs_heard(runs, ROCE_HEARD_UNCLEAR, now);
    CHECK_EQ(roce_runs_use(runs, true, true, now + 2 * second - 1), ROCE_RUNS_NONE);
    /* Proven for long: a later failure starts with the shortest pause again. */
    now += 2 * second;
    roce_runs_heard(runs, ROCE_HEARD_ARRIVED, now);
    now += 11 * second;
    roce_runs_heard(runs, ROCE_HEARD_ARRIVED, now);
    for (int i = 0; i < 6; i++)
        roce_runs_heard(runs, ROCE_HEARD_LOST, now);
    CHECK_EQ(roce_runs_use(runs, true, true, now + second), ROCE_RUNS_TRY);
    roce_runs_release(runs);
}

/* softdev devices need no proof, and their record is no proof for others. */
static void ours(void)
{
    struct roce_runs *foreign = fresh_pair(), *own = roce_runs_of(foreign->src, foreign->dst, true);

    CHECK(own && own != foreign);
    CHECK(roce_runs_of(foreign->src, foreign->dst, true) == own);
    CHECK_EQ(roce_runs_use(own, true, false, begin), ROCE_RUNS_NEW);
    CHECK_EQ(roce_runs_use(own, false, false, begin), ROCE_RUNS_NONE); /* no news of late */
    roce_runs_heard(own, ROCE_HEARD_ARRIVED, begin);
    CHECK_EQ(roce_runs_use(own, false, false, begin), ROCE_RUNS_NEW);
    CHECK_EQ(roce_runs_use(foreign, true, true, begin), ROCE_RUNS_TRY);
    for (int i = 0; i < 6; i++)
        roce_runs_heard(own, ROCE_HEARD_LOST, begin);
    CHECK_EQ(roce_runs_use(own, true, true, begin), ROCE_RUNS_NONE);
    CHECK_EQ(roce_runs_use(own, true, true, begin + second), ROCE_RUNS_TRY);
    CHECK_EQ(roce_runs_use(foreign, true, true, begin), ROCE_RUNS_TRY);
    roce_runs_release(foreign);
    roce_runs_release(own);
    roce_runs_release(own);
}

/* Pairs in use keep their places; an unused one gives its place to the next. */
static void many_pairs(void)
{
    enum { MANY = 512, FIRST = 1000 };
    static struct roce_runs *all[MANY];
    const uint8_t other[16] = {1};
    unsigned int n = 0;

    struct roce_runs *known = pair(FIRST - 1);
    roce_runs_heard(known, ROCE_HEARD_ARRIVED, begin);
    roce_runs_release(known);
    CHECK(pair(FIRST - 1) == known);
    CHECK_EQ(roce_runs_use(known, true, true, begin), ROCE_RUNS_NEW);
    for (struct roce_runs *runs; n < MANY; n++) {
        const uint8_t there[16] = {2, (uint8_t)n, (uint8_t)(n >> 8)};
        runs = roce_runs_of(here, there, false);
        if (!runs)
            break;
        CHECK(runs != known);
        CHECK_EQ(roce_runs_use(runs, true, true, begin), ROCE_RUNS_TRY);
        all[n] = runs;
    }
    CHECK_EQ(n, MANY - 1);
    CHECK(!roce_runs_of(here, other, false));
    roce_runs_release(all[7]);
    struct roce_runs *next = roce_runs_of(here, other, false);
    CHECK(next == all[7]);
    all[7] = next;
    for (unsigned int i = 0; i < n; i++)
        roce_runs_release(all[i]);
    roce_runs_release(known);
}

/* ---- two sides ---------------------------------------------------------------------------------------- */

static bool renumbers; /* nothing behind the first of a run arrives */
static uint64_t in_runs;
static struct roce_runs *of_requests, *of_answers;

static void start(void)
{
    start_ends(begin);
    ask.retry_cnt = ask.rnr_retry = 7;
    patience_times = 1000;
    renumbers = false;
    in_runs = 0;
    of_requests = fresh_pair();
    of_answers = fresh_pair();
}

static void stop(void)
{
    roce_runs_release(of_requests);
    roce_runs_release(of_answers);
}

static void transmit_at(unsigned int place, bool request, const struct roce_packet *packet,
                        const uint8_t *payload)
{
    in_runs += place != 0;
    transmit(request, packet, payload, renumbers && place);
}

/* Batches, as the device builds them. */
static void pump_answers(void)
{
    enum roce_runs_use use = roce_runs_use(of_answers, true, answer.pending, net.now);
    struct roce_packet p;
    unsigned int n = 0;

    for (bool open = false; roce_answer_next(&answer, &p);) {
        const bool may = !answer.alone && (use == ROCE_RUNS_NEW || (use == ROCE_RUNS_TRY && answer.given));
        n = open && may && n + 1 < BATCH ? n + 1 : 0;
        open = may;
        transmit_at(n, false, &p, p.payload);
        if (!n)
            continue;
        roce_answer_in_run(&answer);
        if (use == ROCE_RUNS_TRY) {
            roce_runs_tried(of_answers, net.now);
            use = ROCE_RUNS_NONE;
        }
    }
}

static void pump_requests(void)
{
    for (bool more = true; more;) {
        const enum roce_runs_use use =
            roce_runs_use(of_requests, true, ask.trip.smoothed && !ask.watch.on, net.now);
        struct roce_request r[BATCH];
        unsigned int n = 0, place = 0, behind = 0, end = 0;

        for (bool open = false; n < BATCH && (more = roce_ask_next(&ask, net.now, &r[n])); n++) {
            const bool may = !r[n].again && (use == ROCE_RUNS_NEW || (use == ROCE_RUNS_TRY && !end));
            place = open && may ? place + 1 : 0;
            open = may;
            if (place == 1 && !end)
                behind = end = n;
            if (place && end == n)
                end++;
            transmit_at(place, true, &r[n].packet, payload_of(&r[n]));
        }
        if (end && use == ROCE_RUNS_TRY)
            roce_runs_tried(of_requests, net.now);
        if (end && !ask.watch.on && ask.trip.smoothed)
            roce_ask_watch(&ask, &r[behind], &r[end - 1]);
    }
}

static void hear(struct roce_runs *runs, uint8_t *heard)
{
    roce_runs_heard(runs, *heard, net.now);
    *heard = ROCE_HEARD_NOTHING;
}

static void settle(void)
{
    for (;;) {
        pump_answers();
        pump_requests();
        if (ask.head == ask.tail)
            return;
        step();
        hear(of_requests, &ask.heard);
        hear(of_answers, &answer.heard);
    }
}

/* Messages of a few packets each, all at once. */
static void transfer(uint8_t opcode, uint32_t seed)
{
    fill(from, QUEUE * EACH, (int)seed);
    memset(to, 0, QUEUE * EACH);
    for (uint32_t i = 0; i < QUEUE; i++)
        post(opcode, i * EACH, EACH);
    settle();
    CHECK(!memcmp(to, from, QUEUE * EACH));
}

static struct roce_runs *watched(uint8_t opcode)
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
        const uint64_t before = in_runs, all = (net.requests + net.answers);
        transfer(opcodes[i], 9);
        CHECK(in_runs - before > ((net.requests + net.answers) - all) / 2);
        CHECK_EQ(ask.resent, 0);
        CHECK_EQ(ask.naks + ask.timeouts + ask.probes, 0);
        stop();
    }
}

/* Everything arrives, and after three trials no packet leaves in a run for a second. */
static void renumbered(void)
{
    for (int i = 0; i < 2; i++) {
        start();
        renumbers = true;
        while (!watched(opcodes[i])->pause_ns)
            transfer(opcodes[i], (uint32_t)net.now);
        CHECK_EQ(watched(opcodes[i])->pause_ns, second);
        CHECK(!atomic_load(&watched(opcodes[i])->proven));
        if (opcodes[i] == IBV_WR_RDMA_WRITE)
            CHECK_EQ(in_runs, 3);
        const uint64_t tried = in_runs, until = net.now + second - 200 * (uint64_t)MS, resent = ask.resent;
        CHECK_EQ(ask.timeouts, 0);
        while (net.now < until)
            transfer(opcodes[i], (uint32_t)net.now);
        /* Runs in the other direction may still be tried. */
        CHECK(in_runs - tried <= 3);
        if (opcodes[i] == IBV_WR_RDMA_WRITE)
            CHECK_EQ(ask.resent, resent);
        stop();
    }
}

/* The network changes after a proof: the device notices, and everything arrives. Then it changes back. */
static void another_way(void)
{
    for (int i = 0; i < 2; i++) {
        start();
        while (!atomic_load(&watched(opcodes[i])->proven))
            transfer(opcodes[i], (uint32_t)net.now);
        renumbers = true;
        for (uint32_t round = 0; round < 20; round++)
            transfer(opcodes[i], round);
        CHECK(!atomic_load(&watched(opcodes[i])->proven));
        renumbers = false;
        for (const uint64_t until = net.now + 10 * second; net.now < until;)
            transfer(opcodes[i], (uint32_t)net.now);
        CHECK(atomic_load(&watched(opcodes[i])->proven));
        stop();
    }
}

/* One in a hundred is lost: most of the time, that is no reason to stop. */
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

/* Lossy and renumbering: runs only ever report losses, and everything arrives. */
static void worst(void)
{
    for (uint32_t seed = 1; seed <= 20; seed++) {
        start();
        net.loss = 30;
        renumbers = true;
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

/* DCQCN's rate in virtual time. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "roce/rate.h"
#include "tests/harness.h"

enum { PACKET = 1000 };

static struct roce_rate started(const char *profile)
{
    static struct roce_line line;
    struct roce_rate rate = {.profile = roce_rate_profile(profile), .line = &line};

    CHECK(rate.profile);
    line.fastest = 40e9; /* so that the profile's times and steps apply unchanged */
    return rate;
}

/* Sends as fast as allowed, at most `gbps`, for that long. Returns bits per second. */
static double run(struct roce_rate *rate, uint64_t *now, uint64_t ns, double gbps)
{
    const uint64_t begin = *now, each = (uint64_t)(PACKET * 8 / gbps);
    uint64_t bytes = 0, when;

    while (*now < begin + ns) {
        if (roce_rate_allows(rate, *now, &when)) {
            roce_rate_sent(rate, *now, PACKET);
            bytes += PACKET;
            *now += each;
        } else {
            CHECK(when > *now);
            *now = when;
        }
    }
    return (double)bytes * 8e9 / (double)(*now - begin);
}

static bool near(double a, double b)
{
    return fabs(a - b) <= 0.02 * b;
}

static void unpaced_without_congestion(void)
{
    struct roce_rate rate = started("sigcomm15");
    uint64_t now = 1000000000;

    CHECK(near(run(&rate, &now, 1000000, 10), 10e9));
    CHECK(!rate.paced);
}

/* The first notification halves the rate that was sent; without more, five steps restore it. */
static void cut_and_recovery(void)
{
    struct roce_rate rate = started("sigcomm15");
    uint64_t now = 1000000000;

    run(&rate, &now, 1000000, 10);
    roce_rate_notified(&rate, now);
    CHECK(near(rate.target, 10e9));
    CHECK(near(rate.current, 5e9));
    CHECK(near(run(&rate, &now, 50000, 10), 5e9) || rate.next > now);
    double expected = 5e9;
    now = rate.step_at;
    for (int i = 0; i < 5; i++) {
        uint64_t when;
        now += 55000;
        expected = (10e9 + expected) / 2;
        roce_rate_allows(&rate, now, &when);
        CHECK(near(rate.current, expected));
    }
    const double before = rate.target;
    uint64_t when;
    roce_rate_allows(&rate, now + 55000, &when);
    CHECK(near(rate.target - before, 40e6));
}

static void pacing_is_exact(void)
{
    struct roce_rate rate = started("sigcomm15");
    struct roce_rate_profile frozen = *rate.profile;
    uint64_t now = 1000000000;

    frozen.step_ns = frozen.alpha_ns = UINT64_MAX / 4;
    frozen.step_bytes = UINT64_MAX;
    rate.profile = &frozen;
    run(&rate, &now, 1000000, 10);
    for (int i = 0; i < 3; i++, now += 50000) {
        roce_rate_notified(&rate, now);
        roce_rate_notified(&rate, now + 1000); /* of the same congestion */
    }
    const double current = rate.current;
    CHECK(current < 1.5e9 && current > 1e9);
    run(&rate, &now, 1000000, 10);
    CHECK(near(run(&rate, &now, 10000000, 10), current));
}

/* Threads read the clock before they take the lock: one may come with an earlier time than another before it. */
static void clocks_of_two_threads(void)
{
    struct roce_rate rate = started("sigcomm15");
    uint64_t now = 1000000000, when;

    run(&rate, &now, 1000000, 10);
    roce_rate_notified(&rate, now);
    const double current = rate.current, measured = rate.measured;
    const uint64_t step_at = rate.step_at, alpha_at = rate.alpha_at;
    roce_rate_allows(&rate, now - 1, &when);
    CHECK(rate.paced);
    CHECK(rate.current == current);
    CHECK_EQ(rate.time_steps, 0);
    CHECK_EQ(rate.step_at, step_at);
    CHECK_EQ(rate.alpha_at, alpha_at);
    roce_rate_notified(&rate, now - 1); /* of the same congestion */
    CHECK(rate.current == current);

    rate.measured_at = rate.lasting_at = now;
    roce_rate_sent(&rate, now - 1, PACKET);
    CHECK(rate.measured == measured);
    CHECK_EQ(rate.measured_at, now);
    CHECK_EQ(rate.lasting_at, now);

    rate.paced = false;
    rate.measured = 10e9;
    roce_rate_notified(&rate, now - 1);
    CHECK(near(rate.target, 10e9));
}

static void congestion_that_stays(void)
{
    static const char *const names[] = {"sigcomm15", "connectx"};

    for (int i = 0; i < 2; i++) {
        struct roce_rate rate = started(names[i]);
        uint64_t now = 1000000000;

        run(&rate, &now, 1000000, 10);
        for (int k = 0; k < 2000; k++) {
            roce_rate_notified(&rate, now);
            now += 50000;
        }
        CHECK(rate.current >= rate.profile->least_bps);
        CHECK(rate.current < 20e6);
        /* After the congestion ends, the full rate returns. */
        for (uint64_t end = now + 400000000000; rate.paced && now < end;)
            run(&rate, &now, 100000000, 1);
        CHECK(!rate.paced || rate.current > 1e9);
    }
}

/* ---- flows through a queue that marks ------------------------------------------------------------- */

enum { FLOWS = 4, WINDOW = 512, LEAST = 30000, MOST = 90000, EVENTS = FLOWS * WINDOW * 2 };

struct event {
    uint64_t at;
    int flow;
    bool marked, notify;
};

struct events {
    struct event all[EVENTS];
    unsigned head, tail;
};

static void put(struct events *list, struct event event)
{
    CHECK(list->tail - list->head < EVENTS);
    list->all[list->tail++ % EVENTS] = event;
}

/* The next one, when its time has come. */
static bool arrived(struct events *list, uint64_t now, struct event *event)
{
    if (list->head == list->tail || list->all[list->head % EVENTS].at > now)
        return false;
    *event = list->all[list->head++ % EVENTS];
    return true;
}

struct path {
    struct roce_line line;
    struct roce_rate rates[FLOWS];
    uint64_t sent[FLOWS], outstanding[FLOWS], may[FLOWS], told[FLOWS];
    struct events queue, there, back;
    uint64_t served[FLOWS], busy, queued;
    double queue_time; /* bytes times nanoseconds */
    unsigned random;
};

static bool is_marked(struct path *p)
{
    p->random = p->random * 1103515245u + 12345u;
    const double draw = (p->random >> 8) / (double)(1 << 24);
    const double q = (double)p->queued;

    return q > MOST || (q > LEAST && draw < 0.1 * (q - LEAST) / (MOST - LEAST));
}

/* Marking as in RED by the receiver and the network: one step. */
static void path_step(struct path *p, int flows, double bps, uint64_t delay, uint64_t host_ns, uint64_t now)
{
    const uint64_t each = (uint64_t)(PACKET * 8e9 / bps);
    struct event e;
    uint64_t when;

    while (arrived(&p->back, now, &e)) {
        if (e.notify)
            roce_rate_notified(&p->rates[e.flow], now);
        else
            p->outstanding[e.flow]--;
    }
    for (int i = 0; i < flows; i++) {
        if (now < p->may[i] || p->outstanding[i] == WINDOW)
            continue;
        if (!roce_rate_allows(&p->rates[i], now, &when)) {
            p->may[i] = when;
            continue;
        }
        roce_rate_sent(&p->rates[i], now, PACKET);
        p->outstanding[i]++;
        p->may[i] = now + host_ns;
        put(&p->queue, (struct event){.flow = i, .marked = is_marked(p)});
        p->queued += PACKET;
    }
    if (now >= p->busy && arrived(&p->queue, now, &e)) {
        p->queued -= PACKET;
        p->busy = (p->busy + each > now ? p->busy : now) + each;
        p->served[e.flow]++;
        e.at = p->busy + delay;
        put(&p->there, e);
    }
    while (arrived(&p->there, now, &e)) {
        if (e.marked && now - p->told[e.flow] >= 50000) {
            p->told[e.flow] = now;
            put(&p->back, (struct event){.at = now + delay, .flow = e.flow, .notify = true});
        }
        put(&p->back, (struct event){.at = now + delay, .flow = e.flow});
    }
}

/* Checks that the queue stays near the marking threshold, the line is used, and each flow gets its share. */
static void converges(int flows, double bps, uint64_t delay, double host_bps, double seconds)
{
    static struct path p;
    const uint64_t step = (uint64_t)(PACKET * 8e9 / bps / 8), begin = 1000000000;
    const uint64_t half = begin + (uint64_t)(seconds * 5e8), end = begin + (uint64_t)(seconds * 1e9);
    uint64_t served = 0;

    memset(&p, 0, sizeof(p));
    for (int i = 0; i < flows; i++) {
        p.rates[i].profile = roce_rate_profile("sigcomm15");
        p.rates[i].line = &p.line;
    }
    for (uint64_t now = begin; now < end; now += step) {
        if (now - half < step)
            memset(p.served, 0, sizeof(p.served));
        path_step(&p, flows, bps, delay, (uint64_t)(PACKET * 8e9 / host_bps), now);
        if (now >= half)
            p.queue_time += (double)p.queued * (double)step;
    }
    for (int i = 0; i < flows; i++)
        served += p.served[i];
    const double used = (double)served * PACKET * 8e9 / bps / (double)(end - half);
    const double queue = p.queue_time / (double)(end - half);
    fprintf(stderr, "# %d flows, %.0f Mb/s: %.2f used, %.0f bytes queued\n", flows, bps / 1e6, used, queue);
    CHECK(used > 0.65);
    CHECK(queue < MOST);
    for (int i = 0; i < flows; i++)
        CHECK(p.served[i] * flows > served / 2 && p.served[i] * flows < served * 2);
}

/* The paper's steps are for 40 Gb/s: with them the queue filled the window on a slow line. */
static void networks_of_any_speed(void)
{
    converges(1, 100e6, 1000000, 1e9, 4);
    converges(2, 100e6, 5000000, 500e6, 4);
    converges(1, 1e9, 100000, 10e9, 8);
    converges(4, 1e9, 100000, 10e9, 8);
    converges(1, 10e9, 20000, 40e9, 0.5);
    converges(4, 10e9, 20000, 40e9, 0.5);
}

static void profiles(void)
{
    struct roce_rate none = {0};
    uint64_t when;

    CHECK(!roce_rate_profile("tahoe"));
    roce_rate_notified(&none, 5);
    roce_rate_sent(&none, 5, 5);
    CHECK(roce_rate_allows(&none, 5, &when));
}

TEST_MAIN(TEST(unpaced_without_congestion), TEST(cut_and_recovery), TEST(pacing_is_exact),
          TEST(clocks_of_two_threads), TEST(congestion_that_stays), TEST(networks_of_any_speed),
          TEST(profiles))

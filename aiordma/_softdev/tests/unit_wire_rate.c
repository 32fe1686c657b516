/* DCQCN's rate in virtual time. */
#include <math.h>
#include <string.h>

#include "../wire_rate.h"
#include "harness.h"

enum { PACKET = 1000 };

static struct wire_rate started(const char *profile)
{
    struct wire_rate rate = {.profile = wire_rate_profile(profile)};

    CHECK(rate.profile);
    return rate;
}

/* Sends as fast as it may, at most `gbps`, for so long. Returns bits per second. */
static double run(struct wire_rate *rate, uint64_t *now, uint64_t ns, double gbps)
{
    const uint64_t begin = *now, each = (uint64_t)(PACKET * 8 / gbps);
    uint64_t bytes = 0, when;

    while (*now < begin + ns) {
        if (wire_rate_allows(rate, *now, &when)) {
            wire_rate_sent(rate, *now, PACKET);
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
    struct wire_rate rate = started("sigcomm15");
    uint64_t now = 1000000000;

    CHECK(near(run(&rate, &now, 1000000, 10), 10e9));
    CHECK(!rate.paced);
}

/* The first notification halves what was sent; without more, five steps bring it back. */
static void cut_and_recovery(void)
{
    struct wire_rate rate = started("sigcomm15");
    uint64_t now = 1000000000;

    run(&rate, &now, 1000000, 10);
    wire_rate_notified(&rate, now);
    CHECK(near(rate.target, 10e9));
    CHECK(near(rate.current, 5e9));
    CHECK(near(run(&rate, &now, 50000, 10), 5e9) || rate.next > now);
    double expected = 5e9;
    now = rate.step_at;
    for (int i = 0; i < 5; i++) {
        uint64_t when;
        now += 55000;
        expected = (10e9 + expected) / 2;
        wire_rate_allows(&rate, now, &when);
        CHECK(near(rate.current, expected));
    }
    const double before = rate.target;
    uint64_t when;
    wire_rate_allows(&rate, now + 55000, &when);
    CHECK(near(rate.target - before, 40e6));
}

static void pacing_is_exact(void)
{
    struct wire_rate rate = started("sigcomm15");
    struct wire_rate_profile frozen = *rate.profile;
    uint64_t now = 1000000000;

    frozen.step_ns = frozen.alpha_ns = UINT64_MAX / 2;
    frozen.step_bytes = UINT64_MAX;
    rate.profile = &frozen;
    run(&rate, &now, 1000000, 10);
    for (int i = 0; i < 3; i++)
        wire_rate_notified(&rate, now);
    const double current = rate.current;
    CHECK(current < 1.5e9 && current > 1e9);
    run(&rate, &now, 1000000, 10);
    CHECK(near(run(&rate, &now, 10000000, 10), current));
}

static void congestion_that_stays(void)
{
    static const char *const names[] = {"sigcomm15", "connectx"};

    for (int i = 0; i < 2; i++) {
        struct wire_rate rate = started(names[i]);
        uint64_t now = 1000000000;

        run(&rate, &now, 1000000, 10);
        for (int k = 0; k < 2000; k++) {
            wire_rate_notified(&rate, now);
            now += 50000;
        }
        CHECK(rate.current >= rate.profile->least_bps);
        CHECK(rate.current < 20e6);
        /* And when it is over, all comes back. */
        for (uint64_t end = now + 400000000000; rate.paced && now < end;)
            run(&rate, &now, 100000000, 1);
        CHECK(!rate.paced || rate.current > 1e9);
    }
}

static void profiles(void)
{
    struct wire_rate none = {0};
    uint64_t when;

    CHECK(!wire_rate_profile("tahoe"));
    wire_rate_notified(&none, 5);
    wire_rate_sent(&none, 5, 5);
    CHECK(wire_rate_allows(&none, 5, &when));
}

TEST_MAIN(TEST(unpaced_without_congestion), TEST(cut_and_recovery), TEST(pacing_is_exact),
          TEST(congestion_that_stays), TEST(profiles))

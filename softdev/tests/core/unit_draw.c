/* Numbers drawn at random: none is left out, and none comes again soon. */
#include <stdlib.h>
#include <string.h>

#include "core/internal.h"
#include "tests/harness.h"

enum { COUNT = 1000, AHEAD = 256, DRAWS = 100 * COUNT };

/* With any random numbers, even with constant ones. */
static void distance_and_fairness(void)
{
    for (int kind = 0; kind < 3; kind++) {
        uint16_t ring[COUNT] = {0};
        uint32_t last[COUNT] = {0}, state = 3;
        struct soft_draw draw = {.ring = ring, .count = COUNT, .ahead = AHEAD};

        for (uint32_t n = 1; n <= DRAWS; n++) {
            const uint32_t random = kind == 0 ? 0 : kind == 1 ? UINT32_MAX : test_random(&state);
            const uint32_t drawn = soft_draw(&draw, random);

            CHECK(drawn < COUNT);
            CHECK(!last[drawn] || n - last[drawn] > COUNT - AHEAD);
            last[drawn] = n;
        }
        for (uint32_t i = 0; i < COUNT && kind != 1; i++)
            CHECK(last[i]);
    }
}

/* The kernel's random numbers decide the order, and where it begins. */
static void orders_differ(void)
{
    uint16_t rings[2][COUNT] = {{0}};
    struct soft_draw draws[] = {{.ring = rings[0], .count = COUNT, .ahead = AHEAD},
                                {.ring = rings[1], .count = COUNT, .ahead = AHEAD}};
    int same = 0, next = 0;
    uint32_t before = 0;

    for (int n = 0; n < AHEAD; n++) {
        const uint32_t drawn = soft_draw(&draws[0], soft_random());
        same += drawn == soft_draw(&draws[1], soft_random());
        next += drawn == before + 1;
        before = drawn;
    }
    CHECK(same < AHEAD / 8);
    CHECK(next < AHEAD / 8);
}

TEST_MAIN(TEST(distance_and_fairness), TEST(orders_differ))

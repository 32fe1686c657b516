/* soft_copy(): that it copies, whatever the addresses, and when it goes another way than memmove(). */
#include <stdlib.h>
#include <string.h>

#include "base/copy.h"
#include "tests/harness.h"

enum { ROOM = 5 * SOFT_COPY_PAGE };

static uint8_t *page_aligned(void)
{
    uint8_t *memory = aligned_alloc(SOFT_COPY_PAGE, ROOM);

    CHECK(memory != NULL);
    return memory;
}

/* Copies in copied, and byte by byte in expected, which hold the same before. */
static void copies(uint8_t *copied, uint8_t *expected, const uint8_t *from, size_t to, size_t n)
{
    soft_copy(copied + to, from, n);
    for (size_t i = 0; i < n; i++)
        expected[to + i] = from[i];
    CHECK(!memcmp(copied, expected, ROOM));
}

static void between_two_areas(void)
{
    static const size_t sizes[] = {0, 1, 1023, 2047, 2048, 2049, 3072, 4096, 4097, 10000};
    uint8_t *from = page_aligned(), *copied = page_aligned(), *expected = page_aligned();

    fill(from, ROOM, 1);
    fill(copied, ROOM, 2);
    fill(expected, ROOM, 2);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
        for (size_t ahead = 0; ahead < 140; ahead++) {
            copies(copied, expected, from, ahead, sizes[i]);
            copies(copied, expected, from + 77, 77 + ahead, sizes[i]);
            copies(copied, expected, from + ahead, 0, sizes[i]);
        }
    free(from);
    free(copied);
    free(expected);
}

static void within_one_area(void)
{
    static const size_t sizes[] = {100, 2048, 5000, 8192};
    uint8_t *moved = page_aligned(), *copied = page_aligned();

    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
        for (size_t apart = 0; apart < 2 * SOFT_COPY_PAGE + 80; apart += 13) {
            fill(moved, ROOM, 3);
            fill(copied, ROOM, 3);
            memmove(moved + apart, moved, sizes[i]);
            soft_copy(copied + apart, copied, sizes[i]);
            CHECK(!memcmp(copied, moved, ROOM));
            memmove(moved, moved + apart, sizes[i]);
            soft_copy(copied, copied + apart, sizes[i]);
            CHECK(!memcmp(copied, moved, ROOM));
        }
    free(moved);
    free(copied);
}

static void the_slow_case_is_told_apart(void)
{
    uint8_t *memory = page_aligned();
#ifdef __x86_64__
    int slow = 1;
#else
    int slow = 0;
#endif

    /* one page further, or one back, and some bytes ahead */
    CHECK_EQ(soft_copy_is_slow(memory + SOFT_COPY_PAGE + 1, memory, 2048), slow);
    CHECK_EQ(soft_copy_is_slow(memory + SOFT_COPY_PAGE + 48, memory, 2048), slow);
    CHECK_EQ(soft_copy_is_slow(memory + 16, memory + SOFT_COPY_PAGE, 2048), slow);
    CHECK_EQ(soft_copy_is_slow(memory + SOFT_COPY_PAGE + 127, memory, SOFT_COPY_PAGE), slow);
    /* short; no bytes ahead, or far; behind */
    CHECK_EQ(soft_copy_is_slow(memory + SOFT_COPY_PAGE + 1, memory, 2047), 0);
    CHECK_EQ(soft_copy_is_slow(memory + SOFT_COPY_PAGE, memory, 2048), 0);
    CHECK_EQ(soft_copy_is_slow(memory + SOFT_COPY_PAGE + 128, memory, 2048), 0);
    CHECK_EQ(soft_copy_is_slow(memory + SOFT_COPY_PAGE - 1, memory, 2048), 0);
    /* they overlap */
    CHECK_EQ(soft_copy_is_slow(memory + SOFT_COPY_PAGE + 1, memory, SOFT_COPY_PAGE + 2), 0);
    CHECK_EQ(soft_copy_is_slow(memory + 1, memory + SOFT_COPY_PAGE, SOFT_COPY_PAGE), 0);
    free(memory);
}

TEST_MAIN(TEST(between_two_areas), TEST(within_one_area), TEST(the_slow_case_is_told_apart))

/* Mutations of lists of steps for libFuzzer: adds, removes, swaps and repeats whole steps, gives fields meaningful
 * values, and now and then applies arbitrary changes. Included by a fuzzer's fuzz_mutate.c, behind its fuzz_steps.h,
 * which says what a step is; that file defines the two functions that are declared here. */
#ifndef SOFTDEV_TESTS_FUZZ_MUTATE_H
#define SOFTDEV_TESTS_FUZZ_MUTATE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed);

/* A meaningful step. */
static struct step sensible(void);
static void change_field(struct step *s);

static uint32_t state;

static uint32_t below(uint32_t n)
{
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return state % n;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed)
{
    struct step steps[STEPS];
    size_t n = size / STEP_BYTES, most = max_size / STEP_BYTES;

    state = seed ? seed : 1;
    if (most > STEPS)
        most = STEPS;
    if (!most || below(32) == 0)
        return LLVMFuzzerMutate(data, size, max_size);
    n = n > most ? most : n;
    memcpy(steps, data, n * STEP_BYTES);
    for (uint32_t times = 1 + below(4); times; times--) {
        const size_t i = n ? below((uint32_t)n) : 0, j = n ? below((uint32_t)n) : 0;
        const uint32_t what = n ? below(8) : 0;
        if (what < 3 && n < most) { /* inserts a new step, or repeats one, anywhere */
            const struct step s = what == 2 ? steps[j] : sensible();
            memmove(&steps[i + 1], &steps[i], (n - i) * STEP_BYTES);
            steps[i] = s;
            n++;
        } else if (what == 3 && n > 1) {
            n--;
            memmove(&steps[i], &steps[i + 1], (n - i) * STEP_BYTES);
        } else if (what == 4) {
            const struct step s = steps[i];
            steps[i] = steps[j];
            steps[j] = s;
        } else if (n) {
            change_field(&steps[i]);
        }
    }
    memcpy(data, steps, n * STEP_BYTES);
    return n * STEP_BYTES;
}

#endif

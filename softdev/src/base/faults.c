/*
 * Injected faults for tests: parsing the settings and drawing. softdev_faults() describes the kinds.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

atomic_bool soft_faults_on;

static const char *const names[SOFT_FAULT_KINDS] = {
	[SOFT_FAULT_EVENT] = "event",
	[SOFT_FAULT_SPURIOUS] = "spurious",
	[SOFT_FAULT_ERROR] = "error",
	[SOFT_FAULT_DROP] = "drop",
	[SOFT_FAULT_DUPLICATE] = "duplicate",
	[SOFT_FAULT_DELAY] = "delay",
	[SOFT_FAULT_REORDER] = "reorder",
	[SOFT_FAULT_CORRUPT] = "corrupt",
	[SOFT_FAULT_ROCE_DROP] = "wire_drop",
	[SOFT_FAULT_ROCE_DUPLICATE] = "wire_duplicate",
	[SOFT_FAULT_ROCE_REORDER] = "wire_reorder",
	[SOFT_FAULT_ROCE_CORRUPT] = "wire_corrupt",
	[SOFT_FAULT_ROCE_DELAY] = "wire_delay",
	[SOFT_FAULT_ROCE_MARK] = "wire_mark",
	[SOFT_FAULT_ROCE_RENUMBER] = "wire_renumber",
};
enum { SCALE_BITS = 53 };
static _Atomic(uint64_t) thresholds[SOFT_FAULT_KINDS]; /* of 2^53 */
static _Atomic(uint64_t) counter;

/* splitmix64: the n-th draw depends on seed and n only. */
static uint64_t draw(uint64_t n)
{
	n = (n ^ (n >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	n = (n ^ (n >> 27)) * UINT64_C(0x94d049bb133111eb);
	return n ^ (n >> 31);
}

bool soft_fault_hit(enum soft_fault kind)
{
	uint64_t threshold = atomic_load_explicit(&thresholds[kind], memory_order_relaxed);

	if (!threshold)
		return false;
	return draw(atomic_fetch_add(&counter, UINT64_C(0x9e3779b97f4a7c15))) >> (64 - SCALE_BITS) < threshold;
}

struct plan {
	uint64_t thresholds[SOFT_FAULT_KINDS], seed;
	bool seeded;
};

/* Parses one "name=number". */
static bool parse(char *item, struct plan *plan)
{
	char *value = strchr(item, '='), *end;

	if (!value || !value[1])
		return false;
	*value++ = 0;
	if (!strcmp(item, "seed")) {
		plan->seed = strtoull(value, &end, 0);
		plan->seeded = true;
		return !*end;
	}
	double p = strtod(value, &end);
	if (*end || !(p >= 0 && p <= 1))
		return false;
	for (int k = 0; k < SOFT_FAULT_KINDS; k++) {
		if (strcmp(item, names[k]) != 0)
			continue;
		plan->thresholds[k] = (uint64_t)(p * (double)(UINT64_C(1) << SCALE_BITS));
		return true;
	}
	return false;
}

SOFT_EXPORT int softdev_faults(const char *spec)
{
	struct plan plan = { 0 };
	char *copy = strdup(spec ? spec : ""), *rest = copy, *item;
	bool ok = copy, any = false;

	while (ok && (item = strsep(&rest, ",")))
		ok = !*item || parse(item, &plan);
	free(copy);
	if (!ok)
		return EINVAL;
	if (plan.seeded)
		atomic_store(&counter, plan.seed);
	for (int k = 0; k < SOFT_FAULT_KINDS; k++) {
		atomic_store(&thresholds[k], plan.thresholds[k]);
		any |= plan.thresholds[k] != 0;
	}
	atomic_store(&soft_faults_on, any);
	return 0;
}

void soft_faults_read(void)
{
	const char *spec = getenv("SOFTDEV_FAULTS");

	if (spec && softdev_faults(spec))
		fprintf(stderr,
			"softdev: SOFTDEV_FAULTS=\"%s\" is not understood, so no faults are made; wanted: seed=N "
			"and "
			"event, spurious, error, drop, duplicate, delay, reorder or corrupt with a probability from 0 "
			"to "
			"1, by commas\n",
			spec);
}

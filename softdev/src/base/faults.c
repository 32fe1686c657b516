/*
 * Faults by chance: their names, and the draws. core/faults.c decides which there are at a time.
 */
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
	[SOFT_FAULT_RETRY] = "retry",
	[SOFT_FAULT_RNR] = "rnr",
	[SOFT_FAULT_CQE_LOST] = "cqe_lost",
	[SOFT_FAULT_CQE_LATE] = "cqe_late",
	[SOFT_FAULT_CQE_TWICE] = "cqe_twice",
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
static _Atomic(uint64_t) hits[SOFT_FAULT_KINDS];
static _Atomic(uint64_t) counter;
static _Atomic(uint64_t) seeded;

/* splitmix64: the n-th draw depends on seed and n only. */
static uint64_t mix(uint64_t n)
{
	n = (n ^ (n >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	n = (n ^ (n >> 27)) * UINT64_C(0x94d049bb133111eb);
	return n ^ (n >> 31);
}

uint64_t soft_fault_draw(void)
{
	return mix(atomic_fetch_add(&counter, UINT64_C(0x9e3779b97f4a7c15)));
}

uint64_t soft_seed_draw(uint64_t n)
{
	return mix(atomic_load_explicit(&seeded, memory_order_relaxed) + (n + 1) * UINT64_C(0x9e3779b97f4a7c15));
}

bool soft_fault_hit(enum soft_fault kind)
{
	uint64_t threshold = atomic_load_explicit(&thresholds[kind], memory_order_relaxed);

	if (!threshold || soft_fault_draw() >> (64 - SCALE_BITS) >= threshold)
		return false;
	atomic_fetch_add_explicit(&hits[kind], 1, memory_order_relaxed);
	return true;
}

int soft_fault_named(const char *name)
{
	for (int kind = 0; kind < SOFT_FAULT_KINDS; kind++)
		if (!strcmp(name, names[kind]))
			return kind;
	return -1;
}

const char *soft_fault_name(enum soft_fault kind)
{
	return names[kind];
}

uint64_t soft_fault_hits(enum soft_fault kind)
{
	return atomic_load_explicit(&hits[kind], memory_order_relaxed);
}

void soft_fault_seed(uint64_t seed)
{
	atomic_store(&counter, seed);
	atomic_store(&seeded, seed);
}

void soft_fault_set(enum soft_fault kind, uint64_t threshold)
{
	atomic_store(&thresholds[kind], threshold);
}

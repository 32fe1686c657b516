/*
 * Faults on purpose, for tests. AIORDMA_SOFT_FAULTS="seed=7,event=0.01,error=1e-4": a probability for each kind,
 * and the seed that makes a run repeatable (per process; threads draw from one sequence).
 *
 *   event      a completion event is lost        spurious   a completion channel is readable for nothing
 *   error      a work request fails              drop       a UD datagram is lost
 *   delay      an acknowledgement comes late
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"

bool soft_faults_on;

static const char *const names[SOFT_FAULT_KINDS] = {
	[SOFT_FAULT_EVENT] = "event", [SOFT_FAULT_SPURIOUS] = "spurious", [SOFT_FAULT_ERROR] = "error",
	[SOFT_FAULT_DROP] = "drop",   [SOFT_FAULT_DELAY] = "delay",
};
static uint64_t thresholds[SOFT_FAULT_KINDS]; /* of 2^53 */
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
	if (!thresholds[kind])
		return false;
	return draw(atomic_fetch_add(&counter, UINT64_C(0x9e3779b97f4a7c15))) >> 11 < thresholds[kind];
}

void soft_faults_read(void)
{
	const char *text = getenv("AIORDMA_SOFT_FAULTS");
	char *copy = text ? strdup(text) : NULL, *rest = copy, *item;

	while (copy && (item = strsep(&rest, ","))) {
		char *value = strchr(item, '='), *end = value;
		bool known = false;

		if (!*item)
			continue;
		if (value) {
			*value++ = 0;
			double p = strtod(value, &end);
			if (end != value && !*end && !strcmp(item, "seed")) {
				atomic_store(&counter, strtoull(value, NULL, 0));
				known = true;
			}
			for (int k = 0; k < SOFT_FAULT_KINDS && end != value && !*end && p >= 0 && p <= 1; k++) {
				if (strcmp(item, names[k]) != 0)
					continue;
				thresholds[k] = (uint64_t)(p * 9007199254740992.0);
				soft_faults_on |= thresholds[k] != 0;
				known = true;
			}
		}
		if (!known)
			fprintf(stderr,
				"aiordma: AIORDMA_SOFT_FAULTS: \"%s\" is not seed=N or one of event, spurious, error, "
				"drop, "
				"delay with a probability from 0 to 1; ignored\n",
				item);
	}
	free(copy);
}

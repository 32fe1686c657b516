/*
 * Runs: packets that are sent as one, which the kernel or an adapter makes packets of (UDP_SEGMENT). Over IPv4 the copies
 * count their identification, the ICRC covers it, and nothing but the outcome tells whether somebody on the way counts
 * otherwise than Linux does, from 0. So it is tried for each pair of addresses: with two packets, of which the second one
 * must be acknowledged without being sent again. What is sent again goes by itself, so a mistake costs one repetition.
 *
 * Devices of our own see no headers and find the number by the ICRC: with them nothing needs to be proven. They have a
 * record of their own, which begins as proven, and whose good news says nothing about others at that address.
 *
 *   untried, or not lately --(the second one arrived)--> proven --(several in a row did not)--> off, for a time that doubles
 *
 * No sockets, no clock. Any thread at any time.
 */
#ifndef AIORDMA_ROCE_RUNS_H
#define AIORDMA_ROCE_RUNS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* What became of packets behind the first of a run. */
enum roce_heard {
	ROCE_HEARD_NOTHING,
	ROCE_HEARD_ARRIVED,
	ROCE_HEARD_LOST,    /* they, and not what was before them */
	ROCE_HEARD_UNCLEAR, /* silence */
};

struct roce_runs {
	uint8_t src[16], dst[16];
	bool ours;
	unsigned users;
	uint32_t doubt;
	uint64_t pause_ns, proven_at;
	atomic_bool proven;
	_Atomic(uint64_t) try_at, arrived_at;
};

/* Of that pair. ours: devices of our own there. NULL: too many pairs are in use, runs of this one cannot be watched. */
struct roce_runs *roce_runs_of(const uint8_t src[16], const uint8_t dst[16], bool ours);
void roce_runs_release(struct roce_runs *runs);
void roce_runs_after_fork(void);

enum roce_runs_use {
	ROCE_RUNS_NONE,
	ROCE_RUNS_TRY, /* one of two packets */
	ROCE_RUNS_NEW, /* of packets that are sent for the first time */
	ROCE_RUNS_ALL,
};
/* watched: losses are noticed. tries: somebody would hear what became of a trial. */
enum roce_runs_use roce_runs_use(const struct roce_runs *runs, bool watched, bool tries, uint64_t now);
/* A trial is on its way. */
void roce_runs_tried(struct roce_runs *runs, uint64_t now);
void roce_runs_heard(struct roce_runs *runs, enum roce_heard what, uint64_t now);

#endif

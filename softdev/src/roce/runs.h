/*
 * Runs: packets passed to the kernel as one message, which the kernel or an adapter splits (UDP_SEGMENT). Over IPv4 the
 * split packets count their identification up. The ICRC covers it, and only the outcome shows whether a device on the
 * path counts differently from Linux, which starts at 0. So each pair of addresses has a trial: two packets, of which
 * the second must be acknowledged without retransmission. Retransmitted packets leave singly, so a mistake costs one
 * retransmission.
 *
 * softdev devices cannot see the headers and find the identification by the ICRC, so runs to them need no proof. They
 * have a record of their own, which begins as proven, and whose successes prove nothing about other devices at that
 * address.
 *
 *   untried, or not lately --(the second one arrived)--> proven --(several in a row did not)--> off, for doubling times
 *
 * No sockets, no clock. Any thread may call at any time.
 */
#ifndef SOFTDEV_ROCE_RUNS_H
#define SOFTDEV_ROCE_RUNS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* What became of packets behind the first of a run. */
enum roce_heard {
	ROCE_HEARD_NOTHING,
	ROCE_HEARD_ARRIVED,
	ROCE_HEARD_LOST,    /* they were lost, and the packets before them were not */
	ROCE_HEARD_UNCLEAR, /* no answer */
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

/* The record of that pair. ours: softdev devices there. NULL: too many pairs are in use, so this one cannot be
 * watched. */
struct roce_runs *roce_runs_of(const uint8_t src[16], const uint8_t dst[16], bool ours);
void roce_runs_release(struct roce_runs *runs);
void roce_runs_after_fork(void);

enum roce_runs_use {
	ROCE_RUNS_NONE,
	ROCE_RUNS_TRY, /* of two packets */
	ROCE_RUNS_NEW, /* of packets that are sent for the first time */
	ROCE_RUNS_ALL,
};
/* watched: losses are noticed. tries: the result of a trial would be noticed. */
enum roce_runs_use roce_runs_use(const struct roce_runs *runs, bool watched, bool tries, uint64_t now);
/* A trial is in flight. */
void roce_runs_tried(struct roce_runs *runs, uint64_t now);
void roce_runs_heard(struct roce_runs *runs, enum roce_heard what, uint64_t now);

#endif

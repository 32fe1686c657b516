/*
 * DCQCN, the sender's side (Zhu and others, SIGCOMM 2015): a rate per queue pair that falls with each congestion
 * notification and recovers in steps. No clocks, no sockets.
 *
 * Pacing starts with the first notification and ends when the rate is back at line rate. The first notification cuts
 * the rate measured so far, not the line rate: a host that sends 5 Gb/s on a 100 Gb/s link would otherwise not slow
 * down.
 */
#ifndef SOFTDEV_ROCE_RATE_H
#define SOFTDEV_ROCE_RATE_H

#include <stdbool.h>
#include <stdint.h>

struct roce_rate_profile {
	const char *name;
	double gain;               /* g: weight of the newest notification in alpha */
	uint64_t alpha_ns;         /* K: alpha falls after each such period without a notification */
	uint64_t step_ns;          /* T: the rate rises after each such period, */
	uint64_t step_bytes;       /* B: or after so many bytes sent */
	uint32_t fast_steps;       /* F: steps that halve the distance to the old rate, before the rate exceeds it */
	double add_bps, hyper_bps; /* R_AI, R_HAI: increase in bits per second, by one kind of step and by both */
	double least_bps, line_bps;
};
/* "sigcomm15" (the paper's) or "connectx" (a ConnectX adapter's defaults). NULL: no such profile. */
const struct roce_rate_profile *roce_rate_profile(const char *name);

/* State that the flows of a process share. */
struct roce_line {
	_Atomic double fastest; /* highest bits per second that one flow sustained */
};

struct roce_rate {
	const struct roce_rate_profile *profile; /* NULL: never paced */
	struct roce_line *line;
	bool paced;
	double current, target, alpha; /* RC, RT */
	double slower; /* factor below the profile's network speed: the profile's times are stretched by it */
	uint64_t cut_at;
	uint64_t alpha_at, step_at; /* time of the last alpha update and the last step */
	uint64_t bytes;             /* since the last step by bytes */
	uint32_t time_steps, byte_steps, hyper_steps;
	uint64_t next; /* earliest time of the next packet */
	uint64_t measured_at, measured_bytes;
	double measured;
	uint64_t lasting_at, lasting_bytes;
};

/* A congestion notification has arrived. */
void roce_rate_notified(struct roce_rate *rate, uint64_t now);
/* Whether a packet may leave now; otherwise *when is the time at which it may. */
bool roce_rate_allows(struct roce_rate *rate, uint64_t now, uint64_t *when);
void roce_rate_sent(struct roce_rate *rate, uint64_t now, uint32_t bytes);

#endif

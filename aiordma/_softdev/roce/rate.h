/*
 * DCQCN, the sender's side (Zhu and others, SIGCOMM 2015): a rate per queue pair that falls with each congestion
 * notification and comes back in steps. No clocks, no sockets.
 *
 * Until the first notification nothing is paced, as it is again when the rate has come back to the line's. The rate
 * that the first one cuts is what was being sent: a host that sends 5 Gb/s on a line of 100 would not notice else.
 */
#ifndef AIORDMA_ROCE_RATE_H
#define AIORDMA_ROCE_RATE_H

#include <stdbool.h>
#include <stdint.h>

struct roce_rate_profile {
	const char *name;
	double gain;               /* g: weight of the newest notification in alpha */
	uint64_t alpha_ns;         /* K: alpha falls each time so long has passed without one */
	uint64_t step_ns;          /* T: the rate rises each time so long has passed, */
	uint64_t step_bytes;       /* B: or so much was sent */
	uint32_t fast_steps;       /* F: steps that halve the distance to where it was, before it goes beyond */
	double add_bps, hyper_bps; /* R_AI, R_HAI: bits per second beyond, by one kind of step and by both */
	double least_bps, line_bps;
};
/* "sigcomm15" (the paper's) or "connectx" (a ConnectX adapter's defaults). NULL: no such profile. */
const struct roce_rate_profile *roce_rate_profile(const char *name);

/* What the flows of a process have in common. */
struct roce_line {
	_Atomic double fastest; /* bits per second that one has sent for a while */
};

struct roce_rate {
	const struct roce_rate_profile *profile; /* NULL: never paced */
	struct roce_line *line;
	bool paced;
	double current, target, alpha; /* RC, RT */
	double slower;                 /* than the network that the profile is for: its times are so much longer */
	uint64_t cut_at;
	uint64_t alpha_at, step_at; /* when that last happened */
	uint64_t bytes;             /* since the last step by bytes */
	uint32_t time_steps, byte_steps, hyper_steps;
	uint64_t next; /* the next packet may go then */
	uint64_t measured_at, measured_bytes;
	double measured;
	uint64_t lasting_at, lasting_bytes;
};

/* A congestion notification has come. */
void roce_rate_notified(struct roce_rate *rate, uint64_t now);
/* May a packet go now? Else *when says when. */
bool roce_rate_allows(struct roce_rate *rate, uint64_t now, uint64_t *when);
void roce_rate_sent(struct roce_rate *rate, uint64_t now, uint32_t bytes);

#endif

/*
 * The reaction point of DCQCN.
 */
#include "roce/rate.h"

#include <stddef.h>
#include <string.h>

enum {
	MEASURE_NS = 50000,
	EARLY_NS = 50000,       /* timers are no finer: packets may leave this much ahead of time */
	STEPS_AT_ONCE = 100000, /* after a long pause */
	LASTING_NS = 10000000,
	CUT_NS = 50000, /* between two notifications of the paper's receivers */
};

/* The network speed that the profiles' steps were chosen for, and the largest factor by which they adapt to a slower
 * one. */
static const double profile_bps = 40e9, slowest = 100;

static const struct roce_rate_profile profiles[] = {
	{
		.name = "sigcomm15",
		.gain = 1.0 / 256,
		.alpha_ns = 55000,
		.step_ns = 55000,
		.step_bytes = 10000000,
		.fast_steps = 5,
		.add_bps = 40e6,
		.hyper_bps = 400e6, /* the paper gives none: ten times the other, as in QCN */
		.least_bps = 1e6,
		.line_bps = 100e9,
	},
	{
		.name = "connectx",
		.gain = 5.0 / 1024,
		.alpha_ns = 1000,
		.step_ns = 300000,
		.step_bytes = 32767,
		.fast_steps = 1,
		.add_bps = 5e6,
		.hyper_bps = 50e6,
		.least_bps = 1e6,
		.line_bps = 100e9,
	},
};

const struct roce_rate_profile *roce_rate_profile(const char *name)
{
	for (size_t i = 0; i < sizeof(profiles) / sizeof(*profiles); i++)
		if (!strcmp(profiles[i].name, name))
			return &profiles[i];
	return NULL;
}

static double at_most(double value, double most)
{
	return value < most ? value : most;
}

/* Below 0: threads read the clock before they take the lock, so that one may come with an earlier time than another
 * before it. */
static int64_t since(uint64_t now, uint64_t then)
{
	return (int64_t)(now - then);
}

static int64_t stretch(const struct roce_rate *r, uint64_t ns)
{
	return (int64_t)((double)ns * r->slower);
}

static void step(struct roce_rate *r)
{
	const struct roce_rate_profile *p = r->profile;
	const uint32_t more = r->time_steps > r->byte_steps ? r->time_steps : r->byte_steps;
	const uint32_t less = r->time_steps > r->byte_steps ? r->byte_steps : r->time_steps;

	if (less > p->fast_steps)
		r->target += ++r->hyper_steps * p->hyper_bps / r->slower;
	else if (more > p->fast_steps)
		r->target += p->add_bps / r->slower;
	r->target = at_most(r->target, p->line_bps);
	r->current = at_most((r->target + r->current) / 2, p->line_bps);
	/* The rate approaches the line rate without reaching it: near is enough. */
	if (r->current > p->line_bps * 0.99)
		r->paced = false;
}

/* Lowers alpha and raises the rate for the elapsed time. */
static void catch_up(struct roce_rate *r, uint64_t now)
{
	const struct roce_rate_profile *p = r->profile;
	const int64_t alpha_ns = stretch(r, p->alpha_ns), step_ns = stretch(r, p->step_ns);

	for (uint32_t n = 0; r->paced && since(now, r->alpha_at) >= alpha_ns && n < STEPS_AT_ONCE; n++) {
		r->alpha_at += (uint64_t)alpha_ns;
		r->alpha *= 1 - p->gain;
	}
	for (uint32_t n = 0; r->paced && since(now, r->step_at) >= step_ns && n < STEPS_AT_ONCE; n++) {
		r->step_at += (uint64_t)step_ns;
		r->time_steps++;
		step(r);
	}
}

static void faster(const struct roce_rate *r, double bps)
{
	if (bps > r->line->fastest)
		r->line->fastest = bps;
}

/*
 * The factor by which the profile's times are too short here, and its steps too large. It derives from the fastest flow
 * of the process, not from each flow's own rate: flows that share a line must agree on it, or the one with the larger
 * steps takes all.
 */
static double slowness(const struct roce_rate *r)
{
	const double fastest = r->line->fastest;

	if (fastest >= profile_bps)
		return 1;
	return fastest > 0 ? at_most(profile_bps / fastest, slowest) : slowest;
}

void roce_rate_notified(struct roce_rate *r, uint64_t now)
{
	const struct roce_rate_profile *p = r->profile;

	if (!p)
		return;
	if (r->paced) {
		if (since(now, r->cut_at) < stretch(r, CUT_NS))
			return;
		catch_up(r, now);
	}
	if (!r->paced) {
		const int64_t passed = since(now, r->measured_at);
		const double lately = passed > 0 ? (double)r->measured_bytes * 8e9 / (double)passed : 0;
		r->current = at_most(r->measured > lately ? r->measured : lately, p->line_bps);
		r->alpha = 1;
		r->next = now;
		faster(r, r->current);
	}
	r->paced = true;
	r->cut_at = now;
	r->slower = slowness(r);
	r->target = r->current;
	r->current *= 1 - r->alpha / 2;
	if (r->current < p->least_bps)
		r->current = p->least_bps;
	r->alpha = (1 - p->gain) * r->alpha + p->gain;
	r->alpha_at = r->step_at = now;
	r->bytes = 0;
	r->time_steps = r->byte_steps = r->hyper_steps = 0;
}

bool roce_rate_allows(struct roce_rate *r, uint64_t now, uint64_t *when)
{
	if (!r->paced)
		return true;
	catch_up(r, now);
	if (!r->paced || r->next <= now + EARLY_NS)
		return true;
	*when = r->next;
	return false;
}

void roce_rate_sent(struct roce_rate *r, uint64_t now, uint32_t bytes)
{
	if (!r->profile)
		return;
	if (since(now, r->measured_at) >= MEASURE_NS) {
		r->measured = (double)r->measured_bytes * 8e9 / (double)(now - r->measured_at);
		r->measured_at = now;
		r->measured_bytes = 0;
	}
	r->measured_bytes += bytes;
	if (since(now, r->lasting_at) >= LASTING_NS) {
		const double lasting = (double)r->lasting_bytes * 8e9 / (double)(now - r->lasting_at);
		faster(r, lasting);
		r->lasting_at = now;
		r->lasting_bytes = 0;
	}
	r->lasting_bytes += bytes;
	if (!r->paced)
		return;
	if (r->next < now)
		r->next = now;
	r->next += (uint64_t)((double)bytes * 8e9 / r->current);
	r->bytes += bytes;
	if (r->bytes >= r->profile->step_bytes) {
		r->bytes -= r->profile->step_bytes;
		r->byte_steps++;
		step(r);
	}
}

#include "roce/runs.h"

#include <pthread.h>
#include <string.h>

enum {
	PAIRS = 512,
	WEIGHS_LOST = 4,
	WEIGHS_UNCLEAR = 1,
	ENOUGH = 3 * WEIGHS_LOST, /* of doubt, in a row */
	ENOUGH_PROVEN =
		6 * WEIGHS_LOST, /* networks lose packets: the more packets a run has, the more often one is lost */
};
static const uint64_t between_trials_ns = 10000000, pause_least_ns = 1000000000, pause_most_ns = 64000000000;
/* Against times that may be in the future: threads read the clock before they come here. */
static const int64_t settled_ns = 10000000000, /* proven for so long: a later failure has another cause */
	lately_ns = 10000000000;

/* In no particular order; a pair without users stays until another needs its place. */
static struct roce_runs pairs[PAIRS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static bool is(const struct roce_runs *r, const uint8_t src[16], const uint8_t dst[16], bool ours)
{
	return !memcmp(r->dst, dst, 16) && !memcmp(r->src, src, 16) && r->ours == ours;
}

struct roce_runs *roce_runs_of(const uint8_t src[16], const uint8_t dst[16], bool ours)
{
	struct roce_runs *found = NULL;

	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < PAIRS; i++) {
		struct roce_runs *r = &pairs[i];
		if (is(r, src, dst, ours)) {
			found = r;
			break;
		}
		/* The pair without news for the longest time. */
		if (!r->users && (!found || atomic_load(&r->arrived_at) < atomic_load(&found->arrived_at)))
			found = r;
	}
	if (found && !is(found, src, dst, ours)) {
		memset(found, 0, sizeof(*found));
		memcpy(found->src, src, 16);
		memcpy(found->dst, dst, 16);
		found->ours = ours;
		atomic_store(&found->proven, ours);
	}
	if (found)
		found->users++;
	pthread_mutex_unlock(&lock);
	return found;
}

void roce_runs_release(struct roce_runs *runs)
{
	if (!runs)
		return;
	pthread_mutex_lock(&lock);
	runs->users--;
	pthread_mutex_unlock(&lock);
}

void roce_runs_after_fork(void)
{
	pthread_mutex_init(&lock, NULL);
}

enum roce_runs_use roce_runs_use(const struct roce_runs *runs, bool watched, bool tries, uint64_t now)
{
	if (!runs)
		return ROCE_RUNS_NONE;
	if (!atomic_load_explicit(&runs->proven, memory_order_relaxed))
		return watched && tries && now >= atomic_load_explicit(&runs->try_at, memory_order_relaxed) ?
			       ROCE_RUNS_TRY :
			       ROCE_RUNS_NONE;
	if (!watched && (int64_t)(now - atomic_load_explicit(&runs->arrived_at, memory_order_relaxed)) > lately_ns)
		return ROCE_RUNS_NONE;
	return ROCE_RUNS_NEW;
}

void roce_runs_tried(struct roce_runs *runs, uint64_t now)
{
	pthread_mutex_lock(&lock);
	if (atomic_load(&runs->try_at) < now + between_trials_ns)
		atomic_store(&runs->try_at, now + between_trials_ns);
	pthread_mutex_unlock(&lock);
}

static void arrived(struct roce_runs *runs, uint64_t now)
{
	atomic_store(&runs->arrived_at, now);
	runs->doubt = 0;
	if (!atomic_exchange(&runs->proven, true))
		runs->proven_at = now;
	else if ((int64_t)(now - runs->proven_at) > settled_ns)
		runs->pause_ns = 0;
}

static void doubted(struct roce_runs *runs, uint32_t weight, uint64_t now)
{
	const bool paused = atomic_load(&runs->try_at) > now + between_trials_ns;

	if (paused && !atomic_load(&runs->proven))
		return; /* sent before the pause */
	runs->doubt += weight;
	if (runs->doubt < (atomic_load(&runs->proven) ? ENOUGH_PROVEN : ENOUGH))
		return;
	runs->doubt = 0;
	runs->pause_ns = !runs->pause_ns                ? pause_least_ns :
			 runs->pause_ns < pause_most_ns ? 2 * runs->pause_ns :
							  pause_most_ns;
	atomic_store(&runs->proven, false);
	atomic_store(&runs->try_at, now + runs->pause_ns);
}

void roce_runs_heard(struct roce_runs *runs, enum roce_heard what, uint64_t now)
{
	pthread_mutex_lock(&lock);
	if (what == ROCE_HEARD_ARRIVED)
		arrived(runs, now);
	else if (what != ROCE_HEARD_NOTHING)
		doubted(runs, what == ROCE_HEARD_LOST ? WEIGHS_LOST : WEIGHS_UNCLEAR, now);
	pthread_mutex_unlock(&lock);
}

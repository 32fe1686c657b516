/*
 * The device's clock, which the timers of its protocols and its faults go by: the system's, or one that the program
 * moves, for tests in virtual time. It never goes back, also where it changes from one to the other.
 *
 * Other processes have clocks of their own. So what waits for them goes by the system's (soft_now_ns()): lanes of shared
 * memory, the wake-ups of sleeping threads, and the end of the process.
 */
#include <sched.h>
#include <unistd.h>

#include "core/internal.h"

static atomic_bool driven;                      /* the program moves it */
static _Atomic(uint64_t) moved;                 /* where to */
static _Atomic(uint64_t) wanted = UINT64_MAX;   /* while it does: the first time that somebody waits for */
static _Atomic(uint64_t) ahead;                 /* otherwise: of the system's clock (modulo 2^64) */
static _Atomic(soft_clock_follower *) follower; /* timers of a higher folder */
static atomic_uint asked, gone;                 /* rounds of the progress thread */
static pthread_mutex_t moving = PTHREAD_MUTEX_INITIALIZER;
static uint64_t origin; /* what the program calls 0; under `moving` */

uint64_t soft_clock_ns(void)
{
	/* What softdev_clock() has set before it: `moved` or `ahead`. */
	if (soft_unlikely(atomic_load_explicit(&driven, memory_order_acquire)))
		return atomic_load(&moved);
	return soft_now_ns() + atomic_load_explicit(&ahead, memory_order_relaxed);
}

bool soft_clock_is_driven(void)
{
	return atomic_load(&driven);
}

void soft_clock_want(uint64_t when_ns)
{
	uint64_t before = atomic_load(&wanted);

	if (when_ns == UINT64_MAX)
		return;
	if (atomic_load(&driven)) {
		while (when_ns < before && !atomic_compare_exchange_weak(&wanted, &before, when_ns))
			;
		if (when_ns <= atomic_load(&moved))
			soft_timer_want(soft_now_ns());
		/* The program may have given the clock back meanwhile, and its last look come too early. */
		if (atomic_load(&driven))
			return;
	}
	soft_timer_want(when_ns - atomic_load(&ahead));
}

void soft_clock_followed(soft_clock_follower *by)
{
	atomic_store(&follower, by);
}

bool soft_clock_asks(unsigned *round)
{
	*round = atomic_load(&asked);
	return *round != atomic_load(&gone);
}

void soft_clock_gone(unsigned round)
{
	atomic_store(&gone, round);
}

/* Whether the progress thread runs. */
static bool is_open(void)
{
	pthread_mutex_lock(&soft_proc.lock);
	const bool open = soft_proc.nctx;
	pthread_mutex_unlock(&soft_proc.lock);
	return open;
}

/* Everybody looks at the time. What is not due says again what it waits for. */
static void go_round(void)
{
	soft_clock_follower *const follows = atomic_load(&follower);

	if (is_open()) {
		const unsigned round = atomic_fetch_add(&asked, 1) + 1;
		for (unsigned i = 0; (int)(atomic_load(&gone) - round) < 0 && !atomic_load(&soft_proc.stop); i++) {
			if (i % 64 == 0) /* again: the thread that was kicked may be another one by now */
				soft_kick_self();
			if (i < 64)
				sched_yield();
			else
				usleep(50);
		}
	} else {
		soft_faults_tick();
	}
	if (follows)
		follows();
}

SOFT_EXPORT uint64_t softdev_clock(uint64_t now_ns)
{
	/* What one look sets off may set off the next one; but a fault that comes back at once is no reason to stay. */
	enum { ROUNDS = 256 };

	pthread_mutex_lock(&moving);
	const bool was = atomic_load(&driven);
	/* What has arrived came before this time, and may want something of an earlier one. */
	if (atomic_load(&soft_pollers) && is_open())
		soft_fabrics.net->catch_up();
	if (now_ns) {
		const uint64_t before = soft_clock_ns();
		if (!was)
			origin = before - now_ns;
		const uint64_t to = origin + now_ns;
		if (!was || (int64_t)(to - before) > 0)
			atomic_store(&moved, was ? to : before);
		atomic_store(&driven, true);
	} else if (was) {
		atomic_store(&ahead, atomic_load(&moved) - soft_now_ns());
		atomic_store(&driven, false);
	}
	for (unsigned n = 0; n < ROUNDS; n++) {
		/* Nobody needs to look where nobody waits for a time that has come. */
		if (was == (now_ns != 0) && atomic_load(&wanted) > atomic_load(&moved))
			break;
		atomic_store(&wanted, UINT64_MAX);
		go_round();
		if (!now_ns || atomic_load(&wanted) > atomic_load(&moved))
			break;
	}
	const uint64_t next = now_ns ? atomic_load(&wanted) : UINT64_MAX;
	const uint64_t answer = next == UINT64_MAX ? next : next - origin;
	pthread_mutex_unlock(&moving);
	return answer;
}

void soft_clock_after_fork(void)
{
	pthread_mutex_init(&moving, NULL);
	atomic_store(&driven, false);
	atomic_store(&wanted, UINT64_MAX);
	atomic_store(&follower, NULL);
}

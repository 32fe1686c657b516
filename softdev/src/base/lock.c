/*
 * Waiting for a spin lock, and the coarse clock.
 */
#include <sched.h>
#include <time.h>

#include "base/base.h"

/*
 * Whoever has the lock needs it for less than that, unless its processor was taken from it, perhaps for this thread. Then
 * only sleep lets it go on: a thread that has computed a lot is not chosen for some milliseconds (Linux 6.6 and later),
 * and sched_yield() comes back at once all that time.
 */
enum { SPINS = 200, YIELDS = 50, SLEEP_NS = 20000 };

void soft_lock_slow(struct soft_lock *lock)
{
	const struct timespec some = { .tv_nsec = SLEEP_NS };
	unsigned waits = 0;

	do {
		while (atomic_load_explicit(&lock->word, memory_order_relaxed)) {
			waits++;
			if (waits < SPINS)
				soft_pause();
			else if (waits < SPINS + YIELDS)
				sched_yield();
			else
				nanosleep(&some, NULL);
		}
	} while (atomic_exchange_explicit(&lock->word, 1, memory_order_acquire));
}

uint64_t soft_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

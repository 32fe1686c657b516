/*
 * Waiting for a spin lock, and the coarse clock.
 */
#include <sched.h>
#include <time.h>

#include "base/base.h"

void soft_lock_slow(struct soft_lock *lock)
{
	unsigned spins = 0;

	do {
		while (atomic_load_explicit(&lock->word, memory_order_relaxed)) {
			if (++spins < 200)
				soft_pause();
			else
				sched_yield();
		}
	} while (atomic_exchange_explicit(&lock->word, 1, memory_order_acquire));
}

uint64_t soft_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

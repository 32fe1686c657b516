#include "roce/watch.h"

#include <pthread.h>
#include <sched.h>

#include "roce/internal.h"

enum {
	QUIET_NS = 1000000, /* polls for so long: the program does little else */
	OFTEN = 16,         /* polls without packets, or one with packets, within QUIET_NS: it still polls */
	AWAKE = 8,          /* polls since it asked for an event: programs poll once more before they sleep */
};

static atomic_uint polls;                        /* since the progress thread last checked, up to OFTEN */
static _Atomic(uint64_t) polled_from, polled_at; /* without pause or sleep; 0: none */
static atomic_uint kept_out;                     /* polls in a row that could not look */
static atomic_uint since;                        /* polls since a thread last went to sleep, up to AWAKE */
static atomic_uint sleepers;                     /* how often a thread went to sleep */
static pthread_mutex_t watch_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool stopped;       /* change under watch_lock */
static _Atomic(uint64_t) asks_at; /* when roce_watch_ask() checks the polls next */

bool roce_watch_stopped(void)
{
	return atomic_load(&stopped);
}

void roce_watch_ask_later(void)
{
	const uint64_t when = soft_now_ns() + QUIET_NS;

	atomic_store(&asks_at, when);
	soft_timer_want(when);
}

static void watch(bool on)
{
	pthread_mutex_lock(&watch_lock);
	atomic_store(&stopped, !on);
	if (!soft_roce_watch(on) && on)
		atomic_store(&stopped, true);
	pthread_mutex_unlock(&watch_lock);
}

/* slept: the count of sleepers, read before the polls that led to this call. */
static void stop(unsigned slept)
{
	watch(false);
	roce_watch_ask_later();
	if (soft_unlikely(atomic_load(&sleepers) != slept))
		watch(true);
}

/*
 * On a CPU that both threads share, a woken progress thread also runs first. Does not stop the watch for a poll or two
 * between sleeps, since restarting it costs a system call, too. If another thread goes to sleep right now, the caller's
 * next poll, or its own sleep, restarts the watch.
 */
static void consider(void)
{
	const uint64_t now = soft_now_ns(), before = atomic_exchange_explicit(&polled_at, now, memory_order_relaxed);
	uint64_t from = atomic_load_explicit(&polled_from, memory_order_relaxed);

	if (!from || now - before > QUIET_NS) {
		atomic_store_explicit(&polled_from, now, memory_order_relaxed);
	} else if (now - from >= QUIET_NS) {
		watch(false);
		roce_watch_ask_later();
	}
}

void roce_watch_poll(void)
{
	const unsigned n = atomic_load_explicit(&polls, memory_order_relaxed);
	const unsigned awake = atomic_load_explicit(&since, memory_order_relaxed);

	if (awake < AWAKE)
		atomic_store_explicit(&since, awake + 1, memory_order_relaxed);
	if (n < OFTEN)
		atomic_store_explicit(&polls, n + 1, memory_order_relaxed);
	else if (soft_unlikely(!atomic_load_explicit(&stopped, memory_order_relaxed)))
		consider();
}

void roce_watch_kept_out(void)
{
	/* The thread that looks may be waiting for this very CPU. */
	if (atomic_fetch_add_explicit(&kept_out, 1, memory_order_relaxed) % OFTEN == OFTEN - 1)
		sched_yield();
}

void roce_watch_looked(bool found)
{
	if (atomic_load_explicit(&kept_out, memory_order_relaxed))
		atomic_store_explicit(&kept_out, 0, memory_order_relaxed);
	/* The consequences of a packet (an opening window, answers) can take longer than sixteen polls. */
	if (found)
		atomic_store_explicit(&polls, OFTEN, memory_order_relaxed);
}

bool roce_watch_sleeps(void)
{
	atomic_store_explicit(&polled_from, 0, memory_order_relaxed);
	atomic_store_explicit(&kept_out, 0, memory_order_relaxed);
	atomic_store_explicit(&since, 0, memory_order_relaxed);
	atomic_fetch_add(&sleepers, 1);
	if (!atomic_load(&stopped))
		return false;
	watch(true);
	return true;
}

/*
 * A program polls, and finds the progress thread looking each time. On a CPU that both share this would continue: one
 * works, the other polls in vain for all of its time slices, and a stream of WRITEs ran at half speed.
 */
bool roce_watch_hand_over(void)
{
	const unsigned slept = atomic_load(&sleepers);

	if (atomic_load_explicit(&kept_out, memory_order_relaxed) < OFTEN)
		return false;
	atomic_store_explicit(&kept_out, 0, memory_order_relaxed);
	if (!atomic_load(&stopped))
		stop(slept);
	return true;
}

bool roce_watch_program_awake(void)
{
	return atomic_load_explicit(&since, memory_order_relaxed) == AWAKE;
}

bool roce_watch_leave(void)
{
	const unsigned slept = atomic_load(&sleepers);

	if (!roce_watch_program_awake())
		return false;
	if (!atomic_load(&stopped))
		stop(slept);
	return true;
}

bool roce_watch_ask(void)
{
	const uint64_t when = atomic_load(&asks_at);

	if (soft_now_ns() < when)
		soft_timer_want(when); /* another timer went off */
	else if (atomic_exchange(&polls, 0) == OFTEN)
		roce_watch_ask_later();
	else
		return true;
	return false;
}

void roce_watch_after_fork(void)
{
	pthread_mutex_init(&watch_lock, NULL);
	atomic_store(&stopped, false);
	atomic_store(&kept_out, 0);
}

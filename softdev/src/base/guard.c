/*
 * The handler that ends copies without memory.
 */
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "base/copy.h"
#include "base/guard.h"

static pthread_key_t key;
static atomic_bool installed;

enum { SEGV, BUS, SIGNALS };
static const int numbers[SIGNALS] = { SIGSEGV, SIGBUS };
static struct sigaction before[SIGNALS];

/* As if this handler were not there. */
static void pass_on(int number, siginfo_t *info, void *context)
{
	const struct sigaction *was = &before[number == SIGSEGV ? SEGV : BUS];

	if (was->sa_flags & SA_SIGINFO) {
		was->sa_sigaction(number, info, context);
		return;
	}
	if (was->sa_handler != SIG_DFL && was->sa_handler != SIG_IGN) {
		was->sa_handler(number);
		return;
	}
	if (was->sa_handler == SIG_IGN && info->si_code <= 0)
		return; /* sent by a process, and not for a page */
	/* The instruction runs again, and the kernel ends the program where it would have. */
	const struct sigaction end = { .sa_handler = SIG_DFL };
	sigaction(number, &end, NULL);
	if (info->si_code <= 0)
		raise(number);
}

static void on_signal(int number, siginfo_t *info, void *context)
{
	soft_jump *jump = pthread_getspecific(key);

	/* Above 0: the kernel's, and so of this thread's instruction. */
	if (jump && info->si_code > 0) {
		soft_do_jump(*jump);
	}
	pass_on(number, info, context);
}

static void install(void)
{
	/* The signal stays deliverable, as the jump leaves the handler for good. */
	struct sigaction action = { .sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER };

	if (pthread_key_create(&key, NULL))
		return;
	sigemptyset(&action.sa_mask);
	for (int i = 0; i < SIGNALS; i++) {
		/* First what was: a signal may come between both calls. */
		sigaction(numbers[i], NULL, &before[i]);
		sigaction(numbers[i], &action, NULL);
	}
	atomic_store(&installed, true);
}

void soft_guard_install(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, install);
}

void soft_guard_at(soft_jump *jump)
{
	if (soft_likely(atomic_load_explicit(&installed, memory_order_relaxed)))
		pthread_setspecific(key, jump);
}

/*
 * The C library may store the first bytes last (glibc does, around its "rep movsb", and of five to seven bytes), and
 * programs poll the last byte of what arrives, or a counter there. So the last word is a store of its own, or of a
 * few bytes the last one. What is a power of two is one store.
 */
static inline void place(char *to, const char *from, size_t n)
{
	uint64_t last;

	if (soft_likely(n > sizeof(last))) {
		memcpy(&last, from + n - sizeof(last), sizeof(last));
		soft_copy(to, from, n - sizeof(last));
		atomic_thread_fence(memory_order_release);
		memcpy(to + n - sizeof(last), &last, sizeof(last));
		return;
	}
	atomic_thread_fence(memory_order_release); /* it may be the end of a longer message */
	if (!(n & (n - 1))) {
		memmove(to, from, n);
		return;
	}
	const char end = from[n - 1];
	memmove(to, from, n - 1);
	atomic_thread_fence(memory_order_release);
	to[n - 1] = end;
}

static void place_lines(char *to, const char *from, size_t n)
{
	enum { LINE = 64 };

	for (; n >= LINE; to += LINE, from += LINE, n -= LINE) {
		memcpy(to, from, LINE);
		__asm__ volatile("" ::: "memory"); /* one after the other */
	}
	for (volatile char *at = to; n; n--)
		*at++ = *from++;
}

__attribute__((noinline)) static bool copy_whole(void *to, const void *from, size_t n)
{
	return SOFT_GUARDED(place(to, from, n));
}

__attribute__((noinline)) static bool copy_lines(void *to, const void *from, size_t n)
{
	return SOFT_GUARDED(place_lines(to, from, n));
}

bool soft_guard_copy(void *to, const void *from, size_t n)
{
	/* Where it stopped, the C library may have begun anywhere. */
	return soft_likely(copy_whole(to, from, n)) || copy_lines(to, from, n);
}

__attribute__((no_sanitize("thread"))) static void touch(volatile char *at, size_t n, bool write)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);

	for (size_t i = 0; i < n; i += page - (uintptr_t)(at + i) % page) {
		if (write)
			__atomic_fetch_or(at + i, 0, __ATOMIC_RELAXED);
		else
			(void)at[i];
	}
}

__attribute__((noinline, no_sanitize("thread"))) bool soft_guard_probe(void *at, size_t n, bool write)
{
	return SOFT_GUARDED(touch(at, n, write));
}

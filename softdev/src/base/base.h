/*
 * Base of the software device: locks, time, injected faults, shareable memory and the real libibverbs. Depends on no
 * verbs object of the device.
 *
 * The folders, lowest first. Each may include and call what stands to its left, never what stands to its right:
 *
 *   base  ->  core  ->  shm, roce  ->  verbs  ->  cm  ->  preload
 *
 * shm and roce do not depend on each other. A folder's contract is the header with its name (core/core.h); its other
 * headers are not included from outside. Where a lower folder needs a higher one, it calls through a table of
 * operations or a function pointer that it was given (core/path.h). tests/project/test_softdev_layers.py checks all of
 * this.
 *
 * Threads: everything here may be called from any thread and with any lock held, unless stated otherwise.
 */
#ifndef SOFTDEV_BASE_H
#define SOFTDEV_BASE_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/control.h"
#include "base/copy.h"
#include "base/guard.h"
#include "base/names.h"
#include "softdev.h"

/* verbs.h defines these as macros; here the exported functions are meant */
#undef ibv_reg_mr
#undef ibv_reg_mr_iova
#undef ibv_query_port
#undef ibv_get_device_list

#define SOFT_EXPORT __attribute__((visibility("default")))
#define soft_container_of(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))
#define soft_likely(x) __builtin_expect(!!(x), 1)
#define soft_unlikely(x) __builtin_expect(!!(x), 0)

enum { SOFT_CACHE_LINE = 64 };

/* ---- locks ------------------------------------------------------------------------------------------ */

/* Spin lock. A waiter soon yields its time slice, since the holder may share its CPU. */
struct soft_lock {
	atomic_uint word;
};
void soft_lock_slow(struct soft_lock *lock);
static inline void soft_lock(struct soft_lock *lock)
{
	if (soft_unlikely(atomic_exchange_explicit(&lock->word, 1, memory_order_acquire)))
		soft_lock_slow(lock);
}
static inline bool soft_trylock(struct soft_lock *lock)
{
	return !atomic_exchange_explicit(&lock->word, 1, memory_order_acquire);
}
static inline void soft_unlock(struct soft_lock *lock)
{
	atomic_store_explicit(&lock->word, 0, memory_order_release);
}

/* ---- time ------------------------------------------------------------------------------------------- */

uint64_t soft_now_ns(void);
/* A very cheap clock, only good enough to ask whether a long time has passed. */
static inline uint64_t soft_ticks(void)
{
#if defined(__x86_64__)
	return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
	uint64_t ticks;
	__asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
	return ticks;
#else
	return soft_now_ns();
#endif
}
static inline void soft_pause(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

/* ---- random numbers --------------------------------------------------------------------------------- */

/* From the kernel's generator (getrandom(2)), for what must not be guessed. Blocks only while the machine boots. */
uint32_t soft_random(void);

/* ---- addresses -------------------------------------------------------------------------------------- */

static inline bool soft_gid_is_ipv4(const uint8_t gid[16])
{
	static const uint8_t prefix[12] = { [10] = 0xff, [11] = 0xff };

	return !__builtin_memcmp(gid, prefix, sizeof(prefix));
}
static inline bool soft_gid_is_loopback(const uint8_t gid[16])
{
	static const uint8_t ipv6[16] = { [15] = 1 };

	return soft_gid_is_ipv4(gid) ? gid[12] == 127 : !__builtin_memcmp(gid, ipv6, sizeof(ipv6));
}

/* ---- memory that other processes may map ------------------------------------------------------------ */

/* A mapped memfd of that many bytes that cannot be resized. -1 with errno. */
int soft_memfd_create(const char *name, size_t length, void **map);
/*
 * Whether the kernel promises no more memory than it has (vm.overcommit_memory is 2). It counts a memfd page by page
 * then, as they are touched, and may have none left. So theirs are all made at once, and never given back before the end.
 */
bool soft_memfd_strict(void);
/*
 * To be called before a peer gets the descriptor: it can add no seals then, and if it is not to write, it can neither
 * map the memory writable nor open it so. 0, EPERM if the memfd was shared the other way before, EINVAL if the kernel
 * cannot forbid writing (before Linux 5.1).
 */
int soft_memfd_share(int fd, bool writable);
/* A read-only descriptor of the same memory. -1: not available (no /proc). */
int soft_memfd_read_only(int fd);
/* Maps a memfd made by another process; refuses one that could shrink while mapped, and huge pages. NULL with errno. */
void *soft_memfd_map(int fd, size_t length, int prot);

/* ---- injected faults -------------------------------------------------------------------------------- */

enum soft_fault {
	SOFT_FAULT_EVENT,     /* completion event lost */
	SOFT_FAULT_SPURIOUS,  /* completion channel readable without an event */
	SOFT_FAULT_ERROR,     /* a work request fails */
	SOFT_FAULT_DROP,      /* UD datagram lost */
	SOFT_FAULT_DUPLICATE, /* UD datagram delivered twice */
	SOFT_FAULT_DELAY,     /* acknowledgement late */
	SOFT_FAULT_REORDER,   /* UD datagram overtaken by the next one to its QP */
	SOFT_FAULT_CORRUPT,   /* UD datagram with a bit flipped */
	SOFT_FAULT_RETRY,     /* a work request fails: no answer after all retries */
	SOFT_FAULT_RNR,       /* a message finds no receive, though there is one */
	SOFT_FAULT_CQE_LOST,  /* a completion never comes, ... */
	SOFT_FAULT_CQE_LATE,
	SOFT_FAULT_CQE_TWICE,
	SOFT_FAULT_ROCE_DROP, /* packets from other hosts: lost, ... */
	SOFT_FAULT_ROCE_DUPLICATE,
	SOFT_FAULT_ROCE_REORDER,  /* overtaken by the next one */
	SOFT_FAULT_ROCE_CORRUPT,  /* a bit flipped */
	SOFT_FAULT_ROCE_DELAY,    /* a millisecond late */
	SOFT_FAULT_ROCE_MARK,     /* congestion experienced */
	SOFT_FAULT_ROCE_RENUMBER, /* to other hosts, not first of a run: another IPv4 identification */
	SOFT_FAULT_KINDS,
};
/* As many devices, and entries of a GID table, as a fault can name. */
enum { SOFT_FAULT_DEVICES = 4, SOFT_FAULT_GIDS = 64 };
/* Whether there are any faults, of these kinds or of others (core/faults.h). */
extern atomic_bool soft_faults_on;
bool soft_fault_hit(enum soft_fault kind);
/* A number that depends on the seed, and on how many were drawn before. */
uint64_t soft_fault_draw(void);
void soft_fault_seed(uint64_t seed);
/* The n-th draw by the same seed that another user of it makes, who counts by itself. */
uint64_t soft_seed_draw(uint64_t n);
/* The probability, of 2^53. */
void soft_fault_set(enum soft_fault kind, uint64_t threshold);
/* The kind of that name, or -1; the name; how often it has happened. */
int soft_fault_named(const char *name);
const char *soft_fault_name(enum soft_fault kind);
uint64_t soft_fault_hits(enum soft_fault kind);
static inline bool soft_fault(enum soft_fault kind)
{
	return soft_unlikely(atomic_load_explicit(&soft_faults_on, memory_order_relaxed)) && soft_fault_hit(kind);
}

/* ---- the real libibverbs ---------------------------------------------------------------------------- */

/*
 * The dynamic linker finds the device before libibverbs. The device serves its own contexts and passes everything else
 * on. The real library is opened on first use, never from a constructor: a pyverbs that bundles its own libibverbs must
 * be able to load that one first.
 */

/*
 * The real library of that name ("libibverbs", "librdmacm"): the one that the program has loaded already, or else the
 * system's. NULL: none. The device may itself stand as libibverbs.so.1 (`softdev dir`); then the real ones are beside it
 * by other names.
 */
void *soft_real_library(const char *name);
/* Address of name@version in the real libibverbs, or NULL if it has no such symbol. */
void *soft_real_symbol(const char *name, const char *version);

/* Whether the kernel may have RDMA devices. It is asked first where all that the real library could say is "none". */
bool soft_kernel_has_rdma(void);

/* REAL(ibv_alloc_pd, "IBVERBS_1.1")(context): the real function; NULL when libibverbs is not installed. */
#define REAL(name, version)                                                                                            \
	({                                                                                                             \
		static _Atomic(void *) cached_;                                                                        \
		void *f_ = atomic_load_explicit(&cached_, memory_order_relaxed);                                       \
		if (!f_) {                                                                                             \
			f_ = soft_real_symbol(#name, version);                                                         \
			atomic_store_explicit(&cached_, f_, memory_order_relaxed);                                     \
		}                                                                                                      \
		(__typeof__(&name))f_;                                                                                 \
	})

#endif

/*
 * Pass-through to the real libibverbs.
 *
 * The device is found by the dynamic linker before libibverbs and answers for its own contexts; everything
 * else is handed on. The real library is opened on first need, never from a constructor: a pyverbs that
 * brings its own libibverbs must be able to load that one first.
 */
#ifndef AIORDMA_SOFT_INTERPOSE_H
#define AIORDMA_SOFT_INTERPOSE_H

#include <infiniband/verbs.h>

/* verbs.h turns these into macros; here the exported functions are meant */
#undef ibv_reg_mr
#undef ibv_reg_mr_iova
#undef ibv_query_port
#undef ibv_get_device_list

#define SOFT_EXPORT __attribute__((visibility("default")))

/* Address of name@version in the real libibverbs, or NULL when there is none. Counts as a call. */
void *soft_real_symbol(const char *name, const char *version);

/* REAL(ibv_alloc_pd, "IBVERBS_1.1")(context): the real function; NULL when libibverbs is not installed. */
#define REAL(name, version)                                                                                  \
	({                                                                                                   \
		static _Atomic(void *) cached_;                                                              \
		void *f_ = atomic_load_explicit(&cached_, memory_order_relaxed);                             \
		if (!f_) {                                                                                   \
			f_ = soft_real_symbol(#name, version);                                               \
			atomic_store_explicit(&cached_, f_, memory_order_relaxed);                           \
		}                                                                                            \
		(__typeof__(&name))f_;                                                                       \
	})

#endif

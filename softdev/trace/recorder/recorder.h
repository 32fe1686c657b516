/*
 * The recorder: a library that is preloaded in front of the device. It has libibverbs' and librdmacm's functions,
 * calls the next library's of that name, and notes call and result. What programs call through pointers in contexts,
 * queue pairs and completion queues is replaced there when the object is first seen. It works alike for the software
 * device and for those of the kernel, and has no part in the device: without the recorder, not one instruction is
 * different.
 *
 * Threads: any. Locks: of rings 0 and 1, and one for the table of objects; none is held while the next library runs.
 * What it promises: results, errno and order of calls are the next library's. Payload is never read.
 */
#ifndef SOFTDEV_TRACE_RECORDER_H
#define SOFTDEV_TRACE_RECORDER_H

#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "src/core/attach.h"
#include "trace/record.h"

/* verbs.h defines these as macros; here the exported functions are meant */
#undef ibv_reg_mr
#undef ibv_reg_mr_iova
#undef ibv_query_port
#undef ibv_get_device_list

#define TRACE_EXPORT __attribute__((visibility("default")))
#define trace_likely(x) __builtin_expect(!!(x), 1)
#define trace_unlikely(x) __builtin_expect(!!(x), 0)
/* What comes after the device's work has registers of its own, so that nothing is saved before it. */
#define TRACE_AFTER __attribute__((noinline))

/* Where that library is: RTLD_NEXT, or, in a process that ran before the recorder came, its handle. */
extern void *trace_behind;
/* The function of that name in the library behind this one. NULL: it has none. */
#define NEXT(name)                                                                                                     \
	({                                                                                                             \
		static _Atomic(void *) cached_;                                                                        \
		void *f_ = atomic_load_explicit(&cached_, memory_order_relaxed);                                       \
		if (trace_unlikely(!f_)) {                                                                             \
			f_ = dlsym(trace_behind, #name);                                                               \
			atomic_store_explicit(&cached_, f_, memory_order_relaxed);                                     \
		}                                                                                                      \
		(__typeof__(&name))f_;                                                                                 \
	})

/* ---- ring.c ------------------------------------------------------------------------------------------ */

struct trace_thread {
	struct trace_record *records; /* its ring, or one record of its own that nobody reads */
	struct trace_ring *ring;      /* NULL: it got none */
	uint64_t head, mask;
	/* The empty poll that was noted last, as long as nothing else was: further ones only count. */
	struct trace_record *empty;
	uint64_t empty_cq;
};
extern _Thread_local struct trace_thread trace_self __attribute__((tls_model("initial-exec")));

/* Gives the thread a ring. False: there is no recording in this process. */
bool trace_claim(void);
/* Whether this process is recorded: the file is made at the first call. */
bool trace_on(void);
/* Begins a recording in that directory, of a process that has run without. EALREADY: there is one. */
int trace_begin(const char *directory);
/* A record for ring 0 or 1. Keeps errno. */
void trace_note(unsigned ring, const struct trace_record *record);

static inline uint64_t trace_ticks(void)
{
#if defined(__x86_64__)
	return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
	uint64_t ticks;
	__asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
	return ticks;
#else
	return 0;
#endif
}

/* The next record of this thread, to be filled; NULL: not recorded. trace_put() makes it seen. */
static inline struct trace_record *trace_next(void)
{
	struct trace_thread *self = &trace_self;

	if (trace_unlikely(!self->records) && !trace_claim())
		return NULL;
	self->empty = NULL;
	return &self->records[self->head & self->mask];
}

void trace_count_lost(void);
static inline void trace_put(void)
{
	struct trace_thread *self = &trace_self;

	self->head++;
	if (trace_likely(self->ring != NULL))
		__atomic_store_n(&self->ring->head, self->head, __ATOMIC_RELEASE);
	else
		trace_count_lost();
}

/* ---- table.c: what was replaced in an object, by the object's address -------------------------------- */

/* Lock-free; NULL: not there. */
void *trace_find(const void *object);
/* Enters it, in place of what was there before. False: there is no room. */
bool trace_enter(const void *object, void *value);
void trace_leave(const void *object);
/* Only while it has that value: another thread may have got an object at the same address, and entered that. */
void trace_leave_as(const void *object, const void *value);

/* ---- context.c --------------------------------------------------------------------------------------- */

/* Never freed, but used again: a thread may remember one that was closed. */
struct trace_context {
	struct ibv_context *context;
	struct ibv_context_ops ops; /* those of the device */
	__typeof__(((struct verbs_context *)0)->create_qp_ex) create_qp_ex;
	__typeof__(((struct verbs_context *)0)->create_cq_ex) create_cq_ex;
	__typeof__(((struct verbs_context *)0)->create_srq_ex) create_srq_ex;
	uint8_t number;
	struct trace_context *next; /* of the unused ones */
};
/* Replaces the functions of a context that is seen for the first time. NULL: not recorded. */
struct trace_context *trace_adopt(struct ibv_context *context);
extern _Thread_local struct trace_context *trace_last __attribute__((tls_model("initial-exec")));
struct trace_context *trace_look_up(struct ibv_context *context);
/* Of one that was adopted. What the thread had last may have been closed; it says so itself. */
static inline struct trace_context *trace_context_of(struct ibv_context *context)
{
	struct trace_context *last = trace_last;

	return trace_likely(last && last->context == context) ? last : trace_look_up(context);
}
uint8_t trace_device_of(struct ibv_context *context);
/* Before a context is closed; and, of what this has returned, when it was, or could not be. */
struct trace_context *trace_close(struct ibv_context *context);
void trace_closed(struct trace_context *of);
void trace_reopen(struct trace_context *of, struct ibv_context *context);

/* ---- post.c, poll.c, post_ex.c, poll_ex.c: what stands in objects instead of the device's functions ------ */

int trace_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int trace_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int trace_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int trace_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc);
int trace_req_notify_cq(struct ibv_cq *cq, int solicited_only);
void trace_empty_poll(const struct ibv_cq *cq, uint8_t device);
/* The functions of an extended object. */
void trace_adopt_qp_ex(struct ibv_qp_ex *qp);
/* saved: what trace_find() had for the object before it was destroyed. */
void trace_forget_qp_ex(const struct ibv_qp *qp, void *saved);
void trace_adopt_cq_ex(struct ibv_cq_ex *cq);
void trace_forget_cq_ex(const struct ibv_cq *cq, void *saved);

/* ---- objects.c, modify.c ------------------------------------------------------------------------------ */

struct ibv_qp *trace_create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr);
struct ibv_cq_ex *trace_create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr);
struct ibv_srq *trace_create_srq_ex(struct ibv_context *context, struct ibv_srq_init_attr_ex *attr);
struct ibv_mw *trace_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type);
/* Objects that were there before the recorder. */
void trace_note_pd(struct ibv_context *context, const void *pd);
void trace_note_cq(const struct soft_attach_cq *cq);
void trace_note_mr(const struct soft_attach_mr *mr);
/* A queue pair that rdma_cm has made: asked is what the program wanted. */
void trace_qp_made(struct ibv_qp *qp, struct ibv_pd *pd, const struct ibv_qp_cap *asked, const struct ibv_qp_cap *got,
		   bool sig_all, int error, void *cm_id);
/* Notes an address: of a queue pair, or of an address handle. */
void trace_note_address(unsigned ring, const void *object, uint32_t qpn, struct ibv_context *context,
			const struct ibv_ah_attr *attr);
/* Notes what rdma_cm has made of a queue pair. */
void trace_note_state(struct ibv_qp *qp, enum trace_origin origin);

#endif

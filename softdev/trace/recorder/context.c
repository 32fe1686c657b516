/*
 * Contexts: their functions are replaced when a context is first seen, also those that libraries open.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "trace/recorder/recorder.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned contexts;
static struct trace_context *unused;

static void describe(struct trace_context *of)
{
	struct ibv_context *context = of->context;
	struct trace_record record = {
		.stamp = trace_ticks(), .kind = TRACE_DEVICE, .device = of->number, .object = (uintptr_t)context
	};
	struct ibv_port_attr port = { .state = IBV_PORT_NOP };
	struct ibv_device_attr are;
	__typeof__(&ibv_query_device) query = NEXT(ibv_query_device);

	snprintf(record.opened.name, sizeof(record.opened.name), "%.31s", context->device->name);
	if (!ibv_query_port(context, 1, (struct _compat_ibv_port_attr *)&port)) {
		record.opened.link_layer = port.link_layer;
		record.opened.port_state = (uint8_t)port.state;
		record.opened.active_mtu = (uint8_t)port.active_mtu;
	}
	trace_note(TRACE_RING_CONTROL, &record);
	if (!query || query(context, &are))
		return;
	record.kind = TRACE_LIMITS;
	record.limits = (struct trace_limits){
		.max_qp_wr = (uint32_t)are.max_qp_wr,
		.max_sge = (uint32_t)are.max_sge,
		.max_cqe = (uint32_t)are.max_cqe,
		.max_qp_rd_atom = (uint32_t)are.max_qp_rd_atom,
		.max_qp_init_rd_atom = (uint32_t)are.max_qp_init_rd_atom,
		.max_srq_wr = (uint32_t)are.max_srq_wr,
		.max_mr = (uint32_t)are.max_mr,
		.max_qp = (uint32_t)are.max_qp,
		.max_mr_size = are.max_mr_size,
	};
	trace_note(TRACE_RING_CONTROL, &record);
}

/* Whether libibverbs' own part of a context reaches so far, and the device has the call. */
#define HAS(verbs, name)                                                                                               \
	((verbs) && (verbs)->sz >= sizeof(*(verbs)) - offsetof(struct verbs_context, name) && (verbs)->name)

static void remember(struct trace_context *of)
{
	const struct verbs_context *verbs = verbs_get_ctx(of->context);

	of->ops = of->context->ops;
	of->create_qp_ex = HAS(verbs, create_qp_ex) ? verbs->create_qp_ex : NULL;
	of->create_cq_ex = HAS(verbs, create_cq_ex) ? verbs->create_cq_ex : NULL;
	of->create_srq_ex = HAS(verbs, create_srq_ex) ? verbs->create_srq_ex : NULL;
}

/*
 * Programs may be reading these pointers: the recorder comes to one that runs, too (attach.c), and the calls of verbs.h read
 * them as they are. Each is either the old function or the new one, and what the new one needs is there before.
 */
static void replace(struct trace_context *of)
{
	struct ibv_context_ops *ops = &of->context->ops;
	struct verbs_context *verbs = verbs_get_ctx(of->context);

#define REPLACE(there, call)                                                                                           \
	do {                                                                                                           \
		if (there)                                                                                             \
			__atomic_store_n(&(there), (call), __ATOMIC_RELEASE);                                          \
	} while (0)
	REPLACE(ops->post_send, trace_post_send);
	REPLACE(ops->post_recv, trace_post_recv);
	REPLACE(ops->post_srq_recv, trace_post_srq_recv);
	REPLACE(ops->poll_cq, trace_poll_cq);
	REPLACE(ops->req_notify_cq, trace_req_notify_cq);
	REPLACE(ops->alloc_mw, trace_alloc_mw);
	if (of->create_qp_ex)
		REPLACE(verbs->create_qp_ex, trace_create_qp_ex);
	if (of->create_cq_ex)
		REPLACE(verbs->create_cq_ex, trace_create_cq_ex);
	if (of->create_srq_ex)
		REPLACE(verbs->create_srq_ex, trace_create_srq_ex);
#undef REPLACE
}

_Thread_local struct trace_context *trace_last __attribute__((tls_model("initial-exec")));

struct trace_context *trace_look_up(struct ibv_context *context)
{
	struct trace_context *found = trace_find(context);

	if (found)
		trace_last = found;
	return found;
}

struct trace_context *trace_adopt(struct ibv_context *context)
{
	struct trace_context *of = context ? trace_find(context) : NULL;
	const int saved = errno;

	if (of || !context || !trace_on())
		return of;
	pthread_mutex_lock(&lock);
	of = trace_find(context);
	const bool is_new = !of;
	if (is_new) {
		of = unused ? unused : calloc(1, sizeof(*of));
		unused = unused ? unused->next : NULL;
	}
	if (is_new && of) {
		of->context = context;
		of->number = (uint8_t)(contexts++ % 256);
		/* First known and found, then used. */
		remember(of);
		if (trace_enter(context, of)) {
			replace(of);
		} else {
			of->next = unused;
			unused = of;
			of = NULL;
		}
	}
	pthread_mutex_unlock(&lock);
	if (is_new && of)
		describe(of);
	errno = saved;
	return of;
}

uint8_t trace_device_of(struct ibv_context *context)
{
	const struct trace_context *of = trace_adopt(context);

	return of ? of->number : 255;
}

/* Not after it: another thread may get a context at the same address at once. */
struct trace_context *trace_close(struct ibv_context *context)
{
	struct trace_context *of = trace_find(context);

	if (!of)
		return NULL;
	const struct trace_record record = {
		.stamp = trace_ticks(), .kind = TRACE_DEVICE_GONE, .device = of->number, .object = (uintptr_t)context
	};
	trace_note(TRACE_RING_CONTROL, &record);
	of->context = NULL;
	trace_leave(context);
	return of;
}

void trace_closed(struct trace_context *of)
{
	pthread_mutex_lock(&lock);
	of->next = unused;
	unused = of;
	pthread_mutex_unlock(&lock);
}

void trace_reopen(struct trace_context *of, struct ibv_context *context)
{
	of->context = context;
	trace_enter(context, of);
}

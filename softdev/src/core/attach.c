/*
 * The recorder, loaded into a process that runs: another process of this user asks for it by the socket of control.c.
 * Until then there is nothing of it in this process.
 *
 * Which library is loaded is not for the other process to say: it is the one beside the device.
 */
#include <dlfcn.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/attach.h"
#include "core/internal.h"

/* ---- what there is ------------------------------------------------------------------------------------ */

static void list_contexts(struct soft_attach *to)
{
	for (struct soft_ctx *ctx = soft_proc.contexts; ctx; ctx = ctx->next)
		to->context_count++;
	to->contexts = calloc(to->context_count + 1, sizeof(struct ibv_context *));
	to->context_count = 0;
	for (struct soft_ctx *ctx = soft_proc.contexts; ctx && to->contexts; ctx = ctx->next)
		to->contexts[to->context_count++] = &ctx->v.context;
}

static void list_cqs(struct soft_attach *to)
{
	const uint32_t places = atomic_load(&soft_proc.cq_places);

	to->cqs = calloc(places + 1, sizeof(*to->cqs));
	for (uint32_t i = 0; i < places && to->cqs; i++) {
		soft_lock(&soft_proc.cq_lock);
		const struct soft_cq *cq = atomic_load(&soft_proc.cqs[i]);
		if (cq)
			to->cqs[to->cq_count++] =
				(struct soft_attach_cq){ &cq->cq, cq->cq.channel, cq->cq.context, cq->cq.cqe };
		soft_unlock(&soft_proc.cq_lock);
	}
}

static void list_qps(struct soft_attach *to)
{
	const uint32_t used = atomic_load(&soft_proc.qp_used);

	to->qps = calloc(used + 1, sizeof(struct ibv_qp *));
	for (uint32_t i = 0; i < used && to->qps; i++) {
		struct soft_qp *qp = atomic_load(&soft_proc.qps[i]);

		if (qp && atomic_load(&qp->number))
			to->qps[to->qp_count++] = &qp->qp;
	}
}

/* One that was ever there: its memory and its lock stay. */
static struct soft_qp *any_qp(void)
{
	const uint32_t used = atomic_load(&soft_proc.qp_used);
	struct soft_qp *qp = NULL;

	for (uint32_t i = 0; i < used && !qp; i++)
		qp = atomic_load(&soft_proc.qps[i]);
	return qp;
}

/* A region stays for as long as a queue pair's lock is held: ending it passes all of them. Without queue pairs, none counts. */
static void list_mrs(struct soft_attach *to)
{
	struct soft_qp *any = any_qp();
	size_t room = 0;

	for (uint32_t i = 0; i < SOFT_MAX_MR && any; i++)
		room += atomic_load(&soft_proc.keys[i]) != NULL;
	to->mrs = calloc(room + 1, sizeof(*to->mrs));
	for (uint32_t i = 0; i < SOFT_MAX_MR && to->mrs && any && to->mr_count < room; i++) {
		soft_lock(&any->rq_lock);
		const struct soft_region *r = atomic_load(&soft_proc.keys[i]);
		if (r && r->pd && !r->window) {
			const struct soft_mr *mr =
				(const struct soft_mr *)(const void *)((const char *)r -
								       offsetof(struct soft_mr, region));
			to->mrs[to->mr_count++] = (struct soft_attach_mr){ .object = &mr->mr,
									   .pd = &r->pd->pd,
									   .context = mr->mr.context,
									   .address = (uintptr_t)r->host,
									   .length = r->length,
									   .iova = r->base,
									   .access = r->access,
									   .lkey = mr->mr.lkey,
									   .rkey = mr->mr.rkey };
		}
		soft_unlock(&any->rq_lock);
	}
}

/* ---- the recorder ------------------------------------------------------------------------------------- */

/* Where it is installed, and in a build. NULL: the answer says why. */
static void *open_recorder(char *answer, size_t size)
{
	static const char *const places[] = { "softdev", "trace" };
	char path[PATH_MAX];
	Dl_info here;

	if (!dladdr((void *)(uintptr_t)soft_attach, &here) || !here.dli_fname)
		return NULL;
	const char *slash = strrchr(here.dli_fname, '/');
	const int folder = slash ? (int)(slash - here.dli_fname) : 0;
	for (size_t n = 0; n < sizeof(places) / sizeof(*places); n++) {
		snprintf(path, PATH_MAX, "%.*s/%s/libsoftdev-trace.so", folder, here.dli_fname, places[n]);
		if (access(path, R_OK))
			continue;
		void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
		if (!library)
			snprintf(answer, size, "the recorder cannot be loaded: %s\n", dlerror());
		return library;
	}
	snprintf(answer, size,
		 "there is no recorder beside the device that the process runs on, %s; `make install` puts it there\n",
		 here.dli_fname);
	return NULL;
}

/* The last context waits for the progress thread, which this is. False: there will be none. */
static bool lock_contexts(void)
{
	while (pthread_mutex_trylock(&soft_proc.lock)) {
		if (atomic_load(&soft_proc.stop))
			return false;
		sched_yield();
	}
	return true;
}

static int record(soft_attach_call *call, struct soft_attach *with, char *answer, size_t size)
{
	int error = ENODEV;

	if (lock_contexts()) {
		list_contexts(with);
		list_cqs(with);
		list_qps(with);
		list_mrs(with);
		error = with->contexts && with->cqs && with->qps && with->mrs ? call(with) : ENOMEM;
		pthread_mutex_unlock(&soft_proc.lock);
	}
	free(with->contexts);
	free(with->cqs);
	free(with->qps);
	free(with->mrs);
	if (error == EALREADY)
		snprintf(answer, size, "the process is recorded already\n");
	else if (error)
		snprintf(answer, size, "the recorder cannot begin: %s\n", strerror(error));
	return error;
}

int soft_attach(const char *directory, char *answer, size_t size)
{
	Dl_info here;

	*answer = 0;
	if (*directory != '/') {
		snprintf(answer, size, "a directory's path begins with a slash\n");
		return EINVAL;
	}
	void *recorder = open_recorder(answer, size);
	soft_attach_call *call = recorder ? (soft_attach_call *)(uintptr_t)dlsym(recorder, SOFT_ATTACH_NAME) : NULL;
	void *device =
		dladdr((void *)(uintptr_t)soft_attach, &here) ? dlopen(here.dli_fname, RTLD_NOW | RTLD_NOLOAD) : NULL;
	if (!recorder)
		return ENOENT;
	if (!call || !device) {
		snprintf(answer, size, "the recorder beside the device is one of another version\n");
		return ENOENT;
	}
	struct soft_attach with = { .directory = directory, .device = device, .device_address = here.dli_fbase };
	return record(call, &with, answer, size);
}

/*
 * What the device tells the recorder that it loads into this process (`softdev trace --attach PID`): where the recording
 * goes, and what objects there are. The recorder is another library, which has the function of this name.
 */
#ifndef SOFTDEV_ATTACH_H
#define SOFTDEV_ATTACH_H

#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdint.h>

#define SOFT_ATTACH_NAME "softdev_trace_attach"

/* Memory regions and completion queues as they were: another thread may end them at any time. */
struct soft_attach_mr {
	const void *object, *pd;
	struct ibv_context *context;
	uint64_t address, length, iova;
	uint32_t access, lkey, rkey;
};
struct soft_attach_cq {
	const void *object, *channel;
	struct ibv_context *context;
	int cqe;
};

struct soft_attach {
	const char *directory;
	void *device;                  /* of dlopen(): the library behind the recorder */
	const void *device_address;    /* anything in it */
	struct ibv_context **contexts; /* they stay open during the call, and so do their queue pairs' structs */
	struct soft_attach_cq *cqs;
	struct soft_attach_mr *mrs;
	struct ibv_qp **qps;
	size_t context_count, cq_count, mr_count, qp_count;
};

/* Returns 0 or errno: EALREADY where the process is recorded already. */
typedef int soft_attach_call(const struct soft_attach *with);

#endif

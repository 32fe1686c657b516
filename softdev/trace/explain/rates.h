/*
 * Numbers from stories: rates, batches, depths and latencies of queue pairs and completion queues.
 */
#ifndef SOFTDEV_TRACE_RATES_H
#define SOFTDEV_TRACE_RATES_H

#include "trace/explain/explain.h"

struct qp_rates {
	const struct qp *qp;
	uint64_t sends, calls, send_bytes, receives, recv_bytes;
	struct latencies latencies;
};

struct rates {
	struct qp_rates *qps; /* one for each of the story */
	uint64_t window;      /* ns that they are of: as asked for, or as long as the rings reach back */
};

/* What happened in the last `window` ns before `now`. False: no memory. rates_free() in either case. */
bool rates_of(struct rates *rates, const struct story *story, uint64_t now, uint64_t window);
void rates_free(struct rates *rates);
/* A table for people. */
void rates_print(FILE *to, const struct story *story, uint64_t now, uint64_t window);
/* The JSON of Chrome's and Perfetto's trace viewers. */
void timeline(FILE *to, const struct story *stories, size_t count);

#endif

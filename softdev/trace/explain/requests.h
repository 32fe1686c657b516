/*
 * The work requests of a send queue, and how each ended; the completions of receives.
 */
#ifndef SOFTDEV_TRACE_REQUESTS_H
#define SOFTDEV_TRACE_REQUESTS_H

#include "trace/explain/explain.h"

/* A request in the order of posting. done: the completion that ends it, NULL if there is none; own: it is this request's,
 * and not that of a later one, which ends those before it that were not signalled. */
typedef void (*request_seen)(void *to, const struct trace_item *posted, const struct trace_item *done, bool own);
/* Calls it for each request of the queue pair that the device took. False: no memory, and not all were seen. */
bool requests_of(const struct story *story, const struct qp *qp, request_seen seen, void *to);

/* Calls it for the completion of each receive of the queue pair. Of those that failed, a flushed one may be missing, and
 * where both queues complete into one, those whose posting was overwritten. */
typedef void (*arrival_seen)(void *to, const struct trace_item *done);
void arrivals_of(const struct story *story, const struct qp *qp, arrival_seen seen, void *to);

#endif

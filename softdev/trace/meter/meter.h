/*
 * Counters of a recorded process that only grow: record after record goes in, and the text format of Prometheus comes
 * out. A recording is a ring, so what can be counted in it gets less again when records give way; here each record is
 * counted once, when it comes by. follow.c brings them while the process runs.
 *
 * Threads: one. Its memory has bounds, whatever the process does: a queue pair beyond METER_QPS takes the place of the
 * oldest one that was destroyed, or is not counted.
 */
#ifndef SOFTDEV_TRACE_METER_H
#define SOFTDEV_TRACE_METER_H

#include "trace/explain/explain.h"

enum {
	METER_QPS = 1024,
	METER_CQS = 1024,
	METER_PEERS = 256,       /* the last one stands for those that have no room */
	METER_SENT = 4096,       /* work requests without a completion that a queue pair's latencies are measured of */
	METER_HANDLES = 1 << 14, /* address handles that are remembered */
	METER_LATENCIES = 21,
	METER_BATCHES = 9,
	METER_STATUSES = 32,
	METER_EVENTS = 32,
};

struct meter_latencies {
	uint64_t buckets[METER_LATENCIES], count; /* the last bucket has no bound */
	double sum;                               /* seconds */
};

struct meter_batches {
	uint64_t buckets[METER_BATCHES], count, sum;
	uint64_t open; /* of a call whose records are not all there yet; 0: none */
};

struct meter_traffic {
	uint64_t sends, send_bytes, receives, receive_bytes, errors;
	struct meter_latencies latencies;
};

struct meter_qp {
	uint64_t object, send_cq, recv_cq, age;
	uint32_t number;
	uint8_t device, type, state;
	bool sig_all, has_srq, gone, modify_refused;
	size_t peer;
	struct meter_traffic traffic;
	uint64_t doorbells, refused, receives_posted, receives_done, statuses[METER_STATUSES];
	struct meter_batches posts;
	struct meter_sent {
		uint64_t wr_id, ticks;
		bool signalled;
	} * sent; /* the oldest first */
	size_t sent_head, sent_count, sent_room;
};

struct meter_cq {
	uint64_t object, age;
	uint8_t device;
	bool gone;
	uint64_t entries, completions, polls, empty_polls, arms, events;
	struct meter_batches polled;
};

struct meter_peer {
	char address[TRACE_ADDRESS_BYTES];
	struct meter_traffic traffic;
};

struct meter {
	uint32_t pid;
	char program[128], host[64];
	char devices[256][32];
	double seconds_per_tick;
	struct meter_qp *qps;
	struct meter_cq *cqs;
	struct meter_peer *peers; /* the first one is who is not known */
	size_t qp_count, qp_room, cq_count, cq_room, peer_count;
	struct map by_qp, by_number, by_cq, by_handle;
	uint64_t age, records, missed, lost, registered, deregistered, qps_made, qps_destroyed, left_out;
	uint64_t events[METER_EVENTS];
};

/* False: no memory. meter_free() in either case. */
bool meter_begin(struct meter *meter, const struct trace_header *of);
void meter_free(struct meter *meter);
/* The next record, in the order of time, as trace_is_record() has left it. */
void meter_take(struct meter *meter, const struct trace_record *record);
/* An empty poll that was counted goes on: so many more. */
void meter_more_empty(struct meter *meter, uint64_t cq, uint64_t polls);
/* The calls that were counted have ended: what comes is of others. */
void meter_close_batches(struct meter *meter);
/* All of a recording. False: no memory. meter_free() in either case. */
bool meter_tell(struct meter *meter, const struct trace_recording *recording);

/* ---- meter_print.c ------------------------------------------------------------------------------------ */

/* The text, of processes with different numbers. */
void meters_print(FILE *to, struct meter *const *meters, size_t count);
void meters_print_findings(FILE *to, const struct findings *findings);
extern const double meter_latency_bounds[METER_LATENCIES - 1];

/* ---- follow.c ----------------------------------------------------------------------------------------- */

/* Reads a file on while it is written. */
struct follower {
	trace_fetch fetch;
	void *file;
	uint64_t read[TRACE_RINGS];
	/* By ring: the empty poll that was read last, which counts on while nothing else comes. */
	struct follower_empty {
		bool now;
		uint64_t cq;
		uint32_t counted;
	} empty[TRACE_RINGS];
	struct meter meter;
	struct trace_header header;
};
/* NULL, or what is wrong with the file. follow_free() in either case. */
const char *follow_begin(struct follower *follower, trace_fetch fetch, void *file);
/*
 * Takes the records that are new and not younger than a few milliseconds, as those of other threads may still come; with
 * `last`, all. Returns how many the busiest ring had.
 */
uint64_t follow(struct follower *follower, bool last);
void follow_free(struct follower *follower);

#endif

/*
 * From recordings to sentences: a pure function. A recording becomes a story (story.c): objects with what was learned
 * of them, and incidents, the places where something went wrong or may have. Rules (rules.c has the table, rules_*.c
 * one subject each) look at stories, also at those of the other ends, and say what they see.
 *
 * Threads: one.
 */
#ifndef SOFTDEV_TRACE_EXPLAIN_H
#define SOFTDEV_TRACE_EXPLAIN_H

#include "trace/reader/reader.h"

/* ---- map.c: from a number (an address, a key) to a place in an array; the newest counts ----------------- */

struct map {
	struct map_entry {
		uint64_t key;
		uint32_t value; /* place + 1; 0: empty */
	} * entries;
	size_t room, count;
};
/* False: no memory. */
bool map_put(struct map *map, uint64_t key, uint32_t value);
/* -1: not there. */
long map_get(const struct map *map, uint64_t key);
void map_free(struct map *map);

/* ---- stories ------------------------------------------------------------------------------------------ */

enum { NONE = -1, LATENCY_BUCKETS = 40 };

/* Work requests that have no completion yet: places of their records. */
struct queue {
	size_t *items;
	size_t head, tail, room;
};

struct latencies {
	uint64_t count, sum, least, most;
	uint64_t buckets[LATENCY_BUCKETS]; /* by the logarithm of ns */
};

struct device {
	uint64_t object, gone;
	uint8_t number;
	struct trace_device is;
	struct trace_limits limits;
	bool limited;
	uint64_t port_down, port_up; /* when the event came last; 0: never */
};

struct simple { /* a protection domain, a channel, an address handle */
	uint64_t object, made, gone;
	uint8_t device;
	struct trace_address address;
	bool addressed;
	unsigned events; /* of a channel: taken */
};

struct cq {
	uint64_t object, made, gone;
	uint8_t device;
	struct trace_cq is;
	bool armed, polled_since_arm, ever_armed, ever_event, broken, overran;
	uint64_t delivered, acked, completions, polls, empty_polls;
	uint64_t poll_batch_most, pending, pending_most; /* completions that will come at most */
	uint32_t pollers[2];                             /* the first two threads */
	uint64_t turns;                                  /* how often another thread polled than before */
	uint32_t last_poller;
	uint64_t armed_at, pending_at_arm, last_empty, last_empty_run; /* the last of them in a row */
	uint64_t last_done;                                            /* when its newest completion was polled */
};

struct srq {
	uint64_t object, made, gone;
	struct trace_srq is;
	struct queue queue;
	uint64_t posted;
};

struct mr {
	uint64_t object, made, gone;
	uint8_t device;
	struct trace_mr is;
	uint32_t access;
	bool access_known;
	uint64_t uses, in_flight; /* work requests; those without a completion yet */
};

struct qp {
	uint64_t object, made, init, rtr, rts, failed, gone;
	uint32_t number;
	uint8_t device, state;
	bool by_cm, addressed, failed_by_program;
	uint32_t seen; /* attributes that were set */
	struct trace_qp caps;
	struct trace_qp_asked asked;
	struct trace_modify is;
	struct trace_address address;
	struct queue sends, receives;
	uint64_t send_posts, send_calls, send_bytes, recv_posts, sent, received, recv_bytes, flushed;
	uint64_t unsignalled_run, longest_run, most_outstanding, batch_most, last_post, last_receive;
	uint32_t smallest_receive;
	uint64_t last_send_done; /* when its newest completion of a send was polled */
	long first_error;        /* incident; NONE */
	struct latencies latencies;
};

struct cm_id {
	uint64_t object, made, gone, qp, events, acked;
	bool listens, connected, rejected;
	bool route_asked, route_known; /* rdma_resolve_route was called; its event came, or an endpoint has it */
	struct trace_cm_call to;
};

enum incident_kind {
	POST_REFUSED,
	POST_EARLY,    /* in a state in which it does nothing, whatever the device says */
	COMPLETED_BAD, /* a completion with an error */
	MODIFY_REFUSED,
	MAKE_REFUSED,
	END_REFUSED,
	END_ENTERED,   /* a call that waits for acknowledgements that are missing */
	WAIT_UNARMED,  /* waits for an event of queues that are not armed */
	WAIT_UNPOLLED, /* armed after the last poll, and waits */
	DEREG_IN_USE,
	POLL_REFUSED,
	ASYNC_EVENT,
	CM_EVENT,
	CM_REFUSED,
};

struct incident {
	enum incident_kind kind;
	size_t item;         /* the record */
	long wr;             /* the record of the work request; NONE */
	long qp, cq, mr, id; /* places; NONE */
	uint64_t value;      /* END_REFUSED, END_ENTERED: how many; POST_REFUSED: how many were in the queue */
	uint64_t run;        /* POST_REFUSED: how many of them, the last ones, were not signalled */
	uint8_t state;       /* of the queue pair then */
	bool over;           /* END_ENTERED: the call has returned */
};

struct story {
	const struct trace_recording *from;
	struct device *devices;
	struct simple *pds, *channels, *ahs;
	struct cq *cqs;
	struct srq *srqs;
	struct mr *mrs;
	struct qp *qps;
	struct cm_id *ids;
	struct incident *incidents;
	size_t device_count, pd_count, channel_count, ah_count, cq_count, srq_count, mr_count, qp_count, id_count,
		incident_count;
	size_t device_room, pd_room, channel_room, ah_room, cq_room, srq_room, mr_room, qp_room, id_room, incident_room;
	struct map by_pd, by_channel, by_ah, by_cq, by_srq, by_mr, by_qp, by_number, by_lkey, by_rkey, by_id;
	uint64_t windows, end; /* end: of the recording, or when it was looked at; ns */
	struct waiting {       /* by ring: the call that waits for an event */
		bool now;
		size_t item;
	} waiting[TRACE_RINGS];
	bool no_memory;
};

/* False: no memory. story_free() in either case. */
bool story_tell(struct story *story, const struct trace_recording *recording);
void story_free(struct story *story);

static inline const struct trace_item *item_at(const struct story *story, size_t place)
{
	return &story->from->items[place];
}
/* Whether the process has ended without exit(). */
static inline bool story_died(const struct story *story)
{
	return !story->from->alive && !story->from->header.ended;
}
/* Nanoseconds since 1970, by which stories of several processes are compared. */
static inline uint64_t world_time(const struct story *story, uint64_t ns)
{
	return story->from->header.begin_unix_ns + ns;
}
static inline uint64_t key_of(uint8_t device, uint32_t number)
{
	return (uint64_t)device << 32 | number;
}

/* ---- queue.c ------------------------------------------------------------------------------------------ */

bool queue_push(struct queue *queue, size_t item);
static inline size_t queue_length(const struct queue *queue)
{
	return queue->tail - queue->head;
}
static inline size_t queue_at(const struct queue *queue, size_t n)
{
	return queue->items[queue->head + n];
}
void queue_drop(struct queue *queue, size_t count);
void queue_remove(struct queue *queue, size_t n);
void queue_free(struct queue *queue);
void latency_add(struct latencies *to, uint64_t ns);
/* Upper bound of the part (0.5, 0.99) of all. */
uint64_t latency_part(const struct latencies *of, double part);

/* ---- findings ----------------------------------------------------------------------------------------- */

enum severity { FAILED, WRONG, ADVICE };

struct finding {
	const char *name; /* of the rule: a word that tests and programs look for */
	enum severity severity;
	const struct story *story;
	uint64_t ns;
	uint64_t key; /* findings of one rule about one thing are one */
	unsigned times;
	unsigned others; /* of these, about things for which there are too many findings of this name */
	char text[900];
};

struct findings {
	struct finding *list;
	size_t count, room;
	const struct story *stories;
	size_t story_count, shown; /* the first ones are explained; the others are only looked at as peers */
};

/* Rules call this. */
void found(struct findings *to, const struct story *story, const char *name, enum severity severity, uint64_t ns,
	   uint64_t key, const char *format, ...) __attribute__((format(printf, 7, 8)));
/* All rules. */
void explain(struct findings *findings, const struct story *stories, size_t count, size_t shown);
/* As sentences, the failures first. */
void explain_print(FILE *to, const struct findings *findings);
void findings_free(struct findings *findings);

/* ---- pair.c: other ends ------------------------------------------------------------------------------- */

struct peer {
	const struct story *story;
	const struct qp *qp;
	bool mutual; /* that queue pair names ours as its destination */
};
/* The queue pair with the number that this one is connected to. False: in none of the recordings. */
bool peer_find(const struct findings *in, const struct story *story, const struct qp *qp, struct peer *peer);
/* Finds that the message that was refused has packets of another length than its peer takes. */
bool found_other_mtu(struct findings *to, const struct story *s, const struct trace_item *item,
		     const struct trace_item *posted, const struct qp *qp, const struct peer *peer);
/* A queue pair elsewhere that names this one as its destination, though this one names another. */
bool peer_admirer(const struct findings *in, const struct story *story, const struct qp *qp, struct peer *peer);
/* Who was not recorded, as part of a sentence: "10.0.0.7", or "the peer". */
const char *peer_address(const struct qp *qp, char text[TRACE_ADDRESS_BYTES]);

/* ---- the rules: rules.c has the table ----------------------------------------------------------------- */

typedef void (*rule)(struct findings *to, const struct story *story);

void rule_post_state(struct findings *to, const struct story *story);
void rule_post_limits(struct findings *to, const struct story *story);
void rule_queue_full(struct findings *to, const struct story *story);
void rule_modify(struct findings *to, const struct story *story);
void rule_make(struct findings *to, const struct story *story);
void rule_local_memory(struct findings *to, const struct story *story);
void rule_remote_memory(struct findings *to, const struct story *story);
void rule_lengths(struct findings *to, const struct story *story);
void rule_retry(struct findings *to, const struct story *story);
void rule_rnr(struct findings *to, const struct story *story);
void rule_flush(struct findings *to, const struct story *story);
void rule_other_status(struct findings *to, const struct story *story);
void rule_pairs(struct findings *to, const struct story *story);
void rule_datagrams(struct findings *to, const struct story *story);
void rule_reads(struct findings *to, const struct story *story);
void rule_overrun(struct findings *to, const struct story *story);
void rule_wakeups(struct findings *to, const struct story *story);
void rule_polling(struct findings *to, const struct story *story);
void rule_acks(struct findings *to, const struct story *story);
void rule_dereg(struct findings *to, const struct story *story);
void rule_churn(struct findings *to, const struct story *story);
void rule_ends(struct findings *to, const struct story *story);
void rule_leaks(struct findings *to, const struct story *story);
void rule_stuck(struct findings *to, const struct story *story);
void rule_vain(struct findings *to, const struct story *story);
void rule_port(struct findings *to, const struct story *story);
void rule_cm(struct findings *to, const struct story *story);

#endif

/*
 * The connection manager protocol (IBTA volume 1, chapter 12) as a state machine: sending, retransmission, and handling
 * received messages. No sockets, no clock, no rdma_cm: the owner passes time and messages in, and messages and events
 * leave through the owner's callbacks. One thread at a time.
 */
#ifndef SOFTDEV_CM_PROTO_H
#define SOFTDEV_CM_PROTO_H

#include "cm/mad.h"

enum cm_state {
	CM_IDLE,
	CM_REQ_SENT,
	CM_REQ_RCVD,
	CM_REP_SENT,
	CM_REP_RCVD,
	CM_ESTABLISHED,
	CM_DREQ_SENT,
	CM_TIMEWAIT, /* answers repeated messages until none can be in flight any more */
	CM_SIDR_REQ_SENT,
	CM_SIDR_REQ_RCVD,
};

enum {
	CM_TRIES = 15,
	CM_DREQ_TRIES = 6,        /* a process that has ended does not answer */
	CM_MRA_TIMEOUT = 20,      /* timeout we ask of the peer: 4.3 s, restarted by each repetition */
	CM_CONNECTIONS = 1 << 16, /* of one process */
};
#define CM_FIRST_NS UINT64_C(250000000) /* until the first retransmission; doubles each time */
#define CM_LONGEST_NS UINT64_C(4000000000)
#define CM_LONGEST_MRA_NS UINT64_C(60000000000)
#define CM_TIMEWAIT_NS UINT64_C(500000000)
/* How often a connection to a process of this host is looked at: nobody disconnects for one that was killed. */
#define CM_WATCH_NS UINT64_C(2000000000)

/* The peer, and how to reach it. */
struct cm_peer {
	uint8_t local[16], remote[16]; /* GIDs */
	uint16_t port;                 /* UDP, of the peer */
	bool net;                      /* over the network; else another process of this host, or this one */
};

enum cm_event_kind {
	CM_EVENT_RESPONSE,    /* REP: establish the connection, or refuse it */
	CM_EVENT_ESTABLISHED, /* RTU */
	CM_EVENT_REJECTED,    /* mad: the REJ */
	CM_EVENT_UNREACHABLE, /* no answer */
	CM_EVENT_DISCONNECTED,
	CM_EVENT_TIMEWAIT_EXIT,
	CM_EVENT_SIDR_REPLY,
};

struct cm_conn {
	struct cm_conn *next; /* hash chain by local id */
	void *user;           /* NULL: the user has dropped it */
	enum cm_state state;
	bool active;
	struct cm_peer peer;
	uint32_t local_id, remote_id;
	uint64_t tid, remote_guid;
	uint32_t local_qpn, remote_qpn;
	uint8_t last[CM_MAD_BYTES]; /* repeated until answered, or when requested again */
	bool has_last;
	unsigned tries;
	uint64_t interval, deadline; /* deadline 0: none */
};

struct cm_engine;
struct cm_calls {
	/* False: the destination certainly does not exist. */
	bool (*send)(void *owner, const struct cm_peer *peer, const uint8_t mad[CM_MAD_BYTES]);
	void (*event)(void *owner, struct cm_conn *conn, enum cm_event_kind kind, const struct cm_mad *mad);
	/* REQ or SIDR REQ for a service. */
	enum cm_verdict {
		CM_TAKEN,  /* conn->user is set */
		CM_NOBODY, /* no such service */
		CM_BUSY,   /* not now: the sender will retry */
	} (*request)(void *owner, struct cm_conn *conn, const struct cm_mad *mad);
	/*
	 * A request to another host had no answer yet, and is sent again: makes that host say so if nobody listens
	 * there (cm_engine_refused()). May be NULL.
	 */
	void (*knock)(void *owner, const struct cm_peer *peer);
	/* Whether the peer of an established connection, on this host, has died. */
	bool (*died)(void *owner, const struct cm_conn *conn);
};

enum { CM_BUCKETS = 256 };
struct cm_engine {
	const struct cm_calls *calls;
	void *owner;
	uint64_t guid;
	uint32_t id_prefix;  /* high bits of all ids of this process */
	uint32_t id_mask;    /* the low bits, a counter */
	uint32_t next_id;    /* start value: any */
	uint64_t tid_prefix; /* high 32 bits of transaction ids */
	unsigned count;
	struct cm_conn *conns[CM_BUCKETS];
};

/* A new, idle connection. NULL: too many, or no memory. */
struct cm_conn *cm_conn_make(struct cm_engine *e, const struct cm_peer *peer, void *user);
/* mad: REQ or SIDR REQ, without ids, tid and guid. */
void cm_conn_connect(struct cm_engine *e, struct cm_conn *c, struct cm_mad *mad, uint64_t now);
/* mad: REP or SIDR REP, without ids, tid and guid. 0 or errno, as for all that follow. */
int cm_conn_accept(struct cm_engine *e, struct cm_conn *c, struct cm_mad *mad, uint64_t now);
int cm_conn_reject(struct cm_engine *e, struct cm_conn *c, uint16_t reason, const void *data, uint8_t length,
		   uint64_t now);
/* Answers the REP. */
int cm_conn_establish(struct cm_engine *e, struct cm_conn *c, uint64_t now);
int cm_conn_disconnect(struct cm_engine *e, struct cm_conn *c, uint64_t now);
/* The user drops the connection. It is ended in the background, then freed. */
void cm_conn_release(struct cm_engine *e, struct cm_conn *c, uint64_t now);

/* Handles any received message. */
void cm_engine_receive(struct cm_engine *e, const struct cm_peer *from, const uint8_t *bytes, size_t size,
		       uint64_t now);
/*
 * The network says that no request gets to that host: nobody listens for RoCE there (refused), or it is not there. As
 * with a service that is absent, only a second try counts.
 */
void cm_engine_refused(struct cm_engine *e, const uint8_t remote[16], bool refused, uint64_t now);
/* Retransmits, and gives up what has timed out. Returns the time of the next call; 0: none needed. */
uint64_t cm_engine_tick(struct cm_engine *e, uint64_t now);
/* Builds the answer to a message for an unknown connection. False: none is due. */
bool cm_stranger_answer(const struct cm_mad *mad, struct cm_mad *answer);

#endif

/*
 * Requester and responder of a connected queue pair over packets (RC and UC), without sockets, clocks or threads. The
 * caller passes in packets and the time and fetches packets to send; callbacks access memory. IBTA 9.7 (RC), 9.8 (UC).
 *
 * Requester (ask.c, request.c): messages in, request packets out; acknowledgements and responses in, completions out.
 * Responder (answer.c): request packets in, effects on memory; acknowledgements and responses out.
 *
 * The requester's PSNs are 64 bits wide internally and 24 bits in packets.
 */
#ifndef SOFTDEV_ROCE_RC_H
#define SOFTDEV_ROCE_RC_H

#include <infiniband/verbs.h>

#include "roce/packet.h"
#include "roce/runs.h"

/* ---- requester -------------------------------------------------------------------------------------- */

struct roce_message {
	uint8_t opcode; /* enum ibv_wr_opcode */
	bool solicited, fence;
	bool singly; /* a WRITE as single-packet WRITEs */
	uint32_t length, rkey;
	uint32_t imm; /* in packet byte order; SEND_WITH_INV: the key */
	uint64_t addr, compare_add, swap;
	uint64_t first;   /* PSN */
	uint32_t packets; /* number of packets */
};

enum {
	ROCE_WINDOW = 1024,      /* most packets in flight */
	ROCE_WINDOW_FIRST = 128, /* ... before the network has shown that it can take more */
	ROCE_WINDOW_LEAST = 8,   /* ... after losses */
	ROCE_READ_SEGMENT = 32,  /* response packets per request, so that READs keep to the window too */
	ROCE_FETCHES = 128,      /* most READ requests and atomics in flight */
};

struct roce_ask_owner {
	/* Stores response bytes where message `index` wants them. False: a local key does not allow it. */
	bool (*scatter)(void *owner, uint32_t index, uint32_t offset, const uint8_t *from, uint32_t n);
	/* How long to wait for a silent peer, once the shortest timeout that was asked for has passed. */
	uint64_t (*patience)(void *owner, uint64_t shortest_ns);
};

struct roce_ask {
	const struct roce_ask_owner *calls;
	void *owner;
	struct roce_message *ring; /* by index & mask */
	uint32_t mask;
	bool reliable;
	bool singly; /* RC: post a WRITE as single-packet WRITEs of equal size, unless it consumes a receive */
	bool kin;    /* the peer is known to be a softdev device, without rxe's quirks */
	uint32_t mtu, qpn;
	uint32_t first_psn;
	uint8_t retry_cnt, rnr_retry;
	uint32_t max_fetches;
	uint64_t timeout_ns; /* 0: infinite */

	uint32_t head, cursor,
		tail;             /* oldest incomplete, next to send from, next to post: they wrap only as integers */
	uint64_t posted;          /* PSN of the next message to post */
	uint64_t una, next, high; /* oldest unacknowledged, next to send, lowest never sent */
	uint64_t fetch_ends[ROCE_FETCHES];
	uint32_t fetch_head, fetch_tail;
	uint32_t window, most, grown;
	uint32_t since_request; /* packets since the last one that requested an acknowledgement */
	uint8_t rnr_retries;
	uint64_t silent_ns;               /* time spent waiting since the last useful answer */
	uint64_t deadline, rnr_until;     /* 0: none */
	uint64_t rewound_una, rewound_at; /* of the last rewind */
	bool rewound;
	struct {
		uint64_t end, sent_at;            /* of the packet that is being timed; sent_at 0: none */
		uint64_t smoothed, varies, least; /* 0: not measured yet */
	} trip;
	uint64_t repeat_at, asked_at; /* when to probe for an answer (0: never), when the last probe left */
	uint8_t repeats;              /* since una last rose */
	bool probe;                   /* resend the last packet */
	struct {
		uint64_t from, to; /* packets behind the first of a run, each sent once */
		bool on, probed;   /* probed: the last of them was sent again */
	} watch;
	uint8_t heard;  /* enum roce_heard: what became of them; the reader resets it */
	uint8_t status; /* enum ibv_wc_status of message `head`; not 0: sending has stopped */
	uint64_t resent, timeouts, probes, naks, rnr_naks;
};

/* The caller has zeroed all fields except calls, owner, ring, mask, most (window) and the settings. psn: of the
 * first packet. */
void roce_ask_start(struct roce_ask *ask, uint32_t psn);
/* Adds a message. The owner must have room for it (tail - head <= mask). Returns its index. */
uint32_t roce_ask_post(struct roce_ask *ask, const struct roce_message *message);

/* A packet to send. Its payload is bytes [offset, offset + packet.payload_length) of message `index`. */
struct roce_request {
	struct roce_packet packet;
	uint32_t index, offset;
	bool again; /* it was sent before */
};
/* Whether there may be something to send, regardless of window and timers. */
static inline bool roce_ask_waits(const struct roce_ask *ask)
{
	return !ask->status && (ask->cursor != ask->tail || ask->probe);
}
/* False: nothing to send now. */
bool roce_ask_next(struct roce_ask *ask, uint64_t now, struct roce_request *out);
/* The packet just returned could not be sent: the next call returns it again. */
void roce_ask_unsent(struct roce_ask *ask, const struct roce_request *request);
/* The packet just returned can never be sent: neither can the rest of its message, nor those behind it. The messages before
 * it go on. Until the flush, none may be posted. */
void roce_ask_cut(struct roce_ask *ask, const struct roce_request *request);
/* Packets first to last left for the first time, behind the first of a run: watch whether they arrive. */
void roce_ask_watch(struct roce_ask *ask, const struct roce_request *first, const struct roce_request *last);
/* A response to this queue pair from its peer. */
void roce_ask_take(struct roce_ask *ask, const struct roce_packet *packet, uint64_t now);
/* When to call roce_ask_timer(); 0: never. */
uint64_t roce_ask_due(const struct roce_ask *ask);
void roce_ask_timer(struct roce_ask *ask, uint64_t now);
/* Takes back all messages, sent or not. */
void roce_ask_flush(struct roce_ask *ask);
/* IBTA table 45. */
uint64_t roce_rnr_ns(uint8_t code);

/* ---- responder --------------------------------------------------------------------------------------- */

struct roce_delivery {
	uint8_t opcode; /* enum ibv_wr_opcode */
	bool solicited;
	uint32_t imm, length;
};

/* Each returns 0 or the enum ibv_wc_status that the requester shall see. */
struct roce_answer_owner {
	/* Whether a receive is available for the next message (it stays available until it is delivered); if not, rnr_timer
	 * says for how long. */
	bool (*receive)(void *owner);
	int (*place)(void *owner, uint32_t offset, const uint8_t *from, uint32_t n);
	int (*deliver)(void *owner, const struct roce_delivery *delivery);
	/* Memory for a WRITE, READ or atomic; NULL: *status gives the reason. Valid until the next call. */
	char *(*remote)(void *owner, uint8_t opcode, uint32_t rkey, uint64_t addr, uint32_t length, int *status);
	/* 0, or a status, as the next: the memory is not there any more. */
	int (*write)(void *owner, char *to, const uint8_t *from, uint32_t n);
	int (*atomic)(void *owner, uint8_t opcode, char *at, uint64_t compare_add, uint64_t swap, uint64_t *old);
	/* The request is invalid: the queue pair fails. */
	void (*broken)(void *owner);
};

/* A READ or atomic that was answered, kept because the answer may be lost. */
struct roce_fetch {
	uint8_t opcode; /* enum ibv_wr_opcode */
	bool used, pending, repeated;
	bool in_run, again; /* answered behind the first of a run; requested more than once */
	uint32_t psn, packets, msn;
	uint64_t addr;
	uint32_t rkey, length;
	uint64_t original; /* atomics */
	/* the part being sent: bytes [from, to), sent up to `at` */
	uint32_t from, to, at;
};

struct roce_answer {
	const struct roce_answer_owner *calls;
	void *owner;
	struct roce_fetch *fetches; /* a ring of max_fetches, the oldest at fetch_cursor */
	uint32_t max_fetches, fetch_cursor;
	bool reliable;
	uint8_t rnr_timer;
	uint32_t mtu, qpn;

	uint32_t psn, msn;         /* expected PSN; messages completed */
	uint32_t ack_psn, ack_msn; /* for acknowledgements: up to the last packet of a SEND or WRITE */
	uint8_t in_message;        /* ROCE_MESSAGE_... */
	uint32_t placed, total, rkey;
	uint64_t addr;
	bool gap;         /* a NAK asked the requester to resume at psn */
	uint32_t farther; /* the last PSN that arrived from beyond it */
	bool stopped;
	bool ack_due, nak_due;
	uint8_t syndrome; /* of the NAK */
	uint32_t nak_psn;
	uint32_t pending; /* fetches to send */
	bool alone;       /* the packet just returned must not join a run: it is a repetition or a NAK */
	bool ack_again, ack_in_run;
	struct roce_fetch *given; /* the fetch whose answer was just returned */
	uint8_t heard;            /* enum roce_heard: of answers in runs; the reader resets it */
	uint64_t duplicates, out_of_sequence, dropped;
};

enum { ROCE_MESSAGE_NONE, ROCE_MESSAGE_SEND, ROCE_MESSAGE_WRITE };

/* The caller has zeroed all fields except calls, owner, fetches, max_fetches and the settings. */
void roce_answer_start(struct roce_answer *s, uint32_t psn);
/* The peer may have so many READs and atomics outstanding: there is room for them in `fetches`. Fewer than before change
 * nothing. */
void roce_answer_allow(struct roce_answer *s, uint32_t fetches);
/* A request for this queue pair from its peer. */
void roce_answer_take(struct roce_answer *s, const struct roce_packet *p);
/* A response to send; its payload stays at packet.payload until the next call. False: none. */
bool roce_answer_next(struct roce_answer *s, struct roce_packet *out);
/* The response just returned left behind the first of a run. */
void roce_answer_in_run(struct roce_answer *s);
/* The READs and atomics that wait get no answer. */
void roce_answer_forget(struct roce_answer *s);
static inline bool roce_answer_waits(const struct roce_answer *answer)
{
	return answer->pending || answer->ack_due || answer->nak_due;
}

#endif

/*
 * The two ends of a connected queue pair over packets (RC and UC), without sockets, clocks or threads: packets and
 * the time come in, packets are asked for, and the owner is called for memory. IBTA 9.7 (RC), 9.8 (UC).
 *
 * Asking end (ask.c, request.c): messages in, request packets out, acknowledgements and responses in, completions out.
 * Answering end (answer.c): request packets in, effects on memory, acknowledgements and responses out.
 *
 * Sequence numbers of the asking end are 64 bits wide inside and 24 in packets.
 */
#ifndef AIORDMA_ROCE_RC_H
#define AIORDMA_ROCE_RC_H

#include <infiniband/verbs.h>

#include "roce/packet.h"
#include "roce/runs.h"

/* ---- asking ----------------------------------------------------------------------------------------- */

struct roce_message {
	uint8_t opcode; /* enum ibv_wr_opcode */
	bool solicited, fence;
	uint32_t length, rkey;
	uint32_t imm; /* as it lies in the packet; SEND_WITH_INV: the key */
	uint64_t addr, compare_add, swap;
	uint64_t first;   /* sequence number */
	uint32_t packets; /* that it takes */
};

enum {
	ROCE_WINDOW = 1024,      /* packets on their way at most */
	ROCE_WINDOW_FIRST = 128, /* ... before a network has shown that it bears more */
	ROCE_WINDOW_LEAST = 8,   /* ... after losses */
	ROCE_READ_SEGMENT = 32,  /* packets of response that one request asks for: so READs keep to the window too */
	ROCE_FETCHES = 128,      /* READ requests and atomics on their way at most */
};

struct roce_ask_owner {
	/* Puts bytes of a response where message `index` wants them. False: a local key does not allow it. */
	bool (*scatter)(void *owner, uint32_t index, uint32_t offset, const uint8_t *from, uint32_t n);
	/* How long to wait for a peer that says nothing, when that has lasted for the shortest time that was asked for. */
	uint64_t (*patience)(void *owner, uint64_t shortest_ns);
};

struct roce_ask {
	const struct roce_ask_owner *calls;
	void *owner;
	struct roce_message *ring; /* by index & mask */
	uint32_t mask;
	bool reliable;
	bool singly; /* RC: a WRITE goes as WRITEs of a packet each, all of one size, unless it is received */
	bool kin;    /* the peer is known to be a device of ours, without rxe's quirks */
	uint32_t mtu, qpn;
	uint32_t first_psn;
	uint8_t retry_cnt, rnr_retry;
	uint32_t max_fetches;
	uint64_t timeout_ns; /* 0: for ever */

	uint32_t head, cursor,
		tail;             /* oldest not complete, next to send from, next to post: never wrap but as integers */
	uint64_t posted;          /* sequence number of the next message to post */
	uint64_t una, next, high; /* oldest not acknowledged, next to send, first never sent */
	uint64_t fetch_ends[ROCE_FETCHES];
	uint32_t fetch_head, fetch_tail;
	uint32_t window, most, grown;
	uint32_t since_request; /* packets since one asked for an acknowledgement */
	uint8_t rnr_retries;
	uint64_t silent_ns;               /* waited for an answer, since one came that helped */
	uint64_t deadline, rnr_until;     /* 0: none */
	uint64_t rewound_una, rewound_at; /* of the last going back */
	bool rewound;
	struct {
		uint64_t end, sent_at;            /* of the packet that is being timed; sent_at 0: none is */
		uint64_t smoothed, varies, least; /* 0: nothing known yet */
	} trip;
	uint64_t repeat_at, asked_at; /* when to ask again what became of it (0: never), when last asked */
	uint8_t repeats;              /* since una last rose */
	bool probe;                   /* the last packet goes out once more */
	struct {
		uint64_t from, to; /* packets behind the first of a run, all sent once */
		bool on, probed;   /* probed: the last of them was sent again */
	} watch;
	uint8_t heard;  /* enum roce_heard: what became of them; whoever reads it sets it back */
	uint8_t status; /* enum ibv_wc_status of message `head`; nothing is sent any more */
	uint64_t resent, timeouts, probes, naks, rnr_naks;
};

/* Zeroed but for calls, owner, ring, mask, most (window) and the settings. psn: of the first packet. */
void roce_ask_start(struct roce_ask *ask, uint32_t psn);
/* Takes a message, whose owner makes room for it (tail - head <= mask). Returns its index. */
uint32_t roce_ask_post(struct roce_ask *ask, const struct roce_message *message);

/* A packet to send. Its payload are bytes [offset, offset + packet.payload_length) of message `index`. */
struct roce_request {
	struct roce_packet packet;
	uint32_t index, offset;
	bool again; /* it was sent before */
};
/* There may be something to send: not whether window and timers allow it. */
static inline bool roce_ask_waits(const struct roce_ask *ask)
{
	return !ask->status && (ask->cursor != ask->tail || ask->probe);
}
/* False: nothing to send now. */
bool roce_ask_next(struct roce_ask *ask, uint64_t now, struct roce_request *out);
/* The packet just given out could not be sent: it will be given out again. */
void roce_ask_unsent(struct roce_ask *ask, const struct roce_request *request);
/* The packets from first to last, not sent before, left behind the first of a run: see whether they arrive. */
void roce_ask_watch(struct roce_ask *ask, const struct roce_request *first, const struct roce_request *last);
/* A response, for this queue pair and from its peer. */
void roce_ask_take(struct roce_ask *ask, const struct roce_packet *packet, uint64_t now);
/* When roce_ask_timer() wants to be called, 0: never. */
uint64_t roce_ask_due(const struct roce_ask *ask);
void roce_ask_timer(struct roce_ask *ask, uint64_t now);
/* All messages are taken back, sent or not. */
void roce_ask_flush(struct roce_ask *ask);
/* IBTA table 45. */
uint64_t roce_rnr_ns(uint8_t code);

/* ---- answering -------------------------------------------------------------------------------------- */

struct roce_delivery {
	uint8_t opcode; /* enum ibv_wr_opcode */
	bool solicited;
	uint32_t imm, length;
};

/* Each returns 0 or the enum ibv_wc_status that the requester is to see. */
struct roce_answer_owner {
	/* A receive is there for the next message (and stays so until it is delivered). */
	bool (*receive)(void *owner);
	int (*place)(void *owner, uint32_t offset, const uint8_t *from, uint32_t n);
	int (*deliver)(void *owner, const struct roce_delivery *delivery);
	/* Memory for a WRITE, READ or atomic; NULL: *status says why. Good until the next call. */
	char *(*remote)(void *owner, uint8_t opcode, uint32_t rkey, uint64_t addr, uint32_t length, int *status);
	void (*write)(void *owner, char *to, const uint8_t *from, uint32_t n);
	uint64_t (*atomic)(void *owner, uint8_t opcode, char *at, uint64_t compare_add, uint64_t swap);
	/* The request makes no sense: the queue pair is lost. */
	void (*broken)(void *owner);
};

/* A READ or atomic that was answered, kept because its answer may get lost. */
struct roce_fetch {
	uint8_t opcode; /* enum ibv_wr_opcode */
	bool used, pending, repeated;
	bool in_run, again; /* answered behind the first of a run; asked for more than once */
	uint32_t psn, packets, msn;
	uint64_t addr;
	uint32_t rkey, length;
	uint64_t original; /* atomics */
	/* what is being sent: bytes [from, to) of it, at so far */
	uint32_t from, to, at;
};

struct roce_answer {
	const struct roce_answer_owner *calls;
	void *owner;
	struct roce_fetch *fetches; /* max_fetches of them */
	uint32_t max_fetches, fetch_cursor;
	bool reliable;
	uint8_t rnr_timer;
	uint32_t mtu, qpn;

	uint32_t psn, msn;         /* expected; messages carried out */
	uint32_t ack_psn, ack_msn; /* what acknowledgements say: up to the last packet of a SEND or WRITE */
	uint8_t in_message;        /* ROCE_MESSAGE_... */
	uint32_t placed, total, rkey;
	uint64_t addr;
	bool gap;         /* the requester was told to come back to psn */
	uint32_t farther; /* what last came from beyond it */
	bool stopped;
	bool ack_due, nak_due;
	uint8_t syndrome; /* of the refusal */
	uint32_t nak_psn;
	uint32_t pending; /* fetches to send */
	bool alone;       /* what was just given out does not belong in a run: it is said again, or refuses */
	bool ack_again, ack_in_run;
	struct roce_fetch *given; /* whose answer was just given out */
	uint8_t heard;            /* enum roce_heard: of answers in runs; whoever reads it sets it back */
	uint64_t duplicates, out_of_sequence, dropped;
};

enum { ROCE_MESSAGE_NONE, ROCE_MESSAGE_SEND, ROCE_MESSAGE_WRITE };

/* Zeroed but for calls, owner, fetches, max_fetches and the settings. */
void roce_answer_start(struct roce_answer *s, uint32_t psn);
/* A request, for this queue pair and from its peer. */
void roce_answer_take(struct roce_answer *s, const struct roce_packet *p);
/* A response to send; its payload lies at packet.payload until the next call. False: none. */
bool roce_answer_next(struct roce_answer *s, struct roce_packet *out);
/* What was just given out left behind the first of a run. */
void roce_answer_in_run(struct roce_answer *s);
static inline bool roce_answer_waits(const struct roce_answer *answer)
{
	return answer->pending || answer->ack_due || answer->nak_due;
}

#endif

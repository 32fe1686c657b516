/*
 * The two ends of a lane (fabric.h) in private memory, and links: connections to other processes.
 */
#ifndef AIORDMA_SOFT_LANE_H
#define AIORDMA_SOFT_LANE_H

#include <sys/types.h>

#include "core/engine.h"

/* A completion channel of the peer: its eventfd, shared by all lanes that lead there. */
struct soft_event {
	uint64_t id;
	int fd;
	unsigned refs;
	struct soft_event *next;
};

/* A slab of the peer in our address space. */
struct soft_map {
	uint64_t slab;
	char *at;
	size_t length;
	bool writable;
	struct soft_map *next;
};

struct soft_packet;
struct soft_early;

/*
 * One connected socket. The process whose QPs ask dials; so two processes whose QPs talk both ways have two.
 * Only the progress thread reads, writes, adds and removes; lanes hold references to what lies behind.
 */
struct soft_link {
	int fd;
	bool dialled, ready;
	atomic_bool dead;
	uint32_t slot;
	atomic_uint refs;
	struct soft_doors *doors;
	const struct soft_keys *keys;
	int kick_fd;
	pid_t pid;             /* of the peer, as this process sees it; 0: it does not */
	atomic_bool no_vm;     /* the kernel does not let us into the peer's memory */
	struct soft_lock lock; /* events */
	struct soft_event *events;
	struct soft_map *maps; /* progress thread */
	struct soft_packet *queue, **queue_tail;
	struct soft_early *early; /* attach requests for QPs that are not ready */
	unsigned nearly;
	struct soft_link *next;
};
void soft_link_release(struct soft_link *link);
void soft_link_kick(struct soft_link *link);
void soft_event_release(struct soft_link *link, struct soft_event *event);

/* A region of the peer that its owner has let us map. */
struct soft_reg {
	uint32_t rkey, access;
	uint32_t gate; /* of the lane when the rights were checked */
	uint64_t base, length;
	uint64_t serial; /* valid while the peer's key table says the same */
	uint32_t index;  /* in that table */
	char *at;        /* NULL: may not be mapped */
	const struct soft_map *map;
	uint64_t remote; /* not shareable memory: its address in the peer's process; 0: not to be touched */
};

enum { SOFT_REGS = 16, SOFT_ASKS = 4 };

/* Requester's end. sq_lock. */
struct soft_out {
	struct soft_seg *seg;
	struct soft_link *link;
	struct soft_door *door; /* of the responder's receive CQ */
	uint32_t bit;
	struct soft_event *event;
	uint64_t tail, head;    /* written; known to be taken */
	uint64_t issued, acked; /* message numbers */
	uint64_t wanted;        /* newest message whose acknowledgement completes something */
	uint64_t staged;        /* newest READ, WRITE or atomic that the responder carries out */
	uint64_t resp_head;
	uint64_t kicked;             /* newest message its peer was kicked for */
	bool dirty, fire, solicited; /* published since the door was rung: anything; with completion; asked for */
	bool counted;                /* in send_cq->waiting */
	bool asleep;                 /* the peer had to be kicked for an acknowledgement: it does not poll */
	bool now;                    /* so kick it again as soon as this is published */
	bool dead;                   /* the peer's process is gone, or broke the lane */
	unsigned nasks;
	uint32_t asks[SOFT_ASKS]; /* rkeys to ask the owner about */
	struct soft_reg regs[SOFT_REGS];
};

/* Responder's end. rq_lock. */
struct soft_in {
	struct soft_seg *seg;
	struct soft_link *link;
	struct soft_door *door; /* of the requester's send CQ */
	uint32_t bit;
	struct soft_event *event;
	uint32_t gate; /* as last published */
	uint64_t head, acked;
	uint64_t published; /* what the requester has been told of acked */
	uint64_t resp_tail, resp_head;
	bool in_message, dropping; /* between FIRST and LAST; its receive was missing (UC) */
	bool stopped;              /* refused a request: takes no more */
	uint32_t placed, total;
	uint32_t answered; /* READ: bytes sent back so far */
};

/* Unmap, drop references. The lock of that side held. */
void soft_out_free(struct soft_qp *qp);
void soft_in_free(struct soft_qp *qp);
/* RNR timer of a message that waits at qp->in. Takes the lock. */
void soft_in_timeout(struct soft_qp *qp, struct soft_after *after);
/* The peer's process is gone. Takes the locks. */
void soft_lane_lost(struct soft_qp *qp, const struct soft_link *link, struct soft_after *after);

#endif

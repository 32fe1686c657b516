/*
 * What travels on links: one fixed packet each way per question, with descriptors beside it.
 */
#ifndef AIORDMA_SOFT_LINK_H
#define AIORDMA_SOFT_LINK_H

#include "shm/lane.h"

enum { SOFT_LINK_MAGIC = 0x53524c31, SOFT_PACKET_FDS = 3, SOFT_NO_EVENT = 0 };

enum soft_packet_type {
	SOFT_HELLO = 1, /* both ways, first. fds: doors, keys, kick */
	SOFT_ATTACH,    /* requester -> responder: a lane please. fds: [event] of its send CQ */
	SOFT_ATTACHED,  /* answer. fds: segment, [event] of the receive CQ */
	SOFT_RESOLVE,   /* requester -> responder: may I map what this rkey opens? */
	SOFT_RESOLVED,  /* answer. fds: [slab] */
	SOFT_ABSENT,    /* answer: no such QP (UD); none that is ready (it may still be ATTACHED) */
	SOFT_SLAB_GONE, /* responder -> requester: let go of it */
};

struct soft_message {
	uint32_t magic, type;
	uint32_t slot;             /* HELLO */
	uint32_t src_qpn, dst_qpn; /* requester's and responder's QP, in questions and answers alike */
	uint32_t qp_type;
	uint64_t attempt;  /* of the requester's QP: an answer to an older one is void */
	uint32_t cq, bit;  /* door of the sender of this message */
	uint64_t event_id; /* of its channel; SOFT_NO_EVENT: none, and no descriptor */
	uint32_t rnr_retry;
	uint32_t rkey, access, index;
	uint32_t gate;
	uint32_t reserved;
	uint64_t base, length, serial;
	uint64_t slab, slab_offset, slab_length;
	uint64_t remote; /* address, where there is no slab */
};

struct soft_packet {
	struct soft_packet *next;
	struct soft_message msg;
	int fds[SOFT_PACKET_FDS];
	unsigned nfds;
	int close_fd; /* after it was sent; -1: none */
};

/* An ATTACH for a QP that is not ready for it. */
struct soft_early {
	struct soft_early *next;
	struct soft_message msg;
	int event_fd;
};

/* Progress thread only, all of these. */

/* Link to the process with that slot, dialled if need be. NULL: cannot be reached now. */
struct soft_link *soft_link_dial(uint32_t slot);
/* An epoll event. False: of no link. */
bool soft_link_event(void *what, uint32_t events, struct soft_after *after);
void soft_link_send(struct soft_link *link, struct soft_message *msg, const int *fds, unsigned nfds, int close_fd);
/* Closes the socket, fails the lanes, takes it off the list. */
void soft_link_lost(struct soft_link *link, struct soft_after *after);
/* After fork(), in the child: the sockets of the parent. */
void soft_links_close_fds(void);
/* An event of the peer by its id; takes the fd over, or closes it. */
struct soft_event *soft_event_get(struct soft_link *link, uint64_t id, int fd);

/* attach.c. fds are taken over: what is not kept is closed, and set to -1. False: break the link. */
bool soft_attach_message(struct soft_link *link, const struct soft_message *msg, int *fds, struct soft_after *after);
void soft_attach_forget(struct soft_link *link);
void soft_service_run(void);
void soft_maps_drop(struct soft_link *link);

/* ud_lane.c */
void soft_ud_ask(void);
bool soft_ud_attach(struct soft_link *link, const struct soft_message *msg);
bool soft_ud_attached(struct soft_link *link, const struct soft_message *msg, int *fds);
void soft_ud_absent(const struct soft_message *msg);
void soft_ud_lost(const struct soft_link *link);
void soft_ud_close(void);

#endif

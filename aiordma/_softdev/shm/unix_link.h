/*
 * Messages on Unix links: one fixed packet for each question and each answer, with descriptors attached.
 */
#ifndef AIORDMA_SOFT_LINK_H
#define AIORDMA_SOFT_LINK_H

#include "shm/lane.h"

enum { SOFT_LINK_MAGIC = 0x53524c31, SOFT_PACKET_FDS = 3, SOFT_NO_EVENT = 0 };

enum soft_packet_type {
	SOFT_HELLO = 1, /* both directions, first. fds: doors, keys, kick */
	SOFT_ATTACH,    /* requester -> responder: request a lane. fds: [event] of its send CQ */
	SOFT_ATTACHED,  /* answer. fds: segment, [event] of the receive CQ */
	SOFT_RESOLVE,   /* requester -> responder: may the region of this rkey be mapped? */
	SOFT_RESOLVED,  /* answer. fds: [slab] */
	SOFT_ABSENT,    /* answer: no such QP (UD), or none that is ready (ATTACHED may follow) */
	SOFT_SLAB_GONE, /* responder -> requester: unmap it */
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
	int close_fd; /* after sending; -1: none */
};

/* An ATTACH for a QP that is not ready for it. */
struct soft_early {
	struct soft_early *next;
	struct soft_message msg;
	int event_fd;
};

/* Call all of these from the progress thread only. */

/* Link to the process with that slot; connects if necessary. NULL: not reachable now. */
struct soft_link *soft_link_dial(uint32_t slot);
/* Handles an epoll event. False: the event belongs to no link. */
bool soft_link_event(void *what, uint32_t events, struct soft_after *after);
void soft_link_send(struct soft_link *link, struct soft_message *msg, const int *fds, unsigned nfds, int close_fd);
/* Closes the socket, fails the lanes, removes the link from the list. */
void soft_link_lost(struct soft_link *link, struct soft_after *after);
/* In the child, after fork(): closes the parent's sockets. */
void soft_links_close_fds(void);
/* An event of the peer by its id; takes ownership of the fd, or closes it. */
struct soft_event *soft_event_get(struct soft_link *link, uint64_t id, int fd);

/* attach.c. Takes ownership of fds: closes those it does not keep and sets them to -1. False: break the link. */
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

/*
 * Messages on Unix links: one fixed packet for each question and each answer, with descriptors attached.
 */
#ifndef SOFTDEV_LINK_H
#define SOFTDEV_LINK_H

#include "shm/lane.h"

/* Its last digit counts the layouts of messages, lanes and segments: one that changes takes the next. */
enum { SOFT_LINK_MAGIC = 0x53524c34, SOFT_PACKET_FDS = 2, SOFT_NO_EVENT = 0 };

enum soft_packet_type {
	SOFT_HELLO = 1,  /* both directions, first. fds: doors for this peer, published segment */
	SOFT_ATTACH,     /* requester -> responder: request a lane. fds: [bell] of its send CQ */
	SOFT_ATTACHED,   /* answer. fds: segment, [bell] of the receive CQ */
	SOFT_RESOLVE,    /* requester -> responder: may the region of this rkey be mapped? */
	SOFT_RESOLVED,   /* answer. fds: [slab] */
	SOFT_ABSENT,     /* answer: no such QP (UD), or none that is ready (ATTACHED may follow) */
	SOFT_SLAB_GONE,  /* responder -> requester: unmap it */
	SOFT_EVENT_GONE, /* both directions: the channel with that event_id was destroyed */
	SOFT_REFUSED,    /* both directions: ATTACH or ATTACHED is void. error: the reason; bell: if it was lost */
};

struct soft_message {
	uint32_t magic, type;
	uint32_t slot;             /* HELLO */
	uint32_t src_qpn, dst_qpn; /* requester's and responder's QP, in questions and answers alike */
	uint32_t qp_type;
	uint64_t attempt;  /* of the requester's QP: an answer to an older one is void */
	uint32_t cq, bit;  /* door of the sender of this message */
	uint64_t event_id; /* of its channel; SOFT_NO_EVENT: none. The bell comes along once for each channel */
	uint64_t bell;     /* its number on this link */
	uint32_t rnr_retry;
	uint32_t rkey, access, index;
	uint32_t gate;
	uint32_t error;                /* errno */
	uint64_t base, length, serial; /* ATTACHED: 1 + the PSN that is expected, enum ibv_mtu; 0, 0: not said */
	uint64_t slab, slab_offset, slab_length;
	uint64_t remote; /* address, where there is no slab */
};

struct soft_packet {
	struct soft_packet *next;
	struct soft_message msg;
	int fds[SOFT_PACKET_FDS];
	unsigned nfds;
};

/* An ATTACH for a QP that is not ready for it. */
struct soft_early {
	struct soft_early *next;
	struct soft_message msg;
	struct soft_event *event;
};

/* Call all of these from the progress thread only. */

/* Link to the process with that slot; connects if necessary. NULL: not reachable now. */
struct soft_link *soft_link_dial(uint32_t slot);
/* Handles an epoll event. False: the event belongs to no link. */
bool soft_link_event(void *what, uint32_t events, struct soft_after *after);
/* Takes ownership of the fds; ends at the first that is -1. */
void soft_link_send(struct soft_link *link, struct soft_message *msg, const int *fds, unsigned nfds);
/* Closes the socket, fails the lanes, removes the link from the list. */
void soft_link_lost(struct soft_link *link, struct soft_after *after);
/* Tries links again that could not send although their socket had room. */
void soft_links_retry(void);
/* In the child, after fork(): closes the parent's sockets. */
void soft_links_close_fds(void);

/* ---- bell.c */

/* Makes the doors for the link's peer. Returns the descriptor to send, or -1 with errno. */
int soft_doors_make(struct soft_link *link);
void soft_doors_drop(struct soft_link *link);
/*
 * How the link's peer wakes the CQ's channel, for the message. *fd: its bell, or -1 if it has that already, or if there
 * is no channel. Returns errno.
 */
int soft_bell_give(struct soft_link *link, struct soft_cq *cq, struct soft_message *msg, int *fd);
/* The channel is gone (bell: 0), or the peer did not get that bell. True: it has a bell for the channel. */
bool soft_bell_take(struct soft_link *link, uint64_t chan, uint64_t bell);
/* Takes the bells out of their channels' sets, which may close as soon as the link is not listed. links_lock held. */
void soft_bells_unwatch(struct soft_link *link);
void soft_bells_drop(struct soft_link *link);
/* A channel's descriptor is about to be closed: no bell uses it from now on. Any thread. */
void soft_bells_forget(uint64_t chan);
/*
 * The peer's channel with that id; fd: its bell, if this is the first time. NULL with errno; EINVAL: the peer violated
 * the protocol.
 */
struct soft_event *soft_event_get(struct soft_link *link, uint64_t id, int fd);
bool soft_event_known(struct soft_link *link, uint64_t id);
void soft_event_gone(struct soft_link *link, uint64_t id);
void soft_events_drop(struct soft_link *link);

/* attach.c. Takes ownership of fds: closes those it does not keep and sets them to -1. False: break the link. */
bool soft_attach_message(struct soft_link *link, const struct soft_message *msg, int *fds, struct soft_after *after);
void soft_attach_forget(struct soft_link *link);
/* The answers of the link are sent: grants what was held back for them. */
void soft_attach_grant_held(struct soft_link *link);
/* The same for a message whose descriptors were lost, because this process cannot have more. */
bool soft_attach_incomplete(struct soft_link *link, const struct soft_message *msg, struct soft_after *after);
/* A link that has ended: what asked by it for a lane, and has no answer, asks again soon. Whoever has the slot then
 * answers: the one asked may have been gone already, and its slot another's. */
void soft_attach_unanswered(struct soft_qp *qp, const struct soft_link *link);
/* The link cannot be used for want of something here: tells the peer, and fails the QPs that wait for it. */
void soft_attach_none(struct soft_link *link, int err, struct soft_after *after);
static inline bool soft_is_shortage(int err)
{
	return err == EMFILE || err == ENFILE || err == ENOMEM || err == ENOSPC || err == ENOBUFS;
}
void soft_service_run(struct soft_after *after);
void soft_maps_drop(struct soft_link *link);

/* ud_lane.c */
void soft_ud_ask(void);
bool soft_ud_attach(struct soft_link *link, const struct soft_message *msg, struct soft_after *after);
/* Takes the reference to the event. Returns errno; EINVAL: the peer violated the protocol. */
int soft_ud_attached(struct soft_link *link, const struct soft_message *msg, int fd, struct soft_event *event);
void soft_ud_absent(const struct soft_message *msg);
/* The link's peer could not take its lane to this QP. */
void soft_ud_given_back(struct soft_qp *qp, const struct soft_link *link);
void soft_ud_lost(const struct soft_link *link);
void soft_ud_close(void);

#endif

/*
 * Transport of connection manager messages between processes of this host, and over the network.
 */
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cm/names.h"
#include "cm/outbox.h"

/* Precedes each message between processes. */
struct head {
	char magic[8];
	uint8_t src[16], dst[16];
	uint16_t src_port;
	uint8_t net; /* arrived over the network */
	uint8_t reserved[5];
};
static const char magic[8] = { 'a', 'i', 'o', 'r', 'd', 'm', 'c', '1' };

/* ---- between processes ------------------------------------------------------------------------------ */

/* False: no such process. Where the queue of that name is full the message waits in the outbox. */
static bool send_to(const struct sockaddr_un *name, socklen_t length, struct head *head, const uint8_t *mad)
{
	uint8_t message[sizeof(*head) + CM_MAD_BYTES];

	if (!length)
		return false;
	memcpy(message, head, sizeof(*head));
	memcpy(message + sizeof(*head), mad, CM_MAD_BYTES);
	return cm_outbox_send(name, length, message, sizeof(message));
}

/*
 * Delivers to the destination process on this host. False: there is none. Names that no other user can take
 * come first.
 */
static bool hand_on(struct head *head, const struct cm_mad *parsed, const uint8_t *mad)
{
	const bool request = parsed->attribute == CM_REQ || parsed->attribute == CM_SIDR_REQ;

	memcpy(head->magic, magic, sizeof(magic));
	if (request && parsed->service >> 32)
		return false;
	for (int place = CM_PLACES - 1; place >= 0; place--) {
		struct sockaddr_un name;
		if (!request) {
			const socklen_t length = cm_name_process(place, parsed->remote_id >> CM_ID_BITS, &name);
			if (send_to(&name, length, head, mad))
				return true;
			continue;
		}
		const enum cm_family any[] = { cm_family_of(head->dst), CM_BOTH };
		for (int i = -1; i < 2; i++) {
			const struct cm_port port = {
				.space = (uint16_t)(parsed->service >> 16),
				.port = (uint16_t)parsed->service,
				.gid = i < 0 ? head->dst : NULL,
				.family = i < 0 ? CM_BOTH : any[i],
				.listen = true,
			};
			if (send_to(&name, cm_name_port(place, &port, &name), head, mad))
				return true;
		}
	}
	return false;
}

static bool same_user(struct msghdr *header)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(header); c; c = CMSG_NXTHDR(header, c)) {
		struct ucred sent_by;

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_CREDENTIALS)
			continue;
		memcpy(&sent_by, CMSG_DATA(c), sizeof(sent_by));
		return sent_by.uid == getuid();
	}
	return false;
}

bool cm_bus_receive(int fd, struct cm_peer *from, uint8_t mad[CM_MAD_BYTES], size_t *size)
{
	union {
		char bytes[CMSG_SPACE(sizeof(struct ucred))];
		struct cmsghdr align;
	} control;
	struct head head;
	struct iovec iov[] = { { &head, sizeof(head) }, { mad, CM_MAD_BYTES } };
	struct msghdr header = {
		.msg_iov = iov, .msg_iovlen = 2, .msg_control = control.bytes, .msg_controllen = sizeof(control.bytes)
	};
	const ssize_t got = recvmsg(fd, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

	*size = 0;
	if (got < 0)
		return errno == EINTR;
	/* Any process may send to this name. */
	if (got != (ssize_t)(sizeof(head) + CM_MAD_BYTES) || (header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) ||
	    memcmp(head.magic, magic, sizeof(magic)) != 0 || !same_user(&header))
		return true;
	memcpy(from->remote, head.src, 16);
	memcpy(from->local, head.dst, 16);
	from->port = head.src_port;
	from->net = head.net;
	*size = CM_MAD_BYTES;
	return true;
}

/* ---- the network ------------------------------------------------------------------------------------ */

bool cm_bus_send(struct soft_ctx *ctx, const struct cm_peer *peer, const uint8_t mad[CM_MAD_BYTES])
{
	struct head head = { .src_port = 0 };
	struct cm_mad parsed;

	if (peer->net) {
		soft_mad_send(ctx, peer->local, peer->remote, peer->port, mad);
		return true;
	}
	memcpy(head.src, peer->local, 16);
	memcpy(head.dst, peer->remote, 16);
	return cm_mad_parse(mad, CM_MAD_BYTES, &parsed) && hand_on(&head, &parsed, mad);
}

/* Forwards a message from the network to a process of this host. */
static void take_packet(const struct soft_mad_path *path, const uint8_t *payload, size_t size)
{
	struct head head = { .src_port = path->answer_port, .net = 1 };
	struct cm_mad mad, answer;
	uint8_t bytes[CM_MAD_BYTES];

	if (!cm_mad_parse(payload, size, &mad))
		return;
	memcpy(head.src, path->src, 16);
	memcpy(head.dst, path->dst, 16);
	if (hand_on(&head, &mad, payload) || !cm_stranger_answer(&mad, &answer))
		return;
	/* No process of this host has that id, so none would send the answer: answer here. */
	cm_mad_pack(&answer, bytes);
	soft_mad_answer(path, bytes);
}

_Static_assert(SOFT_MAD_BYTES == (int)CM_MAD_BYTES, "all of a datagram");

/*
 * Not deferred to the first rdma_cm call: the process that owns port 4791 forwards messages for the others even if it
 * uses no rdma_cm itself.
 */
__attribute__((constructor)) static void receive_packets(void)
{
	soft_mad_receive(take_packet);
}

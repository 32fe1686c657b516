/*
 * Transport of connection manager messages between processes of this host, and over the network.
 */
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cm/names.h"

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

static pthread_once_t sender_once = PTHREAD_ONCE_INIT;
static int sender = -1;

static void open_sender(void)
{
	sender = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

void cm_bus_after_fork(void)
{
	static const pthread_once_t fresh = PTHREAD_ONCE_INIT;

	if (sender >= 0)
		close(sender);
	sender = -1;
	memcpy(&sender_once, &fresh, sizeof(fresh));
}

static bool send_to(const struct sockaddr_un *name, socklen_t length, struct head *head, const uint8_t *mad)
{
	struct iovec iov[] = { { head, sizeof(*head) }, { (void *)(uintptr_t)mad, CM_MAD_BYTES } };
	struct msghdr header = {
		.msg_name = (void *)(uintptr_t)name, .msg_namelen = length, .msg_iov = iov, .msg_iovlen = 2
	};

	if (!length)
		return false;
	pthread_once(&sender_once, open_sender);
	return sendmsg(sender, &header, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0 || (errno != ECONNREFUSED && errno != ENOENT);
}

/*
 * Delivers to the destination process on this host. False: there is none. A full queue loses the message;
 * retransmission repeats it. Names that no other user can take come first.
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
		for (int any = 0; any < 2; any++) {
			const struct cm_port port = {
				.space = (uint16_t)(parsed->service >> 16),
				.port = (uint16_t)parsed->service,
				.gid = any ? NULL : head->dst,
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

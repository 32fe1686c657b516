/*
 * Messages of the connection manager between processes of this host, and by the wire to others.
 */
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "cm/bus.h"

/* In front of each message between processes. */
struct head {
	char magic[8];
	uint8_t src[16], dst[16];
	uint16_t src_port;
	uint8_t wire; /* it came from the network */
	uint8_t reserved[5];
};
static const char magic[8] = { 'a', 'i', 'o', 'r', 'd', 'm', 'c', '1' };

/* ---- names ------------------------------------------------------------------------------------------ */

static socklen_t name_process(uint32_t slot, struct sockaddr_un *to)
{
	*to = (struct sockaddr_un){ .sun_family = AF_UNIX };
	int n = snprintf(to->sun_path + 1, sizeof(to->sun_path) - 1, "aiordma-cm.%u.%u", (unsigned)getuid(), slot);

	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

static socklen_t name_port(uint16_t space, uint16_t port, const uint8_t *gid, bool listen, struct sockaddr_un *to)
{
	char address[33] = "any";

	for (int i = 0; gid && i < 16; i++)
		snprintf(address + (ptrdiff_t)2 * i, 3, "%02x", gid[i]);
	*to = (struct sockaddr_un){ .sun_family = AF_UNIX };
	int n = snprintf(to->sun_path + 1, sizeof(to->sun_path) - 1, "aiordma-cm.%u.%x.%u.%s%s", (unsigned)getuid(),
			 space, port, address, listen ? ".listen" : "");

	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

static int bind_name(const struct sockaddr_un *name, socklen_t length)
{
	const int one = 1;
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0)
		return -1;
	if (setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &one, sizeof(one)) ||
	    bind(fd, (const struct sockaddr *)name, length)) {
		int err = errno;
		close(fd);
		errno = err;
		return -1;
	}
	return fd;
}

int cm_bus_bind_process(void)
{
	struct sockaddr_un name;
	const socklen_t length = name_process(soft_proc.slot, &name);

	return bind_name(&name, length);
}

int cm_bus_bind_port(uint16_t space, uint16_t port, const uint8_t *gid, bool listen)
{
	struct sockaddr_un name;
	const socklen_t length = name_port(space, port, gid, listen, &name);

	return bind_name(&name, length);
}

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

/* 0, or errno: ECONNREFUSED when nobody has that name. */
static int send_to(const struct sockaddr_un *name, socklen_t length, struct head *head, const uint8_t *mad)
{
	struct iovec iov[] = { { head, sizeof(*head) }, { (void *)(uintptr_t)mad, CM_MAD_BYTES } };
	struct msghdr header = {
		.msg_name = (void *)(uintptr_t)name, .msg_namelen = length, .msg_iov = iov, .msg_iovlen = 2
	};

	pthread_once(&sender_once, open_sender);
	return sendmsg(sender, &header, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? errno : 0;
}

/* To whom it is for on this host. False: nobody. A queue that is full loses it: it will come again. */
static bool hand_on(struct head *head, const struct cm_mad *parsed, const uint8_t *mad)
{
	const bool request = parsed->attribute == CM_REQ || parsed->attribute == CM_SIDR_REQ;
	struct sockaddr_un name;
	socklen_t length;

	memcpy(head->magic, magic, sizeof(magic));
	if (!request) {
		length = name_process(parsed->remote_id >> CM_ID_BITS, &name);
		return send_to(&name, length, head, mad) != ECONNREFUSED;
	}
	const uint16_t space = (uint16_t)(parsed->service >> 16), port = (uint16_t)parsed->service;
	if (parsed->service >> 32)
		return false;
	length = name_port(space, port, head->dst, true, &name);
	if (send_to(&name, length, head, mad) != ECONNREFUSED)
		return true;
	length = name_port(space, port, NULL, true, &name);
	return send_to(&name, length, head, mad) != ECONNREFUSED;
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
	/* The name is anybody's to send to. */
	if (got != (ssize_t)(sizeof(head) + CM_MAD_BYTES) || (header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) ||
	    memcmp(head.magic, magic, sizeof(magic)) != 0 || !same_user(&header))
		return true;
	memcpy(from->remote, head.src, 16);
	memcpy(from->local, head.dst, 16);
	from->port = head.src_port;
	from->wire = head.wire;
	*size = CM_MAD_BYTES;
	return true;
}

/* ---- the network ------------------------------------------------------------------------------------ */

static void send_packet(const struct wire_route *route, const uint8_t *mad)
{
	static _Atomic(uint32_t) psn;
	struct wire_batch *batch = soft_wire_batch();
	const struct wire_packet p = {
		.opcode = WIRE_UD | WIRE_SEND_ONLY,
		.pkey = WIRE_PKEY,
		.migrated = true,
		.qpn = CM_QPN,
		.psn = atomic_fetch_add(&psn, 1) & WIRE_24,
		.src_qpn = CM_QPN,
		.qkey = CM_QKEY,
		.payload_length = CM_MAD_BYTES,
	};

	if (!batch)
		return;
	uint8_t *to = soft_wire_room(batch);
	const size_t size = wire_pack_headers(&p, to);
	memcpy(to + size, mad, CM_MAD_BYTES);
	soft_wire_add(batch, route, size + CM_MAD_BYTES);
	soft_wire_send(batch);
}

static void send_by_wire(struct soft_ctx *ctx, const struct cm_peer *peer, const uint8_t *mad)
{
	struct ibv_ah_attr ah = { .is_global = 1, .port_num = 1, .grh.hop_limit = 64 };
	union ibv_gid local;
	struct wire_route route;

	memcpy(local.raw, peer->local, 16);
	const int index = soft_gid_find(ctx, &local);
	if (index < 0 || soft_wire_open())
		return; /* the address is gone: lost, as in a network */
	memcpy(ah.grh.dgid.raw, peer->remote, 16);
	ah.grh.sgid_index = (uint8_t)index;
	soft_wire_route(ctx, &ah, CM_QPN, &route);
	route.path.dst_port = peer->port;
	send_packet(&route, mad);
}

bool cm_bus_send(struct soft_ctx *ctx, const struct cm_peer *peer, const uint8_t mad[CM_MAD_BYTES])
{
	struct head head = { .src_port = 0 };
	struct cm_mad parsed;

	if (peer->wire) {
		send_by_wire(ctx, peer, mad);
		return true;
	}
	memcpy(head.src, peer->local, 16);
	memcpy(head.dst, peer->remote, 16);
	return cm_mad_parse(mad, CM_MAD_BYTES, &parsed) && hand_on(&head, &parsed, mad);
}

/* Whoever has one of our ports is answered there; everybody else at 4791. */
static uint16_t answer_port(uint16_t port)
{
	return port >= WIRE_OWN_PORT && port < WIRE_OWN_PORT + SOFT_MAX_SLOT ? port : WIRE_PORT;
}

void cm_bus_packet(const struct wire_packet *packet, const struct wire_inbound *in)
{
	struct head head = { .src_port = answer_port(in->path.src_port), .wire = 1 };
	struct cm_mad mad, answer;
	uint8_t bytes[CM_MAD_BYTES];

	if (packet->opcode != (WIRE_UD | WIRE_SEND_ONLY) || packet->qkey != CM_QKEY || packet->src_qpn != CM_QPN ||
	    !cm_mad_parse(packet->payload, packet->payload_length, &mad))
		return;
	memcpy(head.src, in->path.src, 16);
	memcpy(head.dst, in->path.dst, 16);
	if (hand_on(&head, &mad, packet->payload) || !cm_stranger_answer(&mad, &answer))
		return;
	/* For no process of this host: there is none that could say so. */
	struct wire_route route = { .traffic_class = soft_wire_class(0) };
	memcpy(route.path.src, in->path.dst, 16);
	memcpy(route.path.dst, in->path.src, 16);
	route.path.src_port = in->path.dst_port;
	route.path.dst_port = head.src_port;
	cm_mad_pack(&answer, bytes);
	send_packet(&route, bytes);
}

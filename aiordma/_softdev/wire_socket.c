/*
 * UDP sockets of the wire: unconnected, with IP_MTU_DISCOVER=DO, so that the IP identification is 0 and the ICRC can
 * be known without privilege (wire_icrc.h).
 */
#include <linux/udp.h>
#include <netinet/ip.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "wire.h"

enum { RX_BATCH = 64, RX_BYTES = WIRE_MAX_PACKET + 64, BUFFER_BYTES = 16 << 20, IPV4 = 0, IPV6 = 1 };

struct port {
	atomic_int fd;
	uint16_t number;
	atomic_bool hot; /* packets have come here: polls look at it */
	bool watched;
};

static struct {
	pthread_mutex_t lock;
	struct port own[2], front[2]; /* by family */
} wire = { .lock = PTHREAD_MUTEX_INITIALIZER,
	   .own = { { .fd = -1 }, { .fd = -1 } },
	   .front = { { .fd = -1 }, { .fd = -1 } } };

/* Follows a packet that is handed on to another process of this host. */
struct forwarded {
	char magic[8];
	uint8_t src[16], dst[16];
	uint16_t src_port, dst_port;
	uint8_t tos, reserved[3];
};
static const char forward_magic[8] = { 'a', 'i', 'o', 'w', 'i', 'r', 'e', '1' };

enum wire_mode soft_wire_mode(void)
{
	static atomic_int known = -1;
	int mode = atomic_load_explicit(&known, memory_order_relaxed);

	if (mode >= 0)
		return (enum wire_mode)mode;
	const char *said = getenv("AIORDMA_SOFT_WIRE");
	mode = WIRE_AUTO;
	if (said && !strcmp(said, "off"))
		mode = WIRE_OFF;
	else if (said && !strcmp(said, "only"))
		mode = WIRE_ONLY;
	else if (said && *said && strcmp(said, "auto") != 0)
		fprintf(stderr,
			"aiordma: AIORDMA_SOFT_WIRE=\"%s\" is not understood, so it is auto; wanted: off, auto or "
			"only\n",
			said);
	atomic_store(&known, mode);
	return (enum wire_mode)mode;
}

bool soft_wire_wanted(struct soft_ctx *ctx, const struct ibv_ah_attr *ah)
{
	const enum wire_mode mode = soft_wire_mode();

	if (mode == WIRE_OFF || !ah->is_global)
		return false;
	return mode == WIRE_ONLY || !soft_gid_is_local(ctx, &ah->grh.dgid);
}

/* ---- addresses -------------------------------------------------------------------------------------- */

static int family_of(const struct wire_route *route)
{
	return wire_gid_is_ipv4(route->path.src) ? IPV4 : IPV6;
}

static socklen_t to_address(const uint8_t gid[16], uint16_t port, uint32_t scope, struct sockaddr_in6 *to)
{
	memset(to, 0, sizeof(*to));
	if (wire_gid_is_ipv4(gid)) {
		struct sockaddr_in *in = (struct sockaddr_in *)(void *)to;
		in->sin_family = AF_INET;
		in->sin_port = htons(port);
		memcpy(&in->sin_addr, gid + 12, 4);
		return sizeof(*in);
	}
	to->sin6_family = AF_INET6;
	to->sin6_port = htons(port);
	memcpy(&to->sin6_addr, gid, 16);
	to->sin6_scope_id = scope;
	return sizeof(*to);
}

static void to_gid(const void *address, bool ipv4, uint8_t gid[16])
{
	if (!ipv4) {
		memcpy(gid, address, 16);
		return;
	}
	memset(gid, 0, 16);
	gid[10] = gid[11] = 0xff;
	memcpy(gid + 12, address, 4);
}

static uint32_t scope_of(const uint8_t gid[16], uint32_t interface)
{
	return gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80 ? interface : 0;
}

void soft_wire_route(struct soft_ctx *ctx, const struct ibv_ah_attr *ah, uint32_t qpn, struct wire_route *route)
{
	struct ibv_gid_entry entry = { 0 };

	memset(route, 0, sizeof(*route));
	soft_query_gid_ex(&ctx->v.context, 1, ah->grh.sgid_index, &entry, 0, sizeof(entry));
	memcpy(route->path.src, entry.gid.raw, 16);
	memcpy(route->path.dst, ah->grh.dgid.raw, 16);
	route->scope = scope_of(route->path.dst, entry.ndev_ifindex);
	const uint8_t dscp = ah->grh.traffic_class >> 2;
	route->traffic_class = (uint8_t)((dscp ? dscp : WIRE_DSCP) << 2 | WIRE_ECT);
	const int family = family_of(route);
	route->path.src_port = wire.front[family].fd >= 0 ? wire.front[family].number : wire.own[family].number;
	/* On this host, and of us: no need to be handed on. */
	route->path.dst_port = soft_gid_is_local(ctx, &ah->grh.dgid) ? soft_wire_own_port(qpn) : WIRE_PORT;
}

enum ibv_mtu soft_wire_mtu(const struct wire_route *route)
{
	const bool ipv4 = wire_gid_is_ipv4(route->path.src);
	const int headers = (ipv4 ? 20 : 40) + 8 + WIRE_BTH + WIRE_ATOMIC + WIRE_ICRC;
	struct sockaddr_in6 to;
	socklen_t length = to_address(route->path.dst, WIRE_PORT, route->scope, &to);
	int fd = socket(ipv4 ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0), mtu = 0;
	socklen_t size = sizeof(mtu);
	enum ibv_mtu found = 0;

	if (fd < 0)
		return 0;
	if (!connect(fd, (struct sockaddr *)&to, length) &&
	    !getsockopt(fd, ipv4 ? IPPROTO_IP : IPPROTO_IPV6, ipv4 ? IP_MTU : IPV6_MTU, &mtu, &size))
		for (found = IBV_MTU_4096; found > IBV_MTU_256 && (128 << found) + headers > mtu;)
			found--;
	close(fd);
	return found;
}

/* ---- opening ---------------------------------------------------------------------------------------- */

static int open_port(int family, uint16_t number)
{
	const int one = 1, mtu_discover = IP_PMTUDISC_DO, bytes = BUFFER_BYTES;
	int fd = socket(family == IPV4 ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	uint8_t any[16] = { 0 };
	struct sockaddr_in6 address;

	if (fd < 0)
		return -1;
	if (family == IPV4) {
		to_gid(any, true, any);
		setsockopt(fd, IPPROTO_IP, IP_MTU_DISCOVER, &mtu_discover, sizeof(mtu_discover));
		setsockopt(fd, IPPROTO_IP, IP_PKTINFO, &one, sizeof(one));
		setsockopt(fd, IPPROTO_IP, IP_RECVTOS, &one, sizeof(one));
	} else {
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one));
		setsockopt(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, &mtu_discover, sizeof(mtu_discover));
		setsockopt(fd, IPPROTO_IPV6, IPV6_RECVPKTINFO, &one, sizeof(one));
		setsockopt(fd, IPPROTO_IPV6, IPV6_RECVTCLASS, &one, sizeof(one));
		setsockopt(fd, IPPROTO_UDP, UDP_NO_CHECK6_RX, &one, sizeof(one)); /* rxe sends none */
	}
	/* Going back over what a short queue dropped is dear. More than the limit only with privilege. */
	if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof(bytes)))
		setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
	if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof(bytes)))
		setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
	socklen_t length = to_address(any, number, 0, &address);
	if (bind(fd, (struct sockaddr *)&address, length)) {
		close(fd);
		return -1;
	}
	return fd;
}

static bool watch(struct port *port, bool on, int operation)
{
	struct epoll_event event = { .events = on ? EPOLLIN : 0, .data.ptr = port };

	return port->fd < 0 || !epoll_ctl(soft_proc.epoll_fd, operation, port->fd, &event);
}

static void port_open(struct port *port, int family, uint16_t number)
{
	if (port->fd >= 0)
		return;
	int fd = open_port(family, number);
	if (fd < 0)
		return;
	port->number = number;
	port->fd = fd;
	port->watched = watch(port, true, EPOLL_CTL_ADD);
}

int soft_wire_open(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	int err = 0;

	pthread_once(&once, soft_wire_capture_read);
	pthread_mutex_lock(&wire.lock);
	for (int family = IPV4; family <= IPV6; family++) {
		port_open(&wire.own[family], family, (uint16_t)(WIRE_OWN_PORT + soft_proc.slot));
		/* Each time: whoever had it may have gone. */
		port_open(&wire.front[family], family, WIRE_PORT);
	}
	if (wire.own[IPV4].fd < 0 && wire.own[IPV6].fd < 0)
		err = EADDRINUSE;
	pthread_mutex_unlock(&wire.lock);
	return err;
}

void soft_wire_close(void)
{
	pthread_mutex_lock(&wire.lock);
	for (int family = IPV4; family <= IPV6; family++) {
		struct port *ports[] = { &wire.own[family], &wire.front[family] };
		for (int i = 0; i < 2; i++) {
			if (ports[i]->fd >= 0)
				close(ports[i]->fd);
			ports[i]->fd = -1;
			atomic_store(&ports[i]->hot, false);
		}
	}
	pthread_mutex_unlock(&wire.lock);
}

void soft_wire_after_fork(void)
{
	soft_wire_rx_after_fork();
	pthread_mutex_init(&wire.lock, NULL); /* perhaps held by a thread that is not here */
	soft_wire_close();
}

/* Ports that polls do not look at are always watched. */
void soft_wire_watch(bool on)
{
	pthread_mutex_lock(&wire.lock);
	for (int family = IPV4; family <= IPV6; family++) {
		struct port *ports[] = { &wire.own[family], &wire.front[family] };
		for (int i = 0; i < 2; i++) {
			const bool want = on || !atomic_load(&ports[i]->hot);
			if (ports[i]->fd >= 0 && ports[i]->watched != want && watch(ports[i], want, EPOLL_CTL_MOD))
				ports[i]->watched = want;
		}
	}
	pthread_mutex_unlock(&wire.lock);
}

bool soft_wire_is_socket(const void *what)
{
	return what == &wire.own[IPV4] || what == &wire.own[IPV6] || what == &wire.front[IPV4] ||
	       what == &wire.front[IPV6];
}

/* ---- sending ---------------------------------------------------------------------------------------- */

static pthread_key_t batch_key;
static bool has_key;

static void make_key(void)
{
	has_key = !pthread_key_create(&batch_key, free);
}

struct wire_batch *soft_wire_batch(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, make_key);
	if (!has_key)
		return NULL;
	struct wire_batch *batch = pthread_getspecific(batch_key);
	if (!batch) {
		batch = malloc(sizeof(*batch));
		if (!batch || pthread_setspecific(batch_key, batch)) {
			free(batch);
			return NULL;
		}
	}
	batch->count = 0;
	batch->used = 0;
	batch->front = false;
	return batch;
}

static void put_control(struct msghdr *header, const struct wire_route *route)
{
	struct cmsghdr *c = CMSG_FIRSTHDR(header);
	const int tos = route->traffic_class;

	if (wire_gid_is_ipv4(route->path.src)) {
		struct in_pktinfo from = { 0 };
		memcpy(&from.ipi_spec_dst, route->path.src + 12, 4);
		c->cmsg_level = IPPROTO_IP;
		c->cmsg_type = IP_PKTINFO;
		c->cmsg_len = CMSG_LEN(sizeof(from));
		memcpy(CMSG_DATA(c), &from, sizeof(from));
		header->msg_controllen = CMSG_SPACE(sizeof(from)) + CMSG_SPACE(sizeof(tos));
		c = CMSG_NXTHDR(header, c);
		c->cmsg_level = IPPROTO_IP;
		c->cmsg_type = IP_TOS;
	} else {
		struct in6_pktinfo from = { .ipi6_ifindex = route->scope };
		memcpy(&from.ipi6_addr, route->path.src, 16);
		c->cmsg_level = IPPROTO_IPV6;
		c->cmsg_type = IPV6_PKTINFO;
		c->cmsg_len = CMSG_LEN(sizeof(from));
		memcpy(CMSG_DATA(c), &from, sizeof(from));
		header->msg_controllen = CMSG_SPACE(sizeof(from)) + CMSG_SPACE(sizeof(tos));
		c = CMSG_NXTHDR(header, c);
		c->cmsg_level = IPPROTO_IPV6;
		c->cmsg_type = IPV6_TCLASS;
	}
	c->cmsg_len = CMSG_LEN(sizeof(tos));
	memcpy(CMSG_DATA(c), &tos, sizeof(tos));
}

void soft_wire_add(struct wire_batch *batch, const struct wire_route *route, size_t size)
{
	uint8_t *bytes = soft_wire_room(batch);
	const uint32_t icrc = wire_icrc(&route->path, bytes, size);
	const unsigned i = batch->count++;
	struct msghdr *header = &batch->messages[i].msg_hdr;

	for (int k = 0; k < WIRE_ICRC; k++)
		bytes[size + (size_t)k] = (uint8_t)(icrc >> 8 * k);
	batch->used += size + WIRE_ICRC;
	batch->front = route->path.src_port == WIRE_PORT;
	batch->iov[i] = (struct iovec){ bytes, size + WIRE_ICRC };
	memset(&batch->control[i], 0, sizeof(batch->control[i]));
	*header = (struct msghdr){
		.msg_name = &batch->to[i],
		.msg_namelen = to_address(route->path.dst, route->path.dst_port, route->scope, &batch->to[i]),
		.msg_iov = &batch->iov[i],
		.msg_iovlen = 1,
		.msg_control = batch->control[i].bytes,
		.msg_controllen = sizeof(batch->control[i].bytes),
	};
	put_control(header, route);
	soft_wire_capture(&route->path, route->traffic_class, false, bytes, size + WIRE_ICRC);
}

/* All of a batch is of one family: batches are of one QP. */
unsigned soft_wire_send(struct wire_batch *batch)
{
	const int family = batch->count && batch->to[0].sin6_family == AF_INET6 ? IPV6 : IPV4;
	const struct port *port = batch->front ? &wire.front[family] : &wire.own[family];
	unsigned done = 0, lost = 0;

	while (done < batch->count) {
		int n = sendmmsg(port->fd, batch->messages + done, batch->count - done, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (n > 0) {
			done += (unsigned)n;
		} else if (n < 0 && errno == EINTR) {
			continue;
		} else if (n < 0 && (errno == EAGAIN || errno == ENOBUFS)) {
			break;
		} else { /* this one can never be sent (too long for the network, no route): lost, as in a network */
			done++;
			lost++;
		}
	}
	atomic_fetch_add_explicit(&soft_wire_counters.sent, done - lost, memory_order_relaxed);
	if (lost)
		atomic_fetch_add_explicit(&soft_wire_counters.send_failed, lost, memory_order_relaxed);
	batch->count = 0;
	batch->used = 0;
	return done;
}

/* ---- receiving -------------------------------------------------------------------------------------- */

static struct {
	struct mmsghdr messages[RX_BATCH];
	struct iovec iov[RX_BATCH];
	struct sockaddr_in6 from[RX_BATCH];
	union {
		char bytes[CMSG_SPACE(sizeof(struct in6_pktinfo)) + CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control[RX_BATCH];
	uint8_t bytes[RX_BATCH][RX_BYTES];
} rx;

/* Where it came from and went to. False: not known. */
static bool read_headers(struct msghdr *header, int family, struct wire_inbound *in)
{
	bool found = false;

	if (family == IPV4) {
		const struct sockaddr_in *from = header->msg_name;
		to_gid(&from->sin_addr, true, in->path.src);
		in->path.src_port = ntohs(from->sin_port);
	} else {
		const struct sockaddr_in6 *from = header->msg_name;
		to_gid(&from->sin6_addr, false, in->path.src);
		in->path.src_port = ntohs(from->sin6_port);
	}
	for (struct cmsghdr *c = CMSG_FIRSTHDR(header); c; c = CMSG_NXTHDR(header, c)) {
		if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_PKTINFO) {
			struct in_pktinfo info;
			memcpy(&info, CMSG_DATA(c), sizeof(info));
			to_gid(&info.ipi_addr, true, in->path.dst);
			found = true;
		} else if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_PKTINFO) {
			struct in6_pktinfo info;
			memcpy(&info, CMSG_DATA(c), sizeof(info));
			to_gid(&info.ipi6_addr, false, in->path.dst);
			found = true;
		} else if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TOS) {
			in->tos = *CMSG_DATA(c);
		} else if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_TCLASS) {
			int tclass;
			memcpy(&tclass, CMSG_DATA(c), sizeof(tclass));
			in->tos = (uint8_t)tclass;
		}
	}
	return found;
}

static bool is_loopback(const uint8_t gid[16])
{
	return wire_gid_is_ipv4(gid) ? gid[12] == 127 : !memcmp(gid, &in6addr_loopback, 16);
}

/* What the first process of this host handed on: the packet as it was. */
static void unwrap(struct wire_inbound *in)
{
	struct forwarded head;

	if (in->size < sizeof(head) || memcmp(in->bytes, forward_magic, sizeof(forward_magic)) != 0 ||
	    !is_loopback(in->path.src) || !is_loopback(in->path.dst) || in->path.src_port != WIRE_PORT)
		return;
	memcpy(&head, in->bytes, sizeof(head));
	memcpy(in->path.src, head.src, 16);
	memcpy(in->path.dst, head.dst, 16);
	in->path.src_port = head.src_port;
	in->path.dst_port = head.dst_port;
	in->tos = head.tos;
	in->bytes += sizeof(head);
	in->size -= sizeof(head);
}

static void prepare(unsigned i)
{
	rx.iov[i] = (struct iovec){ rx.bytes[i], RX_BYTES };
	rx.messages[i].msg_hdr = (struct msghdr){
		.msg_name = &rx.from[i],
		.msg_namelen = sizeof(rx.from[i]),
		.msg_iov = &rx.iov[i],
		.msg_iovlen = 1,
		.msg_control = rx.control[i].bytes,
		.msg_controllen = sizeof(rx.control[i].bytes),
	};
}

static unsigned receive(struct port *port, int family, wire_receiver *receiver, void *context)
{
	static bool prepared;

	if (!prepared) {
		for (unsigned i = 0; i < RX_BATCH; i++)
			prepare(i);
		prepared = true;
	}
	int n = recvmmsg(port->fd, rx.messages, RX_BATCH, MSG_DONTWAIT, NULL);
	for (int i = 0; i < n; i++) {
		struct msghdr *header = &rx.messages[i].msg_hdr;
		struct wire_inbound in = { .bytes = rx.bytes[i], .size = rx.messages[i].msg_len };

		in.path.dst_port = port->number;
		if ((header->msg_flags & (MSG_TRUNC | MSG_CTRUNC)) || !read_headers(header, family, &in)) {
			atomic_fetch_add_explicit(&soft_wire_counters.malformed, 1, memory_order_relaxed);
		} else {
			if (port->number != WIRE_PORT)
				unwrap(&in);
			soft_wire_capture(&in.path, in.tos, true, in.bytes, in.size);
			receiver(context, &in);
		}
		prepare((unsigned)i);
	}
	if (n > 0)
		atomic_store_explicit(&port->hot, true, memory_order_relaxed);
	return n > 0 ? (unsigned)n : 0;
}

unsigned soft_wire_receive(bool all, wire_receiver *receiver, void *context)
{
	unsigned n = 0;

	for (int family = IPV4; family <= IPV6; family++) {
		struct port *ports[] = { &wire.front[family], &wire.own[family] };
		for (int i = 0; i < 2; i++)
			if (ports[i]->fd >= 0 && (all || atomic_load_explicit(&ports[i]->hot, memory_order_relaxed)))
				n += receive(ports[i], family, receiver, context);
	}
	return n;
}

void soft_wire_forward(uint32_t slot, const struct wire_inbound *in)
{
	const int family = wire_gid_is_ipv4(in->path.src) ? IPV4 : IPV6;
	struct forwarded head = { .src_port = in->path.src_port, .dst_port = in->path.dst_port, .tos = in->tos };
	uint8_t here[16] = { [10] = 0xff, [11] = 0xff, [12] = 127, [15] = 1 };
	struct iovec iov[] = { { &head, sizeof(head) }, { (void *)in->bytes, in->size } };
	struct sockaddr_in6 to;
	struct msghdr header = { .msg_name = &to, .msg_iov = iov, .msg_iovlen = 2 };

	if (wire.front[family].fd < 0 || in->path.dst_port != WIRE_PORT)
		return;
	if (family == IPV6)
		memcpy(here, &in6addr_loopback, 16);
	memcpy(head.magic, forward_magic, sizeof(head.magic));
	memcpy(head.src, in->path.src, 16);
	memcpy(head.dst, in->path.dst, 16);
	header.msg_namelen = to_address(here, (uint16_t)(WIRE_OWN_PORT + slot), 0, &to);
	if (sendmsg(wire.front[family].fd, &header, MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
		atomic_fetch_add_explicit(&soft_wire_counters.forwarded, 1, memory_order_relaxed);
}

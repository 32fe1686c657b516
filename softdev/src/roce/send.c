/*
 * Outgoing packets. Consecutive packets to the same destination leave as one message where the kernel can be asked to
 * split it (UDP_SEGMENT): a network device splits it, or the receiver's socket, or it stays in one piece.
 *
 * Split IPv4 packets count their identification up from 0, and the ICRC covers it. To other hosts, runs are used once
 * the network has proven that it does not count differently (runs.h). IPv6 has no identification.
 *
 * For the kernel, a message of one packet costs two thirds of a message of fifteen, and packets of a run have one size.
 * The first packet of a WRITE is longer by its address, so it would end the run before it and begin one of two. To
 * softdev devices, WRITEs are therefore sent as WRITEs of one packet each (rc.h: singly).
 */
#include <errno.h>
#include <linux/udp.h>
#include <stdlib.h>
#include <string.h>

#include "roce/port.h"

static pthread_key_t batch_key;
static bool has_key;

static void make_key(void)
{
	has_key = !pthread_key_create(&batch_key, free);
}

struct roce_batch *soft_roce_batch(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, make_key);
	if (!has_key)
		return NULL;
	struct roce_batch *batch = pthread_getspecific(batch_key);
	if (!batch) {
		batch = malloc(sizeof(*batch));
		if (!batch || pthread_setspecific(batch_key, batch)) {
			free(batch);
			return NULL;
		}
	}
	batch->count = batch->runs = 0;
	batch->used = 0;
	batch->port = NULL;
	batch->split = false;
	return batch;
}

/* Appends a control message: `size` bytes of data, which the kernel interprets by `level` and `type`. */
static void put_one(struct msghdr *header, int level, int type, const void *data, size_t size)
{
	struct cmsghdr *c = (struct cmsghdr *)(void *)((char *)header->msg_control + header->msg_controllen);

	c->cmsg_level = level;
	c->cmsg_type = type;
	c->cmsg_len = CMSG_LEN(size);
	memcpy(CMSG_DATA(c), data, size);
	header->msg_controllen += CMSG_SPACE(size);
}

/* The kernel allocates memory for more than an address, so the usual class is set on the socket (socket.c). */
static void put_control(struct msghdr *header, const struct roce_route *route)
{
	const bool ipv4 = soft_gid_is_ipv4(route->path.src);
	const int tos = route->traffic_class;

	if (!route->source && ipv4) {
		struct in_pktinfo from = { 0 };
		memcpy(&from.ipi_spec_dst, route->path.src + 12, 4);
		put_one(header, IPPROTO_IP, IP_PKTINFO, &from, sizeof(from));
	} else if (!route->source) {
		struct in6_pktinfo from = { .ipi6_ifindex = route->scope };
		memcpy(&from.ipi6_addr, route->path.src, 16);
		put_one(header, IPPROTO_IPV6, IPV6_PKTINFO, &from, sizeof(from));
	}
	if (tos != soft_roce_class(0))
		put_one(header, ipv4 ? IPPROTO_IP : IPPROTO_IPV6, ipv4 ? IP_TOS : IPV6_TCLASS, &tos, sizeof(tos));
}

static struct roce_port *port_of(const struct roce_route *route)
{
	const int family = soft_gid_is_ipv4(route->path.src) ? ROCE_IPV4 : ROCE_IPV6;

	if (route->source)
		return route->source;
	return route->path.src_port == ROCE_PORT ? &soft_roce_ports.front[family] : &soft_roce_ports.own[family];
}

/* Begins a message to the kernel. */
static void begin(struct roce_batch *batch, const struct roce_route *route, uint8_t *bytes, size_t size)
{
	const unsigned i = batch->runs++;
	struct msghdr *header = &batch->messages[i].msg_hdr;

	batch->path = route->path;
	batch->traffic_class = route->traffic_class;
	batch->port = port_of(route);
	batch->run[i].packets = 1;
	batch->run[i].size = (uint16_t)size;
	batch->run[i].ended = !route->runs || atomic_load_explicit(&batch->port->apart, memory_order_relaxed);
	batch->iov[i] = (struct iovec){ bytes, size };
	*header = (struct msghdr){
		.msg_name = &batch->to[i],
		.msg_namelen = soft_roce_address(route->path.dst, route->path.dst_port, route->scope, &batch->to[i]),
		.msg_iov = &batch->iov[i],
		.msg_iovlen = 1,
		.msg_control = batch->control[i].bytes,
	};
	put_control(header, route);
}

/* id: the identification that it will have. */
static void put_icrc(const struct roce_path *path, uint16_t id, uint8_t *bytes, size_t size)
{
	const uint32_t icrc = roce_icrc_ipv4(path, (struct roce_ipv4){ .id = id }, bytes, size);

	for (int k = 0; k < ROCE_ICRC; k++)
		bytes[size + (size_t)k] = (uint8_t)(icrc >> 8 * k);
}

/* Fault injection: acts as if a device on the path counted from another number when it splits runs. */
static uint16_t fault(void)
{
	enum { OTHERWISE = 1000 };

	return soft_unlikely(soft_fault(SOFT_FAULT_ROCE_RENUMBER)) ? OTHERWISE : 0;
}

unsigned soft_roce_add(struct roce_batch *batch, const struct roce_route *route, size_t size)
{
	uint8_t *bytes = soft_roce_room(batch);
	const size_t whole = size + ROCE_ICRC;
	const unsigned last = batch->runs - 1;
	const bool joins = batch->runs && route->runs && !batch->run[last].ended && whole <= batch->run[last].size;
	const uint16_t place = joins ? batch->run[last].packets : 0;

	put_icrc(&route->path, place ? place + fault() : 0, bytes, size);
	batch->used += whole;
	batch->count++;
	if (joins) {
		batch->iov[last].iov_len += whole;
		batch->run[last].packets++;
		batch->run[last].ended = whole < batch->run[last].size;
	} else {
		begin(batch, route, bytes, whole);
	}
	soft_roce_capture(&route->path, route->traffic_class, place, bytes, whole);
	return place;
}

/* Asks the kernel to split each message that has more than one packet. */
static void put_sizes(struct roce_batch *batch)
{
	for (unsigned i = 0; i < batch->runs; i++)
		if (batch->run[i].packets > 1)
			put_one(&batch->messages[i].msg_hdr, IPPROTO_UDP, UDP_SEGMENT, &batch->run[i].size,
				sizeof(batch->run[i].size));
}

struct outcome {
	unsigned done, lost; /* packets */
	unsigned runs;       /* that left as such */
	bool full;
};

/* The kernel does not accept the run as one message: sends each packet singly. A capture records them again as they
 * leave. */
static void send_apart(int fd, struct roce_batch *batch, unsigned i, struct outcome *outcome)
{
	struct iovec iov = { .iov_base = batch->iov[i].iov_base };
	struct msghdr header = batch->messages[i].msg_hdr;
	size_t left = batch->iov[i].iov_len;

	header.msg_iov = &iov;
	header.msg_controllen -= CMSG_SPACE(sizeof(uint16_t));
	batch->split = true;
	while (left) {
		iov.iov_len = left < batch->run[i].size ? left : batch->run[i].size;
		put_icrc(&batch->path, 0, iov.iov_base, iov.iov_len - ROCE_ICRC);
		const ssize_t n = sendmsg(fd, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (n < 0 && errno == EINTR)
			continue;
		outcome->full = n < 0 && (errno == EAGAIN || errno == ENOBUFS);
		if (outcome->full)
			return;
		soft_roce_capture(&batch->path, batch->traffic_class, 0, iov.iov_base, iov.iov_len);
		outcome->done++;
		outcome->lost += n < 0;
		iov.iov_base = (uint8_t *)iov.iov_base + iov.iov_len;
		left -= iov.iov_len;
	}
}

/* Returns how many, or -1. A single message is cheaper without a list, and cheaper still without control messages. */
static int hand_to_kernel(int fd, struct mmsghdr *messages, unsigned n)
{
	enum { FLAGS = MSG_DONTWAIT | MSG_NOSIGNAL };

	const struct msghdr *one = &messages->msg_hdr;

	if (n > 1)
		return sendmmsg(fd, messages, n, FLAGS);
	const ssize_t sent = one->msg_controllen ? sendmsg(fd, one, FLAGS) :
						   sendto(fd, one->msg_iov->iov_base, one->msg_iov->iov_len, FLAGS,
							  one->msg_name, one->msg_namelen);
	return sent < 0 ? -1 : 1;
}

unsigned soft_roce_send(struct roce_batch *batch)
{
	struct roce_port *port = batch->port; /* NULL: the batch is empty */
	struct outcome outcome = { 0 };

	put_sizes(batch);
	for (unsigned i = 0; i < batch->runs && !outcome.full;) {
		int n = hand_to_kernel(port->fd, batch->messages + i, batch->runs - i);
		for (; n > 0; n--) {
			outcome.runs += batch->run[i].packets > 1;
			outcome.done += batch->run[i++].packets;
		}
		if (!n || errno == EINTR)
			continue;
		if (errno == EAGAIN || errno == ENOBUFS)
			break;
		if (batch->run[i].packets > 1) {
			if (errno == EIO) /* the outgoing device computes no checksums */
				atomic_store_explicit(&port->apart, true, memory_order_relaxed);
			send_apart(port->fd, batch, i, &outcome);
		} else { /* this one can never be sent (too long for the network, no route): lost, as in a network */
			outcome.done++;
			outcome.lost++;
		}
		i++;
	}
	atomic_fetch_add_explicit(&soft_roce_counters.sent, outcome.done - outcome.lost, memory_order_relaxed);
	if (outcome.runs)
		atomic_fetch_add_explicit(&soft_roce_counters.runs, outcome.runs, memory_order_relaxed);
	if (outcome.lost)
		atomic_fetch_add_explicit(&soft_roce_counters.send_failed, outcome.lost, memory_order_relaxed);
	batch->count = batch->runs = 0;
	batch->used = 0;
	return outcome.done;
}

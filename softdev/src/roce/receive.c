/*
 * Incoming packets: reads several at a time, including packets of one run that arrive in one piece (UDP_GRO).
 */
#include <linux/udp.h>
#include <netinet/ip.h>
#include <string.h>

#include "roce/port.h"

/* Header in front of a packet that is forwarded to another process of this host. */
struct forwarded {
	char magic[8];
	uint8_t src[16], dst[16];
	uint16_t src_port, dst_port;
	uint8_t tos, reserved[3];
};
static const char forward_magic[8] = { 'a', 'i', 'o', 'w', 'i', 'r', 'e', '1' };

enum { RX_BATCH = 16, RX_BYTES = 65536, RX_LARGE = 32768 };

/* receive_lock (rx.c) */
static struct {
	unsigned want; /* messages to ask for: as many as arrived lately; one if they are large, to stay in cache */
	bool dry;      /* none arrived the last time: the next may be alone, and asking for a second is expensive */
	struct mmsghdr messages[RX_BATCH];
	struct iovec iov[RX_BATCH];
	struct sockaddr_in6 from[RX_BATCH];
	union {
		char bytes[CMSG_SPACE(sizeof(struct in6_pktinfo)) + CMSG_SPACE(sizeof(int)) + CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control[RX_BATCH];
	uint8_t bytes[RX_BATCH][RX_BYTES];
} rx;

/* Source, destination and size of the packets in a message. False: unknown. */
static bool read_headers(struct msghdr *header, int family, struct roce_inbound *in, size_t *run)
{
	bool found = false;

	if (family == ROCE_IPV4) {
		const struct sockaddr_in *from = header->msg_name;
		soft_roce_gid(&from->sin_addr, true, in->path.src);
		in->path.src_port = ntohs(from->sin_port);
	} else {
		const struct sockaddr_in6 *from = header->msg_name;
		soft_roce_gid(&from->sin6_addr, false, in->path.src);
		in->path.src_port = ntohs(from->sin6_port);
	}
	for (struct cmsghdr *c = CMSG_FIRSTHDR(header); c; c = CMSG_NXTHDR(header, c)) {
		if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_PKTINFO) {
			struct in_pktinfo info;
			memcpy(&info, CMSG_DATA(c), sizeof(info));
			soft_roce_gid(&info.ipi_addr, true, in->path.dst);
			found = true;
		} else if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_PKTINFO) {
			struct in6_pktinfo info;
			memcpy(&info, CMSG_DATA(c), sizeof(info));
			soft_roce_gid(&info.ipi6_addr, false, in->path.dst);
			found = true;
		} else if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TOS) {
			in->tos = *CMSG_DATA(c);
		} else if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_TCLASS) {
			int tclass;
			memcpy(&tclass, CMSG_DATA(c), sizeof(tclass));
			in->tos = (uint8_t)tclass;
		} else if (c->cmsg_level == IPPROTO_UDP && c->cmsg_type == UDP_GRO) {
			int size;
			memcpy(&size, CMSG_DATA(c), sizeof(size));
			*run = size > 0 ? (size_t)size : *run;
		}
	}
	return found;
}

/* Forwarded by the first process of this host: restores the original packet. */
static void unwrap(struct roce_inbound *in)
{
	struct forwarded head;

	if (in->size < sizeof(head) || memcmp(in->bytes, forward_magic, sizeof(forward_magic)) != 0 ||
	    !soft_gid_is_loopback(in->path.src) || !soft_gid_is_loopback(in->path.dst) ||
	    in->path.src_port != ROCE_PORT)
		return;
	memcpy(&head, in->bytes, sizeof(head));
	memcpy(in->path.src, head.src, 16);
	memcpy(in->path.dst, head.dst, 16);
	in->path.src_port = head.src_port;
	in->path.dst_port = head.dst_port;
	in->tos = head.tos;
	in->bytes += sizeof(head);
	in->size -= sizeof(head);
	in->forwarded = ROCE_FORWARDED;
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

/* The kernel has written to it. */
static void prepare_again(unsigned i)
{
	struct msghdr *header = &rx.messages[i].msg_hdr;

	header->msg_namelen = sizeof(rx.from[i]);
	header->msg_controllen = sizeof(rx.control[i].bytes);
}

/* One packet of the run `whole`, which has packets of `run` bytes. */
static void packet(const struct roce_port *port, const struct roce_inbound *whole, size_t run, unsigned place,
		   roce_receiver *receiver, void *context)
{
	struct roce_inbound in = *whole;
	const size_t begin = place * run, left = whole->size - begin;

	in.bytes += begin;
	in.size = left < run ? left : run;
	in.place = (uint16_t)place;
	if (port->number != ROCE_PORT)
		unwrap(&in);
	soft_roce_capture_inbound(&in);
	receiver(context, &in);
}

/*
 * A softdev device puts an acknowledgement behind its requests, because a run ends with the shortest packet. It is for
 * what came before them, so it is taken first: nobody sees an answer before what was asked is complete.
 */
static bool ends_with_acknowledgement(const struct roce_inbound *whole, size_t run, unsigned packets)
{
	return packets > 1 && whole->bytes[(packets - 1) * run] == ROCE_ACK;
}

static unsigned message(const struct roce_port *port, int family, unsigned i, roce_receiver *receiver, void *context)
{
	struct msghdr *header = &rx.messages[i].msg_hdr;
	const size_t size = rx.messages[i].msg_len;
	struct roce_inbound whole = { .path.dst_port = port->number, .bytes = rx.bytes[i], .size = size };
	size_t run = size;

	if ((header->msg_flags & (MSG_TRUNC | MSG_CTRUNC)) || !read_headers(header, family, &whole, &run)) {
		atomic_fetch_add_explicit(&soft_roce_counters.malformed, 1, memory_order_relaxed);
		return 1;
	}
	const unsigned packets = size ? (unsigned)((size - 1) / run + 1) : 1;
	const bool last_first = ends_with_acknowledgement(&whole, run, packets);
	if (last_first)
		packet(port, &whole, run, packets - 1, receiver, context);
	for (unsigned place = 0; place < packets - last_first; place++)
		packet(port, &whole, run, place, receiver, context);
	return packets;
}

static void adapt(unsigned got, size_t bytes)
{
	if (bytes >= RX_LARGE * got)
		rx.want = 1;
	else if (got == rx.want && rx.want < RX_BATCH && !rx.dry)
		rx.want *= 2;
	else if (got <= rx.want / 2)
		rx.want /= 2;
	rx.dry = false;
}

/* Returns how many, or less than one. A poll for one packet costs a quarter less without the list of recvmmsg. */
static int ask_kernel(int fd)
{
	if (rx.want > 1)
		return recvmmsg(fd, rx.messages, rx.want, MSG_DONTWAIT, NULL);
	const ssize_t size = recvmsg(fd, &rx.messages[0].msg_hdr, MSG_DONTWAIT);
	if (size < 0)
		return -1;
	rx.messages[0].msg_len = (unsigned)size;
	return 1;
}

static unsigned receive(struct roce_port *port, int family, roce_receiver *receiver, void *context)
{
	size_t bytes = 0;
	unsigned packets = 0;

	if (!rx.want) {
		for (unsigned i = 0; i < RX_BATCH; i++)
			prepare(i);
		rx.want = 1;
	}
	const int n = ask_kernel(port->fd);
	if (n <= 0) {
		rx.dry = true;
		return 0;
	}
	for (unsigned i = 0; i < (unsigned)n; i++) {
		bytes += rx.messages[i].msg_len;
		packets += message(port, family, i, receiver, context);
		prepare_again(i);
	}
	adapt((unsigned)n, bytes);
	if (!atomic_load_explicit(&port->hot, memory_order_relaxed))
		atomic_store_explicit(&port->hot, true, memory_order_relaxed);
	return packets;
}

unsigned soft_roce_receive(void *port, roce_receiver *receiver, void *context)
{
	unsigned n = 0;

	for (int family = ROCE_IPV4; family <= ROCE_IPV6; family++) {
		struct roce_port *ports[] = { &soft_roce_ports.front[family], &soft_roce_ports.own[family] };
		for (int i = 0; i < 2; i++)
			if (ports[i]->fd >= 0 &&
			    (port == ports[i] || port == ROCE_EVERY_PORT ||
			     (!port && atomic_load_explicit(&ports[i]->hot, memory_order_relaxed))))
				n += receive(ports[i], family, receiver, context);
	}
	return n;
}

void soft_roce_forward(uint32_t slot, const struct roce_inbound *in)
{
	const int family = soft_gid_is_ipv4(in->path.src) ? ROCE_IPV4 : ROCE_IPV6;
	struct forwarded head = { .src_port = in->path.src_port, .dst_port = in->path.dst_port, .tos = in->tos };
	uint8_t here[16] = { [10] = 0xff, [11] = 0xff, [12] = 127, [15] = 1 };
	struct iovec iov[] = { { &head, sizeof(head) }, { (void *)in->bytes, in->size } };
	struct sockaddr_in6 to;
	struct msghdr header = { .msg_name = &to, .msg_iov = iov, .msg_iovlen = 2 };

	if (soft_roce_ports.front[family].fd < 0 || in->path.dst_port != ROCE_PORT)
		return;
	if (family == ROCE_IPV6)
		memcpy(here, &in6addr_loopback, 16);
	memcpy(head.magic, forward_magic, sizeof(head.magic));
	memcpy(head.src, in->path.src, 16);
	memcpy(head.dst, in->path.dst, 16);
	header.msg_namelen = soft_roce_address(here, (uint16_t)(ROCE_OWN_PORT + slot), 0, &to);
	if (sendmsg(soft_roce_ports.front[family].fd, &header, MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
		atomic_fetch_add_explicit(&soft_roce_counters.forwarded, 1, memory_order_relaxed);
}

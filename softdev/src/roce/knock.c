/*
 * Hosts where no program listens. The sockets of port.h are not connected, and do not hear of ICMP: an error would end the next
 * send or receive for another peer. So a second packet goes out from a socket of its own, which keeps the errors that
 * come back in a queue, each with the address that it is about.
 */
#include <time.h> /* errqueue.h does not include it */

#include <linux/errqueue.h>
#include <netinet/ip.h>
#include <string.h>
#include <unistd.h>

#include "roce/port.h"

#define MAD_QKEY UINT32_C(0x80010000)

enum { MOST_AT_ONCE = 64 };

static atomic_int knockers[ROCE_FAMILIES] = { -1, -1 };

static int open_knocker(int family)
{
	const int one = 1, dont_fragment = IP_PMTUDISC_DO;
	const bool ipv4 = family == ROCE_IPV4;
	uint8_t any[16] = { 0 };
	struct sockaddr_in6 name;
	int fd = socket(ipv4 ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0)
		return -1;
	if (ipv4)
		soft_roce_gid(any, true, any);
	const socklen_t length = soft_roce_address(any, 0, 0, &name);
	if (setsockopt(fd, ipv4 ? IPPROTO_IP : IPPROTO_IPV6, ipv4 ? IP_RECVERR : IPV6_RECVERR, &one, sizeof(one)) ||
	    setsockopt(fd, ipv4 ? IPPROTO_IP : IPPROTO_IPV6, ipv4 ? IP_MTU_DISCOVER : IPV6_MTU_DISCOVER, &dont_fragment,
		       sizeof(dont_fragment)) ||
	    bind(fd, (struct sockaddr *)&name, length)) {
		close(fd);
		return -1;
	}
	return fd;
}

static int knocker(int family)
{
	if (knockers[family] < 0)
		knockers[family] = open_knocker(family);
	return knockers[family];
}

bool soft_mad_is_knocker(int fd)
{
	return fd >= 0 && (fd == knockers[ROCE_IPV4] || fd == knockers[ROCE_IPV6]);
}

void soft_roce_knock_after_fork(void)
{
	for (int family = ROCE_IPV4; family <= ROCE_IPV6; family++) {
		if (knockers[family] >= 0)
			close(knockers[family]);
		knockers[family] = -1;
	}
}

/* The packet, with its ICRC. Returns its size. */
static size_t pack(const struct roce_path *path, const uint8_t *mad, uint8_t *bytes)
{
	const struct roce_packet p = {
		.opcode = ROCE_UD | ROCE_SEND_ONLY,
		.pkey = ROCE_PKEY,
		.migrated = true,
		.qpn = ROCE_MAD_QPN,
		.src_qpn = ROCE_MAD_QPN,
		.qkey = MAD_QKEY,
		.payload_length = SOFT_MAD_BYTES,
	};
	const size_t size = roce_pack_headers(&p, bytes) + SOFT_MAD_BYTES;

	memcpy(bytes + size - SOFT_MAD_BYTES, mad, SOFT_MAD_BYTES);
	const uint32_t icrc = roce_icrc(path, bytes, size);
	for (int k = 0; k < ROCE_ICRC; k++)
		bytes[size + (size_t)k] = (uint8_t)(icrc >> 8 * k);
	return size + ROCE_ICRC;
}

/* An error of an earlier packet ends one call: it is in the queue, too. */
static bool deliver(int fd, const struct msghdr *header)
{
	for (int i = 0; i < 3; i++)
		if (sendmsg(fd, header, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
			return true;
	return false;
}

/* From the route's source address. */
static bool send_packet(int fd, const struct roce_route *route, uint8_t *bytes, size_t size)
{
	const bool ipv4 = soft_gid_is_ipv4(route->path.src);
	union {
		char bytes[CMSG_SPACE(sizeof(struct in6_pktinfo))];
		struct cmsghdr align;
	} control = { .bytes = { 0 } };
	struct sockaddr_in6 to;
	struct iovec iov = { bytes, size };
	struct msghdr header = {
		.msg_name = &to,
		.msg_namelen = soft_roce_address(route->path.dst, ROCE_PORT, route->scope, &to),
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control.bytes,
		.msg_controllen = ipv4 ? CMSG_SPACE(sizeof(struct in_pktinfo)) : CMSG_SPACE(sizeof(struct in6_pktinfo)),
	};
	struct in_pktinfo from4 = { 0 };
	struct in6_pktinfo from6 = { .ipi6_ifindex = route->scope };

	control.align.cmsg_level = ipv4 ? IPPROTO_IP : IPPROTO_IPV6;
	control.align.cmsg_type = ipv4 ? IP_PKTINFO : IPV6_PKTINFO;
	control.align.cmsg_len = ipv4 ? CMSG_LEN(sizeof(from4)) : CMSG_LEN(sizeof(from6));
	memcpy(&from4.ipi_spec_dst, route->path.src + 12, 4);
	memcpy(&from6.ipi6_addr, route->path.src, 16);
	memcpy(CMSG_DATA(&control.align), ipv4 ? (void *)&from4 : (void *)&from6, ipv4 ? sizeof(from4) : sizeof(from6));
	return deliver(fd, &header);
}

int soft_mad_knock(struct soft_ctx *ctx, const uint8_t from[16], const uint8_t to[16],
		   const uint8_t mad[SOFT_MAD_BYTES])
{
	struct ibv_ah_attr ah = { .is_global = 1, .port_num = 1, .grh.hop_limit = 64 };
	uint8_t bytes[ROCE_MAX_PACKET];
	union ibv_gid local;
	struct roce_route route;
	struct sockaddr_in6 name = { 0 };
	socklen_t length = sizeof(name);
	const int fd = knocker(soft_gid_is_ipv4(from) ? ROCE_IPV4 : ROCE_IPV6);

	memcpy(local.raw, from, 16);
	const int index = soft_gid_find(ctx, &local);
	if (fd < 0 || index < 0 || getsockname(fd, (struct sockaddr *)&name, &length))
		return -1;
	memcpy(ah.grh.dgid.raw, to, 16);
	ah.grh.sgid_index = (uint8_t)index;
	soft_roce_route(ctx, &ah, ROCE_MAD_QPN, &route);
	route.path.src_port = ntohs(name.sin6_port); /* at the same offset for IPv4 */
	route.path.dst_port = ROCE_PORT;
	const size_t size = pack(&route.path, mad, bytes);
	if (!send_packet(fd, &route, bytes, size))
		return -1;
	soft_roce_capture(&route.path, route.traffic_class, 0, bytes, size);
	return fd;
}

/* What the network says of a host; 0: nothing that matters. */
static uint32_t said(struct msghdr *header)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(header); c; c = CMSG_NXTHDR(header, c)) {
		struct sock_extended_err error;

		if (!(c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_RECVERR) &&
		    !(c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_RECVERR))
			continue;
		memcpy(&error, CMSG_DATA(c), sizeof(error));
		return error.ee_errno;
	}
	return 0;
}

bool soft_mad_refusal(int fd, uint8_t remote[16], bool *refused)
{
	/* A stranger may send faster than this reads: the descriptor stays readable then, and its turn comes again. */
	for (int i = 0; i < MOST_AT_ONCE; i++) {
		union {
			char bytes[512];
			struct cmsghdr align;
		} control;
		struct sockaddr_in6 about = { 0 };
		struct msghdr header = { .msg_name = &about,
					 .msg_namelen = sizeof(about),
					 .msg_control = control.bytes,
					 .msg_controllen = sizeof(control.bytes) };
		uint32_t what;

		if (recvmsg(fd, &header, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) {
			uint8_t nothing[1];

			/* Answers come to no one. They only must not keep the descriptor readable. */
			if (recv(fd, nothing, sizeof(nothing), MSG_DONTWAIT) < 0 && errno == EAGAIN)
				return false;
			continue;
		}
		what = said(&header);
		if (what != ECONNREFUSED && what != EHOSTUNREACH && what != ENETUNREACH)
			continue;
		*refused = what == ECONNREFUSED;
		if (about.sin6_family == AF_INET6)
			soft_roce_gid(&about.sin6_addr, false, remote);
		else
			soft_roce_gid(&((struct sockaddr_in *)(void *)&about)->sin_addr, true, remote);
		return true;
	}
	return false;
}

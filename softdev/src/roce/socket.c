/*
 * Addresses and UDP sockets: unconnected, with IP_MTU_DISCOVER=DO, so that the IP identification and the ICRC are known
 * without privilege (icrc.h).
 */
#include <linux/udp.h>
#include <netinet/ip.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "roce/port.h"

enum {
	BUFFER_BYTES = 16 << 20,
	LEAST_MTU = 1280, /* of IPv6's networks; Ethernet's is 1500 */
};

struct roce_ports soft_roce_ports = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.own = { { .fd = -1 }, { .fd = -1 } },
	.front = { { .fd = -1 }, { .fd = -1 } },
};

enum roce_mode soft_roce_mode(void)
{
	static atomic_int known = -1;
	int mode = atomic_load_explicit(&known, memory_order_relaxed);

	if (mode >= 0)
		return (enum roce_mode)mode;
	const char *said = getenv("SOFTDEV_WIRE");
	mode = ROCE_AUTO;
	if (said && !strcmp(said, "off"))
		mode = ROCE_OFF;
	else if (said && !strcmp(said, "only"))
		mode = ROCE_ONLY;
	else if (said && *said && strcmp(said, "auto") != 0)
		fprintf(stderr,
			"softdev: SOFTDEV_WIRE=\"%s\" is not understood, so it is auto; wanted: off, auto or "
			"only\n",
			said);
	atomic_store(&known, mode);
	return (enum roce_mode)mode;
}

bool soft_roce_wanted(struct soft_ctx *ctx, const struct ibv_ah_attr *ah)
{
	const enum roce_mode mode = soft_roce_mode();

	if (mode == ROCE_OFF || !ah->is_global)
		return false;
	return mode == ROCE_ONLY || !soft_gid_is_local(ctx, &ah->grh.dgid);
}

/* ---- addresses -------------------------------------------------------------------------------------- */

static int family_of(const struct roce_route *route)
{
	return soft_gid_is_ipv4(route->path.src) ? ROCE_IPV4 : ROCE_IPV6;
}

socklen_t soft_roce_address(const uint8_t gid[16], uint16_t port, uint32_t scope, struct sockaddr_in6 *to)
{
	memset(to, 0, sizeof(*to));
	if (soft_gid_is_ipv4(gid)) {
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

void soft_roce_gid(const void *address, bool ipv4, uint8_t gid[16])
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

void soft_roce_route(struct soft_ctx *ctx, const struct ibv_ah_attr *ah, uint32_t qpn, struct roce_route *route)
{
	struct ibv_gid_entry entry = { 0 };

	memset(route, 0, sizeof(*route));
	soft_gid_entry(ctx, ah->grh.sgid_index, &entry);
	memcpy(route->path.src, entry.gid.raw, 16);
	memcpy(route->path.dst, ah->grh.dgid.raw, 16);
	route->scope = scope_of(route->path.dst, entry.ndev_ifindex);
	route->traffic_class = soft_roce_class(ah->grh.traffic_class);
	const int family = family_of(route);
	route->path.src_port = soft_roce_ports.front[family].fd >= 0 ? soft_roce_ports.front[family].number :
								       soft_roce_ports.own[family].number;
	/* On this host, and a softdev device: packets need not be forwarded. */
	route->here = soft_gid_is_local(ctx, &ah->grh.dgid);
	route->path.dst_port = route->here ? soft_roce_own_port(qpn) : ROCE_PORT;
	route->runs = route->here || family == ROCE_IPV6;
}

enum ibv_mtu soft_roce_mtu(const struct roce_route *route)
{
	const bool ipv4 = soft_gid_is_ipv4(route->path.src);
	const int headers = (ipv4 ? 20 : 40) + 8 + ROCE_BTH + ROCE_ATOMIC + ROCE_ICRC;
	struct sockaddr_in6 to;
	socklen_t length = soft_roce_address(route->path.dst, ROCE_PORT, route->scope, &to);
	int fd = socket(ipv4 ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0), mtu = 0;
	socklen_t size = sizeof(mtu);
	enum ibv_mtu found = 0;

	if (fd < 0)
		return 0;
	if (!connect(fd, (struct sockaddr *)&to, length)) {
		/* Kernels that are emulated by a program do not tell it. */
		if (getsockopt(fd, ipv4 ? IPPROTO_IP : IPPROTO_IPV6, ipv4 ? IP_MTU : IPV6_MTU, &mtu, &size))
			mtu = errno == ENOPROTOOPT ? LEAST_MTU : 0;
		for (found = IBV_MTU_4096; found > IBV_MTU_256 && (128 << found) + headers > mtu;)
			found--;
	}
	close(fd);
	errno = ENETUNREACH; /* where nothing was found */
	return found;
}

uint32_t soft_roce_buffered(const struct roce_route *route, uint32_t mtu)
{
	/* The kernel counts the memory of a packet, not its payload: up to twice as much, plus its own bookkeeping. */
	const uint32_t each = 2 * mtu + 512, least = 16;
	const struct roce_port *port = &soft_roce_ports.own[family_of(route)];
	int bytes = 0;
	socklen_t size = sizeof(bytes);

	if (port->fd < 0 || getsockopt(port->fd, SOL_SOCKET, SO_RCVBUF, &bytes, &size) || bytes < 0)
		return least;
	return (uint32_t)bytes / each > least ? (uint32_t)bytes / each : least;
}

/* ---- opening ---------------------------------------------------------------------------------------- */

static int open_port(int family, uint16_t number)
{
	const int one = 1, mtu_discover = IP_PMTUDISC_DO, bytes = BUFFER_BYTES, class = soft_roce_class(0);
	int fd = socket(family == ROCE_IPV4 ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	uint8_t any[16] = { 0 };
	struct sockaddr_in6 address;

	if (fd < 0)
		return -1;
	if (family == ROCE_IPV4) {
		soft_roce_gid(any, true, any);
		setsockopt(fd, IPPROTO_IP, IP_MTU_DISCOVER, &mtu_discover, sizeof(mtu_discover));
		setsockopt(fd, IPPROTO_IP, IP_PKTINFO, &one, sizeof(one));
		setsockopt(fd, IPPROTO_IP, IP_RECVTOS, &one, sizeof(one));
		setsockopt(fd, IPPROTO_IP, IP_TOS, &class, sizeof(class));
	} else {
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one));
		setsockopt(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, &mtu_discover, sizeof(mtu_discover));
		setsockopt(fd, IPPROTO_IPV6, IPV6_RECVPKTINFO, &one, sizeof(one));
		setsockopt(fd, IPPROTO_IPV6, IPV6_RECVTCLASS, &one, sizeof(one));
		setsockopt(fd, IPPROTO_IPV6, IPV6_TCLASS, &class, sizeof(class));
		setsockopt(fd, IPPROTO_UDP, UDP_NO_CHECK6_RX, &one, sizeof(one)); /* rxe sends no checksums */
	}
	setsockopt(fd, IPPROTO_UDP, UDP_GRO, &one, sizeof(one));
	/* Retransmitting what a short queue dropped is expensive. Exceeding the limit needs privilege. */
	if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof(bytes)))
		setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
	if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof(bytes)))
		setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
	socklen_t length = soft_roce_address(any, number, 0, &address);
	if (bind(fd, (struct sockaddr *)&address, length)) {
		const int err = errno;
		close(fd);
		errno = err;
		return -1;
	}
	return fd;
}

static bool watch(struct roce_port *port, int operation)
{
	struct epoll_event event = { .events = EPOLLIN, .data.ptr = port };

	return port->fd < 0 || !epoll_ctl(soft_proc.epoll_fd, operation, port->fd, &event);
}

/* 0 or errno. */
static int port_open(struct roce_port *port, int family, uint16_t number)
{
	if (port->fd >= 0)
		return 0;
	int fd = open_port(family, number);
	if (fd < 0)
		return errno;
	port->number = number;
	port->fd = fd;
	port->watched = watch(port, EPOLL_CTL_ADD);
	return 0;
}

void soft_roce_front_open(int family)
{
	(void)port_open(&soft_roce_ports.front[family], family, ROCE_PORT);
}

static bool is_shortage(int err)
{
	return err == EMFILE || err == ENFILE || err == ENOMEM || err == ENOBUFS;
}

/* A host may have one family only; but what is only missing for the moment is no reason to do without the other. */
int soft_roce_open(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	int errs[ROCE_FAMILIES], err = 0;

	pthread_once(&once, soft_roce_capture_read);
	pthread_mutex_lock(&soft_roce_ports.lock);
	for (int family = ROCE_IPV4; family <= ROCE_IPV6; family++) {
		errs[family] =
			port_open(&soft_roce_ports.own[family], family, (uint16_t)(ROCE_OWN_PORT + soft_proc.slot));
		err = is_shortage(errs[family]) ? errs[family] : err;
	}
	soft_roce_front();
	if (!err && errs[ROCE_IPV4] && errs[ROCE_IPV6])
		err = errs[errs[ROCE_IPV4] == EAFNOSUPPORT ? ROCE_IPV6 : ROCE_IPV4];
	pthread_mutex_unlock(&soft_roce_ports.lock);
	return err;
}

void soft_roce_close(void)
{
	pthread_mutex_lock(&soft_roce_ports.lock);
	for (int family = ROCE_IPV4; family <= ROCE_IPV6; family++) {
		struct roce_port *ports[] = { &soft_roce_ports.own[family], &soft_roce_ports.front[family] };
		for (int i = 0; i < 2; i++) {
			if (ports[i]->fd >= 0)
				close(ports[i]->fd);
			ports[i]->fd = -1;
			atomic_store(&ports[i]->hot, false);
		}
	}
	soft_roce_sources_close();
	soft_roce_front_close(); /* now that the port is free */
	pthread_mutex_unlock(&soft_roce_ports.lock);
}

void soft_roce_after_fork(void)
{
	soft_roce_rx_after_fork();
	roce_runs_after_fork();
	soft_roce_knock_after_fork();
	pthread_mutex_init(&soft_roce_ports.lock, NULL); /* a thread that does not exist in the child may hold it */
	soft_roce_close();
}

void soft_roce_heat(const struct roce_route *route)
{
	const int family = soft_gid_is_ipv4(route->path.src) ? ROCE_IPV4 : ROCE_IPV6;
	const bool front = route->path.src_port == ROCE_PORT;

	atomic_store(front ? &soft_roce_ports.front[family].hot : &soft_roce_ports.own[family].hot, true);
}

/* Ports that polls do not check are always watched. */
bool soft_roce_watch(bool on)
{
	bool done = true;

	pthread_mutex_lock(&soft_roce_ports.lock);
	for (int family = ROCE_IPV4; family <= ROCE_IPV6; family++) {
		struct roce_port *ports[] = { &soft_roce_ports.own[family], &soft_roce_ports.front[family] };
		for (int i = 0; i < 2; i++) {
			const bool want = on || !atomic_load(&ports[i]->hot);
			if (ports[i]->fd < 0 || ports[i]->watched == want)
				continue;
			/* Removed from epoll, since even an entry without events costs an epoll call for each
			 * packet. */
			if (watch(ports[i], want ? EPOLL_CTL_ADD : EPOLL_CTL_DEL))
				ports[i]->watched = want;
			else
				done = false;
		}
	}
	pthread_mutex_unlock(&soft_roce_ports.lock);
	return done;
}

bool soft_roce_is_socket(const void *what)
{
	return what == &soft_roce_ports.own[ROCE_IPV4] || what == &soft_roce_ports.own[ROCE_IPV6] ||
	       what == &soft_roce_ports.front[ROCE_IPV4] || what == &soft_roce_ports.front[ROCE_IPV6] ||
	       soft_roce_front_is(what);
}

enum ibv_mtu soft_roce_mtu_to(struct soft_ctx *ctx, const struct ibv_ah_attr *ah)
{
	struct roce_route route;

	soft_roce_route(ctx, ah, 0, &route);
	return soft_roce_mtu(&route);
}

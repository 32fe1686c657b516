/*
 * Sockets that only send, each bound to an address of this host. A bound socket spares the kernel the source address
 * with each packet, and so part of the work: a small packet costs a tenth less.
 *
 * softdev devices identify each other by their source port. Other devices ignore it (RoCEv2 leaves it free, so that
 * routers can distinguish flows), and answer at 4791.
 */
#include <netinet/ip.h>
#include <string.h>
#include <unistd.h>

#include "roce/port.h"

enum { SOURCES = 16, SEND_BYTES = 16 << 20 };

/* soft_roce_ports.lock. They stay open until all are closed. */
static struct source {
	struct roce_port port;
	uint8_t address[16];
} sources[SOURCES];
static unsigned used;

/* These sockets are never read, so the receive buffer is minimal. */
static int open_source(const uint8_t address[16], uint16_t *number)
{
	const bool ipv4 = soft_gid_is_ipv4(address);
	const int dont_fragment = IP_PMTUDISC_DO, bytes = SEND_BYTES, none = 0, class = soft_roce_class(0);
	struct sockaddr_in6 name;
	socklen_t length = soft_roce_address(address, 0, 0, &name);
	int fd = socket(ipv4 ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0)
		return -1;
	setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &none, sizeof(none));
	if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof(bytes)))
		setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
	if (setsockopt(fd, ipv4 ? IPPROTO_IP : IPPROTO_IPV6, ipv4 ? IP_MTU_DISCOVER : IPV6_MTU_DISCOVER, &dont_fragment,
		       sizeof(dont_fragment)) ||
	    setsockopt(fd, ipv4 ? IPPROTO_IP : IPPROTO_IPV6, ipv4 ? IP_TOS : IPV6_TCLASS, &class, sizeof(class)) ||
	    bind(fd, (struct sockaddr *)&name, length) || getsockname(fd, (struct sockaddr *)&name, &length)) {
		close(fd);
		return -1;
	}
	*number = ntohs(name.sin6_port); /* at the same offset for IPv4 */
	if (!*number || soft_roce_is_ours(*number)) {
		close(fd);
		return -1;
	}
	return fd;
}

struct roce_port *soft_roce_source(const struct roce_route *route)
{
	struct source *found = NULL;

	/* A link-local address belongs to one interface, which each packet must name. */
	if (route->here || route->scope)
		return NULL;
	pthread_mutex_lock(&soft_roce_ports.lock);
	for (unsigned i = 0; i < used && !found; i++)
		if (!memcmp(sources[i].address, route->path.src, 16))
			found = &sources[i];
	if (!found && used < SOURCES) {
		uint16_t number = 0;
		int fd = open_source(route->path.src, &number);
		if (fd >= 0) {
			found = &sources[used++];
			memcpy(found->address, route->path.src, 16);
			found->port.number = number;
			atomic_store(&found->port.apart, false);
			atomic_store(&found->port.fd, fd);
		}
	}
	pthread_mutex_unlock(&soft_roce_ports.lock);
	return found ? &found->port : NULL;
}

void soft_roce_sources_close(void)
{
	for (unsigned i = 0; i < used; i++) {
		close(sources[i].port.fd);
		atomic_store(&sources[i].port.fd, -1);
	}
	used = 0;
}

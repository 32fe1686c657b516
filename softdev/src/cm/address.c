/*
 * Addresses: conversion between socket addresses and GIDs, choice of the local address, and rdma_getaddrinfo().
 */
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cm/internal.h"

bool cm_gid_of(const struct sockaddr *address, uint8_t gid[16])
{
	memset(gid, 0, 16);
	if (address->sa_family == AF_INET) {
		gid[10] = gid[11] = 0xff;
		memcpy(gid + 12, &((const struct sockaddr_in *)(const void *)address)->sin_addr, 4);
		return true;
	}
	if (address->sa_family == AF_INET6) {
		memcpy(gid, &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr, 16);
		return true;
	}
	return false;
}

/* The port lies at the same offset in both families. */
uint16_t cm_port_of(const struct sockaddr *address)
{
	return ntohs(((const struct sockaddr_in *)(const void *)address)->sin_port);
}

void cm_set_port(struct sockaddr *address, uint16_t port)
{
	((struct sockaddr_in *)(void *)address)->sin_port = htons(port);
}

socklen_t cm_length_of(const struct sockaddr *address)
{
	return address->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
}

bool cm_is_any(const struct sockaddr *address)
{
	static const uint8_t none[16];

	if (address->sa_family == AF_INET)
		return !memcmp(&((const struct sockaddr_in *)(const void *)address)->sin_addr, none, 4);
	return address->sa_family == AF_INET6 &&
	       !memcmp(&((const struct sockaddr_in6 *)(const void *)address)->sin6_addr, none, 16);
}

struct cm_port cm_port_for(const struct cm_id *id, const struct sockaddr *address, const uint8_t gid[16], bool listen)
{
	const bool any = cm_is_any(address);

	return (struct cm_port){
		.space = (uint16_t)id->id.ps,
		.port = cm_port_of(address),
		.gid = any ? NULL : gid,
		.family = !any || !id->only_family      ? CM_BOTH :
			  address->sa_family == AF_INET ? CM_IPV4 :
							  CM_IPV6,
		.listen = listen,
	};
}

void cm_address_of(const uint8_t gid[16], uint16_t port, uint32_t scope, struct sockaddr_storage *address)
{
	memset(address, 0, sizeof(*address));
	if (soft_gid_is_ipv4(gid)) {
		struct sockaddr_in *in = (struct sockaddr_in *)(void *)address;
		in->sin_family = AF_INET;
		memcpy(&in->sin_addr, gid + 12, 4);
	} else {
		struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)(void *)address;
		in6->sin6_family = AF_INET6;
		memcpy(&in6->sin6_addr, gid, 16);
		if (IN6_IS_ADDR_LINKLOCAL(&in6->sin6_addr))
			in6->sin6_scope_id = scope;
	}
	cm_set_port((struct sockaddr *)address, port);
}

int cm_source_for(const struct sockaddr *to, struct sockaddr_storage *from)
{
	struct sockaddr_storage there = { 0 };
	socklen_t length = cm_length_of(to);
	int err = 0;

	memcpy(&there, to, length);
	cm_set_port((struct sockaddr *)&there, SOFT_ROCE_UDP_PORT);
	int fd = socket(to->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return errno;
	if (connect(fd, (struct sockaddr *)&there, length) || getsockname(fd, (struct sockaddr *)from, &length))
		err = errno;
	close(fd);
	return err;
}

/* ---- rdma_getaddrinfo ------------------------------------------------------------------------------- */

static struct sockaddr *copy_of(const struct sockaddr *address, socklen_t length)
{
	struct sockaddr *copy = malloc(length);

	if (copy)
		memcpy(copy, address, length);
	return copy;
}

static char *name_of(const char *name)
{
	return name ? strdup(name) : NULL;
}

/* The source that the hints name, or where the route to the destination begins. */
static int add_source(struct rdma_addrinfo *to, const struct rdma_addrinfo *hints)
{
	struct sockaddr_storage found = { 0 };
	const struct sockaddr *source = (struct sockaddr *)&found;

	if (hints->ai_src_len && hints->ai_src_addr) {
		source = hints->ai_src_addr;
		to->ai_src_len = hints->ai_src_len;
	} else {
		if (!to->ai_dst_addr || (hints->ai_flags & (RAI_NOROUTE | RAI_PASSIVE)) ||
		    cm_source_for(to->ai_dst_addr, &found))
			return 0; /* rdma_resolve_addr() will find the source, or report why not */
		cm_set_port((struct sockaddr *)&found, 0);
		to->ai_src_len = cm_length_of((struct sockaddr *)&found);
	}
	to->ai_src_addr = copy_of(source, to->ai_src_len);
	return to->ai_src_addr ? 0 : EAI_MEMORY;
}

/* space: where the hints have none. */
static void fill_kind(struct rdma_addrinfo *to, const struct rdma_addrinfo *hints, int space)
{
	to->ai_flags = hints->ai_flags;
	to->ai_port_space = hints->ai_port_space ? hints->ai_port_space : space;
	to->ai_qp_type = hints->ai_qp_type                ? hints->ai_qp_type :
			 to->ai_port_space == RDMA_PS_UDP ? IBV_QPT_UD :
							    IBV_QPT_RC;
}

static int fill(struct rdma_addrinfo *to, const struct addrinfo *found, const struct rdma_addrinfo *hints)
{
	struct sockaddr *address = copy_of(found->ai_addr, found->ai_addrlen);

	to->ai_family = found->ai_family;
	fill_kind(to, hints, found->ai_socktype == SOCK_DGRAM ? RDMA_PS_UDP : RDMA_PS_TCP);
	if (!address)
		return EAI_MEMORY;
	if (hints->ai_flags & RAI_PASSIVE) {
		to->ai_src_addr = address;
		to->ai_src_len = found->ai_addrlen;
		to->ai_src_canonname = name_of(found->ai_canonname);
		return 0;
	}
	to->ai_dst_addr = address;
	to->ai_dst_len = found->ai_addrlen;
	to->ai_dst_canonname = name_of(found->ai_canonname);
	return add_source(to, hints);
}

/* Without a node and a service there is nothing to look up: the addresses are used as given, or left out. */
static int as_given(struct rdma_addrinfo *to, const struct rdma_addrinfo *hints)
{
	to->ai_family = hints->ai_family;
	fill_kind(to, hints, hints->ai_qp_type == IBV_QPT_UD ? RDMA_PS_UDP : RDMA_PS_TCP);
	if (hints->ai_dst_len && hints->ai_dst_addr) {
		to->ai_family = hints->ai_dst_addr->sa_family;
		to->ai_dst_addr = copy_of(hints->ai_dst_addr, hints->ai_dst_len);
		to->ai_dst_len = hints->ai_dst_len;
		if (!to->ai_dst_addr)
			return EAI_MEMORY;
	}
	return add_source(to, hints);
}

static int looked_up(struct rdma_addrinfo *to, const char *node, const char *service, const struct rdma_addrinfo *hints)
{
	struct addrinfo wanted = { .ai_socktype = SOCK_STREAM }, *found;

	if (hints->ai_flags & RAI_PASSIVE)
		wanted.ai_flags |= AI_PASSIVE;
	if (hints->ai_flags & RAI_NUMERICHOST)
		wanted.ai_flags |= AI_NUMERICHOST;
	if (hints->ai_flags & RAI_FAMILY)
		wanted.ai_family = hints->ai_family;
	if (hints->ai_port_space == RDMA_PS_UDP || (!hints->ai_port_space && hints->ai_qp_type == IBV_QPT_UD))
		wanted.ai_socktype = SOCK_DGRAM;
	int err = getaddrinfo(node, service, &wanted, &found);
	if (err)
		return err;
	err = fill(to, found, hints);
	freeaddrinfo(found);
	return err;
}

int soft_rdma_getaddrinfo(const char *node, const char *service, const struct rdma_addrinfo *hints,
			  struct rdma_addrinfo **res)
{
	static const struct rdma_addrinfo none;

	if (!node && !service && !hints)
		return cm_fail(EINVAL);
	struct rdma_addrinfo *made = calloc(1, sizeof(*made));
	if (!made)
		return EAI_MEMORY;
	if (!hints)
		hints = &none;
	const int err = node || service ? looked_up(made, node, service, hints) : as_given(made, hints);
	if (err) {
		soft_rdma_freeaddrinfo(made);
		return err;
	}
	*res = made;
	return 0;
}

void soft_rdma_freeaddrinfo(struct rdma_addrinfo *res)
{
	while (res) {
		struct rdma_addrinfo *next = res->ai_next;

		free(res->ai_src_addr);
		free(res->ai_dst_addr);
		free(res->ai_src_canonname);
		free(res->ai_dst_canonname);
		free(res->ai_route);
		free(res->ai_connect);
		free(res);
		res = next;
	}
}

/*
 * The GID table: the addresses of this host's interfaces, as RoCEv2 maps them.
 *
 * An index denotes the same address as long as the host has that address: an address that disappears leaves a hole, and
 * a new one takes the first free entry. Kernel notifications of changes wait in a netlink socket, which is read when
 * the table is queried.
 *
 * Addresses that other hosts can reach come first, so that index 0, the default of most tools, is one of them. A host
 * without a network has its loopback addresses there.
 */
#include "core/core.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct soft_gids {
	pthread_mutex_t lock;
	int changes_fd; /* -1: no notifications, the table stays as it was when the context was opened */
	unsigned count; /* entries ever used */
	struct ibv_gid_entry entries[SOFT_GID_TABLE];
	bool used[SOFT_GID_TABLE];
};

enum rank { IPV4, IPV6, IPV6_LINK_LOCAL, LOOPBACK_IPV4, LOOPBACK_IPV6, RANKS, UNUSABLE = RANKS };

static enum rank rank_of(const struct ifaddrs *interface, union ibv_gid *gid)
{
	bool loopback = interface->ifa_flags & IFF_LOOPBACK;

	if (!interface->ifa_addr || !(interface->ifa_flags & IFF_UP))
		return UNUSABLE;
	if (interface->ifa_addr->sa_family == AF_INET) {
		const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)interface->ifa_addr;

		memset(gid, 0, sizeof *gid);
		gid->raw[10] = gid->raw[11] = 0xff;
		memcpy(gid->raw + 12, &in->sin_addr, 4);
		return loopback ? LOOPBACK_IPV4 : IPV4;
	}
	if (interface->ifa_addr->sa_family == AF_INET6) {
		const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)(const void *)interface->ifa_addr;

		memcpy(gid->raw, &in6->sin6_addr, sizeof gid->raw);
		if (loopback)
			return LOOPBACK_IPV6;
		return IN6_IS_ADDR_LINKLOCAL(&in6->sin6_addr) ? IPV6_LINK_LOCAL : IPV6;
	}
	return UNUSABLE;
}

static int find(const struct soft_gids *table, const union ibv_gid *gid)
{
	for (unsigned i = 0; i < table->count; i++)
		if (table->used[i] && !memcmp(&table->entries[i].gid, gid, sizeof *gid))
			return (int)i;
	return -1;
}

static void add(struct soft_gids *table, const union ibv_gid *gid, uint32_t interface)
{
	unsigned i = 0;

	while (i < table->count && table->used[i])
		i++;
	if (i == SOFT_GID_TABLE)
		return;
	table->entries[i] = (struct ibv_gid_entry){
		.gid = *gid,
		.gid_index = i,
		.port_num = 1,
		.gid_type = IBV_GID_TYPE_ROCE_V2,
		.ndev_ifindex = interface,
	};
	table->used[i] = true;
	if (i == table->count)
		table->count++;
}

/* Reads the interfaces. 0 or errno. */
static int fill(struct soft_gids *table)
{
	bool there[SOFT_GID_TABLE] = { false };
	struct ifaddrs *all;

	if (getifaddrs(&all))
		return errno;
	/* First remove stale addresses, so that their entries are free. */
	for (const struct ifaddrs *one = all; one; one = one->ifa_next) {
		union ibv_gid gid;
		int at = rank_of(one, &gid) == UNUSABLE ? -1 : find(table, &gid);
		if (at >= 0)
			there[at] = true;
	}
	for (unsigned i = 0; i < table->count; i++)
		table->used[i] &= there[i];
	for (enum rank rank = 0; rank < RANKS; rank++) {
		for (const struct ifaddrs *one = all; one; one = one->ifa_next) {
			union ibv_gid gid;

			if (rank_of(one, &gid) == rank && find(table, &gid) < 0)
				add(table, &gid, if_nametoindex(one->ifa_name));
		}
	}
	freeifaddrs(all);
	/* No interface is up, not even loopback: two processes of one host can still communicate. */
	bool any = false;
	for (unsigned i = 0; i < table->count; i++)
		any |= table->used[i];
	if (!any) {
		const union ibv_gid loopback = { .raw = { [10] = 0xff, [11] = 0xff, [12] = 127, [15] = 1 } };
		add(table, &loopback, 0);
	}
	return 0;
}

static int watch_changes(void)
{
	const struct sockaddr_nl address = {
		.nl_family = AF_NETLINK,
		.nl_groups = RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR,
	};
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE);

	if (fd >= 0 && bind(fd, (const struct sockaddr *)&address, sizeof address)) {
		close(fd);
		fd = -1;
	}
	return fd;
}

/* The current table; the caller ends its use with release(). */
static struct soft_gids *current(struct soft_ctx *ctx)
{
	struct soft_gids *table = ctx->gids;
	char message[4096];
	bool changed = false;
	ssize_t got;

	pthread_mutex_lock(&table->lock);
	/* ENOBUFS: too many changes, some notifications were dropped. */
	while ((got = recv(table->changes_fd, message, sizeof message, MSG_DONTWAIT)) > 0 ||
	       (got < 0 && errno == ENOBUFS))
		changed = true;
	if (changed)
		fill(table);
	return table;
}

static void release(struct soft_gids *table)
{
	pthread_mutex_unlock(&table->lock);
}

int soft_gids_init(struct soft_ctx *ctx)
{
	struct soft_gids *table = calloc(1, sizeof *table);

	if (!table)
		return ENOMEM;
	pthread_mutex_init(&table->lock, NULL);
	table->changes_fd = watch_changes(); /* before the first read, so that no change in between is missed */
	int error = fill(table);
	ctx->gids = table;
	if (error)
		soft_gids_fini(ctx);
	return error;
}

void soft_gids_fini(struct soft_ctx *ctx)
{
	if (ctx->gids->changes_fd >= 0)
		close(ctx->gids->changes_fd);
	pthread_mutex_destroy(&ctx->gids->lock);
	free(ctx->gids);
}

bool soft_gid_get(struct soft_ctx *ctx, int index, union ibv_gid *gid)
{
	struct soft_gids *table = current(ctx);
	const bool found = index >= 0 && (unsigned)index < table->count && table->used[index];

	if (found)
		*gid = table->entries[index].gid;
	release(table);
	return found;
}

int soft_gid_find(struct soft_ctx *ctx, const union ibv_gid *gid)
{
	struct soft_gids *table = current(ctx);
	const int found = find(table, gid);

	release(table);
	return found;
}

bool soft_gid_is_local(struct soft_ctx *ctx, const union ibv_gid *gid)
{
	return soft_gid_find(ctx, gid) >= 0;
}

int soft_query_gid_ex(struct ibv_context *context, uint32_t port_num, uint32_t gid_index, struct ibv_gid_entry *entry,
		      uint32_t flags, size_t entry_size)
{
	if (flags)
		return EOPNOTSUPP;
	if (port_num != 1 || gid_index >= SOFT_GID_TABLE || entry_size < sizeof *entry)
		return EINVAL;
	struct soft_gids *table = current(to_ctx(context));
	const bool found = gid_index < table->count && table->used[gid_index];
	if (found) {
		memset(entry, 0, entry_size);
		memcpy(entry, &table->entries[gid_index], sizeof *entry);
	}
	release(table);
	return found ? 0 : ENODATA;
}

int soft_query_gid(struct ibv_context *context, uint8_t port_num, int index, union ibv_gid *gid)
{
	struct ibv_gid_entry entry;
	int error = soft_query_gid_ex(context, port_num, (uint32_t)index, &entry, 0, sizeof entry);

	/* An unused entry reads as zeros: this old function has no other way to mark it. */
	if (error == ENODATA)
		memset(gid, 0, sizeof *gid);
	else if (error)
		errno = error;
	else
		*gid = entry.gid;
	return error && error != ENODATA ? -1 : 0;
}

ssize_t soft_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries, size_t max_entries,
			     uint32_t flags, size_t entry_size)
{
	struct soft_gids *table;
	size_t found = 0;

	if (flags)
		return -EOPNOTSUPP;
	if (entry_size < sizeof *entries)
		return -EINVAL;
	table = current(to_ctx(context));
	for (unsigned i = 0; i < table->count; i++) {
		if (!table->used[i])
			continue;
		if (found < max_entries) {
			char *to = (char *)entries + found * entry_size;
			memset(to, 0, entry_size);
			memcpy(to, &table->entries[i], sizeof table->entries[i]);
		}
		found++;
	}
	release(table);
	return found <= max_entries ? (ssize_t)found : -EINVAL;
}

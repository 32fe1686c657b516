/* The GID table: the addresses of this host's interfaces, as RoCEv2 has them.
 *
 * Read once, when the context is opened: an index means the same address as long as the context lives.
 * Addresses that other hosts can reach come first, so that index 0, the default of most tools, is one of
 * them; a host without a network has its loopback addresses there. */
#include "softdev.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

/* Written when the context is opened, constant from then on. */
struct soft_gids {
	unsigned count;
	struct ibv_gid_entry entries[SOFT_GID_TABLE];
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

static bool known(const struct soft_gids *table, const union ibv_gid *gid)
{
	for (unsigned i = 0; i < table->count; i++)
		if (!memcmp(&table->entries[i].gid, gid, sizeof *gid))
			return true;
	return false;
}

int soft_gids_init(struct soft_ctx *ctx)
{
	struct soft_gids *table = calloc(1, sizeof *table);
	struct ifaddrs *all;

	if (!table)
		return ENOMEM;
	if (getifaddrs(&all)) {
		free(table);
		return errno;
	}
	for (enum rank rank = 0; rank < RANKS; rank++) {
		for (const struct ifaddrs *one = all; one; one = one->ifa_next) {
			union ibv_gid gid;

			if (table->count == SOFT_GID_TABLE || rank_of(one, &gid) != rank || known(table, &gid))
				continue;
			table->entries[table->count] = (struct ibv_gid_entry){
				.gid = gid,
				.gid_index = table->count,
				.port_num = 1,
				.gid_type = IBV_GID_TYPE_ROCE_V2,
				.ndev_ifindex = if_nametoindex(one->ifa_name),
			};
			table->count++;
		}
	}
	freeifaddrs(all);
	/* No interface is up, not even the loopback: two processes of one host can still talk. */
	if (!table->count) {
		table->entries[0] = (struct ibv_gid_entry){ .port_num = 1, .gid_type = IBV_GID_TYPE_ROCE_V2 };
		table->entries[0].gid.raw[10] = table->entries[0].gid.raw[11] = 0xff;
		table->entries[0].gid.raw[12] = 127;
		table->entries[0].gid.raw[15] = 1;
		table->count = 1;
	}
	ctx->gids = table;
	return 0;
}

void soft_gids_fini(struct soft_ctx *ctx)
{
	free(ctx->gids);
}

bool soft_gid_get(struct soft_ctx *ctx, int index, union ibv_gid *gid)
{
	if (index < 0 || (unsigned)index >= ctx->gids->count)
		return false;
	*gid = ctx->gids->entries[index].gid;
	return true;
}

int soft_gid_find(struct soft_ctx *ctx, const union ibv_gid *gid)
{
	for (unsigned i = 0; i < ctx->gids->count; i++)
		if (!memcmp(&ctx->gids->entries[i].gid, gid, sizeof *gid))
			return (int)i;
	return -1;
}

bool soft_gid_is_local(struct soft_ctx *ctx, const union ibv_gid *gid)
{
	return soft_gid_find(ctx, gid) >= 0;
}

int soft_query_gid_ex(struct ibv_context *context, uint32_t port_num, uint32_t gid_index, struct ibv_gid_entry *entry,
		      uint32_t flags, size_t entry_size)
{
	const struct soft_gids *table = to_ctx(context)->gids;

	if (flags)
		return EOPNOTSUPP;
	if (port_num != 1 || gid_index >= SOFT_GID_TABLE || entry_size < sizeof *entry)
		return EINVAL;
	if (gid_index >= table->count)
		return ENODATA;
	memset(entry, 0, entry_size);
	memcpy(entry, &table->entries[gid_index], sizeof *entry);
	return 0;
}

int soft_query_gid(struct ibv_context *context, uint8_t port_num, int index, union ibv_gid *gid)
{
	struct ibv_gid_entry entry;
	int error = soft_query_gid_ex(context, port_num, (uint32_t)index, &entry, 0, sizeof entry);

	/* An unused entry reads as zeros: callers of this old function know no other sign. */
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
	const struct soft_gids *table = to_ctx(context)->gids;

	if (flags)
		return -EOPNOTSUPP;
	if (max_entries < table->count || entry_size < sizeof *entries)
		return -EINVAL;
	for (unsigned i = 0; i < table->count; i++) {
		char *to = (char *)entries + i * entry_size;

		memset(to, 0, entry_size);
		memcpy(to, &table->entries[i], sizeof table->entries[i]);
	}
	return table->count;
}

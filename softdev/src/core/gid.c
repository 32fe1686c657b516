/*
 * The GID table: the addresses of this host's interfaces, as RoCEv2 maps them.
 *
 * An index denotes the same address as long as the host has that address: an address that disappears leaves a hole, and
 * a new one takes the first free entry. Kernel notifications of changes wait in a netlink socket, which is read when
 * the table is queried, and by the progress thread. Programs get the events of a card: IBV_EVENT_GID_CHANGE, and those of
 * the port, which is down while interfaces with addresses have stopped that ran before, and none runs. (A host that has
 * never had a network is no reason to keep its processes from each other.)
 *
 * Addresses that other hosts can reach come first, so that index 0, the default of most tools, is one of them. Cards
 * have their first IPv4 address as RoCEv2 at index 3, which other programs take, so it is repeated there. Loopback addresses
 * are shown only while there are no others, which take their entries when they come: programs that take any GID of the list
 * would connect hosts by them. rdma_cm uses them all the same.
 *
 * The port's MTU is the one that fits all interfaces whose addresses are shown, because a port has only one.
 */
#include "core/internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum { INTERFACES = 64 };

struct soft_gids {
	struct soft_gids *next; /* of the tables that are watched; watched_lock */
	struct soft_ctx *ctx;
	bool has_wire; /* the interfaces matter */
	pthread_mutex_t lock;
	int changes_fd; /* -1: no notifications, the table stays as it was when the context was opened */
	unsigned count; /* entries ever used */
	struct ibv_gid_entry entries[SOFT_GID_TABLE];
	bool used[SOFT_GID_TABLE];
	bool spare[SOFT_GID_TABLE]; /* not shown while there are others */
	bool others;
	int mtu;                        /* of the interfaces, in bytes; 0: unknown */
	unsigned ran[INTERFACES], nran; /* indices of those that have been seen running */
	bool down;
};

/* Before the lock of a table. */
static pthread_mutex_t watched_lock = PTHREAD_MUTEX_INITIALIZER;
static struct soft_gids *watched;

enum {
	FIRST_IPV4 = 3,
	HEADERS = 40 + 8 + 12 + 4 + 28 + 4, /* IPv6, UDP, and the most that RoCE adds: as the kernel counts */
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

/* A fault: the address is no GID for a while. */
static bool is_gone(unsigned i)
{
	return atomic_load_explicit(&soft_fault_state.gids, memory_order_relaxed) >> i & 1;
}

static bool is_shown(const struct soft_gids *table, unsigned i)
{
	return i < table->count && table->used[i] && !(table->spare[i] && table->others) && !is_gone(i);
}

static void put(struct soft_gids *table, unsigned i, const union ibv_gid *gid, uint32_t interface)
{
	table->entries[i] = (struct ibv_gid_entry){
		.gid = *gid,
		.gid_index = i,
		.port_num = 1,
		.gid_type = IBV_GID_TYPE_ROCE_V2,
		.ndev_ifindex = interface,
	};
	table->used[i] = true;
	table->spare[i] = false;
	if (i >= table->count)
		table->count = i + 1;
}

/* Entries that are not shown lie at the end of the table. */
static void add(struct soft_gids *table, const union ibv_gid *gid, uint32_t interface, bool spare)
{
	unsigned i = spare ? SOFT_GID_TABLE - 1 : 0;

	while (i < SOFT_GID_TABLE && (table->used[i] || i == FIRST_IPV4))
		i += spare ? -1u : 1u;
	if (i >= SOFT_GID_TABLE)
		return;
	put(table, i, gid, interface);
	table->spare[i] = spare;
}

static void repeat_first_ipv4(struct soft_gids *table)
{
	unsigned i = 0;

	while (i < table->count && !(is_shown(table, i) && soft_gid_is_ipv4(table->entries[i].gid.raw)))
		i++;
	if (!table->used[FIRST_IPV4] && i < table->count)
		put(table, FIRST_IPV4, &table->entries[i].gid, table->entries[i].ndev_ifindex);
}

static void remove_stale(struct soft_gids *table, const struct ifaddrs *all)
{
	bool there[SOFT_GID_TABLE] = { false };

	for (const struct ifaddrs *one = all; one; one = one->ifa_next) {
		union ibv_gid gid;

		if (rank_of(one, &gid) == UNUSABLE)
			continue;
		for (unsigned i = 0; i < table->count; i++)
			there[i] |= !memcmp(&table->entries[i].gid, &gid, sizeof gid);
	}
	for (unsigned i = 0; i < table->count; i++)
		table->used[i] &= there[i];
}

static bool has_others(const struct ifaddrs *all)
{
	for (const struct ifaddrs *one = all; one; one = one->ifa_next) {
		union ibv_gid gid;

		if (rank_of(one, &gid) != UNUSABLE && !soft_gid_is_loopback(gid.raw))
			return true;
	}
	return false;
}

/* Of a time without others: among them loopback would be shown. It gets an entry that is not. */
static void remove_shown_loopback(struct soft_gids *table)
{
	for (unsigned i = 0; i < table->count; i++)
		table->used[i] &= table->spare[i] || !soft_gid_is_loopback(table->entries[i].gid.raw);
}

static int interface_mtu(int fd, uint32_t interface)
{
	struct ifreq request = { 0 };

	return if_indextoname(interface, request.ifr_name) && !ioctl(fd, SIOCGIFMTU, &request) ? request.ifr_mtu : 0;
}

static void find_mtu(struct soft_gids *table)
{
	const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	uint32_t last = 0;

	table->mtu = 0;
	for (unsigned i = 0; fd >= 0 && i < table->count; i++) {
		const uint32_t interface = table->entries[i].ndev_ifindex;

		if (!is_shown(table, i) || interface == last)
			continue;
		const int mtu = interface_mtu(fd, interface);
		if (mtu && (!table->mtu || mtu < table->mtu))
			table->mtu = mtu;
		last = interface;
	}
	if (fd >= 0)
		close(fd);
}

static bool has_run(const struct soft_gids *table, unsigned interface)
{
	for (unsigned i = 0; i < table->nran; i++)
		if (table->ran[i] == interface)
			return true;
	return false;
}

static void find_state(struct soft_gids *table, const struct ifaddrs *all)
{
	bool runs = false, stopped = false;

	for (const struct ifaddrs *one = all; one; one = one->ifa_next) {
		const int family = one->ifa_addr ? one->ifa_addr->sa_family : AF_UNSPEC;

		if ((family != AF_INET && family != AF_INET6) || (one->ifa_flags & IFF_LOOPBACK))
			continue;
		const unsigned interface = if_nametoindex(one->ifa_name);
		if ((one->ifa_flags & IFF_UP) && (one->ifa_flags & IFF_RUNNING)) {
			runs = true;
			if (!has_run(table, interface) && table->nran < INTERFACES)
				table->ran[table->nran++] = interface;
		} else {
			stopped |= has_run(table, interface);
		}
	}
	table->down = table->has_wire && stopped && !runs;
}

/* Reads the interfaces. 0 or errno. */
static int fill(struct soft_gids *table)
{
	struct ifaddrs *all;
	bool any = false;

	if (getifaddrs(&all))
		return errno;
	remove_stale(table, all); /* first, so that their entries are free */
	table->others = has_others(all);
	if (table->others)
		remove_shown_loopback(table);
	for (enum rank rank = 0; rank < RANKS; rank++) {
		for (const struct ifaddrs *one = all; one; one = one->ifa_next) {
			union ibv_gid gid;

			if (rank_of(one, &gid) != rank)
				continue;
			if (find(table, &gid) < 0)
				add(table, &gid, if_nametoindex(one->ifa_name),
				    table->others && soft_gid_is_loopback(gid.raw));
		}
	}
	find_state(table, all);
	freeifaddrs(all);
	for (unsigned i = 0; i < table->count; i++)
		any |= table->used[i];
	/* No interface is up, not even loopback: two processes of one host can still communicate. */
	if (!any) {
		const union ibv_gid loopback = { .raw = { [10] = 0xff, [11] = 0xff, [12] = 127, [15] = 1 } };
		add(table, &loopback, 0, false);
	}
	repeat_first_ipv4(table);
	find_mtu(table);
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

static void shown(const struct soft_gids *table, union ibv_gid to[SOFT_GID_TABLE])
{
	memset(to, 0, SOFT_GID_TABLE * sizeof *to);
	for (unsigned i = 0; i < table->count; i++)
		if (is_shown(table, i))
			to[i] = table->entries[i].gid;
}

/* Reads the interfaces again, and tells the program what has changed. */
static void refill(struct soft_gids *table)
{
	union ibv_gid before[SOFT_GID_TABLE], after[SOFT_GID_TABLE];
	const bool was_down = table->down;
	void *port = (void *)(uintptr_t)1;

	shown(table, before);
	if (fill(table))
		return;
	shown(table, after);
	if (table->down && !was_down)
		soft_async_push(table->ctx, IBV_EVENT_PORT_ERR, port);
	if (memcmp(before, after, sizeof before) != 0)
		soft_async_push(table->ctx, IBV_EVENT_GID_CHANGE, port);
	if (!table->down && was_down)
		soft_async_push(table->ctx, IBV_EVENT_PORT_ACTIVE, port);
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
		refill(table);
	return table;
}

static void release(struct soft_gids *table)
{
	pthread_mutex_unlock(&table->lock);
}

int soft_gids_init(struct soft_ctx *ctx, bool has_wire)
{
	struct soft_gids *table = calloc(1, sizeof *table);

	if (!table)
		return ENOMEM;
	table->ctx = ctx;
	table->has_wire = has_wire;
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

/* ---- watching --------------------------------------------------------------------------------------- */

void soft_gids_watch(struct soft_ctx *ctx)
{
	struct soft_gids *table = ctx->gids;
	struct epoll_event event = { .events = EPOLLIN, .data.ptr = table };

	if (table->changes_fd < 0)
		return;
	pthread_mutex_lock(&watched_lock);
	table->next = watched;
	watched = table;
	epoll_ctl(soft_proc.epoll_fd, EPOLL_CTL_ADD, table->changes_fd, &event);
	pthread_mutex_unlock(&watched_lock);
}

void soft_gids_unwatch(struct soft_ctx *ctx)
{
	struct soft_gids **at = &watched;

	pthread_mutex_lock(&watched_lock);
	while (*at && *at != ctx->gids)
		at = &(*at)->next;
	if (*at) {
		/* A forked child may still have the descriptor: closing ours is not enough. */
		epoll_ctl(soft_proc.epoll_fd, EPOLL_CTL_DEL, ctx->gids->changes_fd, NULL);
		*at = ctx->gids->next;
	}
	pthread_mutex_unlock(&watched_lock);
}

bool soft_gids_changed(const void *what)
{
	struct soft_gids *table;

	pthread_mutex_lock(&watched_lock);
	for (table = watched; table && table != what; table = table->next)
		;
	if (table)
		release(current(table->ctx));
	pthread_mutex_unlock(&watched_lock);
	return table;
}

void soft_gids_after_fork(void)
{
	pthread_mutex_init(&watched_lock, NULL); /* a thread that does not exist in the child may hold it */
	watched = NULL;
}

bool soft_gids_down(struct soft_ctx *ctx)
{
	struct soft_gids *table = current(ctx);
	const bool down = table->down;

	release(table);
	return down;
}

/* ---- queries ---------------------------------------------------------------------------------------- */

bool soft_gid_entry(struct soft_ctx *ctx, int index, struct ibv_gid_entry *entry)
{
	struct soft_gids *table = current(ctx);
	const bool found =
		index >= 0 && (unsigned)index < table->count && table->used[index] && !is_gone((unsigned)index);

	if (found)
		*entry = table->entries[index];
	release(table);
	return found;
}

bool soft_gid_get(struct soft_ctx *ctx, int index, union ibv_gid *gid)
{
	struct ibv_gid_entry entry;
	const bool found = soft_gid_entry(ctx, index, &entry);

	if (found)
		*gid = entry.gid;
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
	return soft_gid_find(ctx, gid) >= 0; /* also one that a fault has taken away: it is this host's all the same */
}

enum ibv_mtu soft_gids_mtu(struct soft_ctx *ctx, bool of_interfaces)
{
	struct soft_gids *table = current(ctx);
	const int mtu = table->mtu;
	const unsigned fault = atomic_load(&soft_fault_state.mtu);
	enum ibv_mtu fits = IBV_MTU_4096;

	release(table);
	while (of_interfaces && mtu && fits > IBV_MTU_256 && (128 << fits) + HEADERS > mtu)
		fits--;
	return fault && (unsigned)fits > fault ? (enum ibv_mtu)fault : fits;
}

int soft_query_gid_ex(struct ibv_context *context, uint32_t port_num, uint32_t gid_index, struct ibv_gid_entry *entry,
		      uint32_t flags, size_t entry_size)
{
	if (flags)
		return EOPNOTSUPP;
	if (port_num != 1 || gid_index >= SOFT_GID_TABLE || entry_size < sizeof *entry)
		return EINVAL;
	struct soft_gids *table = current(to_ctx(context));
	const bool found = is_shown(table, gid_index);
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
		if (!is_shown(table, i))
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

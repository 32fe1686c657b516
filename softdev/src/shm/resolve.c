/*
 * Opening memory to peers: a requester asks what a key opens (RESOLVE), and maps it if the owner sends a descriptor.
 * Runs on the progress thread.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shm/attach.h"

/* ---- the requester asks ------------------------------------------------------------------------------ */

void soft_resolve_ask(struct soft_qp *qp)
{
	struct soft_message msgs[SOFT_ASKS];
	struct soft_link *link = NULL;
	unsigned n = 0;

	memset(msgs, 0, sizeof(msgs));
	soft_lock(&qp->sq_lock);
	if (qp->out && !qp->out->dead) {
		link = qp->out->link;
		for (unsigned at = qp->out->nasked; at < qp->out->nasks; at++, n++) {
			msgs[n].type = SOFT_RESOLVE;
			msgs[n].src_qpn = qp->qp.qp_num;
			msgs[n].dst_qpn = qp->attr.dest_qp_num;
			msgs[n].attempt = atomic_load(&qp->attempt);
			msgs[n].rkey = qp->out->asks[at];
		}
		qp->out->nasked = qp->out->nasks;
	}
	soft_unlock(&qp->sq_lock);
	for (unsigned i = 0; link && !link->dead && i < n; i++)
		soft_link_send(link, &msgs[i], NULL, 0);
}

/* ---- the owner answers ------------------------------------------------------------------------------- */

/*
 * A descriptor of the region's slab for a peer, or -1: the kernel then copies, in the peer's system call. A mapping
 * shows all of the slab, so the region must be all of it. A slab that one peer may only read is never writable by
 * another, because a descriptor can be opened again.
 */
static int slab_fd(const struct soft_region *r, bool writes)
{
	const struct soft_slab *slab = r->slab;
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);

	if (!slab || atomic_load(&slab->torn) || r->host != slab->addr ||
	    ((r->length + page - 1) & ~(page - 1)) != slab->length || soft_memfd_share(slab->fd, writes))
		return -1;
	/* A duplicate of our own: the slab may be freed before the packet leaves. */
	return fcntl(slab->fd, F_DUPFD_CLOEXEC, 0);
}

bool soft_resolve_question(struct soft_link *link, const struct soft_message *msg)
{
	struct soft_message answer = *msg;
	struct soft_qp *qp = soft_qp_find(msg->dst_qpn);
	int fd = -1;

	answer.type = SOFT_RESOLVED;
	answer.access = 0;
	if (!qp)
		return true;
	/* The lock keeps the region registered, and the slab outlives the region. */
	soft_lock(&qp->rq_lock);
	struct soft_region *r = soft_key_find(msg->rkey);
	if (qp->in && qp->in->link == link && qp->attr.dest_qp_num == msg->src_qpn && r && !r->window &&
	    r->pd == soft_pd_root(to_pd(qp->qp.pd))) {
		uint32_t access = r->access & qp->attr.qp_access_flags &
				  (IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
		if (!qp->attr.max_dest_rd_atomic)
			access &= IBV_ACCESS_REMOTE_WRITE;
		/* Before the slab: one that is torn meanwhile has a new serial. */
		answer.serial = atomic_load(&r->serial);
		fd = access ? slab_fd(r, access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) : -1;
		if (access) {
			answer.access = access | (r->access & IBV_ACCESS_RELAXED_ORDERING);
			answer.gate = qp->in->gate;
			answer.base = r->base;
			answer.length = r->length;
			answer.index = soft_key_index(msg->rkey);
			answer.remote = fd < 0 ? (uintptr_t)r->host : 0;
			atomic_fetch_or(&r->lent, fd < 0 ? SOFT_LENT_ADDRESS : SOFT_LENT_MAPPED);
		}
		if (fd >= 0) {
			answer.slab = r->slab->id;
			answer.slab_offset = (uint64_t)(r->host - r->slab->addr);
			answer.slab_length = r->slab->length;
		}
	}
	soft_unlock(&qp->rq_lock);
	soft_link_send(link, &answer, &fd, 1);
	return true;
}

/* ---- the requester maps ------------------------------------------------------------------------------ */

/* Of one peer's process, on all its links, and of all: the kernel allows a process 65,530 mappings and 128 TiB. What is
 * not mapped passes the ring. */
enum { MAPS_OF_ONE = 4096, MAPS_OF_ALL = 32768 };
#define BYTES_OF_ONE (UINT64_C(1) << 40)
#define BYTES_OF_ALL (UINT64_C(1) << 45)

static bool may_map(const struct soft_link *link, uint64_t length)
{
	uint64_t bytes = length;
	unsigned n = 1;

	if (length > BYTES_OF_ONE || atomic_load(&soft_shm.nmaps) >= MAPS_OF_ALL ||
	    atomic_load(&soft_shm.mapped) > BYTES_OF_ALL - length)
		return false;
	for (const struct soft_link *other = soft_shm.links; other; other = other->next)
		if (soft_same_process(other, link)) {
			n += other->nmaps;
			bytes += other->mapped;
		}
	return n <= MAPS_OF_ONE && bytes <= BYTES_OF_ONE;
}

static void add_map(struct soft_link *link, struct soft_map *map)
{
	map->next = link->maps;
	link->maps = map;
	link->nmaps++;
	link->mapped += map->length;
	atomic_fetch_add(&soft_shm.nmaps, 1);
	atomic_fetch_add(&soft_shm.mapped, map->length);
}

static void remove_map(struct soft_link *link, struct soft_map **at)
{
	struct soft_map *map = *at;

	*at = map->next;
	link->nmaps--;
	link->mapped -= map->length;
	atomic_fetch_sub(&soft_shm.nmaps, 1);
	atomic_fetch_sub(&soft_shm.mapped, map->length);
	munmap(map->at, map->length);
	free(map);
}

static const struct soft_map *map_slab(struct soft_link *link, const struct soft_message *msg, int fd)
{
	const bool writes = msg->access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
	struct soft_map *map;

	for (map = link->maps; map; map = map->next)
		if (map->slab == msg->slab && (map->writable || !writes))
			return map;
	map = may_map(link, msg->slab_length) ? calloc(1, sizeof(*map)) : NULL;
	if (!map)
		return NULL;
	map->at = soft_memfd_map(fd, msg->slab_length, PROT_READ | (writes ? PROT_WRITE : 0));
	if (!map->at) {
		free(map);
		return NULL;
	}
	map->slab = msg->slab;
	map->length = msg->slab_length;
	map->writable = writes;
	add_map(link, map);
	return map;
}

/* Where that key is, or may be put: keys that want the same place do not drive each other out while there is another. */
static struct soft_reg *reg_for(struct soft_out *out, uint32_t rkey)
{
	struct soft_reg *r = soft_reg_elsewhere(out, rkey);

	if (!r && !soft_reg_place(out, rkey)->rkey)
		r = soft_reg_place(out, rkey);
	if (!r)
		r = soft_reg_elsewhere(out, 0);
	return r ? r : &out->regs[out->oldest++ % SOFT_REGS];
}

/* Whether the message answers a question of this lane, which it then has no longer. sq_lock held. */
static bool was_asked(struct soft_qp *qp, const struct soft_link *link, const struct soft_message *msg)
{
	struct soft_out *out = qp->out;

	if (!out || out->link != link || atomic_load(&qp->attempt) != msg->attempt)
		return false;
	for (unsigned i = 0; i < out->nasked; i++) {
		if (out->asks[i] != msg->rkey)
			continue;
		out->asks[i] = out->asks[--out->nasked];
		out->asks[out->nasked] = out->asks[--out->nasks];
		return true;
	}
	return false;
}

bool soft_resolve_answer(struct soft_link *link, const struct soft_message *msg, int fd)
{
	struct soft_qp *qp = soft_qp_find(msg->src_qpn);
	const struct soft_map *map = NULL;

	if (!qp)
		return true;
	soft_lock(&qp->sq_lock);
	bool asked = was_asked(qp, link, msg);
	soft_unlock(&qp->sq_lock);
	if (!asked)
		return true; /* of a lane that was given up; or it would be mapped for nothing */
	if (msg->access) {
		if (msg->index != soft_key_index(msg->rkey) || !msg->length ||
		    (fd >= 0 ? !msg->slab_length : !msg->remote))
			return false;
		map = fd >= 0 ? map_slab(link, msg, fd) : NULL;
		if (map && (msg->slab_offset > map->length || msg->length > map->length - msg->slab_offset))
			return false;
	}
	const uint32_t loose = soft_any_order(msg->access) ? msg->access : 0;
	soft_lock(&qp->sq_lock);
	if (qp->out && qp->out->link == link && atomic_load(&qp->attempt) == msg->attempt) {
		*reg_for(qp->out, msg->rkey) = (struct soft_reg){
			.rkey = msg->rkey,
			.access = loose ? loose & ~(uint32_t)IBV_ACCESS_REMOTE_WRITE : msg->access,
			.loose = loose,
			.gate = msg->gate,
			.base = msg->base,
			.length = msg->length,
			.serial = msg->serial,
			.index = msg->index,
			.at = map ? map->at + msg->slab_offset : NULL,
			.map = map,
			.remote = fd < 0 && msg->access ? msg->remote : 0,
		};
	}
	soft_unlock(&qp->sq_lock);
	return true;
}

void soft_resolve_slab_gone(struct soft_link *link, uint64_t slab)
{
	for (struct soft_map **at = &link->maps, *map; (map = *at);) {
		if (map->slab != slab) {
			at = &map->next;
			continue;
		}
		for (uint32_t i = 0; i < atomic_load(&soft_proc.qp_used); i++) {
			struct soft_qp *qp = atomic_load(&soft_proc.qps[i]);
			if (!qp)
				continue;
			soft_lock(&qp->sq_lock);
			for (unsigned k = 0; qp->out && qp->out->link == link && k < SOFT_REGS; k++)
				if (qp->out->regs[k].map == map)
					qp->out->regs[k] = (struct soft_reg){ 0 };
			soft_unlock(&qp->sq_lock);
		}
		remove_map(link, at);
	}
}

void soft_maps_drop(struct soft_link *link)
{
	while (link->maps)
		remove_map(link, &link->maps);
}

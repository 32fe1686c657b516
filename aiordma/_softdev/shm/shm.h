/*
 * Shared memory: RC, UC and UD between processes of one user on one host.
 *
 * A lane is a shared segment with a ring each way, made by the responder's process when the requester asks for it over a
 * Unix socket (unix_link.c, attach.c). Memory that was allocated here (slab.c) is mapped by peers that have its key:
 * a WRITE, READ or atomic there is carried out by the requester's CPU, other memory through the kernel or the ring
 * (lane_requester.c); records in the ring by whoever looks at the responder's door (lane_responder.c). Datagrams have
 * lanes of their own, one from a process to a QP (ud_lane.c).
 *
 * What it promises: the other process is never believed. Every length, index and key read from memory that it can write
 * is checked, and its end, at any instruction, leaves this process correct; its QPs fail as they would with a card.
 * What it calls: core and base. Who may call it: verbs; the core, by the two tables below.
 * Locks of its own: internal.h.
 */
#ifndef AIORDMA_SOFT_SHM_H
#define AIORDMA_SOFT_SHM_H

#include "core/core.h"

/* Of a QP with qp->remote whose destination is on this host. */
extern const struct soft_path_ops soft_shm_path;
extern const struct soft_fabric_ops soft_shm_fabric;

/* Memory from aiordma_soft_alloc(). */
struct soft_slab {
	char *addr;
	size_t length;
	int fd, fd_ro;
	uint64_t id;
	struct soft_pd *pd;
	atomic_uint regions; /* memory regions that lie in it: it is not freed */
	struct soft_slab *next;
};
/* The one that all of it lies in, or NULL. Takes soft_proc.lock. */
struct soft_slab *soft_slab_find(const char *addr, uint64_t length);

#endif

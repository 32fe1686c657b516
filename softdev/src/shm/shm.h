/*
 * Shared memory: RC, UC and UD between processes of one user on one host.
 *
 * A lane is a shared segment with one ring per direction. The responder's process creates it when the requester asks
 * for it over a Unix socket (unix_link.c, attach.c). Peers that have the key map memory allocated here (slab.c): the
 * requester's CPU then carries out a WRITE, READ or atomic directly; other memory is reached through the kernel or the
 * ring (lane_requester.c). Ring records are handled by the thread that checks the responder's door (lane_responder.c).
 * Datagrams have separate lanes, one from a process to a QP (ud_lane.c).
 *
 * What it promises: it does not trust the other process. It checks every length, index and key that it reads from
 * memory the peer can write. A peer may die at any instruction without corrupting this process; its QPs fail as they
 * would with an adapter.
 * What it calls: core and base. Who may call it: verbs; the core, by the two tables below.
 * Locks of its own: internal.h.
 */
#ifndef SOFTDEV_SHM_H
#define SOFTDEV_SHM_H

#include "core/core.h"

/* For a QP with qp->remote whose destination is on this host. */
extern const struct soft_path_ops soft_shm_path;
extern const struct soft_fabric_ops soft_shm_fabric;

/* Memory from softdev_alloc(). */
struct soft_slab {
	char *addr;
	size_t length;
	int fd;
	uint64_t id;
	struct soft_pd *pd;
	atomic_uint regions; /* memory regions inside it: it cannot be freed before them */
	atomic_bool torn;    /* parts of it are not in the memfd any more: peers map it no more */
	bool *cut;           /* for each page whether it is such a part; NULL: none (soft_shm.lanes_lock) */
	struct soft_slab *next;
};
/* The slab that contains the whole range, or NULL. Takes soft_proc.lock. */
struct soft_slab *soft_slab_find(const char *addr, uint64_t length);
/*
 * Takes the pages with these bytes out of the memory that peers have mapped. They keep their content and address in
 * this process, whose threads may go on writing; what a peer writes from then on is not seen here. 0 or errno.
 * soft_shm.lanes_lock held.
 */
int soft_slab_cut(struct soft_slab *slab, size_t offset, size_t length);

#endif

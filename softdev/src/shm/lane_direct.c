/*
 * The requester's direct access to mapped memory of the responder: a copy here takes the place of a request in the ring.
 *
 * A direct access and a request in the ring must not overtake each other on the same memory: an RC queue pair carries
 * out its requests in order, READs among themselves, too (IBTA, work request ordering). So while a WRITE, READ or atomic
 * is in the ring, later ones follow it there. Those that are longer than a record wait until it is carried out instead:
 * a stream of large READs, of which one follows the other, would not leave the ring any more, at a third of the speed.
 * SENDs do not matter: their data goes elsewhere.
 */
#include <sys/uio.h>

#include "shm/lane.h"

static void ask(struct soft_qp *qp, uint32_t rkey)
{
	struct soft_out *o = qp->out;

	for (unsigned i = 0; i < o->nasks; i++)
		if (o->asks[i] == rkey)
			return;
	if (o->nasks == SOFT_ASKS)
		return;
	o->asks[o->nasks++] = rkey;
	soft_service(qp, SOFT_SERVICE_RESOLVE);
}

struct soft_reg *soft_reg_elsewhere(struct soft_out *o, uint32_t rkey)
{
	for (unsigned i = 0; i < SOFT_REGS; i++)
		if (o->regs[i].rkey == rkey)
			return &o->regs[i];
	return NULL;
}

void soft_out_expect(struct soft_qp *qp, uint32_t rkey)
{
	struct soft_out *o = qp->out;

	if (o && !o->dead && soft_reg_place(o, rkey)->rkey != rkey && !soft_reg_elsewhere(o, rkey))
		ask(qp, rkey);
}

/*
 * The next n bytes, of memory that is not shareable: the kernel copies it, in one call and without the owner's CPU.
 */
static enum soft_direct through_kernel(struct soft_qp *qp, struct soft_wqe *wqe, const struct soft_reg *r,
				       uint32_t access, uint32_t n)
{
	const bool write = access == IBV_ACCESS_REMOTE_WRITE;
	struct soft_link *link = qp->out->link;
	struct iovec here[SOFT_MAX_SGE];
	struct iovec there = { (void *)(uintptr_t)(r->remote + (wqe->raddr - r->base) + wqe->offset), n };
	uint32_t skip = wqe->offset, left = n, pieces = 0;
	ssize_t done;

	for (uint32_t i = 0; left; i++) {
		const struct ibv_sge *sge = &wqe->sge[i];
		if (skip >= sge->length) {
			skip -= sge->length;
			continue;
		}
		uint32_t part = sge->length - skip < left ? sge->length - skip : left;
		char *at = (char *)(uintptr_t)sge->addr;
		if (!(wqe->flags & IBV_SEND_INLINE))
			at = soft_local_addr(to_pd(qp->qp.pd), sge->lkey, sge->addr, sge->length,
					     write ? 0 : IBV_ACCESS_LOCAL_WRITE);
		if (!at)
			return SOFT_DIRECT_PROT;
		here[pieces++] = (struct iovec){ at + skip, part };
		left -= part;
		skip = 0;
	}
	if (link->dead || link->pid <= 0)
		return SOFT_DIRECT_NO;
	done = write ? process_vm_writev(link->pid, here, pieces, &there, 1, 0) :
		       process_vm_readv(link->pid, here, pieces, &there, 1, 0);
	if (done == (ssize_t)n)
		return SOFT_DIRECT_DONE;
	if (done < 0 && (errno == EPERM || errno == ENOSYS))
		atomic_store(&link->no_vm, true);
	return SOFT_DIRECT_NO; /* the responder carries it out, or reports the error */
}

/* The same, in any order. */
static enum soft_direct loosely_through_kernel(struct soft_qp *qp, const struct soft_wqe *wqe, const struct soft_reg *r,
					       uint32_t access, uint32_t n)
{
	struct soft_wqe piece = *wqe;
	enum soft_direct done = SOFT_DIRECT_DONE;
	struct soft_order order;
	uint32_t offset, part;

	soft_order_begin(&order, qp, n);
	while (done == SOFT_DIRECT_DONE && soft_order_next(&order, &offset, &part)) {
		piece.offset = wqe->offset + offset;
		done = through_kernel(qp, &piece, r, access, part);
	}
	return done;
}

/*
 * Hazard: the owner withdraws the key (or closes the gate) and then looks whether we are inside; we say so and then
 * look at both. All seq_cst: either the owner sees us inside, or we see that the key is gone.
 */
static bool enter(struct soft_out *o, struct soft_reg *r, uint64_t addr, uint32_t n)
{
	atomic_store_explicit(&o->seg->inside_at, addr, memory_order_relaxed);
	atomic_store_explicit(&o->seg->inside_length, r->at ? n : 0, memory_order_relaxed);
	atomic_exchange(&o->seg->inside, r->rkey);
	if (soft_likely(atomic_load(&o->seg->gate) == r->gate &&
			atomic_load(&o->link->published->serial[r->index]) == r->serial))
		return true;
	atomic_store_explicit(&o->seg->inside, 0, memory_order_release);
	r->rkey = 0;
	return false;
}

/* False: the owner has taken the memory away while we were inside (outside.c). What we did there is lost. */
static bool leave(struct soft_out *o, struct soft_reg *r)
{
	if (soft_likely(!(atomic_exchange(&o->seg->inside, 0) & SOFT_INSIDE_EVICTED)))
		return true;
	r->rkey = 0;
	return false;
}

/* Whether the memory is not what the request needs, with these rights to it. */
static bool unfit(const struct soft_reg *r, const struct soft_wqe *wqe, uint32_t rights, uint32_t access)
{
	return (!r->at && !r->remote) || (rights & access) != access || wqe->raddr < r->base ||
	       wqe->length > r->length || wqe->raddr - r->base > r->length - wqe->length;
}

/* The next n bytes of a WRITE, in any order. */
static bool gather_loosely(struct soft_qp *qp, const struct soft_wqe *wqe, char *at, uint32_t n)
{
	struct soft_order order;
	uint32_t offset, part;

	soft_order_begin(&order, qp, n);
	while (soft_order_next(&order, &offset, &part))
		if (!soft_wqe_gather(qp, wqe, wqe->offset + offset, at + offset, part))
			return false;
	return true;
}

enum soft_direct soft_out_direct(struct soft_qp *qp, struct soft_wqe *wqe, uint32_t access)
{
	struct soft_out *o = qp->out;
	struct soft_reg *r = soft_reg_place(o, wqe->rkey);
	bool ok = true, loosely = false;

	if (soft_unlikely(!wqe->length))
		return SOFT_DIRECT_NO;
	if (soft_unlikely(r->rkey != wqe->rkey) && !(r = soft_reg_elsewhere(o, wqe->rkey))) {
		ask(qp, wqe->rkey);
		return SOFT_DIRECT_NO;
	}
	if (soft_unlikely(unfit(r, wqe, r->access, access))) {
		loosely = access == IBV_ACCESS_REMOTE_WRITE && r->loose && !unfit(r, wqe, r->loose, access);
		if (!loosely)
			return SOFT_DIRECT_NO;
	}
	if (soft_unlikely(o->staged > qp->acked)) {
		qp->acked = atomic_load_explicit(&o->seg->acked, memory_order_acquire);
		if (o->staged > qp->acked)
			return wqe->length > SOFT_FRAGMENT ? SOFT_DIRECT_LATER : SOFT_DIRECT_NO;
	}
	if (soft_unlikely(!r->at && (access == IBV_ACCESS_REMOTE_ATOMIC || atomic_load(&o->link->no_vm))))
		return SOFT_DIRECT_NO;
	const uint32_t left = wqe->length - wqe->offset, n = left < SOFT_TURN_BYTES ? left : SOFT_TURN_BYTES;
	if (soft_unlikely(access == IBV_ACCESS_REMOTE_ATOMIC && (((uintptr_t)r->at + (wqe->raddr - r->base)) & 7)))
		return SOFT_DIRECT_NO; /* the responder refuses it, in order */
	if (soft_unlikely(!enter(o, r, wqe->raddr + wqe->offset, n)))
		return SOFT_DIRECT_NO;
	if (soft_unlikely(!r->at)) {
		loosely |= access == IBV_ACCESS_REMOTE_READ && soft_unordered &&
			   soft_is_loose_list(wqe->sge, wqe->num_sge);
		enum soft_direct done =
			loosely ? loosely_through_kernel(qp, wqe, r, access, n) : through_kernel(qp, wqe, r, access, n);
		if (!leave(o, r) && done == SOFT_DIRECT_DONE)
			return SOFT_DIRECT_NO;
		return done == SOFT_DIRECT_DONE && n < left ? SOFT_DIRECT_MORE : done;
	}
	char *at = r->at + (wqe->raddr - r->base) + wqe->offset;
	if (access == IBV_ACCESS_REMOTE_WRITE) {
		ok = soft_unlikely(loosely) ? gather_loosely(qp, wqe, at, n) :
					      soft_wqe_gather(qp, wqe, wqe->offset, at, n);
	} else if (access == IBV_ACCESS_REMOTE_READ) {
		ok = soft_wqe_scatter(qp, wqe, wqe->offset, at, n);
	} else {
		uint64_t old;
		ok = soft_rx_atomic(wqe->opcode, at, wqe->atomic.compare_add, wqe->atomic.swap, &old) &&
		     soft_wqe_scatter(qp, wqe, 0, (const char *)&old, sizeof(old));
	}
	const bool stayed = leave(o, r);
	if (soft_unlikely(!ok))
		return SOFT_DIRECT_PROT;
	/* An atomic must not be carried out again: it may have been in time. */
	if (soft_unlikely(!stayed))
		return access == IBV_ACCESS_REMOTE_ATOMIC ? SOFT_DIRECT_LOST : SOFT_DIRECT_NO;
	return n < left ? SOFT_DIRECT_MORE : SOFT_DIRECT_DONE;
}

void soft_out_early(struct soft_qp *qp, struct soft_wqe *wqe)
{
	struct soft_out *o = qp->out;

	if (!o || o->dead || !atomic_load_explicit(&o->seg->gate, memory_order_relaxed) ||
	    atomic_load_explicit(&o->seg->cut, memory_order_relaxed))
		return;
	const struct soft_reg *r = soft_reg_elsewhere(o, wqe->rkey);
	if (r && r->loose)
		soft_out_direct(qp, wqe, IBV_ACCESS_REMOTE_WRITE);
}

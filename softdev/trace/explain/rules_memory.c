/*
 * Rules: keys of memory that did not open what a work request named.
 */
#include <infiniband/verbs.h>

#include "trace/explain/explain.h"

struct key_case {
	const struct story *story; /* whose memory it is */
	uint32_t key, rights;      /* rights that the operation needs */
	uint64_t address, length, pd;
	uint64_t ns; /* when it was used, in that story's time */
	bool remote, first_only;
};

static const char *named(const struct key_case *of)
{
	return of->remote ? "rkey" : "lkey";
}

static bool is_within(const struct mr *mr, uint64_t address, uint64_t length)
{
	return address >= mr->is.iova && length <= mr->is.length && address - mr->is.iova <= mr->is.length - length;
}

/* What is wrong with the key, as the end of a sentence, and the rule's name. NULL: nothing that can be seen. */
static const char *judge_key(const struct key_case *of, uint8_t device, char *text, size_t size)
{
	const struct story *s = of->story;
	const long n = map_get(of->remote ? &s->by_rkey : &s->by_lkey, key_of(device, of->key));
	const char *whose = of->remote ? "there" : "here";
	char has[TRACE_FLAGS_BYTES], lacks[TRACE_FLAGS_BYTES];

	if (n < 0) {
		const bool late = s->from->header.attached;
		const uint32_t swapped = __builtin_bswap32(of->key);
		const bool order = map_get(of->remote ? &s->by_rkey : &s->by_lkey, key_of(device, swapped)) >= 0;
		char hint[80] = "";
		if (order)
			snprintf(hint, sizeof(hint), ", but one has 0x%x: the same bytes in the other order", swapped);
		snprintf(text, size, "no memory region %s %s the %s 0x%x%s%s%s", whose, late ? "had" : "ever had",
			 named(of), of->key, late ? " since the recording began" : "",
			 (s->windows || late) && !order ? " (unless it is a memory window's)" : "", hint);
		return of->remote ? "wrong-rkey" : "wrong-lkey";
	}
	const struct mr *mr = &s->mrs[n];
	if (mr->gone && mr->gone <= of->ns) {
		snprintf(text, size, "the region of %s 0x%x was deregistered %.6f s before", named(of), of->key,
			 (double)(of->ns - mr->gone) / 1e9);
		return of->remote ? "rkey-deregistered" : "lkey-deregistered";
	}
	if (!of->first_only && !is_within(mr, of->address, of->length)) {
		const char *how = "";
		if (is_within(mr, __builtin_bswap64(of->address), of->length))
			how = ": the bytes of the address are in the other order";
		else if (is_within(mr, of->address, 0))
			how = ": the range begins in it and ends behind it";
		else if (is_within(mr, of->address + mr->is.iova, of->length))
			how = ": it is an offset, where an address belongs";
		snprintf(text, size,
			 "%llu bytes at 0x%llx are not within the region of %s 0x%x, which has %llu bytes at 0x%llx%s",
			 (unsigned long long)of->length, (unsigned long long)of->address, named(of), of->key,
			 (unsigned long long)mr->is.length, (unsigned long long)mr->is.iova, how);
		return of->remote ? "remote-out-of-bounds" : "local-out-of-bounds";
	}
	if (mr->access_known && (mr->access & of->rights) != of->rights) {
		snprintf(text, size, "the region of %s 0x%x was registered with access %s, and the operation needs %s",
			 named(of), of->key, trace_access_text(mr->access, has),
			 trace_access_text(of->rights & ~mr->access, lacks));
		return of->remote ? "remote-rights" : "local-rights";
	}
	if (of->pd && mr->is.pd && of->pd != mr->is.pd) {
		snprintf(text, size, "the region of %s 0x%x is in another protection domain than the queue pair %s",
			 named(of), of->key, whose);
		return of->remote ? "remote-other-pd" : "local-other-pd";
	}
	return NULL;
}

/* ---- here --------------------------------------------------------------------------------------------- */

static uint32_t local_rights(const struct trace_record *r)
{
	const bool writes = r->kind == TRACE_RECV || r->wr.opcode == IBV_WR_RDMA_READ ||
			    r->wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || r->wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;

	return writes ? IBV_ACCESS_LOCAL_WRITE : 0;
}

/* As the key was when the request was posted, or else when it completed. */
static const char *judge_local(const struct story *s, const struct qp *qp, size_t wr, uint64_t completed, char *text,
			       size_t size)
{
	const struct trace_item *posted = item_at(s, wr);
	const struct trace_wr *w = &posted->record.wr;
	const struct key_case of = { .story = s,
				     .key = w->lkey,
				     .rights = local_rights(&posted->record),
				     .address = w->address,
				     .length = w->length,
				     .pd = qp->caps.srq && posted->record.kind == TRACE_RECV ? 0 : qp->asked.pd,
				     .ns = completed,
				     .first_only = w->num_sge != 1 ||
						   (qp->caps.type == IBV_QPT_UD && posted->record.kind == TRACE_SEND) };
	struct key_case then = of;

	then.ns = posted->ns;
	const char *name = judge_key(&then, posted->record.device, text, size);
	return name ? name : judge_key(&of, posted->record.device, text, size);
}

static const char *what_of(const struct trace_record *r)
{
	return r->kind == TRACE_RECV ? "receive" : trace_opcode_name(r->wr.opcode);
}

void rule_local_memory(struct findings *to, const struct story *s)
{
	for (size_t n = 0; n < s->incident_count; n++) {
		const struct incident *one = &s->incidents[n];
		if (one->kind != COMPLETED_BAD)
			continue;
		const struct trace_item *item = item_at(s, one->item);
		const uint8_t status = item->record.done.status;
		const struct qp *qp = &s->qps[one->qp];
		char text[400];
		if (status != IBV_WC_LOC_PROT_ERR && status != IBV_WC_LOC_ACCESS_ERR)
			continue;
		const char *name =
			one->wr < 0 ? NULL : judge_local(s, qp, (size_t)one->wr, item->ns, text, sizeof(text));
		if (name)
			found(to, s, name, FAILED, item->ns, qp->object, "%s of the %s wr_id 0x%llx on QP 0x%x: %s.",
			      trace_status_name(status), what_of(&item_at(s, (size_t)one->wr)->record),
			      (unsigned long long)item->record.done.wr_id, qp->number, text);
		else
			found(to, s, "local-memory", FAILED, item->ns, qp->object,
			      "%s of wr_id 0x%llx on QP 0x%x: a local key of its scatter/gather list does not allow "
			      "the access: an unknown key, another protection domain, a range outside the region, or "
			      "no LOCAL_WRITE.",
			      trace_status_name(status), (unsigned long long)item->record.done.wr_id, qp->number);
	}
}

/* ---- there -------------------------------------------------------------------------------------------- */

static uint32_t remote_rights(uint8_t opcode)
{
	switch (opcode) {
	case IBV_WR_RDMA_READ:
		return IBV_ACCESS_REMOTE_READ;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		return IBV_ACCESS_REMOTE_ATOMIC;
	default:
		return IBV_ACCESS_REMOTE_WRITE;
	}
}

static bool is_one_sided(uint8_t opcode)
{
	return opcode == IBV_WR_RDMA_READ || opcode == IBV_WR_RDMA_WRITE || opcode == IBV_WR_RDMA_WRITE_WITH_IMM ||
	       opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}

/* Rights of the queue pair there, for what it answers with "access" or with "invalid request". */
static bool judge_pair(struct findings *to, const struct story *s, const struct trace_item *item, const struct qp *qp,
		       const struct trace_item *posted, const struct peer *peer)
{
	const uint8_t opcode = posted->record.wr.opcode;
	const bool atomic = opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
	const uint32_t rights = remote_rights(opcode);
	const char *status = trace_status_name(item->record.done.status), *what = trace_an_opcode(opcode);
	char lacks[TRACE_FLAGS_BYTES], has[TRACE_FLAGS_BYTES];

	if (atomic && posted->record.wr.remote & 7)
		found(to, s, "atomic-unaligned", FAILED, item->ns, qp->object,
		      "%s of %s on QP 0x%x: the remote address 0x%llx is not a multiple of 8.", status, what,
		      qp->number, (unsigned long long)posted->record.wr.remote);
	else if (peer && peer->qp->seen & IBV_QP_ACCESS_FLAGS && !(peer->qp->is.access & rights))
		found(to, s, "qp-access-flags", FAILED, item->ns, qp->object,
		      "%s of %s on QP 0x%x: the peer's QP 0x%x has qp_access_flags %s, and the operation needs %s. "
		      "That the memory was registered with it is not enough.",
		      status, what, qp->number, peer->qp->number, trace_access_text(peer->qp->is.access, has),
		      trace_access_text(rights, lacks));
	else if (peer && (atomic || opcode == IBV_WR_RDMA_READ) && peer->qp->seen & IBV_QP_MAX_DEST_RD_ATOMIC &&
		 !peer->qp->is.max_dest_rd_atomic)
		found(to, s, "rd-atomic-zero", FAILED, item->ns, qp->object,
		      "%s of %s on QP 0x%x: the peer's QP 0x%x has max_dest_rd_atomic 0, so that it answers no READ "
		      "and no atomic operation.",
		      status, what, qp->number, peer->qp->number);
	else
		return false;
	return true;
}

static void judge_remote(struct findings *to, const struct story *s, const struct incident *one)
{
	const struct trace_item *item = item_at(s, one->item), *posted = item_at(s, (size_t)one->wr);
	const struct trace_wr *w = &posted->record.wr;
	const struct qp *qp = &s->qps[one->qp];
	const char *status = trace_status_name(item->record.done.status);
	struct peer peer;
	const bool known = peer_find(to, s, qp, &peer);
	char text[400];

	if (!is_one_sided(w->opcode) || (known && found_other_mtu(to, s, item, posted, qp, &peer)) ||
	    judge_pair(to, s, item, qp, posted, known ? &peer : NULL))
		return;
	if (item->record.done.status != IBV_WC_REM_ACCESS_ERR) {
		found(to, s, "remote-invalid-request", FAILED, item->ns, qp->object,
		      "%s of %s on QP 0x%x: the peer's queue pair does not take this operation: look at its "
		      "qp_access_flags, at max_dest_rd_atomic, and at the alignment of atomic operations.",
		      status, trace_an_opcode(w->opcode), qp->number);
		return;
	}
	const char *name = NULL;
	if (known) {
		const uint64_t then = world_time(s, posted->ns), begin = peer.story->from->header.begin_unix_ns;
		const struct key_case of = { .story = peer.story,
					     .key = w->rkey,
					     .rights = remote_rights(w->opcode),
					     .address = w->remote,
					     .length = w->length,
					     .pd = peer.qp->asked.pd,
					     .ns = then > begin ? then - begin : 0,
					     .remote = true };
		name = judge_key(&of, peer.qp->device, text, sizeof(text));
	}
	if (name && peer.story != s && map_get(&s->by_rkey, key_of(posted->record.device, w->rkey)) >= 0 &&
	    map_get(&peer.story->by_rkey, key_of(peer.qp->device, w->rkey)) < 0)
		snprintf(text, sizeof(text), "the rkey 0x%x is that of a region of this process, not of the peer's",
			 w->rkey);
	if (name)
		found(to, s, name, FAILED, item->ns, qp->object, "%s of the %s wr_id 0x%llx on QP 0x%x: %s.", status,
		      trace_opcode_name(w->opcode), (unsigned long long)item->record.done.wr_id, qp->number, text);
	else
		found(to, s, "remote-access", FAILED, item->ns, qp->object,
		      "%s of the %s wr_id 0x%llx on QP 0x%x: the peer does not let it have %u bytes at 0x%llx by the "
		      "rkey 0x%x: an unknown key, other bounds, no such right, or another protection domain.%s",
		      status, trace_opcode_name(w->opcode), (unsigned long long)item->record.done.wr_id, qp->number,
		      w->length, (unsigned long long)w->remote, w->rkey,
		      known ? "" : " The peer was not recorded: run it under `softdev trace`, too, to learn which.");
}

void rule_remote_memory(struct findings *to, const struct story *s)
{
	for (size_t n = 0; n < s->incident_count; n++) {
		const struct incident *one = &s->incidents[n];
		if (one->kind != COMPLETED_BAD || one->wr < 0)
			continue;
		const uint8_t status = item_at(s, one->item)->record.done.status;
		if (item_at(s, (size_t)one->wr)->record.kind != TRACE_SEND)
			continue;
		if (status == IBV_WC_REM_ACCESS_ERR || status == IBV_WC_REM_INV_REQ_ERR)
			judge_remote(to, s, one);
	}
}

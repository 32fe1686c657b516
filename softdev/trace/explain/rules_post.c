/*
 * Rules: work requests that were refused, or posted where they have no effect.
 */
#include <infiniband/verbs.h>

#include "trace/explain/explain.h"

static const char *result_of(const struct trace_record *r)
{
	return r->error ? trace_errno_name(r->error) : "no error";
}

void rule_post_state(struct findings *to, const struct story *s)
{
	for (size_t n = 0; n < s->incident_count; n++) {
		const struct incident *one = &s->incidents[n];
		if (one->kind != POST_EARLY)
			continue;
		const struct trace_item *item = item_at(s, one->item);
		const struct qp *qp = &s->qps[one->qp];
		if (item->record.kind == TRACE_RECV) {
			found(to, s, "recv-in-reset", FAILED, item->ns, qp->object,
			      "a receive was posted to QP 0x%x while it was in RESET, where a queue pair has no "
			      "queues (the call returned %s). Move it to INIT first.",
			      qp->number, result_of(&item->record));
			continue;
		}
		static const char *const missing[] = { [IBV_QPS_RESET] = "to INIT, RTR and RTS",
						       [IBV_QPS_INIT] = "to RTR and RTS",
						       [IBV_QPS_RTR] = "to RTS" };
		found(to, s, "post-before-rts", FAILED, item->ns, qp->object,
		      "%s was posted to QP 0x%x while it was in %s (the call returned %s). A queue pair sends only in "
		      "RTS: modify_qp %s was missing%s.",
		      trace_an_opcode(item->record.wr.opcode), qp->number, trace_state_name(one->state),
		      result_of(&item->record), missing[one->state], qp->rts ? " then, and came later" : "");
	}
}

/* ---- limits ------------------------------------------------------------------------------------------- */

static uint32_t operations(unsigned type)
{
	const uint32_t datagram = 1u << IBV_WR_SEND | 1u << IBV_WR_SEND_WITH_IMM;
	const uint32_t unreliable = datagram | 1u << IBV_WR_RDMA_WRITE | 1u << IBV_WR_RDMA_WRITE_WITH_IMM |
				    1u << IBV_WR_SEND_WITH_INV | 1u << IBV_WR_LOCAL_INV | 1u << IBV_WR_BIND_MW;

	return type == IBV_QPT_UD ? datagram : type == IBV_QPT_UC ? unreliable : UINT32_MAX;
}

static bool sends_limits(struct findings *to, const struct story *s, const struct qp *qp, const struct trace_item *item)
{
	const struct trace_wr *wr = &item->record.wr;
	const bool atomic = wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
	const char *what = trace_an_opcode(wr->opcode), *why = trace_errno_name(item->record.error);

	if (wr->num_sge > qp->caps.send_sge) {
		found(to, s, "too-many-sges", FAILED, item->ns, qp->object,
		      "%s with %u scatter/gather entries was refused (%s): QP 0x%x was made with max_send_sge %u "
		      "(asked for: %u). Ask for more in ibv_create_qp, or gather less.",
		      what, wr->num_sge, why, qp->number, qp->caps.send_sge, qp->asked.send_sge);
	} else if (wr->flags & IBV_SEND_INLINE && wr->length > qp->caps.inline_bytes) {
		found(to, s, "inline-too-long", FAILED, item->ns, qp->object,
		      "%s of %u bytes with IBV_SEND_INLINE was refused (%s): QP 0x%x takes at most %u bytes inline "
		      "(max_inline_data asked for: %u).",
		      what, wr->length, why, qp->number, qp->caps.inline_bytes, qp->asked.inline_bytes);
	} else if (wr->opcode < 32 && !(operations(qp->caps.type) >> wr->opcode & 1)) {
		found(to, s, "opcode-not-allowed", FAILED, item->ns, qp->object,
		      "%s was refused (%s): QP 0x%x is %s, and %s queue pairs have no such operation.", what, why,
		      qp->number, trace_qp_type_name(qp->caps.type), trace_qp_type_name(qp->caps.type));
	} else if ((atomic || wr->opcode == IBV_WR_RDMA_READ) && qp->seen & IBV_QP_MAX_QP_RD_ATOMIC &&
		   !qp->is.max_rd_atomic) {
		found(to, s, "rd-atomic-zero", FAILED, item->ns, qp->object,
		      "%s was refused (%s): max_rd_atomic of QP 0x%x is 0, so it may not have a single READ or atomic "
		      "operation under way. Set it in modify_qp to RTS.",
		      what, why, qp->number);
	} else if (atomic && wr->length != 8) {
		found(to, s, "atomic-length", FAILED, item->ns, qp->object,
		      "%s with %u bytes was refused (%s): atomic operations return exactly 8.", what, wr->length, why);
	} else if (wr->flags & IBV_SEND_INLINE && (atomic || wr->opcode == IBV_WR_RDMA_READ)) {
		found(to, s, "inline-read", FAILED, item->ns, qp->object,
		      "%s with IBV_SEND_INLINE was refused (%s): it brings data, and has none to send inline.", what,
		      why);
	} else if (qp->caps.type == IBV_QPT_UD && !wr->remote) {
		found(to, s, "no-address-handle", FAILED, item->ns, qp->object,
		      "a datagram was refused (%s): it has no address handle (wr.ud.ah is NULL).", why);
	} else if (wr->length > UINT32_C(1) << 31) {
		found(to, s, "message-too-long", FAILED, item->ns, qp->object,
		      "%s was refused (%s): a message has at most 2 GiB.", what, why);
	} else {
		return false;
	}
	return true;
}

void rule_post_limits(struct findings *to, const struct story *s)
{
	for (size_t n = 0; n < s->incident_count; n++) {
		const struct incident *one = &s->incidents[n];
		if (one->kind != POST_REFUSED)
			continue;
		const struct trace_item *item = item_at(s, one->item);
		const struct qp *qp = one->qp < 0 ? NULL : &s->qps[one->qp];
		const bool send = item->record.kind == TRACE_SEND;
		if (!qp || item->record.error == 12)
			continue; /* a queue that is full: rule_queue_full() */
		if (send && sends_limits(to, s, qp, item))
			continue;
		if (!send && item->record.wr.num_sge > qp->caps.recv_sge)
			found(to, s, "too-many-sges", FAILED, item->ns, qp->object,
			      "a receive with %u scatter/gather entries was refused (%s): QP 0x%x was made with "
			      "max_recv_sge %u (asked for: %u).",
			      item->record.wr.num_sge, trace_errno_name(item->record.error), qp->number,
			      qp->caps.recv_sge, qp->asked.recv_sge);
		else if (!send && qp->caps.srq)
			found(to, s, "recv-beside-srq", FAILED, item->ns, qp->object,
			      "a receive was posted to QP 0x%x, which takes its receives from a shared receive queue: "
			      "post them with ibv_post_srq_recv.",
			      qp->number);
		else if (one->state >= IBV_QPS_RTS)
			found(to, s, "post-refused", FAILED, item->ns, qp->object,
			      "%s to QP 0x%x in %s was refused: %s.",
			      send ? trace_an_opcode(item->record.wr.opcode) : "a receive", qp->number,
			      trace_state_name(one->state), trace_errno_name(item->record.error));
	}
}

/* ---- queues that are full ----------------------------------------------------------------------------- */

static void send_queue_full(struct findings *to, const struct story *s, const struct incident *one, const struct qp *qp,
			    const struct trace_item *item)
{
	if (one->run >= one->value || one->run >= qp->caps.send_wr)
		found(to, s, "unsignalled-run", FAILED, item->ns, qp->object,
		      "the send queue of QP 0x%x is full (ENOMEM): %llu work requests in a row were not signalled, "
		      "and max_send_wr is %u. A place is free again only when a completion of its request, or of a "
		      "later one, is polled: signal at least one in every %u.",
		      qp->number, (unsigned long long)one->run, qp->caps.send_wr,
		      qp->caps.send_wr > 1 ? qp->caps.send_wr / 2 : 1);
	else
		found(to, s, "send-queue-full", FAILED, item->ns, qp->object,
		      "the send queue of QP 0x%x is full (ENOMEM): %llu work requests wait for completions that were "
		      "not polled, and max_send_wr is %u%s.",
		      qp->number, (unsigned long long)one->value, qp->caps.send_wr,
		      qp->sent ? "" : "; no completion of a send was ever polled");
}

void rule_queue_full(struct findings *to, const struct story *s)
{
	for (size_t n = 0; n < s->incident_count; n++) {
		const struct incident *one = &s->incidents[n];
		if (one->kind != POST_REFUSED || one->qp < 0)
			continue;
		const struct trace_item *item = item_at(s, one->item);
		const struct qp *qp = &s->qps[one->qp];
		if (item->record.error != 12 || one->state < IBV_QPS_INIT)
			continue;
		if (item->record.kind == TRACE_SEND && one->state >= IBV_QPS_RTS)
			send_queue_full(to, s, one, qp, item);
		else if (item->record.kind == TRACE_RECV)
			found(to, s, "receive-queue-full", FAILED, item->ns, qp->object,
			      "the receive queue of QP 0x%x is full (ENOMEM): %llu receives are posted and not "
			      "consumed, and max_recv_wr is %u.",
			      qp->number, (unsigned long long)one->value, qp->caps.recv_wr);
	}
}

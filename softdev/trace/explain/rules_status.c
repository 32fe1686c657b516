/*
 * Rules: completions with an error of length, flushed ones, and the rest.
 */
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include "trace/explain/explain.h"

static const struct incident *bad_of(const struct story *s, size_t n, uint8_t status)
{
	const struct incident *one = &s->incidents[n];

	return one->kind == COMPLETED_BAD && item_at(s, one->item)->record.done.status == status ? one : NULL;
}

/* ---- lengths ------------------------------------------------------------------------------------------ */

static void judge_length(struct findings *to, const struct story *s, const struct incident *one)
{
	const struct trace_item *item = item_at(s, one->item);
	const struct trace_item *posted = one->wr < 0 ? NULL : item_at(s, (size_t)one->wr);
	const struct qp *qp = &s->qps[one->qp];
	const bool datagram = qp->caps.type == IBV_QPT_UD;

	if (!posted)
		found(to, s, "length", FAILED, item->ns, qp->object,
		      "LOC_LEN_ERR on QP 0x%x: a message is longer than a receive, or than what the queue pair sends.",
		      qp->number);
	else if (posted->record.kind == TRACE_RECV && datagram)
		found(to, s, "grh-room", FAILED, item->ns, qp->object,
		      "LOC_LEN_ERR of a receive on QP 0x%x: it has room for %u bytes. The first 40 of each receive of "
		      "a UD queue pair are for the header (GRH), so that %u are left for the datagram.",
		      qp->number, posted->record.wr.length,
		      posted->record.wr.length > 40 ? posted->record.wr.length - 40 : 0);
	else if (posted->record.kind == TRACE_RECV)
		found(to, s, "receive-too-small", FAILED, item->ns, qp->object,
		      "LOC_LEN_ERR of the receive wr_id 0x%llx on QP 0x%x: a message came that is longer than the %u "
		      "bytes of the receive. The sender gets REM_INV_REQ_ERR, and both queue pairs are in ERR.",
		      (unsigned long long)item->record.done.wr_id, qp->number, posted->record.wr.length);
	else if (datagram)
		found(to, s, "datagram-too-long", FAILED, item->ns, qp->object,
		      "LOC_LEN_ERR of a datagram of %u bytes on QP 0x%x: a datagram is one packet, and has at most "
		      "the path's MTU (the port's active_mtu, or less for the way there).",
		      posted->record.wr.length, qp->number);
	else
		found(to, s, "length", FAILED, item->ns, qp->object,
		      "LOC_LEN_ERR of %s of %u bytes on QP 0x%x: the device does not send that many.",
		      trace_an_opcode(posted->record.wr.opcode), posted->record.wr.length, qp->number);
}

/* The receive that was too small, as the sender sees it. */
static void judge_refused_send(struct findings *to, const struct story *s, const struct incident *one)
{
	const struct trace_item *item = item_at(s, one->item);
	const struct trace_record *posted = &item_at(s, (size_t)one->wr)->record;
	const struct qp *qp = &s->qps[one->qp];
	struct peer peer;
	char there[160] = "The peer was not recorded: run it under `softdev trace`, too.";

	if (posted->wr.opcode != IBV_WR_SEND && posted->wr.opcode != IBV_WR_SEND_WITH_IMM &&
	    posted->wr.opcode != IBV_WR_SEND_WITH_INV)
		return;
	const bool known = peer_find(to, s, qp, &peer);
	if (known && found_other_mtu(to, s, item, item_at(s, (size_t)one->wr), qp, &peer))
		return;
	if (known && peer.qp->smallest_receive != UINT32_MAX)
		snprintf(there, sizeof(there), "The smallest receive on the peer's QP 0x%x has %u bytes.",
			 peer.qp->number, peer.qp->smallest_receive);
	found(to, s, "receive-too-small", FAILED, item->ns, qp->object,
	      "REM_INV_REQ_ERR of %s of %u bytes on QP 0x%x: it is longer than the receive that the peer had posted "
	      "for it. %s",
	      trace_an_opcode(posted->wr.opcode), posted->wr.length, qp->number, there);
}

void rule_lengths(struct findings *to, const struct story *s)
{
	for (size_t n = 0; n < s->incident_count; n++) {
		const struct incident *one = bad_of(s, n, IBV_WC_LOC_LEN_ERR);
		if (one)
			judge_length(to, s, one);
		one = bad_of(s, n, IBV_WC_REM_INV_REQ_ERR);
		if (one && one->wr >= 0 && item_at(s, (size_t)one->wr)->record.kind == TRACE_SEND)
			judge_refused_send(to, s, one);
	}
}

/* ---- flushed ------------------------------------------------------------------------------------------ */

static const struct incident *async_of(const struct story *s, const struct qp *qp)
{
	for (size_t n = 0; n < s->incident_count; n++) {
		const struct incident *one = &s->incidents[n];
		const uint32_t type = one->kind == ASYNC_EVENT ? item_at(s, one->item)->record.async.type : 0;
		if (one->kind == ASYNC_EVENT && one->qp >= 0 && &s->qps[one->qp] == qp &&
		    (type == IBV_EVENT_QP_FATAL || type == IBV_EVENT_QP_REQ_ERR || type == IBV_EVENT_QP_ACCESS_ERR))
			return one;
	}
	return NULL;
}

/* The flush is what the program sees first: the reason is elsewhere. */
static void judge_flush(struct findings *to, const struct story *s, const struct incident *one)
{
	const struct trace_item *item = item_at(s, one->item);
	const struct qp *qp = &s->qps[one->qp];
	const struct incident *event = async_of(s, qp);
	const unsigned long long count = (unsigned long long)qp->flushed;
	struct peer peer;
	const bool known = peer_find(to, s, qp, &peer);

	if (event)
		found(to, s, "flushed-by-error", FAILED, item->ns, qp->object,
		      "%llu work requests of QP 0x%x were flushed: the device has moved it to ERR, as it had to "
		      "refuse a request of the peer (%s). The reason is in what the peer asked for.",
		      count, qp->number, trace_async_name(item_at(s, event->item)->record.async.type));
	else if (qp->by_cm)
		found(to, s, "flushed-by-disconnect", ADVICE, item->ns, qp->object,
		      "%llu work requests of QP 0x%x were flushed, as its connection ended. That is no failure, if "
		      "the program expects it.",
		      count, qp->number);
	else if (qp->failed_by_program && qp->failed <= item->ns)
		found(to, s, "flushed-by-program", ADVICE, item->ns, qp->object,
		      "%llu work requests of QP 0x%x were flushed: the program had moved it to ERR %.6f s before. "
		      "What is posted afterwards is flushed, too.",
		      count, qp->number, (double)(item->ns - qp->failed) / 1e9);
	else if (known && peer.qp->first_error >= 0)
		found(to, s, "flushed-by-peer", WRONG, item->ns, qp->object,
		      "%llu work requests of QP 0x%x were flushed after the peer's QP 0x%x had failed (%s there).",
		      count, qp->number, peer.qp->number,
		      trace_status_name(item_at(peer.story, peer.story->incidents[peer.qp->first_error].item)
						->record.done.status));
	else if (known && (peer.qp->gone || story_died(peer.story)))
		found(to, s, "peer-gone", FAILED, item->ns, qp->object,
		      "%llu work requests of QP 0x%x were flushed: it had gone to ERR, as %s (pid %u).", count,
		      qp->number,
		      peer.qp->gone ? "the peer had destroyed its queue pair" : "the peer's process has died",
		      peer.story->from->header.pid);
	else
		found(to, s, "flushed", WRONG, item->ns, qp->object,
		      "%llu work requests of QP 0x%x were flushed: it had gone to ERR before, without an error "
		      "completion here. Look at asynchronous events, and at the peer.",
		      count, qp->number);
}

void rule_flush(struct findings *to, const struct story *s)
{
	for (size_t n = 0; n < s->incident_count; n++) {
		const struct incident *one = bad_of(s, n, IBV_WC_WR_FLUSH_ERR);
		if (one && s->qps[one->qp].first_error == (long)n)
			judge_flush(to, s, one);
	}
}

/* ---- the rest ----------------------------------------------------------------------------------------- */

void rule_other_status(struct findings *to, const struct story *s)
{
	for (size_t n = 0; n < s->incident_count; n++) {
		const struct incident *one = &s->incidents[n];
		if (one->kind != COMPLETED_BAD)
			continue;
		const struct trace_item *item = item_at(s, one->item);
		const struct qp *qp = &s->qps[one->qp];
		switch (item->record.done.status) {
		case IBV_WC_LOC_QP_OP_ERR:
			found(to, s, "local-operation", FAILED, item->ns, qp->object,
			      "LOC_QP_OP_ERR of wr_id 0x%llx on QP 0x%x: the request does not fit the queue pair; of "
			      "a datagram, its address handle is of another protection domain.",
			      (unsigned long long)item->record.done.wr_id, qp->number);
			break;
		case IBV_WC_REM_OP_ERR:
			found(to, s, "peer-receive-memory", FAILED, item->ns, qp->object,
			      "REM_OP_ERR of wr_id 0x%llx on QP 0x%x: the peer could not do it. The memory of its "
			      "receive is not what its lkey opens, or memory of the message was freed or unmapped "
			      "while "
			      "it was registered.",
			      (unsigned long long)item->record.done.wr_id, qp->number);
			break;
		case IBV_WC_MW_BIND_ERR:
			found(to, s, "window-bind", FAILED, item->ns, qp->object,
			      "MW_BIND_ERR on QP 0x%x: the region lacks IBV_ACCESS_MW_BIND, or the range is outside "
			      "it.",
			      qp->number);
			break;
		case IBV_WC_LOC_LEN_ERR:
		case IBV_WC_LOC_PROT_ERR:
		case IBV_WC_LOC_ACCESS_ERR:
		case IBV_WC_WR_FLUSH_ERR:
		case IBV_WC_REM_INV_REQ_ERR:
		case IBV_WC_REM_ACCESS_ERR:
		case IBV_WC_RETRY_EXC_ERR:
		case IBV_WC_RNR_RETRY_EXC_ERR:
			break; /* rules of their own */
		default:
			found(to, s, "error-completion", FAILED, item->ns, qp->object,
			      "wr_id 0x%llx on QP 0x%x completed with %s (vendor error 0x%x).",
			      (unsigned long long)item->record.done.wr_id, qp->number,
			      trace_status_name(item->record.done.status), item->record.done.vendor_err);
		}
	}
}

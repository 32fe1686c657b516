/*
 * Rules: asynchronous events, and what rdma_cm says.
 */
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include "trace/explain/explain.h"

/* Of a peer whose request had to be refused: what it asked for is in its own recording. */
static void judge_refusal(struct findings *to, const struct story *s, const struct trace_item *item,
			  const struct qp *qp)
{
	char access[TRACE_FLAGS_BYTES];

	if (item->record.async.type == IBV_EVENT_QP_ACCESS_ERR)
		found(to, s, "peer-refused", WRONG, item->ns, qp->object,
		      "QP_ACCESS_ERR: the peer of QP 0x%x named memory that it may not have (key, bounds or rights). "
		      "The reason is in the peer's recording; the queue pair is in ERR.",
		      qp->number);
	else if (item->record.async.type == IBV_EVENT_QP_REQ_ERR)
		found(to, s, "peer-refused", WRONG, item->ns, qp->object,
		      "QP_REQ_ERR: the peer of QP 0x%x asked for what this queue pair does not do; its "
		      "qp_access_flags are %s, and max_dest_rd_atomic is %u.",
		      qp->number, trace_access_text(qp->is.access, access), qp->is.max_dest_rd_atomic);
	else
		found(to, s, "qp-fatal", FAILED, item->ns, qp->object,
		      "QP_FATAL: the device has given up QP 0x%x; of a peer's message, it could not write the receive.",
		      qp->number);
}

void rule_port(struct findings *to, const struct story *s)
{
	for (size_t n = 0; n < s->incident_count; n++) {
		const struct incident *one = &s->incidents[n];
		if (one->kind != ASYNC_EVENT)
			continue;
		const struct trace_item *item = item_at(s, one->item);
		switch (item->record.async.type) {
		case IBV_EVENT_PORT_ERR:
			found(to, s, "port-down", WRONG, item->ns, item->record.device,
			      "PORT_ERR: the port of the device went down.");
			break;
		case IBV_EVENT_DEVICE_FATAL:
			found(to, s, "device-fatal", FAILED, item->ns, item->record.device,
			      "DEVICE_FATAL: the device has failed; all its objects must be destroyed.");
			break;
		case IBV_EVENT_GID_CHANGE:
			found(to, s, "gid-change", ADVICE, item->ns, item->record.device,
			      "GID_CHANGE: an address of the host came or went; connections that use its GID end.");
			break;
		case IBV_EVENT_SRQ_ERR:
			found(to, s, "srq-error", FAILED, item->ns, item->record.object,
			      "SRQ_ERR: a shared receive queue has failed.");
			break;
		case IBV_EVENT_QP_FATAL:
		case IBV_EVENT_QP_REQ_ERR:
		case IBV_EVENT_QP_ACCESS_ERR:
			if (one->qp >= 0)
				judge_refusal(to, s, item, &s->qps[one->qp]);
			break;
		default:
			break;
		}
	}
}

/* ---- rdma_cm ------------------------------------------------------------------------------------------ */

static void name_target(const struct cm_id *id, char *text, size_t size)
{
	char address[TRACE_ADDRESS_BYTES];
	uint8_t gid[16] = { [10] = 0xff, [11] = 0xff };

	if (!id || !id->to.family) {
		snprintf(text, size, "the peer");
		return;
	}
	for (int i = 0; i < 16; i++) {
		if (id->to.family != 2)
			gid[i] = id->to.address[i];
		else if (i < 4)
			gid[12 + i] = id->to.address[i];
	}
	snprintf(text, size, "%s port %u", trace_gid_text(gid, address), id->to.port);
}

static void judge_event(struct findings *to, const struct story *s, const struct incident *one)
{
	enum { INVALID_SERVICE_ID = 8, CONSUMER = 28 };
	const struct trace_item *item = item_at(s, one->item);
	const struct trace_cm_event *event = &item->record.cm_event;
	const struct cm_id *id = one->id < 0 ? NULL : &s->ids[one->id];
	char target[80];

	name_target(id, target, sizeof(target));
	switch (event->event) {
	case RDMA_CM_EVENT_REJECTED:
		if (event->status == CONSUMER)
			found(to, s, "cm-rejected", FAILED, item->ns, item->record.object,
			      "REJECTED (status 28): the program at %s called rdma_reject.", target);
		else if (event->status == INVALID_SERVICE_ID)
			found(to, s, "cm-no-listener", FAILED, item->ns, item->record.object,
			      "REJECTED (status 8): no program listens at %s.", target);
		else
			found(to, s, "cm-rejected", FAILED, item->ns, item->record.object,
			      "REJECTED (status %d): the connection manager at %s refused. The queue pair there may "
			      "be missing, or the connection was lost meanwhile.",
			      event->status, target);
		return;
	case RDMA_CM_EVENT_UNREACHABLE:
		found(to, s, "cm-unreachable", FAILED, item->ns, item->record.object,
		      "UNREACHABLE (status %d): nothing came back from %s.", event->status, target);
		return;
	case RDMA_CM_EVENT_ADDR_ERROR:
		found(to, s, "cm-address", FAILED, item->ns, item->record.object,
		      "ADDR_ERROR (status %d): no RDMA device of this host reaches %s.", event->status, target);
		return;
	default:
		found(to, s, "cm-error", FAILED, item->ns, item->record.object,
		      "%s (status %d) of the connection to %s.", trace_cm_event_name(event->event), event->status,
		      target);
	}
}

/* Why the call was refused, as the end of a sentence. An id without a channel gets no events: its calls wait. */
static const char *why_refused(const struct cm_id *id, const struct trace_record *r)
{
	if (!id || r->cm_call.what != TRACE_CM_CONNECT)
		return "";
	if (!id->route_asked)
		return ". Its route is not known: call rdma_resolve_route after ADDR_RESOLVED, and connect after "
		       "ROUTE_RESOLVED";
	if (!id->route_known && id->events)
		return ". Its route is not known yet: connect after the event ROUTE_RESOLVED";
	return "";
}

void rule_cm(struct findings *to, const struct story *s)
{
	for (size_t n = 0; n < s->incident_count; n++) {
		const struct incident *one = &s->incidents[n];
		if (one->kind == CM_EVENT) {
			judge_event(to, s, one);
		} else if (one->kind == CM_REFUSED) {
			const struct trace_item *item = item_at(s, one->item);
			char target[80];
			name_target(one->id < 0 ? NULL : &s->ids[one->id], target, sizeof(target));
			if (item->record.error != 11) /* EAGAIN: of a channel that does not block */
				found(to, s, "cm-refused", FAILED, item->ns, one->item,
				      "%s failed (%s); the address is %s%s.",
				      trace_cm_call_name(item->record.cm_call.what),
				      trace_errno_name(item->record.error), target,
				      why_refused(one->id < 0 ? NULL : &s->ids[one->id], &item->record));
		}
	}
}

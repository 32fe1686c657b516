/*
 * Asynchronous events and rdma_cm in stories.
 */
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include "trace/explain/story.h"

void story_async(struct story *s, size_t i)
{
	const struct trace_item *item = item_at(s, i);
	const struct trace_record *r = &item->record;
	struct incident *one = story_incident(s, ASYNC_EVENT, i);

	switch (r->async.type) {
	case IBV_EVENT_CQ_ERR:
		one->cq = map_get(&s->by_cq, r->object);
		if (one->cq >= 0)
			s->cqs[one->cq].overran = true;
		break;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
		one->qp = map_get(&s->by_qp, r->object);
		break;
	case IBV_EVENT_PORT_ERR:
	case IBV_EVENT_PORT_ACTIVE:
		for (size_t n = 0; n < s->device_count; n++) {
			if (s->devices[n].number != r->device)
				continue;
			if (r->async.type == IBV_EVENT_PORT_ERR)
				s->devices[n].port_down = item->ns;
			else
				s->devices[n].port_up = item->ns;
		}
		break;
	default:
		break;
	}
}

static long id_of(struct story *s, uint64_t object, uint64_t ns)
{
	long n = map_get(&s->by_id, object);

	if (n >= 0 && alive(s->ids[n].gone))
		return n;
	n = ADD(s, cm_id);
	if (n >= 0)
		s->ids[n] = (struct cm_id){ .object = object, .made = ns };
	story_put(s, &s->by_id, object, n);
	return n;
}

void story_cm_call(struct story *s, size_t i)
{
	const struct trace_item *item = item_at(s, i);
	const struct trace_record *r = &item->record;
	const long n = r->object ? id_of(s, r->object, item->ns) : NONE;

	if (r->error) {
		struct incident *one = story_incident(s, CM_REFUSED, i);
		one->id = n;
		return;
	}
	if (n < 0)
		return;
	struct cm_id *id = &s->ids[n];
	switch (r->cm_call.what) {
	case TRACE_CM_DESTROY:
		id->gone = item->ns ? item->ns : 1;
		for (size_t k = s->incident_count; k-- > 0;) {
			if (s->incidents[k].kind == END_ENTERED && s->incidents[k].id == n) {
				s->incidents[k].over = true;
				break;
			}
		}
		break;
	case TRACE_CM_CREATE:
		id->route_asked = id->route_known = r->cm_call.family; /* rdma_create_ep() */
		break;
	case TRACE_CM_RESOLVE_ROUTE:
		id->route_asked = true;
		break;
	case TRACE_CM_RESOLVE_ADDR:
	case TRACE_CM_BIND:
		id->to = r->cm_call;
		break;
	case TRACE_CM_LISTEN:
		id->listens = true;
		break;
	case TRACE_CM_CREATE_QP:
		id->qp = r->cm_call.qp;
		break;
	default:
		break;
	}
}

void story_cm_event(struct story *s, size_t i)
{
	const struct trace_item *item = item_at(s, i);
	const struct trace_record *r = &item->record;
	const long n = id_of(s, r->object, item->ns);

	if (n < 0)
		return;
	if (r->kind == TRACE_CM_ACK) {
		s->ids[n].acked++;
		return;
	}
	s->ids[n].events++;
	s->ids[n].connected |= r->cm_event.event == RDMA_CM_EVENT_ESTABLISHED;
	s->ids[n].route_known |= r->cm_event.event == RDMA_CM_EVENT_ROUTE_RESOLVED;
	s->ids[n].rejected |= r->cm_event.event == RDMA_CM_EVENT_REJECTED;
	switch (r->cm_event.event) {
	case RDMA_CM_EVENT_ADDR_ERROR:
	case RDMA_CM_EVENT_ROUTE_ERROR:
	case RDMA_CM_EVENT_CONNECT_ERROR:
	case RDMA_CM_EVENT_UNREACHABLE:
	case RDMA_CM_EVENT_REJECTED:
	case RDMA_CM_EVENT_DEVICE_REMOVAL:
		story_incident(s, CM_EVENT, i)->id = n;
		break;
	default:
		break;
	}
}

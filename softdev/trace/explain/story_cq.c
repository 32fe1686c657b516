/*
 * Completion queues and channels in stories: polls, armings, events, and calls that wait.
 */
#include <infiniband/verbs.h>

#include "trace/explain/story.h"

void story_cq(struct story *s, size_t i)
{
	const struct trace_item *item = item_at(s, i);
	const struct trace_record *r = &item->record;
	long n = map_get(&s->by_cq, r->object);

	if (r->kind == TRACE_CQ) {
		if (story_make_refused(s, i))
			return;
		n = ADD(s, cq);
		if (n >= 0)
			s->cqs[n] =
				(struct cq){ .object = r->object, .made = item->ns, .device = r->device, .is = r->cq };
		story_put(s, &s->by_cq, r->object, n);
	} else if (r->kind == TRACE_CQ_RESIZED) {
		if (!story_make_refused(s, i) && n >= 0)
			s->cqs[n].is.cqe = r->cq.cqe;
	} else if (!story_end_refused(s, i) && n >= 0) {
		s->cqs[n].gone = item->ns;
		for (size_t k = s->incident_count; k-- > 0;) {
			if (s->incidents[k].kind == END_ENTERED && s->incidents[k].cq == n) {
				s->incidents[k].over = true;
				break;
			}
		}
	}
}

void story_entered(struct story *s, size_t i)
{
	const struct trace_record *r = &item_at(s, i)->record;

	if (r->call.what == TRACE_CQ_GONE) {
		const long n = map_get(&s->by_cq, r->object);
		if (n >= 0 && s->cqs[n].delivered > s->cqs[n].acked) {
			struct incident *one = story_incident(s, END_ENTERED, i);
			one->cq = n;
			one->value = s->cqs[n].delivered - s->cqs[n].acked;
		}
	} else if (r->call.what == TRACE_CM_CALL) {
		const long n = map_get(&s->by_id, r->object);
		if (n >= 0 && s->ids[n].events > s->ids[n].acked) {
			struct incident *one = story_incident(s, END_ENTERED, i);
			one->id = n;
			one->value = s->ids[n].events - s->ids[n].acked;
		}
	}
}

void story_poll(struct cq *cq, const struct trace_item *item)
{
	cq->polled_since_arm = true;
	if (!cq->pollers[0])
		cq->pollers[0] = item->ring;
	else if (cq->pollers[0] != item->ring && !cq->pollers[1])
		cq->pollers[1] = item->ring;
	cq->turns += cq->last_poller && cq->last_poller != item->ring;
	cq->last_poller = item->ring;
}

void story_cq_use(struct story *s, size_t i)
{
	const struct trace_item *item = item_at(s, i);
	const struct trace_record *r = &item->record;
	const bool event = r->kind == TRACE_EVENT || r->kind == TRACE_ACK;
	const long n = map_get(&s->by_cq, event ? r->event.cq : r->object);
	struct cq *cq = n < 0 ? NULL : &s->cqs[n];

	if (r->kind == TRACE_WAIT || r->kind == TRACE_EVENT)
		s->waiting[item->ring] = (struct waiting){ r->kind == TRACE_WAIT, i };
	if (!cq)
		return;
	switch (r->kind) {
	case TRACE_EMPTY:
		story_poll(cq, item);
		cq->polls += r->empty.count;
		cq->empty_polls += r->empty.count;
		cq->last_empty_run = r->empty.count;
		cq->last_empty = item->ns;
		break;
	case TRACE_POLL_FAILED:
		cq->broken = true;
		story_incident(s, POLL_REFUSED, i)->cq = n;
		break;
	case TRACE_ARM:
		cq->armed = cq->ever_armed = true;
		cq->polled_since_arm = false;
		cq->armed_at = item->ns;
		cq->pending_at_arm = cq->pending;
		break;
	case TRACE_EVENT:
		if (r->error)
			break;
		cq->armed = false;
		cq->ever_event = true;
		cq->delivered++;
		break;
	case TRACE_ACK:
		cq->acked += r->event.count;
		break;
	default:
		break;
	}
}

/* A wait that never returned: why could no event come? */
void story_waits(struct story *s)
{
	for (unsigned ring = 0; ring < TRACE_RINGS; ring++) {
		if (!s->waiting[ring].now)
			continue;
		const size_t i = s->waiting[ring].item;
		const uint64_t channel = item_at(s, i)->record.object;
		long unpolled = NONE, unarmed = NONE;
		bool armed = false;
		for (size_t n = 0; n < s->cq_count; n++) {
			const struct cq *cq = &s->cqs[n];
			if (!alive(cq->gone) || cq->is.channel != channel)
				continue;
			if (cq->armed && !cq->polled_since_arm && cq->pending_at_arm)
				unpolled = (long)n;
			armed |= cq->armed;
			if (!cq->armed)
				unarmed = (long)n;
		}
		if (!armed && unarmed >= 0)
			story_incident(s, WAIT_UNARMED, i)->cq = unarmed;
		else if (unpolled >= 0)
			story_incident(s, WAIT_UNPOLLED, i)->cq = unpolled;
	}
}

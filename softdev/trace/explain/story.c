/*
 * Tells a recording as a story: each record changes what is known of its objects, and may be an incident.
 */
#include <infiniband/verbs.h>
#include <stdlib.h>
#include <string.h>

#include "trace/explain/story.h"

/* ---- growing ------------------------------------------------------------------------------------------ */

/* The place of a new element, all zero; NONE: no memory. */
long story_add(struct story *story, void *list, size_t *count, size_t *room, size_t size)
{
	char *array;

	memcpy(&array, list, sizeof(array)); /* a pointer of another type */
	if (*count == *room) {
		const size_t wanted = *room ? *room * 2 : 16;
		char *larger = realloc(array, wanted * size);
		if (!larger) {
			story->no_memory = true;
			return NONE;
		}
		array = larger;
		memcpy(list, &array, sizeof(array));
		*room = wanted;
	}
	memset(array + *count * size, 0, size);
	return (long)(*count)++;
}

struct incident *story_incident(struct story *s, enum incident_kind kind, size_t item)
{
	static struct incident nowhere;
	const long n = ADD(s, incident);
	struct incident *one = n < 0 ? &nowhere : &s->incidents[n];

	*one = (struct incident){
		.kind = kind, .item = item, .wr = NONE, .qp = NONE, .cq = NONE, .mr = NONE, .id = NONE
	};
	return one;
}

void story_put(struct story *s, struct map *map, uint64_t key, long place)
{
	if (place >= 0 && !map_put(map, key, (uint32_t)place))
		s->no_memory = true;
}

/* ---- contexts, domains, channels ---------------------------------------------------------------------- */

static void tell_device(struct story *s, const struct trace_item *item)
{
	const struct trace_record *r = &item->record;

	if (r->kind == TRACE_DEVICE) {
		const long n = ADD(s, device);
		if (n >= 0)
			s->devices[n] = (struct device){ .object = r->object, .number = r->device, .is = r->opened };
		return;
	}
	for (size_t n = s->device_count; n-- > 0;) {
		struct device *of = &s->devices[n];
		if (of->number != r->device)
			continue;
		if (r->kind == TRACE_LIMITS) {
			of->limits = r->limits;
			of->limited = true;
		} else {
			of->gone = item->ns;
		}
		return;
	}
}

/* What keeps an object from being destroyed: queue pairs in the upper half, the rest in the lower. */
static uint64_t children(const struct story *s, const struct trace_record *r)
{
	uint64_t pairs = 0, others = 0;

	for (size_t n = 0; n < s->qp_count; n++) {
		const struct qp *qp = &s->qps[n];
		if (!alive(qp->gone))
			continue;
		pairs += (r->kind == TRACE_PD_GONE && qp->asked.pd == r->object) ||
			 (r->kind == TRACE_CQ_GONE &&
			  (qp->caps.send_cq == r->object || qp->caps.recv_cq == r->object)) ||
			 (r->kind == TRACE_SRQ_GONE && qp->caps.srq == r->object);
	}
	for (size_t n = 0; n < s->mr_count && r->kind == TRACE_PD_GONE; n++)
		others += alive(s->mrs[n].gone) && s->mrs[n].is.pd == r->object;
	for (size_t n = 0; n < s->srq_count && r->kind == TRACE_PD_GONE; n++)
		others += alive(s->srqs[n].gone) && s->srqs[n].is.pd == r->object;
	for (size_t n = 0; n < s->cq_count && r->kind == TRACE_CHANNEL_GONE; n++)
		others += alive(s->cqs[n].gone) && s->cqs[n].is.channel == r->object;
	return pairs << 32 | (others & UINT32_MAX);
}

bool story_end_refused(struct story *s, size_t i)
{
	const struct trace_record *r = &item_at(s, i)->record;

	if (!r->error)
		return false;
	story_incident(s, END_REFUSED, i)->value = children(s, r);
	return true;
}

bool story_make_refused(struct story *s, size_t i)
{
	if (!item_at(s, i)->record.error)
		return false;
	story_incident(s, MAKE_REFUSED, i);
	return true;
}

static void tell_simple(struct story *s, size_t i)
{
	const struct trace_item *item = item_at(s, i);
	const struct trace_record *r = &item->record;
	const bool pd = r->kind == TRACE_PD || r->kind == TRACE_PD_GONE;
	const bool channel = r->kind == TRACE_CHANNEL || r->kind == TRACE_CHANNEL_GONE;
	struct map *map = pd ? &s->by_pd : channel ? &s->by_channel : &s->by_ah;

	if (r->kind == TRACE_PD || r->kind == TRACE_CHANNEL || r->kind == TRACE_AH) {
		if (story_make_refused(s, i))
			return;
		const long n = pd ? ADD(s, pd) : channel ? ADD(s, channel) : ADD(s, ah);
		struct simple *list = pd ? s->pds : channel ? s->channels : s->ahs;
		if (n >= 0)
			list[n] = (struct simple){ .object = r->object, .made = item->ns, .device = r->device };
		story_put(s, map, r->object, n);
		return;
	}
	if (story_end_refused(s, i))
		return;
	struct simple *list = pd ? s->pds : channel ? s->channels : s->ahs;
	const long n = map_get(map, r->object);
	if (n >= 0)
		list[n].gone = item->ns;
}

/* ---- memory ------------------------------------------------------------------------------------------- */

static void tell_mr(struct story *s, size_t i)
{
	const struct trace_item *item = item_at(s, i);
	const struct trace_record *r = &item->record;
	const long old = map_get(&s->by_mr, r->object);

	if (story_make_refused(s, i))
		return;
	if (old >= 0 && alive(s->mrs[old].gone))
		s->mrs[old].gone = item->ns; /* registered anew, under the same keys */
	const long n = ADD(s, mr);
	if (n < 0)
		return;
	s->mrs[n] = (struct mr){ .object = r->object,
				 .made = item->ns,
				 .device = r->device,
				 .is = r->mr,
				 .access = r->qpn,
				 .access_known = r->qpn != UINT32_MAX };
	story_put(s, &s->by_mr, r->object, n);
	story_put(s, &s->by_lkey, key_of(r->device, r->mr.lkey), n);
	story_put(s, &s->by_rkey, key_of(r->device, r->mr.rkey), n);
}

/* A work request without a completion that has this key. */
static bool uses(const struct story *s, const struct queue *queue, uint32_t lkey, size_t *item)
{
	for (size_t k = 0; k < queue_length(queue); k++) {
		*item = queue_at(queue, k);
		const struct trace_wr *wr = &item_at(s, *item)->record.wr;
		if (wr->lkey == lkey && wr->num_sge && !(wr->flags & IBV_SEND_INLINE))
			return true;
	}
	return false;
}

static void tell_mr_gone(struct story *s, size_t i)
{
	const struct trace_item *item = item_at(s, i);
	const long n = map_get(&s->by_mr, item->record.object);

	if (story_end_refused(s, i) || n < 0)
		return;
	struct mr *mr = &s->mrs[n];
	for (size_t q = 0; q < s->qp_count && mr->in_flight && alive(mr->gone); q++) {
		const struct qp *qp = &s->qps[q];
		size_t wr;
		if (!alive(qp->gone) || qp->device != mr->device || qp->state == IBV_QPS_ERR ||
		    qp->state == IBV_QPS_RESET)
			continue;
		if (uses(s, &qp->sends, mr->is.lkey, &wr) || uses(s, &qp->receives, mr->is.lkey, &wr)) {
			struct incident *one = story_incident(s, DEREG_IN_USE, i);
			one->mr = n;
			one->qp = (long)q;
			one->wr = (long)wr;
			one->state = qp->state;
			break;
		}
	}
	mr->gone = item->ns;
}

/* ---- shared receive queues ---------------------------------------------------------------------------- */

static void tell_srq(struct story *s, size_t i)
{
	const struct trace_item *item = item_at(s, i);
	const struct trace_record *r = &item->record;

	if (r->kind == TRACE_SRQ) {
		if (story_make_refused(s, i))
			return;
		const long n = ADD(s, srq);
		if (n >= 0)
			s->srqs[n] = (struct srq){ .object = r->object, .made = item->ns, .is = r->srq };
		story_put(s, &s->by_srq, r->object, n);
		return;
	}
	const long n = map_get(&s->by_srq, r->object);
	if (!story_end_refused(s, i) && n >= 0)
		s->srqs[n].gone = item->ns;
}

/* ---- all ---------------------------------------------------------------------------------------------- */

static void tell(struct story *s, size_t i)
{
	const struct trace_item *item = item_at(s, i);

	switch (item->record.kind) {
	case TRACE_DEVICE:
	case TRACE_LIMITS:
	case TRACE_DEVICE_GONE:
		tell_device(s, item);
		return;
	case TRACE_PD:
	case TRACE_PD_GONE:
	case TRACE_CHANNEL:
	case TRACE_CHANNEL_GONE:
	case TRACE_AH:
	case TRACE_AH_GONE:
		tell_simple(s, i);
		return;
	case TRACE_MR:
		tell_mr(s, i);
		return;
	case TRACE_MR_GONE:
		tell_mr_gone(s, i);
		return;
	case TRACE_MW:
		s->windows++;
		return;
	case TRACE_CQ:
	case TRACE_CQ_RESIZED:
	case TRACE_CQ_GONE:
		story_cq(s, i);
		return;
	case TRACE_SRQ:
	case TRACE_SRQ_GONE:
		tell_srq(s, i);
		return;
	case TRACE_ENTERED:
		story_entered(s, i);
		return;
	case TRACE_ASYNC:
		story_async(s, i);
		return;
	case TRACE_CM_CALL:
		story_cm_call(s, i);
		return;
	case TRACE_CM_EVENT:
	case TRACE_CM_ACK:
		story_cm_event(s, i);
		return;
	case TRACE_DONE:
		story_done(s, i);
		return;
	case TRACE_SEND:
		story_send(s, i);
		return;
	case TRACE_RECV:
		story_recv(s, i);
		return;
	case TRACE_QP_ASKED:
	case TRACE_QP:
	case TRACE_QP_GONE:
	case TRACE_MODIFY:
	case TRACE_ADDRESS:
		story_pair(s, i);
		return;
	default:
		story_cq_use(s, i);
	}
}

bool story_tell(struct story *s, const struct trace_recording *recording)
{
	memset(s, 0, sizeof(*s));
	s->from = recording;
	for (size_t i = 0; i < recording->count && !s->no_memory; i++)
		tell(s, i);
	s->end = recording->count ? recording->items[recording->count - 1].ns : 0;
	s->end = recording->now > s->end ? recording->now : s->end;
	story_waits(s);
	return !s->no_memory;
}

void story_free(struct story *s)
{
	for (size_t n = 0; n < s->qp_count; n++) {
		queue_free(&s->qps[n].sends);
		queue_free(&s->qps[n].receives);
	}
	for (size_t n = 0; n < s->srq_count; n++)
		queue_free(&s->srqs[n].queue);
	void *lists[] = {
		s->devices, s->pds, s->channels, s->ahs, s->cqs, s->srqs, s->mrs, s->qps, s->ids, s->incidents
	};
	for (size_t n = 0; n < sizeof(lists) / sizeof(*lists); n++)
		free(lists[n]);
	struct map *maps[] = { &s->by_pd, &s->by_channel, &s->by_ah,   &s->by_cq,   &s->by_srq, &s->by_mr,
			       &s->by_qp, &s->by_number,  &s->by_lkey, &s->by_rkey, &s->by_id };
	for (size_t n = 0; n < sizeof(maps) / sizeof(*maps); n++)
		map_free(maps[n]);
	memset(s, 0, sizeof(*s));
}

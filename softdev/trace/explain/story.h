/*
 * Functions that the files of stories share.
 */
#ifndef SOFTDEV_TRACE_STORY_H
#define SOFTDEV_TRACE_STORY_H

#include "trace/explain/explain.h"

long story_add(struct story *story, void *list, size_t *count, size_t *room, size_t size);
#define LIST_device devices
#define LIST_pd pds
#define LIST_channel channels
#define LIST_ah ahs
#define LIST_cq cqs
#define LIST_srq srqs
#define LIST_mr mrs
#define LIST_qp qps
#define LIST_cm_id ids
#define LIST_incident incidents
/* ADD(story, qp): the place of a new one in story->qps. */
#define ADD(s, what) ADD_TO(s, LIST_##what, what)
#define ADD_TO(s, list, what)                                                                                          \
	story_add((s), (void *)&(s)->list, &(s)->what##_count, &(s)->what##_room, sizeof(*(s)->list))
#define cm_id_count id_count
#define cm_id_room id_room

/* A new incident, with nothing in it but these. */
struct incident *story_incident(struct story *story, enum incident_kind kind, size_t item);
void story_put(struct story *story, struct map *map, uint64_t key, long place);
/* A thread has looked into the queue. */
void story_poll(struct cq *cq, const struct trace_item *item);

static inline bool alive(uint64_t gone)
{
	return !gone;
}
/* Whether the call of this record has failed: then it is an incident. */
bool story_end_refused(struct story *story, size_t i);
bool story_make_refused(struct story *story, size_t i);

/* story_cq.c: records of completion queues and channels */
void story_cq(struct story *story, size_t i);
void story_cq_use(struct story *story, size_t i);
void story_entered(struct story *story, size_t i);
/* At the end: of waits that never returned, why no event could come. */
void story_waits(struct story *story);

/* story_events.c */
void story_async(struct story *story, size_t i);
void story_cm_call(struct story *story, size_t i);
void story_cm_event(struct story *story, size_t i);

/* story_work.c: records of work requests and completions */
void story_send(struct story *story, size_t i);
void story_recv(struct story *story, size_t i);
void story_done(struct story *story, size_t i);
/* Forgets what has no completion and will get none. */
void story_drain(struct story *story, struct qp *qp);

/* story_states.c: records of queue pairs */
void story_pair(struct story *story, size_t i);

#endif

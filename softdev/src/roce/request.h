/*
 * The requester's transition from messages to request packets. Internal to the requester.
 */
#ifndef SOFTDEV_ROCE_REQUEST_H
#define SOFTDEV_ROCE_REQUEST_H

#include "roce/rc.h"

static inline struct roce_message *roce_at(const struct roce_ask *ask, uint32_t index)
{
	return &ask->ring[index & ask->mask];
}

static inline uint32_t roce_psn_of(const struct roce_ask *ask, uint64_t sequence)
{
	return roce_psn_add(ask->first_psn, (uint32_t)(sequence & ROCE_24));
}

static inline bool roce_is_atomic(const struct roce_message *m)
{
	return m->opcode == IBV_WR_ATOMIC_CMP_AND_SWP || m->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}

/* Whether the message has a response of its own. */
static inline bool roce_is_fetch(const struct roce_message *m)
{
	return m->opcode == IBV_WR_RDMA_READ || roce_is_atomic(m);
}

/* Whether that response returns data, so that an acknowledgement of later packets cannot stand in for it. */
static inline bool roce_brings(const struct roce_message *m)
{
	return roce_is_atomic(m) || (m->opcode == IBV_WR_RDMA_READ && m->length);
}

/* The packet at `sequence`, of message `index`. Returns how many PSNs it takes: a READ request takes those of its
 * response. */
uint32_t roce_request_make(const struct roce_ask *ask, uint32_t index, uint64_t sequence, struct roce_request *out);

#endif

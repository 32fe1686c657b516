/*
 * What the asking end has to do and what it says of it: from messages to request packets. Internal to it.
 */
#ifndef AIORDMA_WIRE_REQUEST_H
#define AIORDMA_WIRE_REQUEST_H

#include "roce/rc.h"

static inline struct wire_message *wire_at(const struct wire_ask *ask, uint32_t index)
{
	return &ask->ring[index & ask->mask];
}

static inline uint32_t wire_psn_of(const struct wire_ask *ask, uint64_t sequence)
{
	return wire_psn_add(ask->first_psn, (uint32_t)(sequence & WIRE_24));
}

static inline bool wire_is_atomic(const struct wire_message *m)
{
	return m->opcode == IBV_WR_ATOMIC_CMP_AND_SWP || m->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}

/* A response of its own answers it. */
static inline bool wire_is_fetch(const struct wire_message *m)
{
	return m->opcode == IBV_WR_RDMA_READ || wire_is_atomic(m);
}

/* ... and brings something, so that no acknowledgement of what is behind it can stand for that. */
static inline bool wire_brings(const struct wire_message *m)
{
	return wire_is_atomic(m) || (m->opcode == IBV_WR_RDMA_READ && m->length);
}

/* The packet at `sequence`, of message `index`. Returns how many numbers it takes: a READ's request those of its answer. */
uint32_t wire_request_make(const struct wire_ask *ask, uint32_t index, uint64_t sequence, struct wire_request *out);

#endif

/*
 * Doors and published keys: the memory through which a process announces work to its peers.
 *
 * A process publishes the doors of its CQs, where peers announce work, and the serials of its keys. Another process can
 * write only to a door and a lane (shm/lane.h), so nothing read from there is trusted: each field is read once into a
 * local and checked.
 *
 * Why no wake-up is lost:
 *   Sender:    publish record (tail, release) ; set door bit (RMW, seq_cst = full barrier) ; read `armed`
 *   Receiver:  write `armed` (RMW, seq_cst)   ; read door bits ; if there are any, take the records
 * Both RMWs are in one total order. If the sender's is first, the receiver reads its door bit (and through the acquire
 * on it, the record). If the receiver's is first, the sender reads `armed` and writes the eventfd. A reader of the door
 * clears bits with an RMW before it reads tails; a record published after that sets the bit again. Bits are thus never
 * lost, only early.
 */
#ifndef AIORDMA_SOFT_DOOR_H
#define AIORDMA_SOFT_DOOR_H

#include "core/objects.h"

/*
 * armed: the kind of completion that the owner of a CQ waits for, and whether a peer has already written its eventfd.
 */
enum {
	SOFT_ARM_NONE = 0,
	SOFT_ARM_SOLICITED = 1,
	SOFT_ARM_ANY = 2,
	SOFT_ARM_WANTED = 3, /* mask */
	SOFT_ARM_FIRED = 4,
};

/*
 * One per CQ: a bit for each of its QPs that has work. Bits 0-63 share the cache line that a poll of an empty CQ reads;
 * the others are found through a summary in the same line.
 */
struct soft_door {
	_Alignas(SOFT_CACHE_LINE) _Atomic(uint64_t) near;
	_Atomic(uint64_t) summary[4];
	_Atomic(uint32_t) armed;
	_Alignas(SOFT_CACHE_LINE) _Atomic(uint64_t) far[4 * 64];
};
enum { SOFT_DOOR_BITS = 64 + 4 * 64 * 64 };

struct soft_doors {
	struct soft_door cq[SOFT_MAX_CQ];
};

/* Serial of the region behind each key index, 0 for none. Peers map it read-only. */
struct soft_keys {
	_Atomic(uint64_t) serial[SOFT_MAX_MR];
};

static inline void soft_door_ring(struct soft_door *door, uint32_t bit)
{
	if (bit < 64) {
		atomic_fetch_or(&door->near, UINT64_C(1) << bit);
		return;
	}
	uint32_t word = (bit - 64) / 64;
	if (!atomic_fetch_or(&door->far[word], UINT64_C(1) << (bit % 64)))
		atomic_fetch_or(&door->summary[word / 64], UINT64_C(1) << (word % 64));
}
/* True if a bit is set besides those in `but`, which the caller checks anyway. */
static inline bool soft_door_any(struct soft_door *door, uint64_t but)
{
	return ((atomic_load_explicit(&door->near, memory_order_relaxed) & ~but) |
		atomic_load_explicit(&door->summary[0], memory_order_relaxed) |
		atomic_load_explicit(&door->summary[1], memory_order_relaxed) |
		atomic_load_explicit(&door->summary[2], memory_order_relaxed) |
		atomic_load_explicit(&door->summary[3], memory_order_relaxed)) != 0;
}

#endif

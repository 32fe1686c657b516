/*
 * Doors and published words: the memory through which a process announces work to its peers.
 *
 * Each peer process (each Unix link, shm/unix_link.h) has door memory of its own: for each CQ a bit for each QP with
 * work. Only that peer and the owner of the CQ can write to it, so a peer that destroys it silences only itself. What
 * all peers need to read is in one published segment, which only its owner can write: whether a CQ is armed, and the
 * serials of keys. Nothing read from memory that a peer can write is trusted: each field is read once into a local and
 * checked. Door bits need no check: a bit too many costs a look, a bit too few is its peer's own loss.
 *
 * Why no wake-up is lost:
 *   Sender:    publish record (tail, release) ; set door bit (RMW, seq_cst = full barrier) ; read `armed`
 *   Receiver:  write `armed` (RMW, seq_cst)   ; read the door bits of all peers ; if there are any, take the records
 * Both RMWs are in one total order. If the sender's is first, the receiver reads its door bit (and through the acquire
 * on it, the record). If the receiver's is first, the sender reads `armed` and rings the bell. A reader of the door
 * clears bits with an RMW before it reads tails; a record published after that sets the bit again. Bits are thus never
 * lost, only early.
 *
 * Why one bell is enough: each arming has another number, and a sender rings once for each value of `armed` (`fired`).
 * The receiver, once woken, gives `armed` a new number before it reads the doors, as it does when it arms: a sender
 * that rang for the old number either finds its record taken, or reads the new number and rings again.
 *
 * The cost of arming does not depend on the number of peers. A look at the doors reads one cache line for each peer
 * that has a lane to this CQ: one or two in common, and about four nanoseconds each for more.
 */
#ifndef SOFTDEV_DOOR_H
#define SOFTDEV_DOOR_H

#include "core/objects.h"

/* `armed`: the kind of completion that the owner of a CQ waits for in the lowest bits, and above them a number. */
enum {
	SOFT_ARM_NONE = 0,
	SOFT_ARM_SOLICITED = 1,
	SOFT_ARM_ANY = 2,
	SOFT_ARM_WANTED = 3, /* mask */
	SOFT_ARM_NUMBER = 4, /* one */
};

/*
 * The door of a CQ for one peer. Bits 0-63 share the cache line that a poll of an empty CQ reads; the others are found
 * through a summary in the same line, which has one bit for four words of them.
 */
struct soft_door {
	_Alignas(SOFT_CACHE_LINE) _Atomic(uint64_t) near;
	_Atomic(uint64_t) summary;
	_Atomic(uint64_t) fired; /* the sender's: the value of `armed` for which it rang the bell */
	_Alignas(SOFT_CACHE_LINE) _Atomic(uint64_t) far[4 * 64];
};
enum { SOFT_DOOR_BITS = 64 + 4 * 64 * 64 };

/* All doors for one peer. */
struct soft_doors {
	struct soft_door cq[SOFT_MAX_CQ];
};

/* What peers may read and only the owner writes. */
struct soft_published {
	struct {
		_Alignas(SOFT_CACHE_LINE) _Atomic(uint64_t) armed;
	} cq[SOFT_MAX_CQ];
	_Atomic(uint64_t) serial[SOFT_MAX_MR]; /* of the region behind each key index, 0 for none */
};

static inline void soft_door_ring(struct soft_door *door, uint32_t bit)
{
	if (bit < 64) {
		atomic_fetch_or(&door->near, UINT64_C(1) << bit);
		return;
	}
	uint32_t word = (bit - 64) / 64;
	if (!atomic_fetch_or(&door->far[word], UINT64_C(1) << (bit % 64)))
		atomic_fetch_or(&door->summary, UINT64_C(1) << (word / 4));
}
/* True if a bit is set besides those in `but`, which the caller checks anyway. */
static inline bool soft_door_any(struct soft_door *door, uint64_t but)
{
	return ((atomic_load_explicit(&door->near, memory_order_relaxed) & ~but) |
		atomic_load_explicit(&door->summary, memory_order_relaxed)) != 0;
}

#endif

/*
 * What processes share: doors, key table, lanes. The only memory another process can write to is a lane and
 * a door; nothing read from there is believed. Each field is read once into a local and checked.
 *
 * Wake-up, and why none is lost.
 *   Sender:    publish record (tail, release) ; set door bit (RMW, seq_cst = full barrier) ; read `armed`
 *   Receiver:  write `armed` (RMW, seq_cst)   ; read door bits ; if there are any, take the records
 * Both RMWs are in one total order. If the sender's is first, the receiver reads its door bit (and through the
 * acquire on it, the record). If the receiver's is first, the sender reads `armed` and writes the eventfd.
 * A reader of the door clears bits with an RMW before it reads tails; a record published after that sets the
 * bit again. Bits are thus never lost, only early.
 *
 * Acknowledgements are the same with the roles swapped: the responder stores `acked`, full barrier, reads
 * `want_ack`; the requester stores `want_ack`, full barrier, reads `acked`.
 */
#ifndef AIORDMA_SOFT_FABRIC_H
#define AIORDMA_SOFT_FABRIC_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/softdev.h"

/* armed: what the owner of a CQ waits for, and whether another process has already written its eventfd. */
enum {
	SOFT_ARM_NONE = 0,
	SOFT_ARM_SOLICITED = 1,
	SOFT_ARM_ANY = 2,
	SOFT_ARM_WANTED = 3, /* mask */
	SOFT_ARM_FIRED = 4,
};

/*
 * One per CQ: a bit for each of its QPs with something to look at. Bits 0-63 lie in the line that a poll of an
 * empty CQ reads; others are found through a summary in the same line.
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
/* Anything but what the caller looks at anyway? */
static inline bool soft_door_any(struct soft_door *door, uint64_t but)
{
	return ((atomic_load_explicit(&door->near, memory_order_relaxed) & ~but) |
		atomic_load_explicit(&door->summary[0], memory_order_relaxed) |
		atomic_load_explicit(&door->summary[1], memory_order_relaxed) |
		atomic_load_explicit(&door->summary[2], memory_order_relaxed) |
		atomic_load_explicit(&door->summary[3], memory_order_relaxed)) != 0;
}

/*
 * A lane: everything one QP asks of another. The responder's process makes it; requests go one way in a ring,
 * response data the other way in a second one. Cursors count bytes since the beginning, never wrap.
 * Each line has one writer.
 */
enum {
	SOFT_REQ_RING = 128 * 1024,
	SOFT_RESP_RING = 64 * 1024,
	SOFT_FRAGMENT = 16 * 1024, /* payload of one record at most: a ring always holds a few */
	SOFT_RECORD_ALIGN = 64,    /* a cache line: a CDC message with its header fits in one */
};

struct soft_seg {
	/* written by the requester */
	_Alignas(SOFT_CACHE_LINE) _Atomic(uint64_t) tail; /* request bytes published */
	_Atomic(uint64_t) want_ack; /* newest message whose acknowledgement it wants to be told of */
	_Alignas(SOFT_CACHE_LINE) _Atomic(uint64_t) resp_head; /* response bytes taken */
	_Atomic(uint32_t) blocked;                             /* waits for room in the request ring */
	_Atomic(uint32_t) rnr_retry;
	_Atomic(uint32_t) detached;                         /* the requester's QP is gone: nothing more will come */
	_Alignas(SOFT_CACHE_LINE) _Atomic(uint32_t) inside; /* in the middle of a direct access */
	/* written by the responder */
	_Alignas(SOFT_CACHE_LINE) _Atomic(uint64_t) head; /* request bytes taken */
	_Atomic(uint64_t) acked;                          /* messages carried out */
	_Alignas(SOFT_CACHE_LINE) _Atomic(uint64_t) resp_tail;
	_Atomic(uint32_t) resp_blocked;
	_Alignas(SOFT_CACHE_LINE) _Atomic(uint32_t) gate; /* 0: closed for good; else changes when access rights do */
	_Atomic(uint32_t) nak;                            /* enum ibv_wc_status for message acked + 1 */
	_Alignas(4096) unsigned char req[SOFT_REQ_RING];
	unsigned char resp[SOFT_RESP_RING];
};

enum soft_op {
	SOFT_OP_PAD = 1, /* to the end of the ring */
	SOFT_OP_SEND,
	SOFT_OP_WRITE,
	SOFT_OP_IMM, /* immediate of a WRITE that was made directly */
	SOFT_OP_READ,
	SOFT_OP_COMPARE_SWAP,
	SOFT_OP_FETCH_ADD,
	SOFT_OP_DATA, /* response: READ data or the old value of an atomic */
};
enum {
	SOFT_REC_FIRST = 1,
	SOFT_REC_LAST = 2,
	SOFT_REC_SOLICITED = 4,
	SOFT_REC_IMM = 8,
	SOFT_REC_INV = 16,
	SOFT_REC_REMOTE = 32, /* struct soft_reth follows */
};

struct soft_rec {
	uint32_t length; /* payload bytes of this record */
	uint8_t op, flags;
	uint16_t reserved;
	uint32_t imm;   /* immediate, or key to invalidate; SOFT_OP_DATA: offset in the answer */
	uint32_t total; /* FIRST: payload of the whole message; SOFT_OP_IMM: bytes written */
};

struct soft_reth {
	uint64_t addr;
	uint32_t rkey;
	uint32_t reserved;
	uint64_t compare_add, swap; /* atomics */
};

_Static_assert(sizeof(struct soft_rec) == 16, "a 44 byte message and its header share one cache line");

#endif

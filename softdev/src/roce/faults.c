/*
 * Injected network faults: drops, repeats, damages, delays or reorders arriving packets.
 */
#include <string.h>

#include "roce/internal.h"

enum { HELD = 64, LATE_NS = 1000000 };

/* Used only by the thread that receives. */
static struct held {
	struct roce_inbound in;
	uint64_t until;
	bool overtaken; /* leaves right after the next packet */
	uint8_t bytes[ROCE_MAX_PACKET];
} held[HELD];
static unsigned nheld;

static bool hold(const struct roce_inbound *in, bool overtaken)
{
	if (nheld == HELD || in->size > ROCE_MAX_PACKET)
		return false;
	struct held *h = &held[nheld++];
	h->in = *in;
	h->overtaken = overtaken;
	h->until = soft_clock_ns() + LATE_NS;
	memcpy(h->bytes, in->bytes, in->size);
	soft_clock_want(h->until);
	return true;
}

static void let_go(unsigned i, roce_receiver *receiver, void *context)
{
	static uint8_t bytes[ROCE_MAX_PACKET];
	struct roce_inbound in = held[i].in;

	memcpy(bytes, held[i].bytes, in.size);
	in.bytes = bytes;
	nheld--;
	memmove(&held[i], &held[i + 1], (nheld - i) * sizeof(*held));
	receiver(context, &in);
}

void soft_roce_release(roce_receiver *receiver, void *context)
{
	if (!nheld)
		return;
	const uint64_t now = soft_clock_ns();
	for (unsigned i = 0; i < nheld;) {
		if (held[i].until <= now)
			let_go(i, receiver, context);
		else
			soft_clock_want(held[i++].until);
	}
}

void soft_roce_disturb(const struct roce_inbound *in, roce_receiver *receiver, void *context)
{
	static uint8_t damaged[ROCE_MAX_PACKET];
	struct roce_inbound copy = *in;
	const bool overtakes = nheld && held[0].overtaken;

	if (soft_fault(SOFT_FAULT_ROCE_DROP))
		return;
	if (soft_fault(SOFT_FAULT_ROCE_CORRUPT) && in->size && in->size <= ROCE_MAX_PACKET) {
		memcpy(damaged, in->bytes, in->size);
		damaged[soft_ticks() % in->size] ^= (uint8_t)(1 << soft_ticks() % 8);
		copy.bytes = damaged;
	}
	if (soft_fault(SOFT_FAULT_ROCE_MARK) && (copy.tos & ROCE_CE) != 0)
		copy.tos |= ROCE_CE;
	if (!overtakes && soft_fault(SOFT_FAULT_ROCE_REORDER) && hold(&copy, true))
		return;
	if (soft_fault(SOFT_FAULT_ROCE_DELAY) && hold(&copy, false))
		return;
	receiver(context, &copy);
	if (soft_fault(SOFT_FAULT_ROCE_DUPLICATE))
		receiver(context, &copy);
	if (overtakes)
		let_go(0, receiver, context);
}

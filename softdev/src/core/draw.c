/*
 * Draws numbers for queue pairs and keys: in an order that cannot be predicted, and none again soon.
 *
 * All numbers stand in a ring. Each draw takes one of the next few at random, and leaves it behind. It is among the next
 * few again when the rest of the ring has been passed.
 */
#include "core/internal.h"

uint32_t soft_draw(struct soft_draw *draw, uint32_t random)
{
	if (!draw->begun)
		draw->at = soft_random() % draw->count;
	draw->begun = true;
	const uint32_t at = draw->at, from = (at + random % draw->ahead) % draw->count;
	const uint32_t drawn = draw->ring[from] ^ from;

	draw->ring[from] = (uint16_t)(draw->ring[at] ^ at ^ from);
	draw->ring[at] = (uint16_t)(drawn ^ at);
	draw->at = (at + 1) % draw->count;
	return drawn;
}

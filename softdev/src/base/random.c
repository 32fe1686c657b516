/*
 * Random numbers from the kernel.
 */
#include <sys/random.h>

#include "base/base.h"

uint32_t soft_random(void)
{
	uint32_t value;

	while (getrandom(&value, sizeof(value), 0) != sizeof(value))
		if (errno != EINTR) /* a filter of system calls forbids it: different each time, but not secret */
			return (uint32_t)((soft_now_ns() ^ soft_ticks()) * UINT64_C(0x9e3779b97f4a7c15) >> 32);
	return value;
}

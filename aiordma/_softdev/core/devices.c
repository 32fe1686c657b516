/*
 * The devices that there are, and what kind they are.
 */
#include <stdlib.h>
#include <string.h>

#include "core/core.h"

#define DEVICE(n)                                                                                                      \
	{                                                                                                              \
		.node_type = IBV_NODE_CA, .transport_type = IBV_TRANSPORT_IB, .name = "soft" n,                        \
		.dev_name = "aiordma_soft" n, .dev_path = "/dev/aiordma/soft" n,                                       \
		.ibdev_path = "/sys/class/infiniband/soft" n,                                                          \
	}

/*
 * All of them share the process's tables and its way to others: a second one is there so that programs which use
 * several devices can be tried, and one of them can fail.
 */
struct ibv_device soft_devices[SOFT_MAX_DEVICES] = { DEVICE("0"), DEVICE("1"), DEVICE("2"), DEVICE("3") };

atomic_uint soft_ports_down;

/* In this process, for all time: other processes' devices may be otherwise, as on two hosts. */
static int iwarp(void)
{
	static atomic_int known = -1;

	if (soft_unlikely(atomic_load_explicit(&known, memory_order_relaxed) < 0)) {
		const char *said = getenv("AIORDMA_SOFT_IWARP");
		atomic_store(&known, !said ? 0 : !strcmp(said, "cm") ? 2 : !strcmp(said, "1"));
	}
	return atomic_load_explicit(&known, memory_order_relaxed);
}

bool soft_iwarp(void)
{
	return iwarp() > 0;
}

bool soft_iwarp_by_cm(void)
{
	return iwarp() > 1;
}

bool soft_port_is_up(const struct ibv_context *context)
{
	return !(atomic_load_explicit(&soft_ports_down, memory_order_relaxed) >> (context->device - soft_devices) & 1);
}

/*
 * The software devices of the list and their kind.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/core.h"

#define DEVICE(n)                                                                                                      \
	{                                                                                                              \
		.node_type = IBV_NODE_CA, .transport_type = IBV_TRANSPORT_IB, .name = "soft" n,                        \
		.dev_name = "softdev" n, .dev_path = "/dev/softdev/soft" n,                                            \
		.ibdev_path = "/sys/class/infiniband/soft" n,                                                          \
	}

/*
 * All of them share the process's tables and its paths to peers. The second one exists so that tests can run programs
 * with several devices, and let one of them fail.
 */
struct ibv_device soft_devices[SOFT_MAX_DEVICES] = { DEVICE("0"), DEVICE("1"), DEVICE("2"), DEVICE("3") };

atomic_uint soft_ports_down;

/* Fixed for this process. Devices of other processes may differ, as on two hosts. */
static int iwarp(void)
{
	static atomic_int known = -1;

	if (soft_unlikely(atomic_load_explicit(&known, memory_order_relaxed) < 0)) {
		const char *said = getenv("SOFTDEV_IWARP");

		if (said && *said && strcmp(said, "cm") != 0 && strcmp(said, "1") != 0 && strcmp(said, "0") != 0)
			fprintf(stderr,
				"softdev: SOFTDEV_IWARP=\"%s\" is not understood, so it is 0; wanted: 0, 1 or cm\n",
				said);
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

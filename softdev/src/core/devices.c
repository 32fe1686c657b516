/*
 * The software devices of the list and their kind.
 */
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

bool soft_iwarp(void)
{
	return soft_personality()->iwarp;
}

bool soft_iwarp_by_cm(void)
{
	return soft_personality()->by_cm;
}

bool soft_port_is_up(const struct ibv_context *context)
{
	const unsigned down = atomic_load_explicit(&soft_ports_down, memory_order_relaxed) |
			      atomic_load_explicit(&soft_fault_state.cut, memory_order_relaxed);

	return !(down >> (context->device - soft_devices) & 1);
}

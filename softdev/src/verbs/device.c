/*
 * The device list, contexts, and the attributes of a device and its one port.
 */
#include "verbs/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

static atomic_uint shown; /* devices in the list; 0: as set in the environment */

#define TEXT(x) #x
#define WORDS(major, minor, patch) TEXT(major) "." TEXT(minor) "." TEXT(patch)
/* The library's version: `ibv_devinfo` shows it. */
#define FIRMWARE WORDS(SOFTDEV_VERSION_MAJOR, SOFTDEV_VERSION_MINOR, SOFTDEV_VERSION_PATCH)
#define WINDOWS (IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B)
#define CAPABILITIES                                                                                                   \
	(IBV_DEVICE_BAD_PKEY_CNTR | IBV_DEVICE_BAD_QKEY_CNTR | IBV_DEVICE_CURR_QP_STATE_MOD |                          \
	 IBV_DEVICE_PORT_ACTIVE_EVENT | IBV_DEVICE_SYS_IMAGE_GUID | IBV_DEVICE_RC_RNR_NAK_GEN |                        \
	 IBV_DEVICE_SRQ_RESIZE | WINDOWS | IBV_DEVICE_MEM_MGT_EXTENSIONS)

SOFT_EXPORT unsigned softdev_version(void)
{
	return SOFTDEV_VERSION;
}

static _Atomic(const char *) chosen; /* by softdev_choose(); NULL: as set in the environment */

SOFT_EXPORT int softdev_choose(const char *which)
{
	static const char *const words[] = { "soft", "none" };

	for (unsigned i = 0; which && i < sizeof(words) / sizeof(*words); i++) {
		if (!strcmp(which, words[i])) {
			atomic_store(&chosen, words[i]);
			return 0;
		}
	}
	if (which)
		return EINVAL;
	atomic_store(&chosen, NULL);
	return 0;
}

const char *soft_wanted(void)
{
	static atomic_bool said;
	const char *which = atomic_load(&chosen);

	if (which)
		return which;
	which = getenv("SOFTDEV_DEVICE");
	if (!which)
		which = "";
	if (*which && strcmp(which, "soft") != 0 && strcmp(which, "none") != 0 && !atomic_exchange(&said, true))
		fprintf(stderr, "softdev: SOFTDEV_DEVICE=\"%s\" is not understood; wanted: soft or none\n", which);
	return which;
}

static bool hidden(void)
{
	return !strcmp(soft_wanted(), "none");
}

static unsigned shown_by_environment(void)
{
	const char *said = getenv("SOFTDEV_DEVICES");
	char *end;
	const long n = said && *said ? strtol(said, &end, 10) : 1;

	if (n >= 1 && n <= SOFT_MAX_DEVICES && !(said && *said && *end))
		return (unsigned)n;
	fprintf(stderr, "softdev: SOFTDEV_DEVICES=\"%s\" is not understood, so it is 1; wanted: 1 to %d\n", said,
		SOFT_MAX_DEVICES);
	return 1;
}

static int how_many(void)
{
	unsigned n = atomic_load(&shown);

	if (!n) {
		unsigned none = 0;

		n = shown_by_environment();
		if (!atomic_compare_exchange_strong(&shown, &none, n))
			n = none;
	}
	return (int)n;
}

SOFT_EXPORT int softdev_devices(unsigned n)
{
	if (n < 1 || n > SOFT_MAX_DEVICES)
		return EINVAL;
	atomic_store(&shown, n);
	return 0;
}

struct ibv_device **soft_get_device_list(int *num_devices)
{
	/* The real library takes half a millisecond to find nothing, most of it to be loaded. */
	__typeof__(&ibv_get_device_list) real_get =
		soft_kernel_has_rdma() ? REAL(ibv_get_device_list, "IBVERBS_1.1") : NULL;
	int count = 0;
	/* Without RDMA in the kernel the real function fails with ENOSYS, treated here as an empty list. */
	struct ibv_device **real = real_get ? real_get(&count) : NULL;

	if (!real)
		count = 0;
	const int own = hidden() ? 0 : how_many();
	/* One block of malloc(), like the real list: qperf gives it to free(). */
	struct ibv_device **list = realloc(real, ((size_t)count + (size_t)own + 1) * sizeof *list);
	if (!list) {
		if (real)
			REAL(ibv_free_device_list, "IBVERBS_1.1")(real);
		errno = ENOMEM;
		return NULL;
	}
	if (soft_iwarp()) {
		for (int i = 0; i < SOFT_MAX_DEVICES; i++) {
			soft_devices[i].node_type = IBV_NODE_RNIC;
			soft_devices[i].transport_type = IBV_TRANSPORT_IWARP;
		}
	}
	for (int i = 0; i < own; i++)
		list[count++] = &soft_devices[i];
	list[count] = NULL;
	if (num_devices)
		*num_devices = count;
	errno = 0;
	return list;
}

/* What is left without our devices, which are its last, is the real library's list, whose devices it counts. */
void soft_free_device_list(struct ibv_device **devices)
{
	size_t real = 0;

	while (devices[real] && !soft_is_device(devices[real]))
		real++;
	devices[real] = NULL;
	if (real)
		REAL(ibv_free_device_list, "IBVERBS_1.1")(devices);
	else
		free(devices);
}

/* An EUI-64 with the local bit set, made from the boot id: the same for all processes of this host. */
__be64 soft_get_device_guid(const struct ibv_device *device)
{
	char boot[64] = "softdev";
	int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
	uint64_t hash = 0xcbf29ce484222325ULL;

	if (fd >= 0) {
		ssize_t got = read(fd, boot, sizeof boot - 1);
		if (got > 0)
			boot[got] = '\0';
		close(fd);
	}
	for (const char *c = boot; *c; c++)
		hash = (hash ^ (uint8_t)*c) * 0x100000001b3ULL;
	hash += (uint64_t)(device - soft_devices);
	return htobe64((hash & ~(1ULL << 56)) | (1ULL << 57));
}

int soft_read_sysfs_file(const char *file, char *buf, size_t size)
{
	int n;

	if (!strcmp(file, "board_id"))
		n = snprintf(buf, size, "softdev");
	else if (!strcmp(file, "fw_ver"))
		n = snprintf(buf, size, "%s", FIRMWARE);
	else
		return -1;
	return n < 0 || (size_t)n >= size ? -1 : n;
}

static enum ibv_atomic_cap atomic_cap(void)
{
	const char *said = soft_personality()->atomics;

	return !strcmp(said, "none") ? IBV_ATOMIC_NONE : !strcmp(said, "hca") ? IBV_ATOMIC_HCA : IBV_ATOMIC_GLOB;
}

int soft_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
	const struct soft_personality *are = soft_personality();
	__be64 guid = soft_get_device_guid(context->device);

	*attr = (struct ibv_device_attr){
		.fw_ver = FIRMWARE,
		.node_guid = guid,
		.sys_image_guid = guid,
		.max_mr_size = UINT64_MAX,
		.page_size_cap = ~4095ULL,
		.vendor_id = are->vendor_id,
		.vendor_part_id = are->vendor_part_id,
		.max_qp = (int)are->max_qp,
		.max_qp_wr = (int)are->max_qp_wr,
		.device_cap_flags = are->max_mw ? CAPABILITIES : CAPABILITIES & ~(unsigned)WINDOWS,
		.max_sge = (int)(are->max_send_sge < are->max_recv_sge ? are->max_send_sge : are->max_recv_sge),
		.max_sge_rd = (int)are->max_sge_rd,
		.max_cq = (int)are->max_cq,
		.max_cqe = (int)are->max_cqe,
		.max_mr = (int)are->max_mr,
		.max_pd = (int)are->max_pd,
		.max_qp_rd_atom = (int)are->max_rd_atomic,
		.max_res_rd_atom = (int)(are->max_rd_atomic * are->max_qp),
		.max_qp_init_rd_atom = (int)are->max_rd_atomic,
		.atomic_cap = atomic_cap(),
		.max_mw = (int)are->max_mw,
		.max_ah = (int)are->max_ah,
		.max_srq = (int)are->max_srq,
		.max_srq_wr = are->max_srq ? (int)are->max_srq_wr : 0,
		.max_srq_sge = are->max_srq ? (int)are->max_srq_sge : 0,
		.max_pkeys = 128, /* as adapters say, whose tables have one on Ethernet, too */
		.local_ca_ack_delay = 15,
		.phys_port_cnt = 1,
	};
	return 0;
}

static int query_device_ex(struct ibv_context *context, const struct ibv_query_device_ex_input *input,
			   struct ibv_device_attr_ex *attr, size_t size)
{
	struct ibv_device_attr_ex all = {
		.completion_timestamp_mask = UINT64_MAX,
		.hca_core_clock = 1000000, /* kHz: timestamps are nanoseconds */
		.phys_port_cnt_ex = 1,
	};

	if (size < sizeof all.orig_attr || (input && input->comp_mask))
		return EINVAL;
	soft_query_device(context, &all.orig_attr);
	all.device_cap_flags_ex = all.orig_attr.device_cap_flags;
	memset(attr, 0, size);
	memcpy(attr, &all, size < sizeof all ? size : sizeof all);
	return 0;
}

SOFT_EXPORT int softdev_by_cm(void)
{
	return soft_iwarp_by_cm();
}

/* Connected queue pairs are left to their owner, which gets the event. */
SOFT_EXPORT int softdev_port(const char *device, int up)
{
	unsigned n = 0;

	while (n < SOFT_MAX_DEVICES && strcmp(soft_devices[n].name, device) != 0)
		n++;
	if (n == SOFT_MAX_DEVICES)
		return ENODEV;
	if (up)
		atomic_fetch_and(&soft_ports_down, ~(1U << n));
	else
		atomic_fetch_or(&soft_ports_down, 1U << n);
	soft_ctx_announce(&soft_devices[n], up ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR);
	return 0;
}

SOFT_EXPORT int softdev_kill(const char *device)
{
	for (unsigned n = 0; n < SOFT_MAX_DEVICES; n++) {
		if (!strcmp(soft_devices[n].name, device)) {
			soft_ctx_announce(&soft_devices[n], IBV_EVENT_DEVICE_FATAL);
			return 0;
		}
	}
	return ENODEV;
}

int soft_query_port(struct ibv_context *context, uint8_t port_num, struct ibv_port_attr *attr, size_t size)
{
	const bool up = soft_port_is_up(context) && !soft_gids_down(to_ctx(context));
	struct ibv_port_attr all = {
		.state = up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN,
		.max_mtu = IBV_MTU_4096,
		.active_mtu = soft_gids_mtu(to_ctx(context), soft_roce_mode() != ROCE_OFF),
		.gid_tbl_len = SOFT_GID_TABLE,
		.port_cap_flags = IBV_PORT_CM_SUP,
		.max_msg_sz = SOFT_MAX_MSG,
		.pkey_tbl_len = 1,
		.max_vl_num = 1,
		.active_width = 2,        /* 4X */
		.active_speed = 32,       /* EDR */
		.phys_state = up ? 5 : 3, /* LinkUp, Disabled */
		.link_layer = IBV_LINK_LAYER_ETHERNET,
	};

	if (port_num != 1)
		return EINVAL;
	memset(attr, 0, size);
	memcpy(attr, &all, size < sizeof all ? size : sizeof all);
	return 0;
}

int soft_query_pkey(struct ibv_context *context, uint8_t port_num, int index, __be16 *pkey)
{
	(void)context;
	if (port_num != 1 || index != 0) {
		errno = EINVAL;
		return -1;
	}
	*pkey = htobe16(SOFT_PKEY);
	return 0;
}

int soft_get_pkey_index(struct ibv_context *context, uint8_t port_num, __be16 pkey)
{
	__be16 only;

	if (soft_query_pkey(context, port_num, 0, &only))
		return -1;
	if (only != pkey) {
		errno = EINVAL;
		return -1;
	}
	return 0;
}

static int query_rt_values(struct ibv_context *context, struct ibv_values_ex *values)
{
	uint32_t asked = values->comp_mask;

	(void)context;
	values->comp_mask = 0;
	if (asked & IBV_VALUES_MASK_RAW_CLOCK) {
		if (clock_gettime(CLOCK_MONOTONIC, &values->raw_clock))
			return errno;
		values->comp_mask |= IBV_VALUES_MASK_RAW_CLOCK;
	}
	return asked & ~(uint32_t)IBV_VALUES_MASK_RAW_CLOCK ? EINVAL : 0;
}

static int get_srq_num(struct ibv_srq *srq, uint32_t *number)
{
	*number = to_srq(srq)->number;
	return 0;
}

static const struct ibv_context_ops context_ops = {
	.poll_cq = soft_poll_cq,
	.req_notify_cq = soft_req_notify_cq,
	.post_send = soft_post_send,
	.post_recv = soft_post_recv,
	.post_srq_recv = soft_post_srq_recv,
	.alloc_mw = soft_alloc_mw,
	.dealloc_mw = soft_dealloc_mw,
	.bind_mw = soft_bind_mw,
};

static const struct soft_fabrics fabrics = { .host = &soft_shm_fabric, .net = &soft_roce_fabric };

struct ibv_context *soft_open_device(struct ibv_device *device)
{
	struct soft_ctx *ctx = calloc(1, sizeof *ctx);
	int error = ENOMEM;

	if (!ctx)
		goto fail;
	struct verbs_context *verbs = &ctx->v;
	struct ibv_context *context = &verbs->context;

	verbs->sz = sizeof *verbs;
	verbs->query_port = soft_query_port;
	verbs->query_device_ex = query_device_ex;
	verbs->query_rt_values = query_rt_values;
	verbs->create_cq_ex = soft_create_cq_ex;
	verbs->create_qp_ex = soft_create_qp_ex;
	verbs->get_srq_num = get_srq_num;
	verbs->alloc_td = soft_alloc_td;
	verbs->dealloc_td = soft_dealloc_td;
	verbs->alloc_parent_domain = soft_alloc_parent_domain;
	context->abi_compat = __VERBS_ABI_IS_EXTENDED;
	context->device = device;
	context->num_comp_vectors = SOFT_COMP_VECTORS;
	context->ops = context_ops;
	pthread_mutex_init(&context->mutex, NULL);
	error = soft_gids_init(ctx, soft_roce_mode() != ROCE_OFF);
	if (error)
		goto fail_mutex;
	error = soft_async_init(ctx);
	if (error)
		goto fail_gids;
	/* There is no kernel's device behind it. A program may duplicate the descriptor, and gets nothing else from it. */
	context->cmd_fd = context->async_fd;
	error = soft_ctx_init(ctx, &fabrics);
	if (error)
		goto fail_async;
	soft_gids_watch(ctx);
	return context;

fail_async:
	soft_async_fini(ctx);
fail_gids:
	soft_gids_fini(ctx);
fail_mutex:
	pthread_mutex_destroy(&context->mutex);
	free(ctx);
fail:
	errno = error;
	return NULL;
}

int soft_close_device(struct ibv_context *context)
{
	struct soft_ctx *ctx = to_ctx(context);
	int error = soft_ctx_fini(ctx);

	if (error) {
		errno = error;
		return -1;
	}
	soft_gids_unwatch(ctx);
	soft_async_fini(ctx);
	soft_gids_fini(ctx);
	pthread_mutex_destroy(&context->mutex);
	free(ctx);
	return 0;
}

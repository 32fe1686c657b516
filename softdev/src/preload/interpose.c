/*
 * Exports of the public verbs API: dispatch to the software device or the real libibverbs.
 *
 * A function that we did not export would run real code on our structs when it gets one of our objects. So every public
 * function that takes an object is exported: those of devices, ports, events and address handles, and those that are
 * only refused, here; those of PDs, MRs, CQs, SRQs and QPs where they are implemented.
 */
#include "preload/preload.h"

#include <string.h>
#include <sys/stat.h>

static atomic_uint_fast64_t calls;

SOFT_EXPORT uint64_t softdev_calls(void)
{
	return atomic_load_explicit(&calls, memory_order_relaxed);
}

static inline void count_call(void)
{
	atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed);
}

/* How a function reports failure, by the type of its result. */
#define POINTER(error) (errno = (error), NULL)
#define ERRNO(error) (errno = (error))
#define NEGATIVE(error) (errno = (error), -1)
#define ZERO(error) (errno = (error), 0)
#define NEGATIVE_ERRNO(error) (-(error))

#define CALL_REAL(kind, name, version, ...)                                                                            \
	({                                                                                                             \
		__typeof__(&name) real = REAL(name, version);                                                          \
		real ? real(__VA_ARGS__) : kind(ENOSYS);                                                               \
	})

/* ours: a call, or a refusal with EOPNOTSUPP; the rest describes the real function. */
#define ROUTE(kind, context, ours, name, version, ...)                                                                 \
	(count_call(), !soft_is(context)            ? CALL_REAL(kind, name, version, __VA_ARGS__) :                    \
		       soft_usable(to_ctx(context)) ? (ours) :                                                         \
						      kind(EIO))

#define ROUTE_VOID(context, ours, name, version, ...)                                                                  \
	do {                                                                                                           \
		count_call();                                                                                          \
		if (soft_is(context)) {                                                                                \
			if (soft_usable(to_ctx(context)))                                                              \
				ours;                                                                                  \
		} else {                                                                                               \
			__typeof__(&name) real = REAL(name, version);                                                  \
			if (real)                                                                                      \
				real(__VA_ARGS__);                                                                     \
		}                                                                                                      \
	} while (0)

/* In the library but not in its public headers. */
enum ibv_gid_type_sysfs { IBV_GID_TYPE_SYSFS_IB_ROCE_V1, IBV_GID_TYPE_SYSFS_ROCE_V2 };
int ibv_query_gid_type(struct ibv_context *context, uint8_t port_num, unsigned int index,
		       enum ibv_gid_type_sysfs *type);

/* ---- devices and contexts ---- */

/* Our contexts belong to one process. What is no character device is none of a kernel's device, and so ours. */
SOFT_EXPORT struct ibv_context *ibv_import_device(int cmd_fd)
{
	struct stat found;

	count_call();
	if (!fstat(cmd_fd, &found) && !S_ISCHR(found.st_mode))
		return POINTER(EOPNOTSUPP);
	return CALL_REAL(POINTER, ibv_import_device, "IBVERBS_1.10", cmd_fd);
}

SOFT_EXPORT struct ibv_device **ibv_get_device_list(int *num_devices)
{
	count_call();
	return soft_get_device_list(num_devices);
}

SOFT_EXPORT void ibv_free_device_list(struct ibv_device **list)
{
	count_call();
	soft_free_device_list(list);
}

SOFT_EXPORT const char *ibv_get_device_name(struct ibv_device *device)
{
	count_call();
	return device->name;
}

enum { FIRST_INDEX = 1 << 20 };

SOFT_EXPORT int ibv_get_device_index(struct ibv_device *device)
{
	count_call();
	/* The kernel numbers its devices from 0, and ours are far behind them. */
	return soft_is_device(device) ? FIRST_INDEX + (int)(device - soft_devices) :
					CALL_REAL(NEGATIVE, ibv_get_device_index, "IBVERBS_1.9", device);
}

SOFT_EXPORT __be64 ibv_get_device_guid(struct ibv_device *device)
{
	count_call();
	return soft_is_device(device) ? soft_get_device_guid(device) :
					CALL_REAL(ZERO, ibv_get_device_guid, "IBVERBS_1.1", device);
}

SOFT_EXPORT int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size)
{
	count_call();
	for (int i = 0; i < SOFT_MAX_DEVICES; i++) {
		if (!strcmp(dir, soft_devices[i].ibdev_path))
			return soft_read_sysfs_file(file, buf, size);
	}
	return CALL_REAL(NEGATIVE, ibv_read_sysfs_file, "IBVERBS_1.0", dir, file, buf, size);
}

SOFT_EXPORT struct ibv_context *ibv_open_device(struct ibv_device *device)
{
	count_call();
	return soft_is_device(device) ? soft_open_device(device) :
					CALL_REAL(POINTER, ibv_open_device, "IBVERBS_1.1", device);
}

/* Also for a context inherited over fork(): its memory belongs to the child, which frees it. */
SOFT_EXPORT int ibv_close_device(struct ibv_context *context)
{
	count_call();
	return soft_is(context) ? soft_close_device(context) :
				  CALL_REAL(NEGATIVE, ibv_close_device, "IBVERBS_1.1", context);
}

SOFT_EXPORT int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
	return ROUTE(NEGATIVE, context, soft_get_async_event(context, event), ibv_get_async_event, "IBVERBS_1.1",
		     context, event);
}

SOFT_EXPORT void ibv_ack_async_event(struct ibv_async_event *event)
{
	ROUTE_VOID(soft_event_context(event), soft_ack_async_event(event), ibv_ack_async_event, "IBVERBS_1.1", event);
}

SOFT_EXPORT int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
	return ROUTE(ERRNO, context, soft_query_device(context, attr), ibv_query_device, "IBVERBS_1.1", context, attr);
}

/* Only callers whose verbs.h predates port_cap_flags2 get here with one of our contexts. */
SOFT_EXPORT int ibv_query_port(struct ibv_context *context, uint8_t port_num, struct _compat_ibv_port_attr *attr)
{
	return ROUTE(ERRNO, context,
		     soft_query_port(context, port_num, (struct ibv_port_attr *)attr,
				     offsetof(struct ibv_port_attr, port_cap_flags2)),
		     ibv_query_port, "IBVERBS_1.1", context, port_num, attr);
}

SOFT_EXPORT int ibv_query_gid(struct ibv_context *context, uint8_t port_num, int index, union ibv_gid *gid)
{
	return ROUTE(NEGATIVE, context, soft_query_gid(context, port_num, index, gid), ibv_query_gid, "IBVERBS_1.1",
		     context, port_num, index, gid);
}

SOFT_EXPORT int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port_num, uint32_t gid_index,
				  struct ibv_gid_entry *entry, uint32_t flags, size_t entry_size)
{
	return ROUTE(ERRNO, context, soft_query_gid_ex(context, port_num, gid_index, entry, flags, entry_size),
		     _ibv_query_gid_ex, "IBVERBS_1.11", context, port_num, gid_index, entry, flags, entry_size);
}

SOFT_EXPORT ssize_t _ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries, size_t max_entries,
					 uint32_t flags, size_t entry_size)
{
	return ROUTE(NEGATIVE_ERRNO, context, soft_query_gid_table(context, entries, max_entries, flags, entry_size),
		     _ibv_query_gid_table, "IBVERBS_1.11", context, entries, max_entries, flags, entry_size);
}

static int soft_query_gid_type(struct ibv_context *context, uint8_t port_num, unsigned int index,
			       enum ibv_gid_type_sysfs *type)
{
	struct ibv_gid_entry entry;
	int error = soft_query_gid_ex(context, port_num, index, &entry, 0, sizeof entry);

	if (error && error != ENODATA) {
		errno = error;
		return -1;
	}
	/* As in libibverbs, an empty entry is of the first type. */
	*type = error ? IBV_GID_TYPE_SYSFS_IB_ROCE_V1 : IBV_GID_TYPE_SYSFS_ROCE_V2;
	return 0;
}

/* The private version's number follows the rdma-core release: 34 from v39 to v56, then 57, 59, ... */
static int real_query_gid_type(struct ibv_context *context, uint8_t port_num, unsigned int index,
			       enum ibv_gid_type_sysfs *type)
{
	static const char *const versions[] = { "IBVERBS_PRIVATE_34", "IBVERBS_PRIVATE_57", "IBVERBS_PRIVATE_59" };
	__typeof__(&ibv_query_gid_type) real = NULL;

	for (size_t i = 0; !real && i < sizeof versions / sizeof *versions; i++)
		real = (__typeof__(real))soft_real_symbol("ibv_query_gid_type", versions[i]);
	return real ? real(context, port_num, index, type) : NEGATIVE(ENOSYS);
}

SOFT_EXPORT int ibv_query_gid_type(struct ibv_context *context, uint8_t port_num, unsigned int index,
				   enum ibv_gid_type_sysfs *type)
{
	count_call();
	return soft_is(context) ? soft_query_gid_type(context, port_num, index, type) :
				  real_query_gid_type(context, port_num, index, type);
}

SOFT_EXPORT int ibv_query_pkey(struct ibv_context *context, uint8_t port_num, int index, __be16 *pkey)
{
	return ROUTE(NEGATIVE, context, soft_query_pkey(context, port_num, index, pkey), ibv_query_pkey, "IBVERBS_1.1",
		     context, port_num, index, pkey);
}

SOFT_EXPORT int ibv_get_pkey_index(struct ibv_context *context, uint8_t port_num, __be16 pkey)
{
	return ROUTE(NEGATIVE, context, soft_get_pkey_index(context, port_num, pkey), ibv_get_pkey_index, "IBVERBS_1.5",
		     context, port_num, pkey);
}

SOFT_EXPORT int ibv_resolve_eth_l2_from_gid(struct ibv_context *context, struct ibv_ah_attr *attr, uint8_t eth_mac[6],
					    uint16_t *vid)
{
	return ROUTE(ERRNO, context, ERRNO(EOPNOTSUPP), ibv_resolve_eth_l2_from_gid, "IBVERBS_1.1", context, attr,
		     eth_mac, vid);
}

SOFT_EXPORT struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd,
					     int access)
{
	return ROUTE(POINTER, pd->context, soft_reg_dmabuf_mr(pd, offset, length, iova, fd, access), ibv_reg_dmabuf_mr,
		     "IBVERBS_1.12", pd, offset, length, iova, fd, access);
}

/* ---- import: our objects have no kernel handle to share ---- */

SOFT_EXPORT struct ibv_pd *ibv_import_pd(struct ibv_context *context, uint32_t pd_handle)
{
	return ROUTE(POINTER, context, POINTER(EOPNOTSUPP), ibv_import_pd, "IBVERBS_1.10", context, pd_handle);
}

SOFT_EXPORT void ibv_unimport_pd(struct ibv_pd *pd)
{
	ROUTE_VOID(pd->context, (void)0, ibv_unimport_pd, "IBVERBS_1.10", pd);
}

SOFT_EXPORT struct ibv_mr *ibv_import_mr(struct ibv_pd *pd, uint32_t mr_handle)
{
	return ROUTE(POINTER, pd->context, POINTER(EOPNOTSUPP), ibv_import_mr, "IBVERBS_1.10", pd, mr_handle);
}

SOFT_EXPORT void ibv_unimport_mr(struct ibv_mr *mr)
{
	ROUTE_VOID(mr->context, (void)0, ibv_unimport_mr, "IBVERBS_1.10", mr);
}

SOFT_EXPORT struct ibv_dm *ibv_import_dm(struct ibv_context *context, uint32_t dm_handle)
{
	return ROUTE(POINTER, context, POINTER(EOPNOTSUPP), ibv_import_dm, "IBVERBS_1.13", context, dm_handle);
}

SOFT_EXPORT void ibv_unimport_dm(struct ibv_dm *dm)
{
	ROUTE_VOID(dm->context, (void)0, ibv_unimport_dm, "IBVERBS_1.13", dm);
}

/* ---- queue pairs ---- */

SOFT_EXPORT struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp)
{
	return ROUTE(POINTER, qp->context, soft_qp_to_qp_ex(qp), ibv_qp_to_qp_ex, "IBVERBS_1.6", qp);
}

/* The last bytes come last, but not where the kernel copies between processes, and not with each personality. */
SOFT_EXPORT int ibv_query_qp_data_in_order(struct ibv_qp *qp, enum ibv_wr_opcode op, uint32_t flags)
{
	return ROUTE(ZERO, qp->context, 0, ibv_query_qp_data_in_order, "IBVERBS_1.14", qp, op, flags);
}

SOFT_EXPORT int ibv_query_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
	return ROUTE(ERRNO, qp->context, ERRNO(EOPNOTSUPP), ibv_query_ece, "IBVERBS_1.10", qp, ece);
}

SOFT_EXPORT int ibv_set_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
	return ROUTE(ERRNO, qp->context, ERRNO(EOPNOTSUPP), ibv_set_ece, "IBVERBS_1.10", qp, ece);
}

SOFT_EXPORT int ibv_attach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
	return ROUTE(ERRNO, qp->context, ERRNO(EOPNOTSUPP), ibv_attach_mcast, "IBVERBS_1.1", qp, gid, lid);
}

SOFT_EXPORT int ibv_detach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
	return ROUTE(ERRNO, qp->context, ERRNO(EOPNOTSUPP), ibv_detach_mcast, "IBVERBS_1.1", qp, gid, lid);
}

/* ---- address handles ---- */

SOFT_EXPORT struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	return ROUTE(POINTER, pd->context, soft_create_ah(pd, attr), ibv_create_ah, "IBVERBS_1.1", pd, attr);
}

SOFT_EXPORT int ibv_init_ah_from_wc(struct ibv_context *context, uint8_t port_num, struct ibv_wc *wc,
				    struct ibv_grh *grh, struct ibv_ah_attr *attr)
{
	return ROUTE(NEGATIVE, context, soft_init_ah_from_wc(context, port_num, wc, grh, attr), ibv_init_ah_from_wc,
		     "IBVERBS_1.1", context, port_num, wc, grh, attr);
}

static struct ibv_ah *soft_create_ah_from_wc(struct ibv_pd *pd, struct ibv_wc *wc, struct ibv_grh *grh,
					     uint8_t port_num)
{
	struct ibv_ah_attr attr;

	return soft_init_ah_from_wc(pd->context, port_num, wc, grh, &attr) ? NULL : soft_create_ah(pd, &attr);
}

SOFT_EXPORT struct ibv_ah *ibv_create_ah_from_wc(struct ibv_pd *pd, struct ibv_wc *wc, struct ibv_grh *grh,
						 uint8_t port_num)
{
	return ROUTE(POINTER, pd->context, soft_create_ah_from_wc(pd, wc, grh, port_num), ibv_create_ah_from_wc,
		     "IBVERBS_1.1", pd, wc, grh, port_num);
}

SOFT_EXPORT int ibv_destroy_ah(struct ibv_ah *ah)
{
	return ROUTE(ERRNO, ah->context, soft_destroy_ah(ah), ibv_destroy_ah, "IBVERBS_1.1", ah);
}

/* ---- newer than the headers we are built with: most are refused, as their callers must expect ---- */

struct ibv_dmah;
struct ibv_dmah_init_attr;
struct ibv_buf;
struct ibv_comp_cntr;
struct ibv_comp_cntr_caps;
struct ibv_comp_cntr_init_attr;
struct ibv_qp_attach_comp_cntr_attr;
struct ibv_dmah *ibv_alloc_dmah(struct ibv_context *context, struct ibv_dmah_init_attr *attr);
int ibv_query_port_speed(struct ibv_context *context, uint32_t port_num, uint64_t *speed);
int _ibv_query_comp_cntr_caps(struct ibv_context *context, struct ibv_comp_cntr_caps *caps, size_t size);
struct ibv_comp_cntr *ibv_create_comp_cntr(struct ibv_context *context, struct ibv_comp_cntr_init_attr *attr);
int ibv_qp_attach_comp_cntr(struct ibv_qp *qp, struct ibv_comp_cntr *counter,
			    struct ibv_qp_attach_comp_cntr_attr *attr);
void *ibv_alloc_buf(struct ibv_pd *pd, size_t size, struct ibv_buf **buf);
struct ibv_mr *ibv_reg_buf_mr(struct ibv_pd *pd, struct ibv_buf *buf, void *addr, size_t length, int access);
int ibv_export_buf_dmabuf_fd(struct ibv_buf *buf);
void ibv_free_buf(struct ibv_buf *buf);

SOFT_EXPORT struct ibv_dmah *ibv_alloc_dmah(struct ibv_context *context, struct ibv_dmah_init_attr *attr)
{
	return ROUTE(POINTER, context, POINTER(EOPNOTSUPP), ibv_alloc_dmah, "IBVERBS_1.15", context, attr);
}

static int soft_query_port_speed(uint32_t port_num, uint64_t *speed)
{
	enum { EDR_4X = 1000 }; /* in 100 Mbit/s, as ibv_query_port() says */

	if (port_num != 1)
		return ERRNO(EINVAL);
	*speed = EDR_4X;
	return 0;
}

SOFT_EXPORT int ibv_query_port_speed(struct ibv_context *context, uint32_t port_num, uint64_t *speed)
{
	return ROUTE(ERRNO, context, soft_query_port_speed(port_num, speed), ibv_query_port_speed, "IBVERBS_1.16",
		     context, port_num, speed);
}

SOFT_EXPORT int _ibv_query_comp_cntr_caps(struct ibv_context *context, struct ibv_comp_cntr_caps *caps, size_t size)
{
	return ROUTE(ERRNO, context, ERRNO(EOPNOTSUPP), _ibv_query_comp_cntr_caps, "IBVERBS_1.18", context, caps, size);
}

SOFT_EXPORT struct ibv_comp_cntr *ibv_create_comp_cntr(struct ibv_context *context,
						       struct ibv_comp_cntr_init_attr *attr)
{
	return ROUTE(POINTER, context, POINTER(EOPNOTSUPP), ibv_create_comp_cntr, "IBVERBS_1.18", context, attr);
}

SOFT_EXPORT int ibv_qp_attach_comp_cntr(struct ibv_qp *qp, struct ibv_comp_cntr *counter,
					struct ibv_qp_attach_comp_cntr_attr *attr)
{
	return ROUTE(ERRNO, qp->context, ERRNO(EOPNOTSUPP), ibv_qp_attach_comp_cntr, "IBVERBS_1.18", qp, counter, attr);
}

SOFT_EXPORT void *ibv_alloc_buf(struct ibv_pd *pd, size_t size, struct ibv_buf **buf)
{
	return ROUTE(POINTER, pd->context, soft_alloc_buf(pd, size, buf), ibv_alloc_buf, "IBVERBS_1.17", pd, size, buf);
}

SOFT_EXPORT struct ibv_mr *ibv_reg_buf_mr(struct ibv_pd *pd, struct ibv_buf *buf, void *addr, size_t length, int access)
{
	return ROUTE(POINTER, pd->context, soft_reg_buf_mr(pd, buf, addr, length, access), ibv_reg_buf_mr,
		     "IBVERBS_1.17", pd, buf, addr, length, access);
}

SOFT_EXPORT int ibv_export_buf_dmabuf_fd(struct ibv_buf *buf)
{
	count_call();
	return soft_is_buf(buf) ? NEGATIVE(EOPNOTSUPP) :
				  CALL_REAL(NEGATIVE, ibv_export_buf_dmabuf_fd, "IBVERBS_1.18", buf);
}

SOFT_EXPORT void ibv_free_buf(struct ibv_buf *buf)
{
	count_call();
	if (soft_free_buf(buf))
		return;
	__typeof__(&ibv_free_buf) real = REAL(ibv_free_buf, "IBVERBS_1.17");
	if (real)
		real(buf);
}

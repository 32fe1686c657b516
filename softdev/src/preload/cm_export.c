/*
 * Exports of librdmacm: ours where the software device is used, else the real library's. The choice holds for the whole
 * process: the kernel's connection manager and this one do not share their port tables.
 */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "preload/preload.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static void *real_library;
static bool ours;

static bool has_real_devices(void)
{
	__typeof__(&ibv_get_device_list) get = REAL(ibv_get_device_list, "IBVERBS_1.1");
	__typeof__(&ibv_free_device_list) give_back = REAL(ibv_free_device_list, "IBVERBS_1.1");
	int count = 0;
	struct ibv_device **list = get && give_back ? get(&count) : NULL;

	if (!list)
		return false;
	give_back(list);
	return count > 0;
}

static void choose(void)
{
	const char *wanted = soft_wanted();

	if (!strcmp(wanted, "none"))
		ours = false;
	else if (!strcmp(wanted, "soft"))
		ours = true;
	else
		ours = !has_real_devices();
	if (ours)
		return;
	/* As late as possible, and preferring the copy that the program has already loaded (base/real.c). */
	real_library = soft_real_library("librdmacm");
}

static bool is_ours(void)
{
	pthread_once(&once, choose);
	return ours;
}

#define NEGATIVE(error) (errno = (error), -1)
#define POINTER(error) (errno = (error), NULL)
#define ZERO(error) (errno = (error), 0)

#define CALL_REAL(kind, name, ...)                                                                                     \
	({                                                                                                             \
		__typeof__(&name) real = real_library ? (__typeof__(&name))dlsym(real_library, #name) : NULL;          \
		real ? real(__VA_ARGS__) : kind(ENOSYS);                                                               \
	})

#define CM_ROUTED(kind, type, name, parameters, ...)                                                                   \
	SOFT_EXPORT type name parameters                                                                               \
	{                                                                                                              \
		return is_ours() ? soft_##name(__VA_ARGS__) : CALL_REAL(kind, name, __VA_ARGS__);                      \
	}
#define CM_ROUTED_VOID(name, parameters, ...)                                                                          \
	SOFT_EXPORT void name parameters                                                                               \
	{                                                                                                              \
		if (is_ours()) {                                                                                       \
			soft_##name(__VA_ARGS__);                                                                      \
			return;                                                                                        \
		}                                                                                                      \
		__typeof__(&name) real = real_library ? (__typeof__(&name))dlsym(real_library, #name) : NULL;          \
		if (real)                                                                                              \
			real(__VA_ARGS__);                                                                             \
	}

/* ---- channels and events ---------------------------------------------------------------------------- */

SOFT_EXPORT struct rdma_event_channel *rdma_create_event_channel(void)
{
	return is_ours() ? soft_rdma_create_event_channel() : CALL_REAL(POINTER, rdma_create_event_channel);
}

CM_ROUTED_VOID(rdma_destroy_event_channel, (struct rdma_event_channel * channel), channel)
CM_ROUTED(NEGATIVE, int, rdma_get_cm_event, (struct rdma_event_channel * channel, struct rdma_cm_event **event),
	  channel, event)
CM_ROUTED(NEGATIVE, int, rdma_ack_cm_event, (struct rdma_cm_event * event), event)
CM_ROUTED(POINTER, const char *, rdma_event_str, (enum rdma_cm_event_type event), event)

/* ---- ids -------------------------------------------------------------------------------------------- */

/* rsocket is part of librdmacm and uses private fields of its ids, so it cannot use one of ours. */
static bool called_by_rsocket(const void *caller)
{
	Dl_info info;

	return dladdr(caller, &info) && info.dli_fname && strstr(info.dli_fname, "librdmacm");
}

SOFT_EXPORT int rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id, void *context,
			       enum rdma_port_space ps)
{
	if (!is_ours())
		return CALL_REAL(NEGATIVE, rdma_create_id, channel, id, context, ps);
	if (called_by_rsocket(__builtin_return_address(0)))
		return NEGATIVE(EOPNOTSUPP);
	return soft_rdma_create_id(channel, id, context, ps);
}

CM_ROUTED(NEGATIVE, int, rdma_destroy_id, (struct rdma_cm_id * id), id)
CM_ROUTED(NEGATIVE, int, rdma_bind_addr, (struct rdma_cm_id * id, struct sockaddr *addr), id, addr)
CM_ROUTED(NEGATIVE, int, rdma_resolve_addr,
	  (struct rdma_cm_id * id, struct sockaddr *src, struct sockaddr *dst, int timeout_ms), id, src, dst,
	  timeout_ms)
CM_ROUTED(NEGATIVE, int, rdma_resolve_route, (struct rdma_cm_id * id, int timeout_ms), id, timeout_ms)
CM_ROUTED(NEGATIVE, int, rdma_listen, (struct rdma_cm_id * id, int backlog), id, backlog)
CM_ROUTED(NEGATIVE, int, rdma_set_option, (struct rdma_cm_id * id, int level, int optname, void *optval, size_t optlen),
	  id, level, optname, optval, optlen)
CM_ROUTED(NEGATIVE, int, rdma_migrate_id, (struct rdma_cm_id * id, struct rdma_event_channel *channel), id, channel)
CM_ROUTED(ZERO, __be16, rdma_get_src_port, (struct rdma_cm_id * id), id)
CM_ROUTED(ZERO, __be16, rdma_get_dst_port, (struct rdma_cm_id * id), id)
CM_ROUTED(POINTER, struct ibv_context **, rdma_get_devices, (int *num_devices), num_devices)
CM_ROUTED_VOID(rdma_free_devices, (struct ibv_context * *list), list)
CM_ROUTED(NEGATIVE, int, rdma_getaddrinfo,
	  (const char *node, const char *service, const struct rdma_addrinfo *hints, struct rdma_addrinfo **res), node,
	  service, hints, res)
CM_ROUTED_VOID(rdma_freeaddrinfo, (struct rdma_addrinfo * res), res)
CM_ROUTED(NEGATIVE, int, rdma_create_ep,
	  (struct rdma_cm_id * *id, struct rdma_addrinfo *res, struct ibv_pd *pd,
	   struct ibv_qp_init_attr *qp_init_attr),
	  id, res, pd, qp_init_attr)
CM_ROUTED_VOID(rdma_destroy_ep, (struct rdma_cm_id * id), id)
CM_ROUTED(NEGATIVE, int, rdma_get_request, (struct rdma_cm_id * listen, struct rdma_cm_id **id), listen, id)

/* ---- connections ------------------------------------------------------------------------------------ */

CM_ROUTED(NEGATIVE, int, rdma_connect, (struct rdma_cm_id * id, struct rdma_conn_param *conn_param), id, conn_param)
CM_ROUTED(NEGATIVE, int, rdma_accept, (struct rdma_cm_id * id, struct rdma_conn_param *conn_param), id, conn_param)
CM_ROUTED(NEGATIVE, int, rdma_establish, (struct rdma_cm_id * id), id)
CM_ROUTED(NEGATIVE, int, rdma_disconnect, (struct rdma_cm_id * id), id)
CM_ROUTED(NEGATIVE, int, rdma_notify, (struct rdma_cm_id * id, enum ibv_event_type event), id, event)

CM_ROUTED(NEGATIVE, int, rdma_reject, (struct rdma_cm_id * id, const void *private_data, uint8_t private_data_len), id,
	  private_data, private_data_len)
CM_ROUTED(NEGATIVE, int, rdma_reject_ece, (struct rdma_cm_id * id, const void *private_data, uint8_t private_data_len),
	  id, private_data, private_data_len)

/* ---- queue pairs ------------------------------------------------------------------------------------ */

CM_ROUTED(NEGATIVE, int, rdma_create_qp,
	  (struct rdma_cm_id * id, struct ibv_pd *pd, struct ibv_qp_init_attr *qp_init_attr), id, pd, qp_init_attr)
CM_ROUTED(NEGATIVE, int, rdma_create_qp_ex, (struct rdma_cm_id * id, struct ibv_qp_init_attr_ex *qp_init_attr), id,
	  qp_init_attr)
CM_ROUTED_VOID(rdma_destroy_qp, (struct rdma_cm_id * id), id)
CM_ROUTED(NEGATIVE, int, rdma_create_srq, (struct rdma_cm_id * id, struct ibv_pd *pd, struct ibv_srq_init_attr *attr),
	  id, pd, attr)
CM_ROUTED(NEGATIVE, int, rdma_create_srq_ex, (struct rdma_cm_id * id, struct ibv_srq_init_attr_ex *attr), id, attr)
CM_ROUTED_VOID(rdma_destroy_srq, (struct rdma_cm_id * id), id)
CM_ROUTED(NEGATIVE, int, rdma_init_qp_attr, (struct rdma_cm_id * id, struct ibv_qp_attr *qp_attr, int *qp_attr_mask),
	  id, qp_attr, qp_attr_mask)

/* ---- not supported by the software device ----------------------------------------------------------- */

#define CM_REFUSED(name, parameters, ...)                                                                              \
	SOFT_EXPORT int name parameters                                                                                \
	{                                                                                                              \
		return is_ours() ? NEGATIVE(EOPNOTSUPP) : CALL_REAL(NEGATIVE, name, __VA_ARGS__);                      \
	}

/* Newer than the headers that this may be compiled with: librdmacm 58 and 60. */
int rdma_write_cm_event(struct rdma_cm_id *id, enum rdma_cm_event_type event, int status, uint64_t arg);
int rdma_resolve_addrinfo(struct rdma_cm_id *id, const char *node, const char *service,
			  const struct rdma_addrinfo *hints);
int rdma_query_addrinfo(struct rdma_cm_id *id, struct rdma_addrinfo **info);

CM_REFUSED(rdma_write_cm_event, (struct rdma_cm_id * id, enum rdma_cm_event_type event, int status, uint64_t arg), id,
	   event, status, arg)
CM_REFUSED(rdma_resolve_addrinfo,
	   (struct rdma_cm_id * id, const char *node, const char *service, const struct rdma_addrinfo *hints), id, node,
	   service, hints)
CM_REFUSED(rdma_query_addrinfo, (struct rdma_cm_id * id, struct rdma_addrinfo **info), id, info)
CM_REFUSED(rdma_join_multicast, (struct rdma_cm_id * id, struct sockaddr *addr, void *context), id, addr, context)
CM_REFUSED(rdma_join_multicast_ex,
	   (struct rdma_cm_id * id, struct rdma_cm_join_mc_attr_ex *mc_join_attr, void *context), id, mc_join_attr,
	   context)
CM_REFUSED(rdma_leave_multicast, (struct rdma_cm_id * id, struct sockaddr *addr), id, addr)
CM_REFUSED(rdma_set_local_ece, (struct rdma_cm_id * id, struct ibv_ece *ece), id, ece)
CM_REFUSED(rdma_get_remote_ece, (struct rdma_cm_id * id, struct ibv_ece *ece), id, ece)

/*
 * Pass-through to the real libibverbs.
 *
 * The device is found by the dynamic linker before libibverbs and answers for its own contexts; everything
 * else is handed on. The real library is opened on first
 * need, never from a constructor: a pyverbs that brings its own libibverbs must be able to load that one
 * first.
 */
#ifndef AIORDMA_SOFT_INTERPOSE_H
#define AIORDMA_SOFT_INTERPOSE_H

#include <infiniband/verbs.h>

/* verbs.h turns these into macros; here the exported functions are meant */
#undef ibv_reg_mr
#undef ibv_reg_mr_iova
#undef ibv_query_port
#undef ibv_get_device_list

#define SOFT_EXPORT __attribute__((visibility("default")))

/* Address of name@version in the real libibverbs, or NULL when there is none. */
void *soft_real_symbol(const char *name, const char *version);

/* REAL(ibv_alloc_pd, "IBVERBS_1.1")(context): the real function; NULL when libibverbs is not installed. */
#define REAL(name, version)                                                                                            \
	({                                                                                                             \
		static _Atomic(void *) cached_;                                                                        \
		void *f_ = atomic_load_explicit(&cached_, memory_order_relaxed);                                       \
		if (!f_) {                                                                                             \
			f_ = soft_real_symbol(#name, version);                                                         \
			atomic_store_explicit(&cached_, f_, memory_order_relaxed);                                     \
		}                                                                                                      \
		(__typeof__(&name))f_;                                                                                 \
	})

/* What interpose.c hands our objects to. Signatures, results and errno are those of the ibv_ functions. */

/* device.c */
struct ibv_device **soft_get_device_list(int *num_devices);
void soft_free_device_list(struct ibv_device **devices);
__be64 soft_get_device_guid(const struct ibv_device *device);
int soft_read_sysfs_file(const char *file, char *buf, size_t size);
struct ibv_context *soft_open_device(struct ibv_device *device);
int soft_close_device(struct ibv_context *context);
int soft_query_device(struct ibv_context *context, struct ibv_device_attr *attr);
int soft_query_port(struct ibv_context *context, uint8_t port_num, struct ibv_port_attr *attr, size_t size);
int soft_query_pkey(struct ibv_context *context, uint8_t port_num, int index, __be16 *pkey);
int soft_get_pkey_index(struct ibv_context *context, uint8_t port_num, __be16 pkey);
int soft_query_gid(struct ibv_context *context, uint8_t port_num, int index, union ibv_gid *gid);
int soft_query_gid_ex(struct ibv_context *context, uint32_t port_num, uint32_t gid_index, struct ibv_gid_entry *entry,
		      uint32_t flags, size_t entry_size);
ssize_t soft_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries, size_t max_entries,
			     uint32_t flags, size_t entry_size);

/* async.c */
int soft_get_async_event(struct ibv_context *context, struct ibv_async_event *event);
void soft_ack_async_event(struct ibv_async_event *event);
/* Of the object an event belongs to; NULL for events of a port or of the whole device. */
struct ibv_context *soft_event_context(const struct ibv_async_event *event);

/* qp_ex.c */
struct ibv_qp_ex *soft_qp_to_qp_ex(struct ibv_qp *qp);

/* ah.c */
struct ibv_ah *soft_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr);
int soft_init_ah_from_wc(struct ibv_context *context, uint8_t port_num, struct ibv_wc *wc, struct ibv_grh *grh,
			 struct ibv_ah_attr *attr);
int soft_destroy_ah(struct ibv_ah *ah);

#endif

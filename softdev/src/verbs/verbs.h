/*
 * The verbs: libibverbs' functions on the device's objects. They validate arguments, create and destroy objects, move
 * queue pairs through their states and choose their paths.
 *
 * What it promises: the results and errno values of libibverbs. ibv_ functions exported from here pass contexts and
 * objects of other devices to the real library; the rest are exported from preload.
 * What it calls: shm and roce to set up a queue pair's path or an address handle; the core for everything else.
 * Who may call it: cm and preload; cm also calls the exported ibv_ functions.
 * Threads: any, as with libibverbs, as long as no object is destroyed while another call uses it. No lock held.
 */
#ifndef SOFTDEV_VERBS_H
#define SOFTDEV_VERBS_H

#include "core/core.h"

/* Signatures, results and errno are those of the ibv_ functions. The context belongs to this device and is usable. */

/* device.c */
/* What softdev_choose() or SOFTDEV_DEVICE says, "" if neither does. */
const char *soft_wanted(void);
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

/* ah.c */
struct ibv_ah *soft_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr);
int soft_init_ah_from_wc(struct ibv_context *context, uint8_t port_num, struct ibv_wc *wc, struct ibv_grh *grh,
			 struct ibv_ah_attr *attr);
int soft_destroy_ah(struct ibv_ah *ah);

/* qp_fsm.c: ibv_modify_qp, plus the transitions that an iWARP device reserves for rdma_cm. 0 or errno. */
int soft_qp_modify(struct soft_qp *qp, struct ibv_qp_attr *attr, int mask);

/* dmabuf.c */
struct ibv_mr *soft_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access);

/* buffers.c. The last three take any device's handle: false, or EINVAL, if it is none of this one's. */
struct ibv_buf;
void *soft_alloc_buf(struct ibv_pd *pd, size_t size, struct ibv_buf **buf);
bool soft_free_buf(struct ibv_buf *buf);
bool soft_is_buf(const struct ibv_buf *buf);
/* Whether a region of that PD may be made of that part of it: 0 or errno. */
int soft_buf_check(const struct ibv_pd *pd, const struct ibv_buf *buf, const void *addr, size_t length);

/* pd_mr.c: a region of a part of a buffer. */
struct ibv_mr *soft_reg_buf_mr(struct ibv_pd *pd, struct ibv_buf *buf, void *addr, size_t length, int access);

/* qp_ex.c */
struct ibv_qp *soft_create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr);
struct ibv_qp_ex *soft_qp_to_qp_ex(struct ibv_qp *qp);

#endif

"""The verbs functions of one library."""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from .._structs cimport (
    ibv_ah,
    ibv_ah_attr,
    ibv_async_event,
    ibv_comp_channel,
    ibv_context,
    ibv_cq,
    ibv_device,
    ibv_device_attr,
    ibv_gid,
    ibv_gid_entry,
    ibv_mr,
    ibv_pd,
    ibv_port_attr,
    ibv_qp,
    ibv_qp_attr,
    ibv_qp_init_attr,
)

ctypedef int (*Destroy)(void *) noexcept nogil
ctypedef ssize_t (*gid_table)(ibv_context *, ibv_gid_entry *, size_t, uint32_t, size_t) noexcept nogil
ctypedef ibv_mr *(*reg_dmabuf)(ibv_pd *, uint64_t, size_t, uint64_t, int, int) noexcept nogil

cdef struct Functions:
    ibv_device **(*get_device_list)(int *) noexcept nogil
    void (*free_device_list)(ibv_device **) noexcept nogil
    const char *(*get_device_name)(ibv_device *) noexcept nogil
    ibv_context *(*open_device)(ibv_device *) noexcept nogil
    Destroy close_device
    int (*query_device)(ibv_context *, ibv_device_attr *) noexcept nogil
    int (*query_port)(ibv_context *, uint8_t, ibv_port_attr *) noexcept nogil
    int (*query_gid)(ibv_context *, uint8_t, int, ibv_gid *) noexcept nogil
    gid_table query_gid_table
    int (*get_async_event)(ibv_context *, ibv_async_event *) noexcept nogil
    void (*ack_async_event)(ibv_async_event *) noexcept nogil
    ibv_pd *(*alloc_pd)(ibv_context *) noexcept nogil
    Destroy dealloc_pd
    ibv_comp_channel *(*create_comp_channel)(ibv_context *) noexcept nogil
    Destroy destroy_comp_channel
    ibv_cq *(*create_cq)(ibv_context *, int, void *, ibv_comp_channel *, int) noexcept nogil
    Destroy destroy_cq
    ibv_mr *(*reg_mr)(ibv_pd *, void *, size_t, int) noexcept nogil
    ibv_mr *(*reg_mr_iova)(ibv_pd *, void *, size_t, uint64_t, int) noexcept nogil
    ibv_mr *(*reg_mr_iova2)(ibv_pd *, void *, size_t, uint64_t, unsigned int) noexcept nogil
    reg_dmabuf reg_dmabuf_mr
    Destroy dereg_mr
    ibv_qp *(*create_qp)(ibv_pd *, ibv_qp_init_attr *) noexcept nogil
    int (*modify_qp)(ibv_qp *, ibv_qp_attr *, int) noexcept nogil
    Destroy destroy_qp
    ibv_ah *(*create_ah)(ibv_pd *, ibv_ah_attr *) noexcept nogil
    Destroy destroy_ah


cdef class Library:
    cdef Functions call
    cdef readonly str path


cdef object failure(str what, int number)

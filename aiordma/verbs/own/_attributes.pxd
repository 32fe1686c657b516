"""What queue pairs and address handles are made of."""
from libc.stdint cimport uint8_t, uint16_t, uint32_t

from .._structs cimport ibv_ah_attr, ibv_gid, ibv_qp_attr, ibv_qp_cap


cdef class GID:
    cdef ibv_gid gid


cdef class GlobalRoute:
    cdef public GID dgid
    cdef public uint8_t sgid_index
    cdef public uint8_t hop_limit
    cdef public uint8_t traffic_class


cdef class AHAttr:
    cdef public uint16_t dlid
    cdef public uint8_t sl
    cdef public uint8_t is_global
    cdef public uint8_t port_num
    cdef public GlobalRoute gr
    cdef void write(self, ibv_ah_attr *to) noexcept


cdef class QPCap:
    cdef public uint32_t max_send_wr
    cdef public uint32_t max_recv_wr
    cdef public uint32_t max_send_sge
    cdef public uint32_t max_recv_sge
    cdef public uint32_t max_inline_data
    cdef void write(self, ibv_qp_cap *to) noexcept
    cdef void read(self, const ibv_qp_cap *granted) noexcept


cdef class QPAttr:
    cdef public int qp_state
    cdef public int cur_qp_state
    cdef public int path_mtu
    cdef public uint32_t qkey
    cdef public uint32_t rq_psn
    cdef public uint32_t sq_psn
    cdef public uint32_t dest_qp_num
    cdef public unsigned int qp_access_flags
    cdef public AHAttr ah_attr
    cdef public uint16_t pkey_index
    cdef public uint8_t max_rd_atomic
    cdef public uint8_t max_dest_rd_atomic
    cdef public uint8_t min_rnr_timer
    cdef public uint8_t port_num
    cdef public uint8_t timeout
    cdef public uint8_t retry_cnt
    cdef public uint8_t rnr_retry
    cdef void write(self, ibv_qp_attr *to) noexcept

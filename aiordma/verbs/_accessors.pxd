"""The foreign layout of pyverbs' classes, and what is read from the verbs objects behind them."""
from libc.stdint cimport uint32_t, uintptr_t


cdef extern from "<infiniband/verbs.h>" nogil:
    struct ibv_device:
        int transport_type
    struct ibv_context:
        ibv_device *device
        int async_fd
    struct ibv_pd:
        ibv_context *context
    struct ibv_comp_channel:
        ibv_context *context
        int fd
    struct ibv_cq:
        ibv_context *context
        ibv_comp_channel *channel
        int cqe
    struct ibv_srq:
        ibv_context *context
    struct ibv_mr:
        ibv_context *context
        ibv_pd *pd
        void *addr
        size_t length
        uint32_t lkey
    struct ibv_ah:
        ibv_context *context
        ibv_pd *pd
    struct ibv_qp:
        ibv_context *context
        ibv_pd *pd
        ibv_cq *send_cq
        ibv_cq *recv_cq
        uint32_t qp_num
    union ibv_async_element "element":
        ibv_cq *cq
        ibv_qp *qp
        ibv_srq *srq
        int port_num
    struct ibv_async_event:
        ibv_async_element element
        int event_type
    enum:
        IBV_TRANSPORT_IWARP
        IBV_EVENT_CQ_ERR
        IBV_EVENT_QP_FATAL
        IBV_EVENT_QP_REQ_ERR
        IBV_EVENT_QP_ACCESS_ERR
        IBV_EVENT_COMM_EST
        IBV_EVENT_SQ_DRAINED
        IBV_EVENT_PATH_MIG
        IBV_EVENT_PATH_MIG_ERR
        IBV_EVENT_PORT_ACTIVE
        IBV_EVENT_PORT_ERR
        IBV_EVENT_LID_CHANGE
        IBV_EVENT_PKEY_CHANGE
        IBV_EVENT_SM_CHANGE
        IBV_EVENT_QP_LAST_WQE_REACHED
        IBV_EVENT_SRQ_ERR
        IBV_EVENT_SRQ_LIMIT_REACHED
        IBV_EVENT_CLIENT_REREGISTER
        IBV_EVENT_GID_CHANGE


# check_size ignore: the real objects are larger than the head declared here. Objects smaller than it are
# still refused when this module is imported.
cdef extern from "verbs/pvlayout.h":
    ctypedef class pyverbs.device.Context [object pv_Context, check_size ignore]:
        cdef ibv_context *context
    ctypedef class pyverbs.device.AsyncEvent [object pv_AsyncEvent, check_size ignore]:
        cdef ibv_async_event event
    ctypedef class pyverbs.pd.PD [object pv_PD, check_size ignore]:
        cdef ibv_pd *pd
    ctypedef class pyverbs.cq.CompChannel [object pv_CompChannel, check_size ignore]:
        cdef ibv_comp_channel *channel
    ctypedef class pyverbs.cq.CQ [object pv_CQ, check_size ignore]:
        cdef ibv_cq *cq
    ctypedef class pyverbs.qp.QP [object pv_QP, check_size ignore]:
        cdef ibv_qp *qp
    ctypedef class pyverbs.srq.SRQ [object pv_SRQ, check_size ignore]:
        cdef ibv_srq *srq
    ctypedef class pyverbs.addr.AH [object pv_AH, check_size ignore]:
        cdef ibv_ah *ah
    ctypedef class pyverbs.mr.MR [object pv_MR, check_size ignore]:
        cdef ibv_mr *mr

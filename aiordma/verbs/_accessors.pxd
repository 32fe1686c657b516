"""The foreign layout of pyverbs' classes."""
from ._structs cimport (
    ibv_ah,
    ibv_async_event,
    ibv_comp_channel,
    ibv_context,
    ibv_cq,
    ibv_mr,
    ibv_pd,
    ibv_qp,
)

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
    ctypedef class pyverbs.addr.AH [object pv_AH, check_size ignore]:
        cdef ibv_ah *ah
    ctypedef class pyverbs.mr.MR [object pv_MR, check_size ignore]:
        cdef ibv_mr *mr

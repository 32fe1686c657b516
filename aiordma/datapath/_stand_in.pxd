# Declarations of _stand_in.pyx (answers to Linux kernels while the event loop does not poll).
from libc.stdint cimport uint16_t, uint32_t, uint64_t

from .._cq cimport CompletionPoller, aio_stand_in
from ._verbs cimport ibv_cq, ibv_qp, ibv_wc

cdef extern from "datapath/_stand_in.h" nogil:
    cdef enum:
        AIO_STAND_IN_ANSWERS
        AIO_STAND_IN_BYTES
        AIO_KIND_ANSWER
        AIO_KIND_COPY
        AIO_KIND_COPY_ANSWERED
        AIO_KIND_RECEIVE_ANSWERED
    cdef struct aio_stood_for:
        uint64_t tag
        ibv_qp *qp
        uint64_t receives, answers
        uint32_t receive_count, receive_bytes, lkey, max_inline, under_way
        bint failed
    const unsigned char *aio_stand_in_handed(const aio_stand_in *s, uint32_t number)
    void aio_stand_in_answer_sent(aio_stand_in *s, const ibv_wc *wc)
    int aio_stand_in_add(aio_stand_in *s, aio_stood_for *link)
    void aio_stand_in_remove(aio_stand_in *s, const aio_stood_for *link)
    int aio_stand_in_open(aio_stand_in *s, ibv_cq *cq, int period_ms)
    int aio_stand_in_begin(aio_stand_in *s)
    void aio_stand_in_close(aio_stand_in *s)
    void aio_stand_in_heard(aio_stand_in *s)
    uint32_t aio_stand_in_kept(aio_stand_in *s)
    uint64_t aio_stand_in_answered(aio_stand_in *s)
    uint64_t aio_stand_in_taken(aio_stand_in *s)

cdef class StandIn:
    cdef aio_stand_in state
    cdef CompletionPoller poller
    cdef object keep
    cdef set links                          # objects whose queue pairs and memory the thread may use

    cdef int add(self, object owner, aio_stood_for *link) except -1
    cdef int remove(self, object owner, aio_stood_for *link) except -1

# Declarations of _ud.pyx (datagrams on UD queue pairs).
from libc.stdint cimport uint32_t, uint64_t, uintptr_t

from .._cq cimport CompletionOwner
from ._verbs cimport ibv_qp, ibv_wc

cdef extern from "infiniband/verbs.h" nogil:
    cdef struct ibv_ah:
        pass

cdef class Route:
    """The path to one peer's QP, and counts of the datagrams from there."""
    cdef ibv_ah *ah
    cdef readonly uint32_t qpn, qkey, limit
    cdef readonly bytes gid
    cdef readonly object handle             # owns the address handle
    cdef readonly object address            # of the peer, as the user sees it
    cdef public bint used                   # since the flag was last cleared
    cdef readonly uint64_t sent, received
    cdef uint32_t next_number, expected
    cdef bint numbered                      # a first number has come
    cdef readonly uint64_t lost, late

    cdef void count(self, uint32_t number) noexcept

cdef class UdPort(CompletionOwner):
    cdef ibv_qp *qp
    cdef readonly uint32_t qp_num, mtu
    cdef uint64_t recv_addr, send_addr
    cdef uint32_t recv_lkey, send_lkey, slot_bytes, recv_count
    cdef uint32_t sq_depth, sq_posted, sq_retired, sq_unsignalled, sq_signal_every, max_inline
    cdef uint32_t idle[32]                  # slots whose receives are to be posted again
    cdef int idle_count
    cdef readonly dict senders              # GID and QP number -> Route
    cdef object queue, graveyard, keep
    cdef uint32_t most
    cdef public object on_readable, on_writable, on_control, on_failed
    cdef bint wanting
    cdef readonly bint failed
    cdef readonly uint64_t received, sent, dropped_full, dropped_unknown, malformed

    cdef int on_receive(self, ibv_wc *wc) except -1
    cdef int on_sent(self, ibv_wc *wc) except -1
    cdef int take(self, ibv_wc *wc, const unsigned char *at, uint32_t length) except -1
    cdef int repost(self) except -1
    cdef int post_idle(self) noexcept
    cdef int fail(self, object reason) except -1
    cdef bint post(self, Route route, const unsigned char *data, Py_ssize_t n, uint32_t imm) except -1

# Declarations of _switchable.pyx (the pipe whose transport is swapped underneath).
cimport cython
from libc.stdint cimport uint32_t

from ._ring cimport RingPipe

@cython.final
cdef class SwitchablePipe:
    cdef object __weakref__
    cdef readonly RingPipe ring             # the newest rings, in use or not
    cdef readonly object fallback           # what carries the stream while it is not on RDMA; None while it is
    cdef RingPipe sending_ring              # `sending` when that is a ring pipe, else None
    cdef RingPipe receiving_ring
    cdef object sending, receiving          # transports
    cdef list following                     # what is received from after `receiving`; None: nothing
    cdef uint32_t _reads_ahead
    cdef bint closed, eof_sent, _pushes
    cdef object _on_readable, _on_writable
    cdef object past                        # PipeStatistics of the transports that are done

    cdef list transports(self)
    cdef int retire(self, transport) except -1
    cdef int receive_from(self, transport) except -1
    cdef bint advance(self) except -1
    cdef int wake(self, callback) except -1

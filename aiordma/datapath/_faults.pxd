# Declarations of _faults.pyx (the fault filter of a link).
from libc.stdint cimport uint32_t

from ._qp cimport QueuePair
from ._send_queue cimport Hook
from ._verbs cimport aio_chain

cdef class Held:
    """A work request that waits, with the bytes it would send."""
    cdef aio_chain chain
    cdef bytes data
    cdef int keep_bytes(self) except -1
    cdef int replace_bytes(self, bytes data) except -1

cdef class LinkFilter(Hook):
    cdef QueuePair qp
    cdef object link                        # faults.FilterableLink: timers, the peer's name, the end of the QP
    cdef object decide                      # faults.decide
    cdef public object tap                  # faults.Tap: sees each message; None: nothing does
    cdef public uint32_t tap_bytes          # how much of each
    cdef object out                         # deque of Held: requests behind one that is delayed
    cdef object pending                     # deque of (message, sequence) behind one that is delayed
    cdef object swapped                     # (message, sequence) that waits for the next one to pass
    cdef set timers
    cdef bint holding                       # requests wait in out
    cdef bint cut                           # nothing leaves any more: the device retries without success
    cdef bint blocked                       # messages wait in pending
    cdef bint running, posting, over

    cdef object _op_of(self, Held held, uint32_t *size)
    cdef object _flow_of(self, Held held)
    cdef int _tell(self, Held held) except -1
    cdef int _send(self, Held held) except -1
    cdef int _post(self, Held held) except -1
    cdef int _run(self) except -1
    cdef int _deliver(self, bytes message, uint32_t seq) except -1
    cdef int _dispatch(self, bytes message, uint32_t seq) except -1
    cdef int _finish(self, bytes message, uint32_t seq) except -1

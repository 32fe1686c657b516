# Declarations of _one_sided.pyx: READs and WRITEs that a user asked for.
cimport cython
from libc.stdint cimport uint32_t, uint64_t

from ..datapath._qp cimport Flow

@cython.final
cdef class Transfer:
    """One READ or WRITE of any length, posted in fragments."""
    cdef Py_buffer view                     # held until the device has let go
    cdef bint has_view, is_read
    cdef object on_done
    cdef uint32_t lkey, rkey, under_way     # fragments posted and not completed
    cdef uint64_t remote, length, posted
    cdef readonly bint done
    cdef readonly object error              # None: everything was placed

    cdef int let_go(self) except -1

@cython.final
cdef class OneSided(Flow):
    cdef object waiting                     # deque of Transfers with fragments to be posted
    cdef object out                         # deque of Transfers, one entry for each fragment under way
    cdef list held                          # Transfers whose memory the device of a failed link may still touch
    cdef uint32_t fragment, reads
    cdef bint closed, gone
    cdef readonly object error

    cdef Transfer begin(self, object data, bint is_read, uint32_t lkey, uint64_t remote, uint32_t rkey, object on_done)
    cdef bint has_room(self) noexcept
    cdef int pump(self) except -1
    cdef int post_next(self, Transfer transfer) except -1
    cdef int finish(self, Transfer transfer, object error) except -1
    cdef int leave_if_done(self) except -1

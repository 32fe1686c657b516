# Declarations of _one_sided.pyx: READs, WRITEs and atomic operations that a user asked for.
cimport cython
from libc.stdint cimport uint32_t, uint64_t

from .._cq cimport CompletionPoller
from ..datapath._qp cimport Flow
from ..datapath._verbs cimport aio_chain
from ..verbs._spans cimport Spans, span

@cython.final
cdef class Transfer:
    """One operation of any length, posted in chains of fragments."""
    cdef Py_buffer view                     # held until the device has let go
    cdef bint has_view, opaque
    cdef bint gone                          # no more of it is posted
    cdef int op
    cdef span local_one, remote_one
    cdef span *local                        # where it is in both: the piece, and the bytes of it that are behind
    cdef span *remote
    cdef uint64_t local_done, remote_done
    cdef object keep
    cdef object on_done
    cdef uint32_t lkey, rkey, under_way     # chains posted and not completed
    cdef uint64_t base, length, posted      # base: of the remote pieces
    cdef uint64_t value, compare
    cdef uint64_t stage                     # a READ goes there first; the view is not the device's then
    cdef readonly bint done
    cdef readonly object error              # None: everything was placed

    cdef int let_go(self) except -1
    cdef uint32_t next_piece(self, uint32_t most, uint64_t *local, uint64_t *remote) noexcept

@cython.final
cdef class OneSided(Flow):
    cdef object waiting                     # deque of Transfers with fragments to be posted
    cdef object out                         # deque of Transfers, one entry for each chain under way
    cdef list held                          # Transfers whose memory the device of a failed link may still touch
    cdef uint32_t fragment, reads
    cdef bint closed, gone
    cdef readonly bint takes_any_buffer     # of WRITEs: no lkey is needed
    cdef readonly object error

    cdef Transfer new(self, int op, uint32_t lkey, uint64_t base, uint32_t rkey)
    cdef int start(self, Transfer transfer) except -1
    cdef int do_one(self, Transfer transfer) except -1
    cdef bint may_be_at_once(self, Transfer transfer) noexcept
    cdef bint at_once(self, Transfer transfer) except -1
    cdef bint has_room(self) noexcept
    cdef int pump(self) except -1
    cdef int post_next(self, Transfer transfer) except -1
    cdef int add(self, Transfer transfer, aio_chain *chain) except -1
    cdef int finish(self, Transfer transfer, object error) except -1
    cdef int leave_if_done(self) except -1
    cpdef bint spin(self, Transfer transfer) except -1
    cdef bint spins(self, Transfer transfer, CompletionPoller cq) except -1

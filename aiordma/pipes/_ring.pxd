# Declarations of _ring.pyx (station 2 of the path of a byte).
cimport cython
from libc.stdint cimport uint32_t, uint64_t

from ..datapath._verbs cimport aio_chain
from ._ring_life cimport RingLife

@cython.final
cdef class RingPipe(RingLife):
    # the rings
    cdef unsigned char *rx_memory
    cdef uint64_t tx_addr
    cdef uint32_t tx_rkey
    cdef unsigned char *mirror              # local copy of what is under way; NULL where everything goes inline
    cdef uint32_t mirror_lkey
    cdef uint64_t mirror_free_to            # bytes whose WRITEs have completed: the rest of the mirror is the device's
    cdef uint32_t mirror_busy               # WRITEs from the mirror that have not completed
    cdef uint32_t step                      # most bytes that one WRITE places
    cdef uint32_t fragment
    cdef uint32_t turn, firsts              # of the loop, and how many more writes it announces at once
    cdef bint put_off                       # some of this turn were not
    cdef uint32_t read_step                 # most bytes that are read before their room is announced
    # rings that change (_ring_resize.pyx)
    cdef bint paused                        # nothing may be written until the peer names its ring
    cdef bint viewed                        # a view of the ring is out
    cdef uint32_t room_sleeps               # how often credit woke a sleeping writer (see wants() in _ring_resize.pyx)
    cdef uint64_t turned_at                 # bytes received when it was called last

    cpdef Py_ssize_t try_send(self, data, Py_ssize_t start=*) except -1
    cpdef object try_receive(self, Py_ssize_t max_bytes)
    cpdef Py_ssize_t try_receive_into(self, buffer) except -2
    cpdef object view(self)
    cpdef object consume(self, Py_ssize_t n)

    cdef int check_sendable(self) except -1
    cdef Py_ssize_t put_bytes(self, const unsigned char *data, Py_ssize_t n) except -1
    cdef bint comes_first(self) noexcept
    cdef int note_failure(self, Py_ssize_t placed) except -1
    cdef int give_way(self) except -1
    cdef int post_copied(self, aio_chain *chain, uint32_t want) except -1
    cdef int count_placed(self, Py_ssize_t placed, Py_ssize_t n) except -1
    cdef uint32_t room(self) noexcept
    cdef int copy_out(self, unsigned char *to, uint32_t n) except -1
    cdef int consumed(self, uint32_t n) except -1
    cdef void leave_will(self) noexcept
    cdef int post_cdc(self) except -1

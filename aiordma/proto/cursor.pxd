# C types of cursor.py. Every method below compiles to plain C and may run without the GIL.
cimport cython
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef uint32_t _update_limit(uint32_t size) noexcept nogil

@cython.final
cdef class TxWindow:
    cdef readonly uint64_t prod
    cdef readonly uint64_t cons
    cdef readonly uint32_t size
    cdef readonly uint32_t mask
    cdef readonly uint32_t turn
    cdef readonly uint8_t shift
    cdef readonly uint8_t blocked
    cdef readonly uint8_t blocked_told

    cpdef uint32_t used(self) noexcept nogil
    cpdef uint32_t free(self) noexcept nogil
    cpdef uint32_t offset(self) noexcept nogil
    @cython.locals(room=uint32_t, to_end=uint32_t)
    cpdef uint32_t contiguous(self) noexcept nogil
    cpdef int produce(self, uint32_t n) noexcept nogil
    @cython.locals(step=uint32_t, target=uint64_t, freed=uint64_t)
    cpdef int64_t peer_consumed(self, uint16_t wrap, uint32_t count) noexcept nogil
    cpdef int mark_blocked(self) noexcept nogil
    cpdef int resize(self, uint32_t size) noexcept nogil
    cpdef uint16_t wrap(self) noexcept nogil
    cpdef uint32_t count(self) noexcept nogil

@cython.final
cdef class RxWindow:
    cdef readonly uint64_t prod
    cdef readonly uint64_t cons
    cdef readonly uint64_t told
    cdef readonly uint32_t size
    cdef readonly uint32_t mask
    cdef readonly uint32_t turn
    cdef readonly uint32_t update_limit
    cdef readonly uint8_t shift
    cdef public uint8_t peer_blocked
    cdef public uint8_t requested

    cpdef uint32_t available(self) noexcept nogil
    cpdef uint32_t offset(self) noexcept nogil
    @cython.locals(unread=uint32_t, to_end=uint32_t)
    cpdef uint32_t contiguous(self) noexcept nogil
    cpdef int consume(self, uint32_t n) noexcept nogil
    @cython.locals(step=uint32_t, target=uint64_t, arrived=uint64_t)
    cpdef int64_t peer_produced(self, uint16_t wrap, uint32_t count) noexcept nogil
    @cython.locals(arrived=uint64_t)
    cpdef int64_t resize(self, uint64_t position, uint32_t size) noexcept nogil
    @cython.locals(unconfirmed=uint64_t)
    cpdef int update_due(self) noexcept nogil
    cpdef void mark_told(self) noexcept nogil
    cpdef uint16_t wrap(self) noexcept nogil
    cpdef uint32_t count(self) noexcept nogil

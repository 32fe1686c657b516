# C types of message.py. Every cpdef method below compiles to plain C and may run without the GIL.
cimport cython
from libc.stdint cimport uint32_t

cdef uint32_t _OVERHEAD, _MASK

@cython.final
cdef class SendBudget:
    cdef readonly uint32_t limit
    cdef readonly uint32_t sent
    cdef readonly uint32_t reported

    @cython.locals(outstanding=uint32_t)
    cpdef bint allows(self, uint32_t size) noexcept nogil
    cpdef uint32_t send(self, uint32_t size) noexcept nogil
    cpdef bint receive_report(self, uint32_t total) noexcept nogil

@cython.final
cdef class ReceiveBudget:
    cdef readonly uint32_t limit
    cdef readonly uint32_t received
    cdef readonly uint32_t taken
    cdef readonly uint32_t reported
    cdef readonly uint32_t high_water

    @cython.locals(open_=uint32_t, waiting=uint32_t)
    cpdef bint receive(self, uint32_t size) noexcept nogil
    cpdef bint take(self, uint32_t size) noexcept nogil
    cpdef uint32_t report(self) noexcept nogil

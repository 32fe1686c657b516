# C types of valkey.py: what a stream asks for every message.
cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef int _CREDIT
cdef int _ASK_AFTER

@cython.final
cdef class Outgoing:
    cdef readonly uint64_t address
    cdef readonly uint32_t length
    cdef readonly uint32_t rkey
    cdef readonly uint32_t offset
    cdef readonly uint64_t taken
    cdef readonly uint64_t confirmed
    cdef readonly uint64_t asked
    cdef readonly uint64_t full_at
    cdef readonly uint8_t asking

    cpdef uint32_t room(self) noexcept
    cpdef int may_command(self) noexcept
    cpdef void wrote(self, uint32_t n) noexcept
    cpdef void commanded(self) noexcept
    cpdef int ask_due(self) noexcept
    cpdef void ask(self) noexcept

@cython.final
cdef class Incoming:
    cdef readonly uint32_t size
    cdef readonly uint64_t total
    cdef readonly uint64_t granted
    cdef readonly uint64_t arrived
    cdef readonly uint64_t consumed

    cpdef int due(self) noexcept
    cpdef uint64_t next_at(self) noexcept
    cpdef void register(self) noexcept
    cpdef int arrive(self, uint32_t n) noexcept
    cpdef uint64_t readable(self) noexcept
    cpdef uint64_t offset(self) noexcept
    @cython.locals(unread=uint64_t, to_end=uint64_t)
    cpdef uint64_t contiguous(self) noexcept
    cpdef void consume(self, uint64_t n) noexcept

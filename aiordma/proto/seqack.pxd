# C types of seqack.py. Every cpdef method below compiles to plain C and may run without the GIL.
cimport cython
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t

cdef int SEQ_BAD_SEQUENCE
cdef int SEQ_BAD_ACK
cdef int SEQ_OVERRUN

@cython.final
cdef class SeqAckWindow:
    cdef bytearray _done_bytes
    cdef unsigned char* done  # into _done_bytes: one byte for each slot of the window
    cdef readonly uint32_t window
    cdef readonly uint32_t mask
    cdef readonly uint32_t half
    cdef readonly uint32_t early
    cdef readonly uint16_t seq
    cdef readonly uint16_t acked
    cdef readonly uint16_t wta
    cdef readonly uint16_t rta
    cdef readonly uint16_t sent_ack
    cdef readonly uint8_t owed

    cpdef uint32_t credit(self) noexcept nogil
    @cython.locals(seq=uint32_t)
    cpdef int64_t send(self) noexcept nogil
    cpdef uint32_t foretell(self) noexcept nogil
    cpdef int nop_due(self) noexcept nogil
    cpdef uint32_t nop(self) noexcept nogil
    cpdef int ack_owed(self) noexcept nogil
    @cython.locals(seq=uint32_t, acked=int)
    cpdef int receive(self, uint32_t imm) noexcept nogil
    @cython.locals(ack=uint32_t, acked=uint32_t)
    cpdef int receive_nop(self, uint32_t imm) noexcept nogil
    cpdef int complete(self, uint16_t seq) noexcept nogil
    cpdef int complete_quiet(self, uint16_t seq) noexcept nogil
    @cython.locals(ahead=uint32_t, slot=uint32_t, advanced=int)
    cdef int _complete_slot(self, uint16_t seq, int loud) noexcept nogil

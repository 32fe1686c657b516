# C types of cdc.py. Every cpdef method and function below compiles to plain C and may run without the GIL.
cimport cython
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from aiordma.proto.cursor cimport RxWindow, TxWindow

cdef int CHANGE_DATA
cdef int CHANGE_CREDIT
cdef int CHANGE_UPDATE_DUE
cdef int CHANGE_PEER_DONE
cdef int CHANGE_PEER_CLOSED
cdef int CHANGE_PEER_ABORTED
cdef int CHANGE_STALE
cdef int CHANGE_INVALID
cdef int CHANGE_FAILOVER

cdef int FAULT_NONE
cdef int FAULT_CONSUMER
cdef int FAULT_PRODUCER
cdef int FAULT_DATA_AFTER_END

@cython.locals(high=uint32_t)
cdef uint32_t _u32(const unsigned char* data, int at) noexcept nogil
@cython.locals(check=uint32_t)
cpdef int is_damaged(const unsigned char* data) noexcept nogil
@cython.locals(word=uint32_t)
cdef uint32_t _check_word(const unsigned char* data) noexcept nogil
cdef uint32_t _turned(uint32_t word, int by) noexcept nogil
cdef void _put_u16(unsigned char* out, int at, uint32_t value) noexcept nogil
cdef void _put_u32(unsigned char* out, int at, uint32_t value) noexcept nogil

@cython.final
cdef class CdcMessage:
    cdef public uint32_t token
    cdef public uint32_t prod_count
    cdef public uint32_t cons_count
    cdef public uint16_t seq
    cdef public uint16_t prod_wrap
    cdef public uint16_t cons_wrap
    cdef public uint8_t prod_flags
    cdef public uint8_t state_flags
    cdef public uint32_t check

    cpdef int parse(self, const unsigned char* data, uint32_t size) noexcept nogil
    cpdef void write(self, unsigned char* out) noexcept nogil

@cython.final
cdef class CdcConnection:
    cdef readonly TxWindow tx
    cdef readonly RxWindow rx
    cdef readonly uint32_t peer_token
    cdef public uint16_t tx_seq
    cdef public uint16_t rx_seq
    cdef readonly uint8_t local_state
    cdef readonly uint8_t peer_state
    cdef public uint8_t request_update
    cdef readonly uint8_t fault
    cdef public uint8_t checked

    @cython.locals(step=uint32_t, freed=int64_t, arrived=int64_t, changed=int, state=uint32_t, fresh=uint32_t)
    cpdef int receive(self, CdcMessage message) noexcept nogil
    cpdef void write(self, unsigned char* out) noexcept nogil
    @cython.locals(seq=uint16_t, update=uint8_t, blocked=uint8_t, told=uint64_t, requested=uint8_t)
    cpdef void foretell(self, unsigned char* out) noexcept nogil
    @cython.locals(fresh=uint32_t)
    cpdef int set_local_state(self, uint32_t flags) noexcept nogil

# How a port sends.
from libc.stdint cimport int32_t, int64_t

from rocefabric._buffers cimport Buffers
from rocefabric._state cimport Node, Port


cdef class Senders(Buffers):
    cdef int32_t ready_flow(self, Node *node, int group, int64_t *soonest) noexcept nogil
    cdef int32_t emit(self, int32_t number) noexcept nogil
    cdef int64_t offer(self, Port *port, int group, int32_t *flow, int64_t *soonest) noexcept nogil
    cdef int weigh(self, Port *port, int64_t roce, int64_t bulk) noexcept nogil
    cdef void start(self, int32_t at) noexcept nogil
    cdef void send(self, int32_t at, int32_t packet) noexcept nogil
    cdef void send_pause(self, int32_t at) noexcept nogil

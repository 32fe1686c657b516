# What becomes of a packet that arrives.
from libc.stdint cimport int32_t

from rocefabric._senders cimport Senders
from rocefabric._state cimport Packet


cdef class Receivers(Senders):
    cdef void through_switch(self, int32_t at, int32_t ingress) noexcept nogil
    cdef void answer(self, int32_t number, int kind, int32_t seq, int32_t port) noexcept nogil
    cdef void received(self, int32_t at, Packet *packet) noexcept nogil
    cdef void deliver(self, int32_t at, int32_t arrived) noexcept nogil
    cdef void notify(self, int32_t number, int32_t port, bint marked) noexcept nogil
    cdef void look_for_marks(self, int32_t number, int32_t port) noexcept nogil
    cdef void follow(self, int32_t done) noexcept nogil
    cdef void told(self, int32_t number, int kind, int32_t seq, int32_t arrived) noexcept nogil
    cdef void begin(self, int32_t number) noexcept nogil
    cdef void finish(self, int32_t number) noexcept nogil

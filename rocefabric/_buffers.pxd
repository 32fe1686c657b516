# A switch's buffer, and the marks it sets.
from libc.stdint cimport int32_t, int64_t

from rocefabric._parts cimport Parts
from rocefabric._state cimport Node, Packet, Port


cdef class Buffers(Parts):
    cdef bint admit(self, Node *node, Port *port, int32_t at, int64_t cells) noexcept nogil
    cdef void release(self, int32_t at) noexcept nogil
    cdef void look(self, Port *port) noexcept nogil
    cdef double draw(self) noexcept nogil
    cdef void mark(self, Port *port, Packet *packet) noexcept nogil
    cdef bint drawn(self, Port *port, double share) noexcept nogil

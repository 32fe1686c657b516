# C types of at_once.py.
cimport cython
from ..wake.turns cimport Turns

@cython.final
cdef class AtOnce:
    cdef Turns _turns
    cdef object _try_send
    cdef object _poll_receive

    @cython.locals(turns=Turns, size=cython.Py_ssize_t, placed=cython.Py_ssize_t)
    cpdef object send(self, item, guard)
    @cython.locals(turns=Turns)
    cpdef object receive(self, max_bytes, guard)

@cython.final
cdef class AtOnceBehind:
    cdef Turns _turns
    cdef object _spin_readable
    cdef object _try_receive

    @cython.locals(turns=Turns)
    cpdef object receive(self, bytearray before, max_bytes)

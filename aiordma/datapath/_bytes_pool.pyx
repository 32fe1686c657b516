# cython: language_level=3, boundscheck=False, wraparound=False
"""Large bytes objects that are filled again when their receiver has dropped them.

When a receiver takes one large ``bytes`` after another and drops each, the allocator may get its memory from the
kernel and return it every time, depending on the layout of its heap: 1 MiB sends were measured at 4 GB/s and at
40 GB/s for that reason alone. The pool therefore keeps the last few objects, and reuses one that has no other
reference.
"""
from cpython.bytes cimport PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject

from ..borrowed import ENABLED as _ENABLED
from ..borrowed import shapes


cdef extern from "datapath/_bytes_pool.h":
    void aio_spare_reset(PyObject *value, Py_ssize_t size)
    int aio_is_alone(PyObject *value)

# Whether bytes objects are laid out as Python's headers say to those who may not look (``aiordma.borrowed``).
cdef bint _REUSES = _ENABLED and not shapes.bytes_objects()

cdef enum:
    LEAST = 32768           # smaller ones come from the allocator's own lists, quickly
    MOST = 1 << 20


cdef class SpareBytes:
    """At most four objects of 32 KiB to 1 MiB. One per engine; :meth:`age` releases them when the engine is idle."""

    def __cinit__(self):
        self.held = [None] * SPARES

    cpdef bytes take(self, Py_ssize_t n):
        """A bytes object of ``n`` bytes of undefined content, to be filled before other code sees it."""
        cdef int slot
        cdef PyObject *found
        cdef bytes fresh
        if n < LEAST or n > MOST or not _REUSES:
            return PyBytes_FromStringAndSize(NULL, n)
        self.used = True
        for slot in range(SPARES):
            found = <PyObject *>(<list>self.held)[slot]
            # At most twice the size: a result that is kept occupies the whole object.
            if self.capacity[slot] >= n and self.capacity[slot] <= 2 * n and aio_is_alone(found):
                aio_spare_reset(found, n)
                self.reused += 1
                return <bytes>found
        fresh = PyBytes_FromStringAndSize(NULL, n)
        self.made += 1
        self.held[self.next_slot] = fresh
        self.capacity[self.next_slot] = n
        self.next_slot = (self.next_slot + 1) % SPARES
        return fresh

    cdef bytes cut(self, bytes taken, Py_ssize_t n):
        """The result of take(), shortened to the ``n`` bytes that were filled."""
        if n < PyBytes_GET_SIZE(taken):
            if not _REUSES:
                return taken[:n]
            aio_spare_reset(<PyObject *>taken, n)
        return taken

    def age(self) -> None:
        """Called by the engine's timer: release the objects if none was used since the last call."""
        cdef int slot
        if not self.used:
            for slot in range(SPARES):
                self.held[slot] = None
                self.capacity[slot] = 0
        self.used = False

# cython: language_level=3, boundscheck=False, wraparound=False
"""Large bytes objects that are filled again when their receiver has dropped them.

A receiver that takes one large ``bytes`` after another, and drops each, makes the allocator take its memory from
the kernel and give it back every time, or not, depending on how its heap happens to lie: 1 MiB sends were seen
to go at 4 GB/s or at 40 GB/s for no other reason. So the last few are remembered here; one that nobody else
refers to any more is as good as new.
"""
from cpython.bytes cimport PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject


cdef extern from "datapath/_bytes_pool.h":
    void aio_spare_reset(PyObject *value, Py_ssize_t size)
    Py_ssize_t Py_REFCNT(PyObject *value)

cdef enum:
    LEAST = 32768           # smaller ones come from the allocator's own lists, quickly
    MOST = 1 << 20


cdef class SpareBytes:
    """At most four objects of 32 KiB to 1 MiB. One an engine; given up by :meth:`age` when the engine is idle."""

    def __cinit__(self):
        self.held = [None] * SPARES

    cpdef bytes take(self, Py_ssize_t n):
        """A bytes object of ``n`` bytes of undefined content, to be filled before anybody else sees it."""
        cdef int slot
        cdef PyObject *found
        cdef bytes fresh
        if n < LEAST or n > MOST:
            return PyBytes_FromStringAndSize(NULL, n)
        self.used = True
        for slot in range(SPARES):
            found = <PyObject *>(<list>self.held)[slot]
            # Not one of twice the size: who keeps the result would keep more memory than he sees.
            if self.capacity[slot] >= n and self.capacity[slot] <= 2 * n and Py_REFCNT(found) == 1:
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
        """What take() has just given, shortened to the ``n`` bytes that were filled."""
        if n < PyBytes_GET_SIZE(taken):
            aio_spare_reset(<PyObject *>taken, n)
        return taken

    def age(self) -> None:
        """Called by the engine's timer: what was not used since the last time goes back to the allocator."""
        cdef int slot
        if not self.used:
            for slot in range(SPARES):
                self.held[slot] = None
                self.capacity[slot] = 0
        self.used = False

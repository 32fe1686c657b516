"""Memory regions."""
cimport cython

from ._objects cimport PD, Handle


@cython.no_gc
cdef class MR(Handle):
    cdef int move_to(self, PD pd) except -1

"""Memory regions."""
cimport cython

from ._objects cimport Handle


@cython.no_gc
cdef class MR(Handle):
    pass

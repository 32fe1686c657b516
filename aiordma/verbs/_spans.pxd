# Declarations of _spans.pyx: several pieces of memory as one.
cimport cython
from libc.stdint cimport uint64_t

cdef struct span:
    uint64_t start
    uint64_t length

@cython.final
cdef class Spans:
    cdef span *at
    cdef span first                         # where one is enough
    cdef readonly Py_ssize_t count
    cdef Py_ssize_t room
    cdef readonly uint64_t nbytes
    cdef Py_buffer *views                   # of buffers that are held
    cdef Py_ssize_t held
    cdef object keep

    cdef int append(self, uint64_t start, uint64_t length) except -1
    cdef int add_checked(self, object start, object length, uint64_t base, uint64_t limit) except -1
    cdef int hold(self, object buffer, bint writable) except -1
    cdef int add_rows(self, Py_buffer *view, int dimension, char *address, int whole) except -1
    cdef int copy(self, uint64_t offset, char *flat, uint64_t n, bint into_spans) except -1

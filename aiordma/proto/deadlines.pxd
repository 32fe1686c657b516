# C types of deadlines.py.
cimport cython

@cython.final
cdef class Deadlines:
    cdef public list _heap
    cdef public long long _count
    cdef public Py_ssize_t _compact_at

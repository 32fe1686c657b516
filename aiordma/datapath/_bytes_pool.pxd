# Declarations of _bytes_pool.pyx.
cdef enum:
    SPARES = 4

cdef class SpareBytes:
    cdef list held                          # bytes objects, or None
    cdef Py_ssize_t capacity[SPARES]        # what each was made with
    cdef int next_slot
    cdef bint used                          # since the last age()
    cdef readonly unsigned long long reused, made

    cpdef bytes take(self, Py_ssize_t n)
    cdef bytes cut(self, bytes taken, Py_ssize_t n)

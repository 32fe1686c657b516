cimport cython


@cython.final
cdef class CancelCheck:
    cdef object loop, current_task
    cdef object ref             # weak, to the task that asked last
    cdef dict tasks, states
    cdef unsigned long thread

    cpdef bint requested(self) except -1

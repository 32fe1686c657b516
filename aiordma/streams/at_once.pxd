# C types of at_once.py.
cimport cython

@cython.final
cdef class AtOnce:
    cdef object _waker
    cdef object _cancel_requested
    cdef object _try_send
    cdef object _poll_receive

    @cython.locals(share=cython.long, size=cython.Py_ssize_t, placed=cython.Py_ssize_t)
    cpdef object send(self, item, guard)
    @cython.locals(share=cython.long)
    cpdef object receive(self, max_bytes, guard)

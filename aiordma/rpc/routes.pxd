# C types of routes.py.
cimport cython

@cython.final
cdef class Route:
    cdef public object method
    cdef public int kind
    cdef public object handler
    cdef public bint is_async
    cdef public object decode
    cdef public object place
    cdef public object encode
    cdef public int context_index
    cdef public int stream_index
    cdef public bint takes_items
    cdef public int keys
    cdef public object unary
    cdef public object stream

@cython.final
cdef class Dispatch:
    cdef public dict routes
    cdef public bint places
    cdef public object start
    cdef public object is_cancelled
    cdef public object call
    cdef public object variables
    cdef public bint expose_errors
    cdef public list refusals

# C types of call.py.
cimport cython

cdef class MethodNumber

@cython.final
cdef class Call:
    cdef public unsigned int id
    cdef public long long serial
    cdef public int kind
    cdef public object owner
    cdef public bint closed
    cdef public bint cancelled
    cdef public bint ended
    cdef public bint headers
    cdef public long long send_window
    cdef public long long receive_window
    cdef public long long receive_limit
    cdef public long long owed
    cdef public long long objects
    cdef public double deadline
    cdef public int stop
    cdef public object trace
    cdef public MethodNumber method

@cython.final
cdef class MethodNumber:
    cdef public unsigned int number
    cdef public object name
    cdef public long long calls
    cdef public long long errors
    cdef public bint told

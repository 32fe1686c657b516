# C types of calls.py.
from .call cimport Call
from .deadlines cimport Deadlines
from .rpc cimport RpcMessage

cdef class Calls:
    cdef public object own
    cdef public object peer
    cdef public dict calls
    cdef public RpcMessage message
    cdef public Call call
    cdef public long long serial
    cdef public bint leaving
    cdef public Deadlines deadlines

    cdef bint _may_send(self, Call call)
    cdef bytes _item(self, Call call, int encoding, Py_ssize_t size, bint last)
    cpdef take_back(self, Call call, Py_ssize_t size)
    cpdef taken(self, Call call, Py_ssize_t size)
    cdef _receive_item(self, Call call)
    cdef _receive_credit(self, Call call)
    cdef int _receive_hello(self) except -1
    cdef _check_metadata(self)

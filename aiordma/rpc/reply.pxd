# C types of reply.py.
from ..proto.rpc cimport RpcMessage
from ..proto.trace cimport ClientTrace, Tracer

cdef Tracer recorder

cdef class Reply:
    cdef public bint done
    cdef public int encoding
    cdef public object error
    cdef public object payload
    cdef public object raw_metadata
    cdef public object raw_trailing
    cdef public ClientTrace trace
    cdef public object waiter

    cpdef on_reply(self, RpcMessage message)
    cpdef fail(self, error)

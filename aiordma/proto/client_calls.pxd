# C types of client_calls.py.
cimport cython
from .call cimport Call, MethodNumber
from .calls cimport Calls
from .rpc cimport RpcMessage, call_head

@cython.final
cdef class ClientCalls(Calls):
    cdef dict _methods
    cdef public list refused
    cdef public bint told

    @cython.locals(serial=cython.longlong, call=Call)
    cpdef Call start(self, int kind, owner, window=*)
    cpdef bytes head(self, Call call, MethodNumber method, int encoding, deadline_us=*, metadata=*, trace=*)
    cpdef bint may_send(self, Call call) except -1
    cpdef bytes item(self, Call call, int encoding, Py_ssize_t size, bint last=*)
    @cython.locals(kind=int, message=RpcMessage, call=Call)
    cpdef int receive(self, data) except -1
    @cython.locals(message=RpcMessage)
    cdef int _receive_for_connection(self, int kind) except -1
    cdef _receive_for_call(self, int kind, Call call)
    cdef int _receive_goaway(self) except -1

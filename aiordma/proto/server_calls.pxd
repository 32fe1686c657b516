# C types of server_calls.py.
cimport cython
from .call cimport Call
from .calls cimport Calls
from .rpc cimport RpcMessage, reply_head

@cython.final
cdef class ServerCalls(Calls):
    cdef list _targets
    cdef list _names
    cdef list _methods
    cdef public object target
    cdef public long long seen
    cdef public long long objects

    @cython.locals(kind=int, message=RpcMessage, call=Call)
    cpdef int receive(self, data) except -1
    cdef int _receive_for_connection(self, int kind) except -1
    cdef _receive_for_call(self, int kind, Call call)
    @cython.locals(message=RpcMessage, call=Call, step=cython.uint)
    cdef int _receive_call(self) except -1
    @cython.locals(message=RpcMessage, number=cython.uint)
    cdef _find_target(self)
    cpdef bytes reply(self, Call call, int encoding, metadata=*, trailing=*, trace=*)
    cdef _close(self, Call call)
    cpdef bint may_send(self, Call call) except -1
    cpdef bytes item(self, Call call, int encoding, Py_ssize_t size)

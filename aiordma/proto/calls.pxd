# C types of calls.py.
cimport cython
from .call cimport Call, MethodNumber
from .deadlines cimport Deadlines
from .rpc cimport RpcMessage, call_head, reply_head

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

# C types of dispatch.py.
cimport cython
from ..proto.call cimport Call
from ..proto.rpc cimport RpcMessage
from ..proto.server_calls cimport ServerCalls
from ..proto.trace cimport Tracer
from .multiplexer cimport Multiplexer
from .routes cimport Dispatch, Route

cdef Tracer recorder

cdef class ServerConnection(Multiplexer):
    cdef public ServerCalls machine
    cdef public RpcMessage _message
    cdef public Dispatch _dispatch
    cdef public bint _staying
    cdef public dict _announced
    cdef public Py_ssize_t _most_queued
    cdef public long long most_held

    @cython.locals(event=int)
    cpdef _on_message(self, data)
    @cython.locals(message=RpcMessage, route=Route, encoding=int, dispatch=Dispatch)
    cdef _on_call(self, Call call)
    cdef Route _find_route(self)
    cdef _decode(self, Call call, Route route, int encoding, payload)
    cpdef hold(self, Call call, long long earlier, long long objects, where)
    @cython.locals(dispatch=Dispatch)
    cdef _begin(self, Call call, coro)
    cdef _on_stream(self, Call call, Route route)
    cdef _reply(self, Call call, int encoding, payload, context)
    cdef _finish(self, Call call, bytes head, payload, what)
    cpdef _flush(self)

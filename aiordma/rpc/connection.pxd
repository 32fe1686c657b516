# C types of connection.py.
cimport cython
from ..credit cimport CreditWindow
from ..proto.call cimport Call, MethodNumber
from ..proto.client_calls cimport ClientCalls
from ..proto.rpc cimport RpcMessage
from ..proto.trace cimport ClockOffset, Tracer
from .multiplexer cimport Multiplexer
from .reply cimport Reply

cdef Tracer recorder

cdef class Connection(Multiplexer):
    cdef public ClientCalls machine
    cdef public RpcMessage _message
    cdef public CreditWindow in_flight
    cdef public object _hello
    cdef public object _spin
    cdef public list _idle_waiters
    cdef public dict _pings
    cdef public long long _ping_number
    cdef public object _goaway_text
    cdef public ClockOffset clock
    cdef object _late

    @cython.locals(spun=bint, share=long)
    cdef bint _poll_for(self, Reply reply) except -1
    cdef _check_usable(self)
    @cython.locals(call=Call, number=MethodNumber, machine=ClientCalls, left_us=object)
    cdef Call _send_call(self, caller, method, int encoding, payload, double deadline, metadata)
    cdef _is_sent(self, Call call, double deadline)
    cdef _not_sent(self, Call call, exc)
    @cython.locals(event=int, call=Call)
    cpdef _on_message(self, data)

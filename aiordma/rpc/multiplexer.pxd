# C types of multiplexer.py.
cimport cython
from ..proto.calls cimport Calls
from ..proto.deadlines cimport Deadlines
from ..proto.rpc cimport RpcMessage

@cython.final
cdef class Parcel:
    cdef public bytes head
    cdef public object body
    cdef public Py_ssize_t nbytes
    cdef public object waiter
    cdef public object key
    cdef public bint sent
    cdef public object error
    cdef public object instead

cdef class Multiplexer:
    cdef public object channel
    cdef public object peer
    cdef public long long most_objects
    cdef public long long most_keys
    cdef public object waker
    cdef public object ended
    cdef public object on_end
    cdef public object _channel_try_send
    cdef public Deadlines _deadlines
    cdef public Calls _base
    cdef public object _queue
    cdef public object _urgent
    cdef public Py_ssize_t _queued_bytes
    cdef public Py_ssize_t _most_queued_bytes
    cdef public bint _receives
    cdef public dict _mergeable
    cdef public object _timer
    cdef public double _timer_at
    cdef public list _drained
    cdef public object _receive
    cdef public RpcMessage _front
    cdef object __weakref__

    cpdef bint try_send(self, bytes head, body=*) except -1
    cpdef send(self, bytes head, body=*, instead=*)
    cpdef send_short(self, bytes head, body=*)
    cdef Parcel _enqueue(self, bytes head, body, waiter, key)
    cdef _gone(self, Parcel parcel)
    cpdef _flush(self)
    cpdef _end(self, reason)

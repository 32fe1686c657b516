# C types of tcp.py. What TlsPipe overrides or uses is public or cpdef.
cimport cython

cdef class TcpPipe:
    cdef public object _sock
    cdef int _fd
    cdef public object _waker
    cdef bytes _chunk
    cdef object _held_back
    cdef Py_ssize_t _offset
    cdef Py_ssize_t _read_size
    cdef bint _flowing
    cdef bint _watching
    cdef bint _wanted
    cdef public bint _watching_writable
    cdef object _on_readable
    cdef public object _on_writable
    cdef bint _eof
    cdef public bint _eof_sent
    cdef public bint _closed
    cdef public object _error
    cdef public bint pushes
    cdef public long long reads_ahead
    cdef long long _sent
    cdef public long long _received
    cdef long long _short_sends
    cdef long long _pauses

    cpdef Py_ssize_t try_send(self, data, Py_ssize_t start=*) except -1
    cdef Py_ssize_t _hand_over(self, data) except -1
    cdef _refuse_sending(self)
    cpdef _watch_writable(self)
    cpdef _writable_again(self)
    cpdef try_receive(self, Py_ssize_t max_bytes)
    cpdef Py_ssize_t try_receive_into(self, buf) except -2
    cdef Py_ssize_t _take_into(self, view) except -2
    cdef _advance(self, Py_ssize_t n)
    cpdef _nothing(self)
    cpdef bytes _read(self, Py_ssize_t size)
    cdef bytes _sift(self, bytes data)
    cpdef _release_held(self)
    cdef _fill(self)
    cpdef _watch(self)
    cdef _unwatch(self)
    cpdef _readable_now(self)
    cdef bint _has_more(self) except -1
    cpdef _fail(self, exc)
    cpdef _fail_sending(self, exc)
    cpdef close(self)
    cpdef abort(self)
    cpdef _reset_on_close(self)

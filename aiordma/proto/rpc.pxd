# C types of rpc.py.
cimport cython
from libc.stdint cimport uint32_t

@cython.final
cdef class RpcMessage:
    cdef public int type
    cdef public int flags
    cdef public int encoding
    cdef public int extra
    cdef public unsigned int call_id
    cdef public unsigned int method
    cdef public object name
    cdef public object deadline_us
    cdef public unsigned int window
    cdef public object metadata
    cdef public object trailing
    cdef public object trace
    cdef public object text
    cdef public object details
    cdef public object number
    cdef public object clock_ns
    cdef public object hello
    cdef public object payload

    @cython.locals(size=cython.Py_ssize_t, kind=int, front=bytes)
    cpdef int parse(self, message) except -1
    cdef _rest(self, message, Py_ssize_t at, Py_ssize_t size)
    @cython.locals(flags=int, at=cython.Py_ssize_t, length=cython.Py_ssize_t)
    cdef int _parse_call(self, message, bytes front, Py_ssize_t size) except -1
    @cython.locals(at=cython.Py_ssize_t)
    cdef _parse_other(self, message, int kind, Py_ssize_t size)
    @cython.locals(flags=int, at=cython.Py_ssize_t, length=cython.Py_ssize_t)
    cdef _parse_reply(self, message, Py_ssize_t size)
    cdef _parse_hello(self, message, Py_ssize_t size)
    cdef Py_ssize_t _need(self, message, Py_ssize_t at, Py_ssize_t count, Py_ssize_t size) except -1
    cdef _end(self, Py_ssize_t at, Py_ssize_t size)

cdef bytearray _ROOM
cpdef bytearray room(int size)
@cython.locals(piece=bytes)
cpdef bytes part(const unsigned char* data, Py_ssize_t begin, Py_ssize_t end)
cdef uint32_t _u32(const unsigned char* data, int at) noexcept
cdef void _put(unsigned char* out, int kind, int flags, int encoding, int extra, uint32_t call_id,
               uint32_t more) noexcept
@cython.locals(out=bytearray)
cdef bytes _header(int kind, int flags, int encoding, int extra, uint32_t call_id)
@cython.locals(out=bytearray)
cdef bytes _longer_header(int kind, int flags, int encoding, int extra, uint32_t call_id, uint32_t more)
@cython.locals(out=bytearray)
cdef bytes _traced_header(int kind, int encoding, int extra, uint32_t call_id, uint32_t more, int size, bytes block)
@cython.locals(place=int)
cdef void _put_block(unsigned char* out, int at, const unsigned char* block) noexcept

@cython.locals(flags=int)
cpdef bytes call_head(unsigned int call_id, int kind, int encoding, unsigned int method, name=*, deadline_us=*,
                      window=*, metadata=*, trace=*)
cpdef bytes reply_head(unsigned int call_id, int encoding, metadata=*, trailing=*, trace=*)
cpdef bytes item_head(unsigned int call_id, int encoding, bint last=*)
cpdef bytes credit_message(unsigned int call_id, more)
cpdef bytes end_message(unsigned int call_id)
cpdef bytes cancel_message(unsigned int call_id, int code)

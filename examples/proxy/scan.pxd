# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# C types for scan.py (which stays plain Python).
cimport cython

ctypedef const unsigned char *octets

cdef Py_ssize_t _BULK, _ITEMS, _COMMAND_ITEMS, _DEPTH
cdef int _START, _SIZE, _LINE, _LINE_END, _BODY, _BODY_CR, _BODY_LF
cdef int _COUNTED, _ATTRIBUTE, _PUSH, _CHUNKS


cdef class ReplyScanner:
    cdef public Py_ssize_t done
    cdef int state, kind, digits, role, depth
    cdef Py_ssize_t size, body, left
    cdef list stack
    cdef bint attributed

    @cython.locals(p=octets, size=Py_ssize_t, end=Py_ssize_t, state=int, c=int)
    cpdef Py_ssize_t feed(self, bytes data, Py_ssize_t pos, Py_ssize_t want) except -1
    cdef int _start_size(self, int kind) except -1
    @cython.locals(kind=int, role=int, items=Py_ssize_t)
    cdef bint _line_ended(self) except -1
    cdef int _open(self, Py_ssize_t items, int role) except -1
    @cython.locals(outer=Py_ssize_t)
    cdef int _leave(self) except -1
    @cython.locals(role=int)
    cdef bint _close(self) except -1
    @cython.locals(role=int)
    cdef bint _item_ended(self) except -1


cdef class CommandScanner:
    cdef public set known
    cdef public Py_ssize_t end, big_bytes
    cdef public int verdict
    cdef public str error
    cdef Py_ssize_t items, seen
    cdef bint named, other

    @cython.locals(p=octets, size=Py_ssize_t, count=Py_ssize_t, pos=Py_ssize_t,
                   items=Py_ssize_t, at=Py_ssize_t, number=Py_ssize_t, first=bint)
    cpdef Py_ssize_t feed(self, bytes data, Py_ssize_t start=*) except -1
    cdef int _bad(self, str error) except -1

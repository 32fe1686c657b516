"""Verbs objects, each the owner of what a verbs call made."""
cimport cython

from ._attributes cimport QPCap
from ._library cimport Destroy, Library
from .._structs cimport ibv_async_event


@cython.no_gc
cdef class Handle:
    cdef object __weakref__
    cdef void *pointer
    cdef Destroy destroy
    cdef str destroyer
    cdef Library library
    cdef tuple parents
    cdef object children
    cdef int rank
    #: Of borrowed objects: raises ValueError if their owner has closed them.
    cdef object still_open
    cdef int own(self, void *made, str maker, Destroy destroy, str destroyer, Library library, tuple parents) except -1
    cdef int borrow(self, void *pointer, object still_open, Library library, tuple parents) except -1
    cdef void *opened(self) except NULL
    cdef int end(self) except -1


@cython.no_gc
cdef class Context(Handle):
    pass


@cython.no_gc
cdef class PD(Handle):
    pass


@cython.no_gc
cdef class CompChannel(Handle):
    pass


@cython.no_gc
cdef class CQ(Handle):
    pass


@cython.no_gc
cdef class QP(Handle):
    pass


@cython.no_gc
cdef class AH(Handle):
    pass


cdef class QPInitAttr:
    cdef readonly int qp_type
    cdef readonly CQ scq
    cdef readonly CQ rcq
    cdef readonly QPCap cap
    cdef readonly int sq_sig_all


cdef class AsyncEvent:
    cdef ibv_async_event event
    cdef Library library

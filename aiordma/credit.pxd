# C types of credit.py.
cimport cython

@cython.final
cdef class QueueEntry:
    cdef public Py_ssize_t n
    cdef public object waiter
    cdef public bint granted

cdef class CreditWindow:
    cdef Py_ssize_t _limit
    cdef Py_ssize_t _available
    cdef object _queue
    cdef object _exc
    cdef long long _acquired
    cdef long long _waits
    cdef long long _cancelled
    cdef Py_ssize_t _peak_in_use
    cdef Py_ssize_t _peak_waiting

    cdef _check(self, n)
    @cython.locals(available=cython.Py_ssize_t, wanted=cython.Py_ssize_t)
    cpdef bint try_acquire(self, n=*) except -1
    @cython.locals(in_use=cython.Py_ssize_t)
    cdef _take(self, Py_ssize_t n)
    cdef QueueEntry _queued(self, Py_ssize_t n, waiter)
    cpdef withdraw(self, QueueEntry entry)
    @cython.locals(count=cython.Py_ssize_t)
    cpdef release(self, n=*)
    @cython.locals(entry=QueueEntry)
    cdef _serve(self)

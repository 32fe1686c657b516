# Copies of payload. Of less than 2 KiB, memcpy() and PyBytes_FromStringAndSize() are as good.
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize


cdef extern from "verbs/_copy.h" nogil:
    # memmove(), but for one case in which it is slow: the header tells which.
    void aio_copy(void *to, const void *source, size_t n)


cdef inline bytes bytes_of(const void *data, Py_ssize_t n):
    cdef bytes out = PyBytes_FromStringAndSize(NULL, n)
    aio_copy(PyBytes_AS_STRING(out), data, n)
    return out

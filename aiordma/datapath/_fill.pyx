# cython: language_level=3
"""bytes that are filled in place: a large read is copied once, from the ring into its result."""
from cpython.buffer cimport PyBUF_WRITE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromMemory


def unfilled(Py_ssize_t size) -> tuple[bytes, memoryview]:
    """A bytes object of this size with undefined content, and the view to fill it through.

    No other code may see the object before all of it is filled. The view must not be used after that, nor
    after the object is freed: it does not keep the object alive.

    :raises ValueError: size < 1
    :raises MemoryError: not enough memory
    """
    if size < 1:
        raise ValueError(f"size must be at least 1, not {size}")
    cdef bytes whole = PyBytes_FromStringAndSize(NULL, size)
    return whole, PyMemoryView_FromMemory(PyBytes_AS_STRING(whole), size, PyBUF_WRITE)

# cython: language_level=3
"""Memory that is filled in place: a large read is copied once, from the ring or the kernel into its result."""
cimport cython
from cpython.buffer cimport PyBUF_WRITE, PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc
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


@cython.final
@cython.no_gc
cdef class Unfilled:
    """Memory with undefined content, lent to the views of it. What is large takes pages only as it is filled."""
    cdef void *start
    cdef Py_ssize_t length

    def __cinit__(self, Py_ssize_t size):
        self.start = PyMem_RawMalloc(size)
        if self.start == NULL:
            raise MemoryError(f"no memory for {size} bytes")
        self.length = size

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.start, self.length, 0, flags)

    def __dealloc__(self):
        PyMem_RawFree(self.start)


def unfilled_view(Py_ssize_t size) -> memoryview:
    """A writable view of new memory with undefined content, which lives as long as views of it do.

    :raises MemoryError: not enough memory
    """
    return memoryview(Unfilled(size))

# cython: language_level=3
"""Memory at an address as a Python buffer, with items and a shape, and the atomic operations on 64-bit words of it."""
cimport cython
from cpython.buffer cimport (
    PyBUF_FORMAT,
    PyBUF_ND,
    PyBUF_SIMPLE,
    PyBUF_STRIDES,
    PyBUF_WRITABLE,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from libc.stdint cimport uint64_t, uintptr_t

cdef extern from * nogil:
    """
    #include <stdint.h>
    static uint64_t aio_fetch_add(uint64_t *at, uint64_t value)
    {
        return __atomic_fetch_add(at, value, __ATOMIC_SEQ_CST);
    }
    static uint64_t aio_compare_swap(uint64_t *at, uint64_t expected, uint64_t value)
    {
        __atomic_compare_exchange_n(at, &expected, value, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
        return expected;
    }
    """
    uint64_t aio_fetch_add(uint64_t *at, uint64_t value)
    uint64_t aio_compare_swap(uint64_t *at, uint64_t expected, uint64_t value)

cdef enum:
    MOST_DIMENSIONS = 8


def fetch_and_add(uintptr_t address, uint64_t value) -> int:
    """Add to the word at ``address``, a multiple of 8, modulo 2**64; what was there."""
    return aio_fetch_add(<uint64_t *>address, value)


def compare_and_swap(uintptr_t address, uint64_t expected, uint64_t value) -> int:
    """Store ``value`` at ``address``, a multiple of 8, if ``expected`` is there; what was there."""
    return aio_compare_swap(<uint64_t *>address, expected, value)


cdef class MemoryWindow:
    """A buffer over ``shape`` items of ``itemsize`` bytes at ``address``.

    :param owner: keeps the memory; held as long as this object or a buffer of it is there.
    :param opaque: memory of a device: there is no buffer, and the address is the device's.
    """
    cdef unsigned char *start
    cdef readonly object owner
    cdef Py_ssize_t dimensions[MOST_DIMENSIONS]
    cdef Py_ssize_t steps[MOST_DIMENSIONS]
    cdef Py_ssize_t itemsize
    cdef int ndim
    cdef bytes code
    cdef readonly bint readonly, opaque
    cdef readonly Py_ssize_t nbytes

    def __init__(self, uintptr_t address, tuple shape, Py_ssize_t itemsize, str format, *, owner, bint readonly=False,
                 bint opaque=False):
        cdef Py_ssize_t size = itemsize
        cdef int i
        if not 1 <= len(shape) <= MOST_DIMENSIONS:
            raise ValueError(f"{len(shape)} dimensions: must be from 1 to {MOST_DIMENSIONS}")
        self.start, self.owner, self.itemsize, self.readonly = <unsigned char *>address, owner, itemsize, readonly
        self.code, self.opaque = format.encode(), opaque
        self.ndim = len(shape)
        for i in range(self.ndim - 1, -1, -1):
            self.dimensions[i], self.steps[i] = shape[i], size
            size *= self.dimensions[i]
        self.nbytes = size

    @property
    def address(self) -> int:
        return <uintptr_t>self.start

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        if self.opaque:
            raise BufferError("this memory is a device's: the CPU cannot reach it")
        if flags & PyBUF_WRITABLE and self.readonly:
            raise BufferError("this memory is read-only")
        buffer.obj, buffer.buf, buffer.len = self, self.start, self.nbytes
        buffer.readonly, buffer.itemsize = self.readonly, self.itemsize
        buffer.format = <char *>self.code if flags & PyBUF_FORMAT else NULL
        buffer.ndim = self.ndim
        buffer.shape = self.dimensions if flags & PyBUF_ND else NULL
        buffer.strides = self.steps if flags & PyBUF_STRIDES == PyBUF_STRIDES else NULL
        buffer.suboffsets, buffer.internal = NULL, NULL


def address_of(data) -> int:
    """Where the bytes of a contiguous buffer lie."""
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        return <uintptr_t>view.buf
    finally:
        PyBuffer_Release(&view)


def bytes_of(data) -> memoryview:
    """A contiguous buffer of any items as bytes."""
    cdef object whole = memoryview(data)
    if whole.ndim == 1 and whole.format == "B":
        return whole
    return memoryview(MemoryWindow(address_of(whole), (whole.nbytes,), 1, "B", owner=whole, readonly=whole.readonly))

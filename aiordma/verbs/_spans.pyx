# cython: language_level=3, boundscheck=False, wraparound=False
"""Several pieces of memory as one: the blocks of a list, the rows of a strided array, or several buffers."""
cimport cython
from cpython.buffer cimport (
    PyBUF_FULL_RO,
    PyBUF_SIMPLE,
    PyBUF_WRITABLE,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from libc.stdint cimport int64_t, uint64_t, uintptr_t

from ..plain cimport check_plain
from ._copy cimport aio_copy

cdef enum:
    MOST = 1 << 24      # pieces of one operation: 256 MiB to describe them


@cython.final
cdef class Spans:
    """Pieces of memory, in order: by address, or by their offset in something larger. Pieces without bytes are left
    out, and one that begins where the one before it ends is a part of that.

    What was given as a buffer is held until :meth:`release`.
    """

    def __cinit__(self):
        self.at, self.room = &self.first, 1

    def __dealloc__(self):
        self.release()
        PyMem_Free(self.views)
        if self.at != &self.first:
            PyMem_Free(self.at)

    def release(self) -> None:
        """Let go of the buffers, if it holds some; their spans are gone then, too. Idempotent."""
        cdef Py_ssize_t i, held = self.held
        if held == 0:
            return
        self.held = self.count = 0
        self.nbytes = 0
        for i in range(held):
            PyBuffer_Release(&self.views[i])

    # ---- made of

    @staticmethod
    def one(uint64_t start, uint64_t length, keep=None) -> Spans:
        """A single piece."""
        cdef Spans spans = Spans.__new__(Spans)
        spans.append(start, length)
        spans.keep = keep
        return spans

    @staticmethod
    def pieces(uint64_t base, uint64_t limit, pieces, keep=None) -> Spans:
        """Pairs of start and stop, in bytes from ``base`` on.

        :raises ValueError: one is not inside of ``limit`` bytes.
        """
        cdef Spans spans = Spans.__new__(Spans)
        for start, stop in pieces:
            spans.add_checked(start, stop - start, base, limit)
        spans.keep = keep
        return spans

    @staticmethod
    def blocks(uint64_t base, uint64_t limit, size, numbers, keep=None) -> Spans:
        """Blocks of ``size`` bytes: number n begins at byte n * size from ``base`` on.

        :raises ValueError: one is not inside of ``limit`` bytes.
        """
        cdef Spans spans = Spans.__new__(Spans)
        if size < 1:
            raise ValueError(f"blocks of {size} bytes: must be at least 1")
        for number in numbers:
            spans.add_checked(int(number) * size, size, base, limit)
        spans.keep = keep
        return spans

    @staticmethod
    def rows(uint64_t base, uint64_t limit, start, nbytes, step, count, keep=None) -> Spans:
        """``count`` rows of ``nbytes`` bytes, the first at ``start``, one every ``step`` bytes.

        :raises ValueError: one is not inside of ``limit`` bytes.
        """
        cdef Spans spans = Spans.__new__(Spans)
        for row in range(count):
            spans.add_checked(start + row * step, nbytes, base, limit)
        spans.keep = keep
        return spans

    @staticmethod
    def buffers(buffers, bint writable) -> Spans:
        """The bytes of buffers; of arrays that are not contiguous, the bytes of their items in C order.

        :raises BufferError: one is read-only and must not be, or has no plain memory. :raises TypeError: it is none.
        """
        cdef Spans spans = Spans.__new__(Spans)
        cdef Py_ssize_t room
        buffers = list(buffers)
        room = len(buffers)
        spans.views = <Py_buffer *>PyMem_Malloc(max(1, room) * sizeof(Py_buffer))
        if spans.views == NULL:
            raise MemoryError
        for buffer in buffers:
            spans.hold(buffer, writable)
        return spans

    cdef int hold(self, object buffer, bint writable) except -1:
        cdef Py_buffer *view = &self.views[self.held]
        cdef int whole
        check_plain(buffer)
        PyObject_GetBuffer(buffer, view, PyBUF_FULL_RO)
        self.held += 1
        if writable and view.readonly:
            raise BufferError("what is read into must be writable")
        if view.suboffsets != NULL:
            raise BufferError("an array of pointers to its rows is no plain memory")
        # The dimensions from `whole` on lie one after the other.
        cdef Py_ssize_t row = view.itemsize
        whole = view.ndim
        while whole > 0 and view.strides != NULL and (
                view.shape[whole - 1] == 1 or view.strides[whole - 1] == row):
            row *= view.shape[whole - 1]
            whole -= 1
        if view.len == 0:
            return 0
        if view.strides == NULL or whole == 0:
            return self.append(<uint64_t><uintptr_t>view.buf, view.len)
        return self.add_rows(view, 0, <char *>view.buf, whole)

    cdef int add_rows(self, Py_buffer *view, int dimension, char *address, int whole) except -1:
        cdef Py_ssize_t i, length
        cdef int inner
        if dimension == whole:
            length = view.itemsize
            for inner in range(whole, view.ndim):
                length *= view.shape[inner]
            return self.append(<uint64_t><uintptr_t>address, length)
        for i in range(view.shape[dimension]):
            self.add_rows(view, dimension + 1, address + i * view.strides[dimension], whole)
        return 0

    cdef int add_checked(self, object start, object length, uint64_t base, uint64_t limit) except -1:
        if start < 0 or length < 0 or start + length > limit:
            raise ValueError(f"{length} bytes at {start} are not inside of {limit} bytes")
        return self.append(base + <uint64_t>start, length)

    cdef int append(self, uint64_t start, uint64_t length) except -1:
        cdef span *grown
        cdef span *last
        if length == 0:
            return 0
        self.nbytes += length
        if self.count:
            last = &self.at[self.count - 1]
            if last.start + last.length == start:
                last.length += length
                return 0
        if self.count == self.room:
            if self.room >= MOST:
                raise ValueError(f"more than {MOST} pieces in one operation")
            grown = <span *>PyMem_Realloc(NULL if self.at == &self.first else self.at, 4 * self.room * sizeof(span))
            if grown == NULL:
                raise MemoryError
            if self.at == &self.first:
                grown[0] = self.first
            self.at, self.room = grown, 4 * self.room
        self.at[self.count] = span(start, length)
        self.count += 1
        return 0

    # ---- used as

    def cut(self, uint64_t offset, uint64_t length) -> Spans:
        """``length`` of the bytes, from ``offset`` on. Holds no buffers: keep this object."""
        cdef Spans part = Spans.__new__(Spans)
        cdef Py_ssize_t i
        cdef uint64_t n
        for i in range(self.count):
            if length == 0:
                break
            if offset >= self.at[i].length:
                offset -= self.at[i].length
                continue
            n = min(self.at[i].length - offset, length)
            part.append(self.at[i].start + offset, n)
            length -= n
            offset = 0
        part.keep = self
        return part

    def pairs(self) -> list[tuple[int, int]]:
        """Start and length of each."""
        return [(self.at[i].start, self.at[i].length) for i in range(self.count)]

    def gather(self, uint64_t offset, flat) -> None:
        """Copy bytes from ``offset`` on into ``flat``, as many as it has."""
        cdef Py_buffer view
        PyObject_GetBuffer(flat, &view, PyBUF_SIMPLE | PyBUF_WRITABLE)
        try:
            self.copy(offset, <char *>view.buf, view.len, False)
        finally:
            PyBuffer_Release(&view)

    def scatter(self, uint64_t offset, flat) -> None:
        """Copy ``flat`` over the bytes from ``offset`` on."""
        cdef Py_buffer view
        PyObject_GetBuffer(flat, &view, PyBUF_SIMPLE)
        try:
            self.copy(offset, <char *>view.buf, view.len, True)
        finally:
            PyBuffer_Release(&view)

    cdef int copy(self, uint64_t offset, char *flat, uint64_t n, bint into_spans) except -1:
        cdef Py_ssize_t i = 0
        cdef uint64_t part
        cdef char *there
        if offset > self.nbytes or n > self.nbytes - offset:
            raise ValueError(f"{n} bytes at {offset} are not inside of {self.nbytes} bytes")
        with nogil:
            while n:
                if offset >= self.at[i].length:
                    offset -= self.at[i].length
                    i += 1
                    continue
                part = min(self.at[i].length - offset, n)
                there = <char *><uintptr_t>(self.at[i].start + offset)
                if into_spans:
                    aio_copy(there, flat, part)
                else:
                    aio_copy(flat, there, part)
                flat += part
                n -= part
                offset = 0
                i += 1
        return 0

# cython: language_level=3, boundscheck=False, wraparound=False
"""Memory to and from other array libraries without copies: DLPack, on CPUs."""
from cpython.buffer cimport PyBUF_FULL_RO, PyBuffer_Release, PyObject_GetBuffer
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_New
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t

from ._window import MemoryWindow

cdef extern from "verbs/_dlpack.h" nogil:
    enum:
        AIO_DL_CPU
        AIO_DL_INT
        AIO_DL_UINT
        AIO_DL_FLOAT
        AIO_DL_BOOL
        AIO_DL_READ_ONLY
    cdef struct aio_dl_tensor:
        void *data
        int32_t device_type
        int32_t device_id
        int32_t ndim
        uint8_t code
        uint8_t bits
        uint16_t lanes
        int64_t *shape
        int64_t *strides
        uint64_t byte_offset
    cdef struct aio_dl_managed:
        aio_dl_tensor tensor
        void *context
        void (*deleter)(aio_dl_managed *self) noexcept
    cdef struct aio_dl_versioned:
        uint32_t major
        uint32_t minor
        void *context
        void (*deleter)(aio_dl_versioned *self) noexcept
        uint64_t flags
        aio_dl_tensor tensor

cdef const char *PLAIN = b"dltensor"
cdef const char *VERSIONED = b"dltensor_versioned"

_CODES = {
    "?": AIO_DL_BOOL,
    **dict.fromkeys("bhilq", AIO_DL_INT),
    **dict.fromkeys("BHILQ", AIO_DL_UINT),
    **dict.fromkeys("efd", AIO_DL_FLOAT),
}
_FORMATS = {
    (AIO_DL_BOOL, 8): "?",
    (AIO_DL_INT, 8): "b", (AIO_DL_INT, 16): "h", (AIO_DL_INT, 32): "i", (AIO_DL_INT, 64): "q",
    (AIO_DL_UINT, 8): "B", (AIO_DL_UINT, 16): "H", (AIO_DL_UINT, 32): "I", (AIO_DL_UINT, 64): "Q",
    (AIO_DL_FLOAT, 16): "e", (AIO_DL_FLOAT, 32): "f", (AIO_DL_FLOAT, 64): "d",
}
CPU = (AIO_DL_CPU, 0)


# ---- for others

cdef struct Export:
    aio_dl_managed plain
    aio_dl_versioned versioned
    Py_buffer view
    int64_t shape[8]


cdef void let_go(Export *export) noexcept with gil:
    PyBuffer_Release(&export.view)
    PyMem_RawFree(export)


cdef void delete_plain(aio_dl_managed *managed) noexcept nogil:
    let_go(<Export *>managed.context)


cdef void delete_versioned(aio_dl_versioned *managed) noexcept nogil:
    let_go(<Export *>managed.context)


cdef void end_of_capsule(object capsule) noexcept:
    """Its receiver renames it; what still has its name was not received."""
    if PyCapsule_IsValid(capsule, PLAIN):
        delete_plain(<aio_dl_managed *>PyCapsule_GetPointer(capsule, PLAIN))
    elif PyCapsule_IsValid(capsule, VERSIONED):
        delete_versioned(<aio_dl_versioned *>PyCapsule_GetPointer(capsule, VERSIONED))


def export(buffer, max_version=None) -> object:
    """A capsule for ``from_dlpack()`` of another library, which keeps the buffer.

    :param max_version: the version of DLPack that it takes; None: before 1.0, which has no read-only memory.
    :raises BufferError: it is read-only, and the other library takes only memory to be written; or has no plain items.
    """
    cdef Export *made
    cdef aio_dl_tensor *tensor
    cdef bint versioned = max_version is not None and max_version >= (1, 0)
    cdef int i
    made = <Export *>PyMem_RawMalloc(sizeof(Export))
    if made == NULL:
        raise MemoryError
    try:
        PyObject_GetBuffer(buffer, &made.view, PyBUF_FULL_RO)
    except BaseException:
        PyMem_RawFree(made)
        raise
    code = _CODES.get("B" if made.view.format == NULL else (<bytes>made.view.format).decode())
    if made.view.readonly and not versioned:
        problem = "this memory is read-only, and the other library's version of DLPack knows only memory to be written"
    elif code is None:
        problem = "items that DLPack does not know"
    else:
        problem = ""
    if problem:
        let_go(made)
        raise BufferError(problem)
    tensor = &made.versioned.tensor if versioned else &made.plain.tensor
    tensor.data, tensor.device_type, tensor.device_id = made.view.buf, AIO_DL_CPU, 0
    tensor.ndim, tensor.code, tensor.bits, tensor.lanes = made.view.ndim, code, made.view.itemsize * 8, 1
    for i in range(made.view.ndim):
        made.shape[i] = made.view.shape[i]
    tensor.shape, tensor.strides, tensor.byte_offset = made.shape, NULL, 0
    if versioned:
        made.versioned.major, made.versioned.minor = 1, 0
        made.versioned.context, made.versioned.deleter = made, delete_versioned
        made.versioned.flags = AIO_DL_READ_ONLY if made.view.readonly else 0
        return PyCapsule_New(&made.versioned, VERSIONED, end_of_capsule)
    made.plain.context, made.plain.deleter = made, delete_plain
    return PyCapsule_New(&made.plain, PLAIN, end_of_capsule)


# ---- from others

def imported(array) -> MemoryWindow:
    """The memory of an array that is no buffer, such as a tensor, as a buffer that keeps it.

    :raises BufferError: it is not in the CPU's memory, not contiguous, or has items that buffers do not know.
    """
    cdef aio_dl_tensor *tensor
    cdef bint readonly = False
    cdef int64_t step = 1
    cdef int i
    kind = array.__dlpack_device__()[0]
    if kind != AIO_DL_CPU:
        raise BufferError(f"an array on a device (DLPack's type {int(kind)}), not in the CPU's memory: export its dma-buf")
    try:
        capsule = array.__dlpack__(max_version=(1, 0))
    except TypeError:
        capsule = array.__dlpack__()    # before DLPack 1.0
    if PyCapsule_IsValid(capsule, VERSIONED):
        tensor = &(<aio_dl_versioned *>PyCapsule_GetPointer(capsule, VERSIONED)).tensor
        readonly = (<aio_dl_versioned *>PyCapsule_GetPointer(capsule, VERSIONED)).flags & AIO_DL_READ_ONLY
    else:
        tensor = &(<aio_dl_managed *>PyCapsule_GetPointer(capsule, PLAIN)).tensor
    form = _FORMATS.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    # Items that buffers have no name for (bfloat16) are bytes.
    size = tensor.bits * tensor.lanes // 8
    shape = tuple([tensor.shape[i] for i in range(tensor.ndim)]) or (1,)
    if form is None:
        form, shape, size = "B", (*shape, size), 1
    for i in range(tensor.ndim - 1, -1, -1):
        if tensor.strides != NULL and tensor.shape[i] > 1 and tensor.strides[i] != step:
            raise BufferError("only contiguous arrays can be used without a copy")
        step *= tensor.shape[i]
    if 0 in shape or not tensor.data:
        shape = (0,)
    # The capsule is never received: it frees the array when it goes.
    return MemoryWindow(<uintptr_t>tensor.data + tensor.byte_offset, shape, size, form, owner=capsule, readonly=readonly)

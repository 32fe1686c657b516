"""Memory regions: registered by its address, at an address of one's own choice, or as a dma-buf.

Closing and errors are those of ``_objects``.
"""
cimport cython
from libc.errno cimport EOPNOTSUPP
from libc.stdint cimport uint64_t, uintptr_t

from ._library cimport Library, failure
from ._objects cimport PD, Handle
from .._structs cimport IBV_ACCESS_OPTIONAL_RANGE, ibv_mr, ibv_pd


@cython.no_gc
cdef class MR(Handle):
    """``length`` bytes of memory at ``address``, registered. The memory must outlive the registration.

    :param iova: the address by which work requests name its first byte; default: its own.
    """

    def __init__(self, PD pd not None, size_t length, int access, uintptr_t address, *, iova=None):
        cdef ibv_pd *domain = <ibv_pd *>pd.opened()
        cdef Library library = pd.library
        cdef ibv_mr *made
        cdef uint64_t first = address if iova is None else iova
        cdef bint plain = iova is None
        cdef str call
        self.rank = 1
        # As the macros of <infiniband/verbs.h> choose: only the last one takes access rights that a device may ignore.
        if access & IBV_ACCESS_OPTIONAL_RANGE:
            call = "ibv_reg_mr_iova2"
            with nogil:
                made = library.call.reg_mr_iova2(domain, <void *>address, length, first, access)
        elif plain:
            call = "ibv_reg_mr"
            with nogil:
                made = library.call.reg_mr(domain, <void *>address, length, access)
        else:
            call = "ibv_reg_mr_iova"
            with nogil:
                made = library.call.reg_mr_iova(domain, <void *>address, length, first, access)
        self.own(made, call, library.call.dereg_mr, "ibv_dereg_mr", library, (pd,))

    @property
    def lkey(self):
        """The key for work requests of this process."""
        return (<ibv_mr *>self.opened()).lkey

    @property
    def rkey(self):
        """The key for the peer."""
        return (<ibv_mr *>self.opened()).rkey


@cython.no_gc
cdef class DmaBufMR(MR):
    """``length`` bytes from ``offset`` on of the dma-buf with the descriptor ``fd``, registered.

    :param iova: the address by which work requests name its first byte; default: ``offset``.
    """

    def __init__(self, PD pd not None, size_t length, int access, int fd, *, uint64_t offset=0, iova=None):
        cdef ibv_pd *domain = <ibv_pd *>pd.opened()
        cdef Library library = pd.library
        cdef ibv_mr *made
        cdef uint64_t first = offset if iova is None else iova
        self.rank = 1
        if library.call.reg_dmabuf_mr == NULL:
            raise failure("ibv_reg_dmabuf_mr (this libibverbs has none, rdma-core 34 has)", EOPNOTSUPP)
        with nogil:
            made = library.call.reg_dmabuf_mr(domain, offset, length, first, fd, access)
        self.own(made, "ibv_reg_dmabuf_mr", library.call.dereg_mr, "ibv_dereg_mr", library, (pd,))

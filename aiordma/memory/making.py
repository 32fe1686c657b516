"""Making regions: of memory that is allocated for them, of memory that exists, and of memory of devices."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ..negotiation.engine import ready_engine
from ..negotiation.opening import opening
from ..negotiation.options import config_of
from ..plain import check_plain
from ..proto.memory import Fault
from ..verbs import _dlpack
from ..verbs._window import address_of
from ..verbs.abi import Access
from ..verbs.adopted import bytes_of_region
from ..verbs.device import register_dmabuf, translated
from ..verbs.lifetime import protect
from ..wake.interrupts import uninterrupted
from .errors import MemoryAccessError
from .region import Region, Registry
from .storage import item, new_storage

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

    from ..config import Config
    from ..links.link_memory import LinkMemory, Registration
    from ..verbs.device import Backend
    from .local import Array


@opening
@uninterrupted
async def alloc(
    shape: int | tuple[int, ...], dtype: Any = "uint8", *, config: Config | None = None
) -> Region:
    """Allocate a region: zeroed memory that devices reach at their best.

    Opens the event loop's RDMA device, as a connection does, since that decides where the memory comes from.

    :param shape: number of items, or the dimensions of an array.
    :param dtype: "uint8", "float32" and the like, a numpy dtype, ``int`` or ``float``.
    :param config: settings; None: from the environment. ``memory_limit_bytes`` limits what regions of this
        loop have together.
    :raises ValueError: there would be no bytes.
    :raises MemoryError: (``MemoryLimitError``) above the limit. :raises OSError: the system has no memory.
    """
    config = config_of(config)
    dimensions = (shape,) if isinstance(shape, int) else tuple(shape)
    items = item(dtype)
    length = items[1]
    for dimension in dimensions:
        if dimension < 1:
            raise ValueError(f"shape={shape}: a region has at least one item")
        length *= dimension
    registry = Registry.current()
    registry.account.take(length, config.memory_limit_bytes)
    try:
        storage = await new_storage(length, config)
        return Region(registry, storage.address, dimensions, items, owner=storage)
    except BaseException:
        registry.account.give(length)
        raise


@uninterrupted
def register(
    memory: Buffer | Array | int,
    *,
    offset: int = 0,
    length: int | None = None,
    config: Config | None = None,
) -> Region:
    """Make existing memory a region: a numpy array, ``bytearray``, ``mmap``, shared memory, a tensor in the
    CPU's memory (by DLPack), or, by the descriptor of its dma-buf, memory of a device.

    A ``pyverbs.mr.MR`` stands for its memory, which pyverbs frees with it: close the region first.

    A buffer is held, and cannot change its size, until the region is closed. Where this event loop has opened
    a device that pins memory, this pins it until then. If it has not, a peer that opens the region does, and
    is told what is wrong.

    The CPU does not reach a region that is a dma-buf: it is no buffer, and peers open it on RDMA only. The
    descriptor may be closed afterwards.

    :param memory: a buffer, an array, or the file descriptor of a dma-buf.
    :param offset, length: of a dma-buf: which bytes of it.
    :param config: as of :func:`alloc`.
    :raises BufferError, TypeError: it is no contiguous buffer in the CPU's memory.
    :raises ValueError: it is empty. :raises MemoryError: (``MemoryLimitError``) above the limit.
    :raises OSError: (``VerbsError``) the device cannot pin it: the text says why.
    """
    config = config_of(config)
    if isinstance(memory, int):
        return _register_dmabuf(memory, offset, length, config)
    if offset or length is not None:
        raise TypeError("offset and length are for a dma-buf: slice other memory")
    whole = _whole(memory)
    check_plain(whole)
    if not whole.c_contiguous:
        raise BufferError("only contiguous memory can be a region: copy it, or register its base")
    if not whole.nbytes:
        raise ValueError("an empty buffer cannot be a region")
    registry = Registry.current()
    registry.account.take(whole.nbytes, config.memory_limit_bytes)
    return _pinned(
        Region(registry, address_of(whole), (whole.nbytes,), ("B", 1), owner=whole, readonly=whole.readonly)
    )


def _whole(memory: Buffer | Array) -> memoryview:
    found = bytes_of_region(memory)
    if found is not None:
        return memoryview(found)
    try:
        return memoryview(memory)  # type: ignore[arg-type]
    except TypeError:
        if not hasattr(memory, "__dlpack__"):
            raise
    return memoryview(_dlpack.imported(memory))


# ---- memory of devices


class _Descriptor:
    """A file descriptor of our own."""

    fd = -1

    def __init__(self, fd: int) -> None:
        self.fd = os.dup(fd)

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


class _DmaBufRegion(Region):
    """A part of a dma-buf. Its addresses are offsets in it."""

    owner: _Descriptor

    def registered(
        self,
        memory: LinkMemory,
        start: int,
        length: int,
        access: Access,
        on_close: Callable[[], object] | None = None,
    ) -> Registration:
        """See :class:`.region.Region`."""
        return memory.register_dmabuf(
            self.owner.fd, self.address + start, length, access, keep=self.owner, on_close=on_close
        )

    def check_by_loop(self) -> None:
        """See :class:`.region.Region`."""
        raise MemoryAccessError(
            Fault.LIMIT,
            "this memory is a device's (a dma-buf): only RDMA reaches it, not the owner's program",
        )


def _register_dmabuf(fd: int, offset: int, length: int | None, config: Config) -> Region:
    if length is None or length < 1 or offset < 0:
        raise ValueError(
            f"offset={offset}, length={length}: a dma-buf needs a length, and an offset from 0 on"
        )
    registry = Registry.current()
    registry.account.take(length, config.memory_limit_bytes)
    try:
        owner = _Descriptor(fd)
    except OSError:
        registry.account.give(length)
        raise
    return _pinned(_DmaBufRegion(registry, offset, (length,), ("B", 1), owner=owner, opaque=True))


# ---- pinned


def _pinned(region: Region) -> Region:
    """The region, pinned if there is a device to do it. :raises VerbsError: it cannot."""
    engine: Any = ready_engine(region.registry.waker)
    try:
        # The software device pins nothing, and has no dma-bufs.
        if engine is not None and (engine.backend.soft is None or region.opaque):
            region.pin = _DevicePin(engine.backend, region)
    except BaseException:
        region.close()
        raise
    return region


class _DevicePin:
    """A registration that no peer has access by."""

    def __init__(self, backend: Backend, region: Region) -> None:
        self._backend = backend
        access = int(Access.NONE if region.readonly else Access.LOCAL_WRITE)
        self._pd = backend.alloc_pd()
        api = backend.binding
        try:
            if isinstance(region, _DmaBufRegion):
                self._mr = register_dmabuf(
                    backend, self._pd, region.owner.fd, region.address, region.nbytes, access
                )
            else:
                what = f"{region.nbytes} bytes on {backend.name}"
                with translated(api, "ibv_reg_mr", what):
                    self._mr = protect(api.MR(self._pd, region.nbytes, access, region.address))
        except BaseException:
            self._pd.close()
            raise

    def close(self) -> None:
        """See :class:`.region.Pin`. The end of the device has done it already."""
        if not self._backend.in_forked_child:
            self._mr.close()
            self._pd.close()

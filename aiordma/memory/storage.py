"""Where the bytes of regions come from, what they may take together, and how their items are named.

On the software device an allocated region is a segment of its own, which a peer on the same host maps when
it opens all of it: its READs and WRITEs are copies by that peer, without a system call. On other devices, and
without RDMA, it is anonymous memory.
"""

from __future__ import annotations

import mmap
import os
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import wake
from ..errors import NegotiationError
from ..negotiation.engine import find_engine
from ..verbs._window import address_of
from ..verbs.memory.budget import MemoryLimitError
from ..wake.beside import Beside

if TYPE_CHECKING:
    from ..config import Config
    from ..verbs.device import Backend

_FORMATS = {
    "bool": ("?", 1),
    "int8": ("b", 1),
    "uint8": ("B", 1),
    "int16": ("h", 2),
    "uint16": ("H", 2),
    "int32": ("i", 4),
    "uint32": ("I", 4),
    "int64": ("q", 8),
    "uint64": ("Q", 8),
    "float16": ("e", 2),
    "float32": ("f", 4),
    "float64": ("d", 8),
    "int": ("q", 8),
    "float": ("d", 8),
}


def item(dtype: object) -> tuple[str, int]:
    """Format (of the buffer protocol) and size of an item.

    :param dtype: a name such as "float32", a numpy dtype or scalar type, or ``int`` or ``float``.
    :raises TypeError: it is none of these.
    """
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None) or getattr(dtype, "__name__", "")
    found = _FORMATS.get(str(name))
    if found is None:
        raise TypeError(f"dtype {dtype!r}: must be one of {', '.join(_FORMATS)}")
    return found


class MemoryStatistics(NamedTuple):
    """What the regions of an event loop take."""

    #: regions that are open
    regions: int
    #: bytes in them, and the most there ever were
    bytes: int
    bytes_high_water: int


class Account:
    """Counts the bytes of an event loop's regions."""

    def __init__(self) -> None:
        self.regions = self.bytes = self.high_water = 0

    def take(self, length: int, limit: int) -> None:
        """:raises MemoryLimitError: there would be more than ``limit`` bytes."""
        if self.bytes + length > limit:
            raise MemoryLimitError(
                f"a region of {length} bytes, and regions have {self.bytes} of {limit} already: raise "
                "Config.memory_limit_bytes (AIORDMA_MEMORY_LIMIT_BYTES), or close regions"
            )
        self.regions += 1
        self.bytes += length
        self.high_water = max(self.high_water, self.bytes)

    def give(self, length: int) -> None:
        """A region is closed."""
        self.regions -= 1
        self.bytes -= length

    def statistics(self) -> MemoryStatistics:
        """Now."""
        return MemoryStatistics(self.regions, self.bytes, self.high_water)


class _Pages:
    """Anonymous memory, given back with the last buffer of it."""

    def __init__(self, length: int, *, for_device: bool) -> None:
        self._map = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if for_device:
            # After a fork it would go on using the pages of one of both processes.
            self._map.madvise(mmap.MADV_DONTFORK)
        self._view = memoryview(self._map)
        self.address = address_of(self._view)


class _Segment:
    """A segment of the software device, given back with the last buffer of it."""

    def __init__(self, home: _Source, length: int) -> None:
        self.address = 0
        assert home.backend.soft is not None
        self._home, self._soft, self._length = home, home.backend.soft, length
        self.address = home.backend.soft.alloc(home.pd_pointer, length)

    def __del__(self) -> None:
        if self.address and os.getpid() == self._home.process:
            self._soft.free(self._home.pd_pointer, self.address, self._length)


class _Source(NamedTuple):
    """Where segments come from. They outlive event loops and engines, as buffers of them may."""

    process: int
    backend: Backend
    pd: Any
    pd_pointer: int


_homes: dict[int, _Source] = {}
#: Loops of several threads may begin at the same time.
_one_at_a_time = threading.Lock()


def _open_home() -> _Source:
    """In a thread: a device is opened."""
    from ..verbs.backend import open_backend

    with _one_at_a_time:
        home = _homes.get(os.getpid())
        if home is None:
            backend = open_backend("soft")
            try:
                pd = backend.alloc_pd()
            except BaseException:
                backend.close()  # else each region that is tried would open the device once more
                raise
            pointer = backend.binding.pointers.pd_pointer(pd)
            home = _homes[os.getpid()] = _Source(os.getpid(), backend, pd, pointer)
    return home


async def _find_home() -> _Source:
    home = _homes.get(os.getpid())
    return home or await Beside(wake.current(), _open_home, lambda opened: opened).wait()


async def new_storage(length: int, config: Config) -> Any:
    """Memory of ``length`` zero bytes, with its ``address``.

    :raises OSError: the system has none.
    """
    if config.mode != "tcp":
        try:
            engine: Any = await find_engine(config)
        except NegotiationError:
            pass
        else:
            if engine.backend.soft is not None:
                return _Segment(await _find_home(), length)
            return _Pages(length, for_device=True)
    return _Pages(length, for_device=False)

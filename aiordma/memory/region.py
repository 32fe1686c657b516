"""Regions: memory of this end that peers may read and write, as far as their descriptors say.

A :class:`Region` belongs to one event loop, whose :class:`Registry` knows it until it is closed or the loop
ends. :meth:`Piece.descriptor` makes a :class:`Grant`; each peer that opens it has an opening of its own (see
:mod:`.owner`), with a registration for the bytes and rights of the grant.
"""

from __future__ import annotations

import functools
import sys
import time
import warnings
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, Self
from weakref import WeakSet

from .. import wake
from ..proto.memory import Descriptor, Fault, Rights
from ..verbs import _dlpack
from ..verbs._spans import Spans
from ..verbs._window import MemoryWindow, bytes_of
from ..verbs.lifetime import release_all
from ..wake.ending import release_unclosed
from ..wake.interrupts import uninterrupted
from ..wake.origin import here
from .atomics import RegionAtomics
from .errors import MemoryAccessError
from .storage import Account, MemoryStatistics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..links.link_memory import LinkMemory, Registration
    from ..verbs.abi import Access
    from ..wake.base import Handle, Waiter, Waker

GRACE_S = 5.0
"""Seconds that a peer has for ending its operations when its access is taken back."""
#: Grants that are over and remembered, so that a peer learns why.
_REMEMBERED = 4096
_KEY = object()
#: The letters of the buffer protocol, as array interfaces have them.
_KINDS = {"?": "b", **dict.fromkeys("bhilq", "i"), **dict.fromkeys("BHILQ", "u"), **dict.fromkeys("efd", "f")}


class OpenedGrant(Protocol):
    """A grant that one peer has opened."""

    def recall(self, fault: Fault, grace: float) -> None:
        """Have the peer end its use; after ``grace`` seconds it is ended."""


class Pin(Protocol):
    """Memory that a device keeps where it is."""

    def close(self) -> None:
        """It is not needed any more."""


class Grant:
    """What one descriptor allows. Ended: it opens nothing any more, and peers that have it open are told."""

    def __init__(self, region: Region, start: int, descriptor: Descriptor, deadline: float | None) -> None:
        self.region, self.start, self.descriptor, self.deadline = region, start, descriptor, deadline
        self.openings: set[OpenedGrant] = set()
        self.timer: Handle | None = None
        self.waiters: list[Waiter] = []

    def closed(self, opening: OpenedGrant) -> None:
        """A peer does not use it any more."""
        self.openings.discard(opening)
        if not self.openings:
            waiters, self.waiters = self.waiters, []
            for waiter in waiters:
                waiter.set()
            self.region._settle()


class Registry:
    """The regions and grants of one event loop."""

    def __init__(self) -> None:
        self.waker = wake.current()
        self.account = Account()
        #: Those that the program has, or that descriptors refer to.
        self.regions: WeakSet[Region] = WeakSet()
        self.grants: dict[bytes, Grant] = {}
        self._ended: OrderedDict[bytes, Fault] = OrderedDict()
        #: The loop is over, and its regions with it.
        self.ended = False
        self.waker.at_loop_end(self._loop_ended)

    def _loop_ended(self) -> None:
        self.ended = True

    @classmethod
    def current(cls) -> Registry:
        """That of the running loop."""
        known = wake.current().locals
        registry: Registry | None = known.get(_KEY)
        if registry is None:
            registry = known[_KEY] = cls()
        return registry

    @staticmethod
    def of(waker: Waker) -> Registry | None:
        """That of a loop, if it has one."""
        found: Registry | None = waker.locals.get(_KEY)
        return found

    def find(self, descriptor: Descriptor) -> Grant:
        """The grant that a peer shows the descriptor of.

        :raises MemoryAccessError: there is none, or it is over.
        """
        grant = self.grants.get(descriptor.identity)
        if grant is None:
            fault = self._ended.get(descriptor.identity, Fault.UNKNOWN)
            raise MemoryAccessError(fault, _WHY[fault])
        if not grant.descriptor.matches(descriptor):
            raise MemoryAccessError(Fault.UNKNOWN, _WHY[Fault.UNKNOWN])
        if grant.deadline is not None and self.waker.now() >= grant.deadline:
            raise MemoryAccessError(Fault.EXPIRED, _WHY[Fault.EXPIRED])
        return grant

    def end(self, grant: Grant, fault: Fault, grace: float) -> None:
        """Refuse to open it from now on, and take it back from peers that have it open. Idempotent."""
        if self.grants.pop(grant.descriptor.identity, None) is not None:
            self._ended[grant.descriptor.identity] = fault
            if len(self._ended) > _REMEMBERED:
                self._ended.popitem(last=False)
            grant.region._grants.discard(grant)
            if grant.openings:
                grant.region._ending.add(grant)
        if grant.timer is not None:
            grant.timer.cancel()
            grant.timer = None
        for opening in list(grant.openings):
            opening.recall(fault, grace)


_WHY = {
    Fault.UNKNOWN: "the peer never made this descriptor, or forgot it with its region",
    Fault.REVOKED: "the descriptor was taken back by its owner",
    Fault.EXPIRED: "the time of the descriptor is over",
}


def statistics() -> MemoryStatistics:
    """What the regions of the running event loop take."""
    return Registry.current().account.statistics()


class Pieces:
    """Several pieces of a region, in order, as an operation uses them: what is read goes to the first of them
    first."""

    def __init__(self, region: Region, spans: Spans) -> None:
        self.region, self.spans = region, spans

    def __reduce__(self) -> NoReturn:
        refuse_pickle()

    @property
    def nbytes(self) -> int:
        """Bytes in all of them."""
        return self.spans.nbytes

    def __len__(self) -> int:
        return self.nbytes


class Piece:
    """Some bytes of a region, one after the other: ``region[a:b]``. A buffer by :attr:`view`."""

    def __init__(self, region: Region, start: int, stop: int) -> None:
        self.region, self.start, self.stop = region, start, stop

    @property
    def nbytes(self) -> int:
        """Length in bytes."""
        return self.stop - self.start

    def __len__(self) -> int:
        return self.nbytes

    def __getitem__(self, where: slice) -> Piece:
        return Piece(self.region, *_inside(where, self.start, self.stop))

    @property
    def view(self) -> memoryview:
        """Its bytes, writable unless the region is read-only. Valid for as long as it is kept."""
        if self.region._flat is None:
            raise BufferError("this memory is a device's: the CPU cannot reach it")
        return self.region._flat[self.start : self.stop]

    def descriptor(
        self, rights: Rights = Rights.READ | Rights.WRITE, *, expires_in: float | None = None
    ) -> bytes:
        """A descriptor of these bytes: 56 bytes, to be sent to a peer by any means. A process with them and a
        connection to this event loop (:func:`~aiordma.memory.serve`, or :func:`~aiordma.memory.connect` to
        the peer) can open it, so they are to be kept as a password is.

        :param rights: what it allows. Read-only memory can be given for ``Rights.READ`` only.
        :param expires_in: seconds until it ends; None: when it is revoked or the region is closed.
        :raises ValueError: no bytes, no rights, or rights that the memory does not have.
        """
        return self.region._grant(self.start, self.stop, Rights(rights), expires_in)


def refuse_pickle() -> NoReturn:
    """:raises TypeError: always."""
    raise TypeError(
        "a region is memory of this process and cannot be pickled or copied: send its descriptor() to other "
        "processes, or bytes(region[:].view)"
    )


def check_slice(where: object, what: str) -> None:
    """:raises TypeError: it is an index."""
    if not isinstance(where, slice):
        raise TypeError(
            f"{what} is sliced in bytes, {what}[start:stop], not indexed by {type(where).__name__}: one byte "
            f"is {what}[n:n + 1], and single items are those of a memoryview or an array"
        )


def _inside(where: slice, start: int, stop: int) -> tuple[int, int]:
    check_slice(where, "region")
    first, last, step = where.indices(stop - start)
    if step != 1:
        raise ValueError("a piece of memory is contiguous: no steps")
    return start + first, start + max(first, last)


@uninterrupted
class Region(MemoryWindow):
    """Memory that peers may use. Made by ``alloc()`` and ``register()``; ``async with`` closes it.

    It is a buffer of its items (``memoryview(region)``, ``numpy.asarray(region)``); slices of it are bytes.
    It stays open until :meth:`aclose` or the end of its event loop, also when only a descriptor of it is
    left. One that is dropped with nothing left of it is closed, with a ``ResourceWarning``. Buffers keep the
    memory beyond that.
    """

    def __init__(
        self,
        registry: Registry,
        address: int,
        shape: tuple[int, ...],
        items: tuple[str, int],
        *,
        owner: object,
        readonly: bool = False,
        opaque: bool = False,
    ) -> None:
        super().__init__(address, shape, items[1], items[0], owner=owner, readonly=readonly, opaque=opaque)
        self.registry = registry
        self._flat = None if opaque else bytes_of(self)
        self.atomics = RegionAtomics()
        self._grants: set[Grant] = set()
        self._ending: set[Grant] = set()  # revoked, and a peer still has them open
        self._local: dict[LinkMemory, Registration] = {}
        #: What keeps the memory pinned while no peer has it open.
        self.pin: Pin | None = None
        self._users = 0
        self._closing = self._closed = False
        self._waiters: list[Waiter] = []
        self.origin = here()
        registry.regions.add(self)

    @property
    def closed(self) -> bool:
        """Whether it was closed, and no device knows it any more."""
        return self._closed

    def __reduce__(self) -> NoReturn:
        refuse_pickle()

    def __len__(self) -> int:
        return self.nbytes

    def __getitem__(self, where: slice) -> Piece:
        return Piece(self, *_inside(where, 0, self.nbytes))

    def blocks(self, nbytes: int, numbers: Iterable[int]) -> Pieces:
        """Blocks of it, in this order: number n begins at byte ``n * nbytes``.

        :raises ValueError: one is not inside of the region.
        """
        return Pieces(self, Spans.blocks(self.address, self.nbytes, nbytes, numbers, self))

    def pieces(self, pieces: Iterable[tuple[int, int]]) -> Pieces:
        """Pieces of it, in this order, each from a first byte to one before another: ``(start, stop)``.

        :raises ValueError: one is not inside of the region.
        """
        return Pieces(self, Spans.pieces(self.address, self.nbytes, pieces, self))

    def rows(self, start: int, nbytes: int, step: int, count: int) -> Pieces:
        """``count`` pieces of ``nbytes`` bytes, the first at ``start`` and one every ``step`` bytes: a part
        of the columns of an array.

        :raises ValueError: one is not inside of the region.
        """
        return Pieces(self, Spans.rows(self.address, self.nbytes, start, nbytes, step, count, self))

    def descriptor(
        self, rights: Rights = Rights.READ | Rights.WRITE, *, expires_in: float | None = None
    ) -> bytes:
        """That of all its bytes: see :meth:`Piece.descriptor`."""
        return self[:].descriptor(rights, expires_in=expires_in)

    def _grant(self, start: int, stop: int, rights: Rights, expires_in: float | None) -> bytes:
        registry = self.registry
        registry.waker.check_loop()
        if self._closing:
            raise ValueError("the region is closed")
        if stop == start or not rights:
            raise ValueError("a descriptor needs bytes and rights")
        if self.readonly and rights != Rights.READ:
            raise ValueError("this memory is read-only: it can be given for Rights.READ only")
        if expires_in is not None and not expires_in > 0:
            raise ValueError(f"expires_in={expires_in}: must be above 0")
        expires_ms, deadline = 0, None
        if expires_in is not None:
            expires_ms = int((time.time() + expires_in) * 1000)
            deadline = registry.waker.now() + expires_in
        made = Descriptor.new(rights, stop - start, expires_ms)
        grant = Grant(self, start, made, deadline)
        if deadline is not None:
            grant.timer = registry.waker.call_at(
                deadline, lambda: registry.end(grant, Fault.EXPIRED, GRACE_S)
            )
        registry.grants[made.identity] = grant
        self._grants.add(grant)
        return made.encode()

    async def revoke(self, descriptor: bytes | None = None, *, grace: float = GRACE_S) -> None:
        """Take a descriptor back: from now on it opens nothing, and when this returns, no peer has access by
        it. A peer that has it open ends what it has begun; one that does not within ``grace`` seconds
        loses its access, and its link with the next operation.

        :param descriptor: what :meth:`descriptor` returned; None: all of this region.
        :raises ValueError: it is not one of this region.
        """
        ended: Iterable[Grant] = {*self._grants, *self._ending}
        if descriptor is not None:
            parsed = Descriptor.decode(descriptor)
            ended = [grant for grant in ended if grant.descriptor.matches(parsed)]
            if not ended and parsed.identity not in self.registry._ended:
                raise ValueError("this descriptor is not of this region")
        for grant in ended:
            self.registry.end(grant, Fault.REVOKED, grace)
        for grant in ended:
            while grant.openings:
                waiter = self.registry.waker.new_waiter()
                grant.waiters.append(waiter)
                await waiter.wait()
        await self.registry.waker.checkpoint()

    # ---- this end's own operations

    def begin_use(self) -> None:
        """A device begins to use it. :raises ValueError: it is closed."""
        if self._closing:
            raise ValueError("the region is closed")
        self._users += 1

    def end_use(self) -> None:
        """It has let go."""
        self._users -= 1
        if self._closing:
            self._settle()

    def lkey(self, memory: LinkMemory) -> int:
        """Key for requests of this end with a buffer in this region; registered once for each link."""
        known = self._local.get(memory)
        if known is None:
            from ..verbs.abi import Access

            access = Access.NONE if self.readonly else Access.LOCAL_WRITE
            on_close = functools.partial(self._local.pop, memory, None)
            known = self._local[memory] = self.registered(memory, 0, self.nbytes, access, on_close)
        return known.lkey

    def registered(
        self,
        memory: LinkMemory,
        start: int,
        length: int,
        access: Access,
        on_close: Callable[[], object] | None = None,
    ) -> Registration:
        """Register some of its bytes. :raises VerbsError: the device or the system refuses."""
        return memory.register(self.address + start, length, access, keep=self.owner, on_close=on_close)

    def check_by_loop(self) -> None:
        """:raises MemoryAccessError: the owner's loop cannot reach this memory."""

    # ---- for array libraries

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """For numpy, and what speaks its protocol."""
        view = memoryview(self)
        kind = _KINDS[view.format]
        order = "|" if view.itemsize == 1 else "<" if sys.byteorder == "little" else ">"
        return {
            "version": 3,
            "shape": view.shape,
            "typestr": f"{order}{kind}{view.itemsize}",
            "data": (self.address, self.readonly),
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        """The CPU, in DLPack's numbers."""
        return _dlpack.CPU

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """For ``from_dlpack()`` of array libraries: ``numpy.from_dlpack(region)``,
        ``torch.from_dlpack(region)``. The array keeps the memory, also when the region is closed.

        :raises BufferError: another device or a copy is asked for, or it is read-only and the library is
            older than DLPack 1.0.
        """
        if stream or copy or dl_device not in (None, _dlpack.CPU):
            raise BufferError("a region is memory of the CPU, and is not copied")
        return _dlpack.export(self, max_version)

    # ---- end

    def close(self) -> None:
        """Begin to close: peers lose their access as by :meth:`revoke`. Idempotent."""
        self._closing = True
        for grant in list(self._grants):
            self.registry.end(grant, Fault.REVOKED, GRACE_S)
        self._settle()

    def _settle(self) -> None:
        """When nothing uses it any more, deregister and release."""
        self._ending = {grant for grant in self._ending if grant.openings}
        if not self._closing or self._closed or self._users or self._ending:
            return
        self._closed = True
        _release(self.registry, self.nbytes, self._local, self.pin)
        self.registry.regions.discard(self)
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.set()

    async def aclose(self) -> None:
        """Close, and wait until operations under way, of this end and of peers, have ended. When the wait is
        cancelled, closing goes on by itself."""
        self.close()
        while not self._closed:
            waiter = self.registry.waker.new_waiter()
            self._waiters.append(waiter)
            await waiter.wait()
        await self.registry.waker.checkpoint()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:
        registry: Registry | None = getattr(self, "registry", None)
        if registry is None or registry.ended or getattr(self, "_closing", True):
            return
        release = functools.partial(_release, registry, self.nbytes, self._local, self.pin)
        release_unclosed(self, registry.waker, release, _warn)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "closing" if self._closing else "open"
        return f"<Region of {self.nbytes} bytes, {state}>"


def _release(
    registry: Registry, nbytes: int, registrations: dict[LinkMemory, Registration], pin: Pin | None
) -> None:
    pins = () if pin is None else (pin.close,)
    release_all("a region", *(each.close for each in list(registrations.values())), *pins)
    registry.account.give(nbytes)

"""Memory of users on a link: registered for the peer of one link group only.

What a peer may READ and WRITE is registered once for each peer that opens it, with the bytes and the rights
of that opening: its rkey gives access to nothing else. The memory is the user's, and is kept by its
registration until the device has let go of it.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any

from ..errors import VerbsError
from ..pipes._one_sided import OneSided
from ..verbs._window import address_of
from ..verbs.abi import Access
from ..verbs.device import register_dmabuf, translated
from ..verbs.lifetime import protect, release_all
from .taking_back import take_back

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..pipes.placement import Placement, Registered
    from ..verbs.memory.arena import Block
    from ..verbs.memory.queue import Waiting
    from .contracts import EngineView
    from .link import Link
    from .message_memory import MessageMemory

_log = logging.getLogger("aiordma.memory")

#: Shorter buffers are not registered for one message: on a card, that takes longer than to copy them.
_REGISTERED_BYTES = 128 << 10


class Registration:
    """One piece of a user's memory, registered for one link group. Made by :meth:`LinkMemory.register`."""

    def __init__(
        self, owner: LinkMemory, mr: Any, keep: object, on_close: Callable[[], object] | None
    ) -> None:
        self._owner, self._mr, self._keep, self._on_close = owner, mr, keep, on_close
        self.lkey: int = mr.lkey
        self.rkey: int = mr.rkey
        #: Whether the device knows it no more, and no peer is in the middle of an access.
        self.closed = False

    def close(self) -> None:
        """Deregister. Neither end may have a request for it under way, or the link fails. Idempotent.

        Mostly at once. It is :attr:`closed` later, when a peer's process is stopped in the middle of an
        access (:mod:`.taking_back`).

        :raises VerbsError: the device refuses; the memory is kept then.
        """
        mr, self._mr = self._mr, None
        if mr is None:
            return
        self._owner.forget(self)
        self._owner.take_back(mr, self._keep, self._ended)

    def _ended(self) -> None:
        self.closed, self._keep = True, None
        if self._on_close is not None:
            self._on_close()


class LinkMemory:
    """Of one link group. Used in the engine's thread.

    :param messages: where memory comes from for transfers from and to buffers that are not registered.
    """

    def __init__(self, engine: EngineView, link: Link, messages: MessageMemory) -> None:
        self._engine, self._link, self._messages = engine, link, messages
        self._registrations: set[Registration] = set()
        self._transfers: list[OneSided] = []
        self._placements: set[Placement] = set()
        #: Name of the device, and what its atomic operations are atomic with.
        self.device, self.atomics = engine.backend.name, engine.backend.limits.atomics

    def register(
        self,
        address: int,
        length: int,
        access: Access,
        *,
        keep: object,
        on_close: Callable[[], object] | None = None,
    ) -> Registration:
        """Register ``length`` bytes at ``address``.

        :param keep: what keeps the memory; held until it is deregistered.
        :param on_close: called when it is.
        :raises VerbsError: the device or the system refuses.
        """
        backend = self._engine.backend
        backend.check_process()
        if backend.is_iwarp and access & Access.LOCAL_WRITE:
            access |= Access.REMOTE_WRITE  # the sink of a READ is a target of remote writes there
        with translated(backend.binding, "ibv_reg_mr", f"{length} bytes on {backend.name}"):
            mr = protect(backend.binding.MR(self._link.parts.pd, length, int(access), address))
        return self._made(mr, keep, on_close)

    def register_dmabuf(
        self,
        fd: int,
        offset: int,
        length: int,
        access: Access,
        *,
        keep: object,
        on_close: Callable[[], object] | None = None,
    ) -> Registration:
        """Register ``length`` bytes of a dma-buf, from ``offset`` on, which is their address in requests,
        too.

        :raises VerbsError: the device cannot (EOPNOTSUPP), or the system refuses.
        """
        backend = self._engine.backend
        backend.check_process()
        mr = register_dmabuf(backend, self._link.parts.pd, fd, offset, length, access)
        return self._made(mr, keep, on_close)

    def _made(self, mr: Any, keep: object, on_close: Callable[[], object] | None) -> Registration:
        made = Registration(self, mr, keep, on_close)
        self._registrations.add(made)
        return made

    def forget(self, registration: Registration) -> None:
        self._registrations.discard(registration)

    def take_back(self, mr: Any, keep: object, on_end: Callable[[], object]) -> None:
        take_back(self._engine.backend, self._engine.waker, mr, keep, on_end)

    def new_transfers(self) -> OneSided:
        """The READs and WRITEs of one peer. Close it when the peer is not used any more."""
        self._transfers = [each for each in self._transfers if not each.over]
        transfers = OneSided(self._link.queue_pair, self._engine.config.fragment_bytes)
        self._transfers.append(transfers)
        return transfers

    def begin_placement(self, placement: Placement) -> tuple[int, int] | None:
        """Let the device write where a user wants a message: address and lkey. The memory is held until
        :meth:`end_placement`, or until the link is closed.

        None: it is not in a region, and a copy costs less than its registration; or it cannot be registered.
        """
        view, region = placement.view, placement.region
        address = address_of(view)
        if region is None and self._engine.backend.soft is None and view.nbytes < _REGISTERED_BYTES:
            return None
        try:
            if region is None:
                made = self.register(address, view.nbytes, Access.LOCAL_WRITE, keep=view)
                placement.registration, lkey = made, made.lkey
            else:
                lkey = self._use(region)
        except (VerbsError, ValueError) as error:
            _log.info("%d bytes are received by a copy: %s", view.nbytes, error)
            return None
        self._placements.add(placement)
        return address, lkey

    def _use(self, region: Registered) -> int:
        region.begin_use()
        try:
            return region.lkey(self)
        except BaseException:
            region.end_use()
            raise

    def end_placement(self, placement: Placement) -> None:
        """The device has let go. Idempotent."""
        if placement in self._placements:
            self._placements.remove(placement)
            if placement.region is not None:
                placement.region.end_use()
            registration, placement.registration = placement.registration, None
            if registration is not None:
                try:
                    registration.close()
                except VerbsError as error:
                    _log.warning("memory of a message stays registered: %s", error)
        placement.release()

    def take(self, length: int) -> Block | None:
        """A block to stage a transfer in; None: other messages have the memory, :meth:`wait`.

        :raises MemoryLimitError: it may never be had.
        """
        return self._messages.take_sink(length)

    def release(self, block: Block) -> None:
        """The device is done with it."""
        self._messages.release_sink(block)

    def wait(self, waiting: Waiting) -> None:
        """Have its ``on_memory()`` called when it may :meth:`take` again."""
        self._messages.wait_for_sink(waiting)

    def close(self) -> None:
        """The queue pair is silenced."""
        transfers, self._transfers = self._transfers, []
        release_all(
            "memory of a peer",
            *(each.release for each in transfers),
            *(functools.partial(self.end_placement, each) for each in list(self._placements)),
            *(registration.close for registration in list(self._registrations)),
        )

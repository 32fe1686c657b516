"""Registered memory for the large messages of one link group's channels.

*Sources* hold what this end announced: the peer may READ them, and no peer may write. *Sinks* are what
announced messages are pulled into: no peer has any right to them, so users may keep them for as long
as they like, beyond the life of the link. Their memory is not the device's, and goes when the last of them
is released.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

from ..verbs.abi import Access
from ..verbs.memory.budget import MemoryLimitError, Purpose
from ..verbs.memory.pool import Kept
from ..verbs.registrar import DeviceRegistrar

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..pipes.placement import Placement
    from ..verbs.memory.arena import Block
    from ..verbs.memory.pool import MemoryPool
    from ..verbs.memory.queue import Waiting
    from .contracts import EngineView
    from .link import LinkParts

#: Small enough for peers that send few large messages; further slabs are larger.
_FIRST_SLAB_BYTES = 1 << 20


class UsersMemory(Protocol):
    """Memory of users on a link (:mod:`.link_memory`)."""

    def begin_placement(self, placement: Placement, /) -> tuple[int, int] | None: ...

    def end_placement(self, placement: Placement, /) -> None: ...


class _Copy:
    """A message that is being put together outside of registered memory counts."""

    __slots__ = ("_length", "_pool")

    def __init__(self, pool: MemoryPool, length: int) -> None:
        self._pool, self._length = pool, length
        pool.budget.copied_bytes += length

    def __del__(self) -> None:
        self._pool.budget.copied_bytes -= self._length
        self._pool.queue.on_freed()


class MessageMemory:
    """Blocks for messages. Used in the engine's thread, but for :meth:`release_sink`.

    :param users: the memory of users on the same link; asked for when a user first names some.
    :param peer: the other end, for people.
    """

    def __init__(
        self, engine: EngineView, parts: LinkParts, users: Callable[[], UsersMemory], peer: str = ""
    ) -> None:
        self._engine, self._users, self.peer = engine, users, peer
        backend, pool = engine.backend, engine.pool
        pool.budget.begin_messages()
        # On iWARP the sink of a READ is a target of remote writes.
        sink = Access.LOCAL_WRITE | (Access.REMOTE_WRITE if backend.is_iwarp else Access(0))
        self._sources = pool.arena(
            DeviceRegistrar(backend, parts.pd, remote=False, access=Access.REMOTE_READ),
            first_slab_bytes=_FIRST_SLAB_BYTES,
            purpose=Purpose.SOURCES,
        )
        self._sinks = pool.arena(
            DeviceRegistrar(backend, parts.pd, remote=False, access=sink, private=True),
            first_slab_bytes=_FIRST_SLAB_BYTES,
            purpose=Purpose.SINKS,
        )
        self._thread = threading.get_ident()
        self._released: list[Block] = []  # by other threads, or in the middle of something of ours
        self._busy = False
        #: the engine's list of what messages were pulled into, and has not come back
        self._kept = pool.kept
        self.is_closed = False

    def take_source(self, length: int) -> Block | None:
        """A block for a message to be announced; None: other messages have the memory, and give it back.

        :raises MemoryLimitError: it may never be had.
        """
        pool = self._engine.pool
        refusal = None
        if not pool.queue.must_wait(Purpose.SOURCES):
            try:
                return self._sources.allocate(length)
            except MemoryLimitError as error:
                refusal = error
        self._consider(refusal, length, pool.budget.longest_source)
        return None

    def _consider(self, refusal: MemoryLimitError | None, length: int, most: int) -> None:
        """Whether to wait. :raises MemoryLimitError: for what may never come."""
        pool = self._engine.pool
        if length > most:
            held = pool.limit_bytes - pool.budget.for_messages
            raise MemoryLimitError(
                f"a message of {length} bytes, and AIORDMA_MEMORY_LIMIT_BYTES leaves {most} for one, as "
                f"connections hold {held} of {pool.limit_bytes}: raise it, have fewer connections or smaller "
                "rings (AIORDMA_RING_BYTES), or lower AIORDMA_MAX_MESSAGE_BYTES"
            ) from refusal
        if refusal is not None and not pool.budget.message_bytes:
            raise refusal  # the device refuses, or the system

    def release_source(self, block: Block) -> None:
        """The peer READs it no more. (What is left in it was meant for this peer.)"""
        block.free(0)

    def take_sink(self, length: int) -> Block | None:
        """A block to pull a message into; None: other messages have the memory, and give it back.

        :raises MemoryLimitError: it may never be had.
        """
        pool = self._engine.pool
        refusal = None
        self._busy = True
        try:
            self._reclaim()
            if not pool.queue.must_wait(Purpose.SINKS):
                block = self._sinks.allocate(length)
                self._kept[block.address] = Kept(block.length, self._engine.poller.second, self)
                return block
        except MemoryLimitError as error:
            refusal = error
        finally:
            self._busy = False
        self._consider(refusal, length, pool.budget.longest_sink)
        return None

    def may_copy(self, length: int) -> bool:
        """Whether a message for which there may never be a sink may be put together outside now."""
        pool = self._engine.pool
        return not pool.queue.must_wait(Purpose.COPIES) and pool.budget.may_copy(length)

    def count_copy(self, length: int) -> object:
        """One is, until the last reference to the result is gone."""
        return _Copy(self._engine.pool, length)

    def may_lend(self) -> bool:
        """Whether users may keep further blocks; if not, they get copies."""
        return self._engine.pool.budget.may_keep_sinks()

    def begin_placement(self, placement: Placement) -> tuple[int, int] | None:
        """See :class:`.link_memory.LinkMemory`."""
        return self._users().begin_placement(placement)

    def end_placement(self, placement: Placement) -> None:
        """See :class:`.link_memory.LinkMemory`."""
        self._users().end_placement(placement)

    def release_sink(self, block: Block) -> None:
        """Release a block, also one that a user had. In any thread, and from inside the garbage
        collector.
        """
        self._released.append(block)
        if threading.get_ident() == self._thread and not self._busy:
            self._reclaim()

    def _reclaim(self) -> None:
        self._busy, was_busy = True, self._busy
        while self._released:
            block = self._released.pop()
            self._kept.pop(block.address, None)
            block.free(0)
        self._busy = was_busy

    def wait_for_source(self, channel: Waiting) -> None:
        """Have its ``on_memory()`` called when it may :meth:`take_source`."""
        self._engine.pool.queue.wait(channel, Purpose.SOURCES)

    def wait_for_sink(self, channel: Waiting) -> None:
        """Have its ``on_memory()`` called when it may :meth:`take_sink`."""
        self._engine.pool.queue.wait(channel, Purpose.SINKS)

    def wait_for_copy(self, channel: Waiting) -> None:
        """Have its ``on_memory()`` called when it :meth:`may_copy`."""
        self._engine.pool.queue.wait(channel, Purpose.COPIES)

    def look(self) -> None:
        """Reclaim what other threads have released."""
        self._reclaim()

    def close(self) -> None:
        """The link is gone, and its QP posts nothing more. What users still have stays theirs."""
        self._reclaim()
        self.is_closed = True
        self._sources.close()
        self._sinks.withdraw()
        self._engine.pool.budget.end_messages()

"""Registered memory for the large messages of one link group's channels.

*Sources* hold what this end announced: the peer may READ them, and no peer may write. *Sinks* are what
announced messages are pulled into: no peer has any right to them, so users may keep them for as long
as they like, beyond the life of the link. Their memory is not the device's, and goes when the last of them
is released.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ..verbs.abi import Access
from ..verbs.memory import MemoryLimitError
from ..verbs.registrar import DeviceRegistrar

if TYPE_CHECKING:
    from ..verbs.memory import Block, Waiting
    from .contracts import EngineView
    from .link import LinkParts

#: Small enough for peers that send few large messages; further slabs are larger.
_FIRST_SLAB_BYTES = 1 << 20


class MessageMemory:
    """Blocks for messages. Used in the engine's thread, but for :meth:`release_sink`."""

    def __init__(self, engine: EngineView, parts: LinkParts) -> None:
        self._engine = engine
        backend, pool = engine.backend, engine.pool
        # On iWARP the sink of a READ is a target of remote writes.
        sink = Access.LOCAL_WRITE | (Access.REMOTE_WRITE if backend.is_iwarp else Access(0))
        self._sources = pool.arena(
            DeviceRegistrar(backend, parts.pd, remote=False, access=Access.REMOTE_READ),
            first_slab_bytes=_FIRST_SLAB_BYTES,
        )
        self._sinks = pool.arena(
            DeviceRegistrar(backend, parts.pd, remote=False, access=sink, private=True),
            first_slab_bytes=_FIRST_SLAB_BYTES,
        )
        self._thread = threading.get_ident()
        self._released: list[Block] = []  # by other threads, or in the middle of something of ours
        self._busy = False

    def check(self, length: int) -> None:
        """:raises MemoryLimitError: a message of ``length`` bytes may never find room: a quarter of the pool
        is kept for pulls, and blocks are powers of two.
        """
        most = 1 << ((self._engine.pool.limit_bytes // 4).bit_length() - 1)
        if length > most:
            raise MemoryLimitError(
                f"a message of {length} bytes, and AIORDMA_MEMORY_LIMIT_BYTES leaves {most} for one: raise "
                "it, or lower AIORDMA_MAX_MESSAGE_BYTES"
            )

    def take_source(self, length: int) -> Block | None:
        """A block for a message to be announced; None: no memory now.

        A part of the pool is reserved for pulls: two ends that had put all their memory into messages for
        each other would wait endlessly.
        """
        pool = self._engine.pool
        if pool.used_bytes + length > pool.limit_bytes // 4 * 3:
            return None
        try:
            return self._sources.allocate(length)
        except MemoryLimitError:
            return None

    def release_source(self, block: Block) -> None:
        """The peer READs it no more. (What is left in it was meant for this peer.)"""
        block.free(0)

    def take_sink(self, length: int) -> Block | None:
        """A block to pull a message into; None: no memory now."""
        self._busy = True
        try:
            self._reclaim()
            return self._sinks.allocate(length)
        except MemoryLimitError:
            return None
        finally:
            self._busy = False

    def may_lend(self) -> bool:
        """Whether users may keep further blocks; if not, they get copies. Half of the pool is for others."""
        pool = self._engine.pool
        return pool.used_bytes <= pool.limit_bytes // 2

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
            self._released.pop().free(0)
        self._busy = was_busy

    def wait(self, channel: Waiting) -> None:
        """Have its ``on_memory()`` called when some memory of the engine was released."""
        self._engine.pool.wait(channel)

    def look(self) -> None:
        """Reclaim what other threads have released."""
        self._reclaim()

    def close(self) -> None:
        """The link is gone, and its QP posts nothing more. What users still have stays theirs."""
        self._reclaim()
        self._sources.close()
        self._sinks.withdraw()

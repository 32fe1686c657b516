"""READs and WRITEs on the link: the peer's loop has no part in them.

A buffer that the device can reach by itself is used in place: one in a region of this end, and on devices
that take what is written with the request, any buffer. Others are staged through registered blocks.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from anyio import BrokenResourceError

from .. import wake
from ..errors import AioRdmaError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..credit import CreditWindow
    from ..links.link_memory import LinkMemory
    from ..pipes._one_sided import OneSided, Transfer
    from ..verbs.memory.arena import Block
    from ..wake.base import Waiter
    from .operation import Remote, Use

__all__ = ["LinkCarrier"]

#: Staged at a time, at most.
_STAGE_BYTES = 1 << 20
#: READs of up to so many bytes use a block that is kept: to take one costs more than such a READ.
_SMALL_BYTES = 4096


class _Turn:
    """A task that waits for a block."""

    def __init__(self) -> None:
        self.waiter = wake.current().new_waiter()

    def on_memory(self) -> None:
        """See ``Waiting``."""
        self.waiter.set()


class _Run:
    """One transfer, as long as the device is at work: what is to be released then."""

    __slots__ = ("_count", "_credit", "_on_end", "_remote", "waiter")

    def __init__(
        self, credit: CreditWindow, count: int, remote: Remote, on_end: Callable[[], None] | None
    ) -> None:
        self._credit, self._count, self._remote, self._on_end = credit, count, remote, on_end
        self.waiter: Waiter | None = None

    def end_local(self) -> None:
        """What is this end's: its region, or a block."""
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end()

    def ended(self, _: Transfer | None = None) -> None:
        """The device has let go."""
        self._credit.release(self._count)
        self._remote.end_use()
        self.end_local()
        if self.waiter is not None:
            self.waiter.set()


class LinkCarrier:
    """The READs and WRITEs of one peer on its link.

    :param credit: one for each 64 KiB under way.
    :param fragment: most bytes of one request to the device.
    """

    path = "rdma"

    def __init__(self, memory: LinkMemory, credit: CreditWindow, fragment: int) -> None:
        self._memory, self._credit, self._fragment = memory, credit, fragment
        self._transfers: OneSided = memory.new_transfers()
        #: A block that is kept for small READs, one at a time, and its bytes; None: in use, or not there yet.
        self._spare: tuple[Block, memoryview] | None = None
        self._closed = False

    async def read(self, remote: Remote, offset: int, into: memoryview, use: Use | None) -> None:
        """See :class:`.operation.Carrier`."""
        if use is not None:
            await self._run(self._transfers.read, into, use.lkey, remote, offset, on_end=use.end)
            return
        for at in range(0, len(into), _STAGE_BYTES):
            part = into[at : at + _STAGE_BYTES]
            await self._read_staged(remote, offset + at, part)

    async def write(self, remote: Remote, offset: int, data: memoryview, use: Use | None) -> None:
        """See :class:`.operation.Carrier`."""
        if use is not None:
            await self._run(self._transfers.write, data, use.lkey, remote, offset, on_end=use.end)
            return
        if self._transfers.takes_any_buffer:
            await self._run(self._transfers.write, data, 0, remote, offset)
            return
        for at in range(0, len(data), _STAGE_BYTES):
            part = data[at : at + _STAGE_BYTES]
            block = await self._block(len(part))
            stage = block.view()[: len(part)]
            stage[:] = part
            release = functools.partial(self._memory.release, block)
            await self._run(self._transfers.write, stage, block.lkey, remote, offset + at, on_end=release)

    async def _read_staged(self, remote: Remote, offset: int, into: memoryview) -> None:
        length = len(into)
        if length <= _SMALL_BYTES and self._spare is not None:
            (block, stage), self._spare = self._spare, None
        else:
            block = await self._block(max(length, _SMALL_BYTES))
            stage = block.view()
        wanted = True

        def on_end() -> None:
            # In a buffer of a caller that was cancelled, or after a failure, nothing is changed any more.
            if wanted and self._transfers.error is None:
                into[:] = stage[:length]
            if self._spare is None and not self._closed and block.length == _SMALL_BYTES:
                self._spare = block, stage
            else:
                self._memory.release(block)

        try:
            await self._run(self._transfers.read, stage[:length], block.lkey, remote, offset, on_end=on_end)
        finally:
            wanted = False

    async def _block(self, length: int) -> Block:
        """:raises MemoryLimitError: it may never be had."""
        while True:
            block = self._memory.take(length)
            if block is not None:
                return block
            turn = _Turn()
            self._memory.wait(turn)
            await turn.waiter.wait()

    async def _run(
        self,
        begin: Callable[..., Transfer],
        buffer: memoryview,
        lkey: int,
        remote: Remote,
        offset: int,
        *,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        count = min(-(-len(buffer) // self._fragment), self._credit.limit)
        run = _Run(self._credit, count, remote, on_end)
        try:
            remote.begin_use()  # before the wait: afterwards it may have been taken back
        except BaseException:
            run.end_local()
            raise
        try:
            await self._credit.acquire(count)
        except BaseException:
            remote.end_use()
            run.end_local()
            raise
        at = remote.address + offset
        try:
            remote.check_peer()  # it may have been lost meanwhile
            transfer = begin(buffer, lkey=lkey, remote=at, rkey=remote.rkey, on_done=run.ended)
        except BaseException as error:
            run.ended()
            if isinstance(error, AioRdmaError):
                raise _lost(error) from error
            raise
        if not self._transfers.spin(transfer):
            waiter = run.waiter = wake.current().new_waiter()
            try:
                await waiter.wait()
            except BaseException:
                self._transfers.give_up(transfer)
                raise
        if transfer.error is not None:
            raise _lost(transfer.error) from transfer.error

    def close(self) -> None:
        """See :class:`.operation.Carrier`."""
        self._closed = True
        self._transfers.close()
        if self._spare is not None:
            (block, _), self._spare = self._spare, None
            self._memory.release(block)

    @property
    def under_way(self) -> int:
        """Requests to the device that have not ended."""
        return self._transfers.under_way


def _lost(error: BaseException) -> BaseException:
    return BrokenResourceError(f"the peer is lost: {error}")

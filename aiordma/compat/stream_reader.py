"""`asyncio.StreamReader` that pulls from the ring.

A read looks into the ring, polls as long as the engine's policy allows, and only then parks. What it finds
goes from the ring into the result with one copy. The reader's own buffer is used only where asyncio's
algorithms need it (searching for separators) and by libraries that look into it, for whom it holds whatever
has arrived.

A task that always finds data would never let the loop run, so operations that complete at once use up a
share of it (see `aiordma.wake.base`) and give the loop a turn when it is gone.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import anyio

from .. import wake
from ..streams.at_once import NOT_BEGUN, AtOnceBehind

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..pipes.contracts import Pipe
    from .contracts import PulledTransport

_CHUNK_BYTES = 64 * 1024
#: more than any ring has
_ALL = 1 << 31
#: a large read is allocated in blocks of this size, so that a length that a peer only claims costs nothing
_BLOCK_BYTES = 16 * 1024 * 1024
#: most bytes read ahead of the program, while it waits for room to write
_READ_AHEAD_BYTES = 4 * 1024 * 1024


class RingStreamReader(asyncio.StreamReader):
    """`asyncio.StreamReader` that takes its data from the ring when it is asked for it."""

    _limit: int  # asyncio's own fields, which typeshed does not have
    _eof: bool
    _paused: bool
    _waiter: asyncio.Future[None] | None
    _exception: BaseException | None
    _wakeup_waiter: Callable[[], None]
    _maybe_resume_transport: Callable[[], None]

    def __init__(self, limit: int, loop: asyncio.AbstractEventLoop) -> None:
        self._pipe: Pipe | None = None  # None: not now (paused), not any more, or never
        self._receive_behind: Any = None  # of the pipe, for the buffer here
        self._ring: PulledTransport | None = None
        self._waker = wake.current()
        self._reads_ahead = False
        self._sleeper: Any = None
        self._in_place = False
        super().__init__(limit=limit, loop=loop)

    # ---- what asyncio and others see as the buffer -------------------------------------------------------

    @property
    def _buffer(self) -> bytearray:
        pipe = self._pipe
        if pipe is not None and pipe.readable:
            room = 2 * self._limit - len(self._data)
            if room > 0:
                self._move(pipe, room)
        return self._data

    @_buffer.setter
    def _buffer(self, value: bytearray) -> None:
        self._data = value

    def _move(self, pipe: Pipe, room: int) -> None:
        try:
            self._data += pipe.try_receive(room) or b""
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as exc:
            self._failed(exc)

    # ---- what the transport calls ------------------------------------------------------------------------

    def ring_attached(self, transport: PulledTransport, pipe: Pipe | None) -> None:
        """See `aiordma.compat.contracts.PullReader`. What arrived before a pause stays readable."""
        before = self._pipe
        if pipe is None:
            self._take_all()
        self._ring = transport
        self._pipe = pipe
        self._receive_behind = None if pipe is None else AtOnceBehind(self._waker, pipe).receive
        if pipe is None and before is not None:
            transport.ring_empty()

    def ring_detached(self) -> None:
        """See `aiordma.compat.contracts.PullReader`."""
        self._ring = self._pipe = self._receive_behind = None

    def ring_closing(self) -> None:
        """See `aiordma.compat.contracts.PullReader`. What has arrived stays readable, as on a socket."""
        self._take_all()
        self.ring_detached()

    def _take_all(self) -> None:
        pipe = self._pipe
        self._pipe = None
        if pipe is not None and (n := pipe.readable):
            self._data += pipe.try_receive(n) or b""

    def ring_news(self) -> None:
        """See `aiordma.compat.contracts.PullReader`."""
        if self._waiter is not None:
            self._wakeup_waiter()
        elif self._reads_ahead:
            self.read_ahead(True)

    def takes_ahead(self) -> int:
        """See `aiordma.compat.contracts.PullReader`. asyncio's reader pauses its transport when it has more
        than two limits, and takes what one read of the socket returns in any case."""
        return min(max(2 * self._limit, _CHUNK_BYTES), _ALL)

    def is_full(self) -> bool:
        """See `aiordma.compat.contracts.PullReader`."""
        pipe = self._pipe
        return pipe is not None and len(self._data) + pipe.readable > 2 * self._limit

    def read_ahead(self, on: bool) -> None:
        """The program writes and the peer's ring is full: take what arrives off the ring meanwhile.

        Two programs that each write a few MiB before they read get along on TCP, whose buffers in the kernel
        grow to that size. On rings, which do not grow, both would wait for the other for ever.
        """
        self._reads_ahead = on
        pipe = self._pipe
        if on and pipe is not None and pipe.readable:
            room = _READ_AHEAD_BYTES - len(self._data)
            if room > 0:
                self._move(pipe, room)

    def _failed(self, exc: BaseException) -> None:
        """The ring is broken: connection_lost() follows, and it sets the exception that reads raise."""
        if self._ring is not None:
            self._ring.ring_failed(exc)

    def _advance(self) -> bool:
        """Take what has arrived into the buffer; whether there was anything, EOF included."""
        pipe = self._pipe
        if pipe is None:
            return False
        if pipe.readable:
            size = len(self._data)
            self._move(pipe, max(2 * self._limit - size, _CHUNK_BYTES))
            return len(self._data) > size
        if self._ring is not None:
            self._ring.ring_empty()
        return self._eof

    def at_eof(self) -> bool:
        """Everything is read, and nothing more will come."""
        if not self._eof and self._pipe is not None and self._pipe.at_eof:
            self._advance()
        return self._eof and not self._data

    # ---- reading -----------------------------------------------------------------------------------------

    async def _wait_for_data(self, func_name: str) -> None:
        """Return when the buffer has grown or EOF is reached (for asyncio's methods, which look at it)."""
        size = len(self._data)
        while not self._advance():
            await self._wait_for_ring(func_name, False)
            pipe = self._pipe
            if (pipe is None or not pipe.readable) and (len(self._data) != size or self._eof):
                return

    async def _wait_for_ring(self, func_name: str, polled: bool) -> None:
        """Poll, unless it was done, then park, until the ring has something or the reader has changed.

        What polling or parking dispatches may change it: `read_ahead()` moves bytes into the buffer, and the
        transport may take the ring away. Then nothing would wake a reader that sleeps.
        """
        pipe, ring, waker = self._pipe, self._ring, self._waker
        size = len(self._data)
        if pipe is not None and ring is not None and self._waiter is None:
            if not polled and pipe.spin_readable():
                if waker.share_overdue():
                    waker.share = 0
                return
            if len(self._data) == size and self._pipe is pipe:
                ring.park_reading()
                # What came in by this was not announced, so look again.
                if pipe.readable or pipe.at_eof:
                    return
            if len(self._data) != size or self._pipe is not pipe:
                return
        sleeper = self._sleeper
        if sleeper is None:
            sleeper = self._sleeper = waker.new_waiter()
            self._in_place = bool(asyncio.isfuture(sleeper))
        if self._in_place and self._waiter is None and not self._paused:
            sleeper.clear()
            self._waiter = sleeper  # in the place of a future, again and again
            try:
                await sleeper.wait()
            finally:
                self._waiter = None
        else:
            await super()._wait_for_data(func_name)  # type: ignore[misc]
        waker.renew_share()

    async def _begin(self) -> None:
        """Give the loop a turn if its share is used up. What a cancelled task finds is its own: it learns of
        that when it waits, as on TCP."""
        waker = self._waker
        waker.count(0)
        if waker.share < 0:
            await waker.checkpoint()

    async def read(self, n: int = -1) -> bytes:
        """See asyncio."""
        begun = False
        try:
            while (
                self._pipe is not None and not self._data and self._waiter is None and self._exception is None
            ):
                data = self._receive_behind(self._data, n)
                if data:
                    return data  # type: ignore[no-any-return]
                if data is None:
                    await self._wait_for_ring("read", True)
                elif begun or data is not NOT_BEGUN:
                    break
                else:
                    await self._begin()
                begun = True
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as exc:
            self._failed(exc)
        if not begun:
            await self._begin()
        return await super().read(n)

    async def readexactly(self, n: int) -> bytes:
        """See asyncio."""
        begun = False
        try:
            while (
                self._pipe is not None
                and n <= self._limit
                and not self._data
                and self._waiter is None
                and self._exception is None
            ):
                data = self._receive_behind(self._data, n)
                if data:
                    if len(data) == n:
                        return data  # type: ignore[no-any-return]
                    self._data += data  # the rest has yet to come
                    break
                if data is None:
                    await self._wait_for_ring("readexactly", True)
                elif begun or data is not NOT_BEGUN:
                    break
                else:
                    await self._begin()
                begun = True
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as exc:
            self._failed(exc)
        if not begun:
            await self._begin()
        if n > self._limit and self._pipe is not None and self._waiter is None and self._exception is None:
            return await self._readexactly_large(n)
        return await super().readexactly(n)

    async def _readexactly_large(self, n: int) -> bytes:
        """Copy straight from the ring into the result. What cannot be finished goes back into the buffer."""
        from ..datapath._fill import unfilled  # compiled, as everything that rings need

        waker = self._waker
        blocks: list[bytes] = []
        missing = n
        block, view = unfilled(min(missing, _BLOCK_BYTES))
        at = 0
        try:
            while True:
                if self._data:  # from before, or other code looked into the buffer, which pulls
                    count = min(len(self._data), len(view) - at)
                    view[at : at + count] = self._data[:count]
                    del self._data[:count]
                elif self._pipe is None:
                    break
                else:
                    count = self._pipe.try_receive_into(view[at:])
                if not count:
                    break
                if count < 0:
                    await self._wait_for_ring("readexactly", False)
                    continue
                at += count
                if at == len(view):
                    blocks.append(block)
                    missing -= at
                    if not missing:
                        return block if len(blocks) == 1 else b"".join(blocks)
                    block, view = unfilled(min(missing, _BLOCK_BYTES))
                    at = 0
                waker.share -= 1 + (count >> 12)
                if waker.share < 0:
                    await waker.checkpoint()
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as exc:
            self._failed(exc)
        except BaseException:
            self._data[:0] = b"".join([*blocks, view[:at]])
            raise
        self._data[:0] = b"".join([*blocks, view[:at]])
        return await super().readexactly(n)

    async def readuntil(self, separator: Any = b"\n") -> bytes:
        """See asyncio."""
        begun = False
        if type(separator) is bytes and separator and self._waiter is None and self._exception is None:
            chunk: Any = b""
            while not self._data and self._pipe is not None and self._waiter is None:
                try:
                    chunk = self._receive_behind(self._data, _CHUNK_BYTES)
                except (anyio.BrokenResourceError, anyio.ClosedResourceError) as exc:
                    self._failed(exc)
                    break
                if begun or chunk is not NOT_BEGUN:
                    break
                await self._begin()
                begun = True
            if chunk:
                at = chunk.find(separator)
                if 0 <= at <= self._limit and at + len(separator) == len(chunk):
                    return chunk  # type: ignore[no-any-return]
                self._data += chunk
            elif chunk is None:
                await self._wait_for_ring("readuntil", True)
            elif not begun:
                await self._begin()
            data = self._data
            at = data.find(separator)
            if 0 <= at <= self._limit:
                end = at + len(separator)
                line = bytes(memoryview(data)[:end])
                del data[:end]
                self._maybe_resume_transport()
                return line
        return await super().readuntil(separator)

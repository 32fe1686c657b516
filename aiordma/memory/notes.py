"""Notifications: short messages beside the data, bounded by what the other end's user has taken."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

import anyio

from .. import wake
from ..credit import CreditWindow
from ..errors import RemoteProtocolError
from ..plain import check_plain
from ..proto.memory import MAX_NOTE_BYTES, NOTES, Op, head

if TYPE_CHECKING:
    from typing import Self

    from .outbox import Outbox


class _Connection(Protocol):
    def check_open(self) -> None:
        """:raises anyio.ClosedResourceError: or BrokenResourceError: it is over."""

    @property
    def peer_closed(self) -> bool:
        """The peer has closed it in order."""


class Notifications:
    """The peer's notifications: an asynchronous iterator, which tasks may share."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        return await self._notes.next()


class Notes:
    """Those of one connection, both ways."""

    def __init__(self, connection: _Connection, outbox: Outbox) -> None:
        self._connection, self._outbox = connection, outbox
        self.window = CreditWindow(NOTES)
        self._arrived: deque[bytes] = deque()
        #: Those of this end that the peer has not taken.
        self._untaken = 0
        self._lock = anyio.Lock()
        self._waiter = wake.current().new_waiter()

    @staticmethod
    def check(payload: bytes) -> None:
        """:raises ValueError: it is too long. :raises TypeError: it holds Python objects."""
        check_plain(payload)
        if len(payload) > MAX_NOTE_BYTES:
            raise ValueError(f"a notification of {len(payload)} bytes, at most {MAX_NOTE_BYTES}")

    async def send(self, payload: bytes) -> None:
        """Send one, when the peer has taken enough of those before."""
        self.check(payload)
        await self.window.acquire()
        self._untaken += 1
        self._outbox.send(head(Op.NOTE, 0), bytes(payload))

    async def next(self) -> bytes:
        """The next one. :raises StopAsyncIteration: the peer has closed in order."""
        async with self._lock:
            while not self._arrived:
                if self._connection.peer_closed:
                    raise StopAsyncIteration
                self._connection.check_open()
                await self._waiter.wait()
            self._outbox.send(head(Op.TAKEN, 0))
            return self._arrived.popleft()

    def arrived(self, body: memoryview) -> None:
        """:raises RemoteProtocolError: one too many, or one that is too long."""
        held, outbox = len(self._arrived), self._outbox
        if held + len(outbox) >= NOTES:
            # The peer cannot know that its user's note was taken before it has the message of that.
            held += outbox.waiting(Op.TAKEN)
        if len(body) > MAX_NOTE_BYTES or held >= NOTES:
            raise RemoteProtocolError("a notification that is too long, or one too many")
        self._arrived.append(bytes(body))
        self._waiter.set()

    def taken(self) -> None:
        """:raises RemoteProtocolError: none was sent."""
        if self._untaken <= self._outbox.waiting(Op.NOTE):
            raise RemoteProtocolError("the peer took a notification that was never sent")
        self._untaken -= 1
        self.window.release()

    def end(self, error: BaseException) -> None:
        """The connection is over."""
        self.window.close(error)
        self._waiter.set()

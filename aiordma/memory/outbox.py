"""What waits to be sent on a channel, in order."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from anyio import BrokenResourceError, ClosedResourceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..pipes.contracts import Channel
    from ..proto.memory import Op

    Body = memoryview | bytes


class Outbox:
    """Sends messages on a channel, and keeps those for which it has no room now. Its users bound them: what
    an end asks for by its credit, what it answers by the other end's. So what waits here must not be counted
    as answered or taken: the peer has not got it."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        #: Head, body, and what the body is of.
        self._waiting: deque[tuple[bytes, Body, object]] = deque()
        channel.on_writable = self._go_on

    def __len__(self) -> int:
        return len(self._waiting)

    def send(self, head: bytes, body: Body = b"", of: object = None) -> None:
        """Send, soon. A mutable body is taken when it is sent, or :meth:`replace` is called. What a lost
        connection cannot take is dropped: its end is reported by ``on_closed``."""
        self._waiting.append((head, body, of))
        if len(self._waiting) == 1:
            self._go_on()

    def _go_on(self) -> None:
        try:
            while self._waiting and self._channel.try_send(*self._waiting[0][:2]):
                self._waiting.popleft()
        except (BrokenResourceError, ClosedResourceError):
            self._waiting.clear()

    def waiting(self, *ops: Op) -> int:
        """Messages of these operations that wait: what the peer cannot have."""
        return sum(1 for message, _, _ in self._waiting if message[0] in ops)

    def holds(self, head: bytes) -> bool:
        """Whether this message waits."""
        return any(message is head for message, _, _ in self._waiting)

    def replace(self, of: object, instead: Callable[[bytes], tuple[bytes, bytes]]) -> None:
        """Send other messages for those that wait and have a body of this.

        :param instead: gives head and body for the head of one.
        """
        if self._waiting:
            kept = ((*instead(each[0]), None) if each[2] is of else each for each in self._waiting)
            self._waiting = deque(kept)

    def drop(self, head: bytes) -> bool:
        """Take a message back; whether it had not been sent."""
        for waiting in self._waiting:
            if waiting[0] is head:
                self._waiting.remove(waiting)
                return True
        return False

"""A message channel in memory: the contract ``aiordma.pipes.contracts.Channel`` without device or socket.

Messages, credit and the end travel by ``call_soon``, or by hand, step by step; the budget is as small as
the test wants, so ``try_send()`` returns False all the time; and the connection can be broken at any
moment.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Literal

from anyio import BrokenResourceError, ClosedResourceError

from ..errors import LinkError
from ..pipes.end_report import EndReport
from ..proto.message import ChannelStatistics, ReceiveBudget, SendBudget, check_size
from ..wake.escaping import contain
from .memory import Schedule, _loop_schedule

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

    from ..pipes.contracts import Message, Placer
    from ..pipes.placement import Placement

__all__ = ["MemoryChannel", "memory_channels"]

_log = logging.getLogger("aiordma.channel")


class MemoryChannel:
    """One end of :func:`memory_channels`."""

    path = "memory"

    def __init__(
        self, max_message_bytes: int, receive_bytes: int, small_bytes: int, schedule: Schedule, spin: bool
    ) -> None:
        self.max_message_bytes = max_message_bytes
        self.on_writable: Callable[[], None] | None = None
        self._on_message: Callable[[Message], None] | None = None
        self._small_bytes = small_bytes
        self._schedule = schedule
        self._end_report = EndReport(schedule)
        self._spins = spin
        self._peer = self
        self._out = SendBudget(receive_bytes)
        self._in = ReceiveBudget(receive_bytes)
        self.placer: Placer | None = None
        # Sent by the peer, not yet handed over: each with the length of its head.
        self._queue: deque[tuple[Message, int]] = deque()
        self._scheduled = False
        self._delivering = False
        self._blocked_at: int | None = None  # what the peer had reported when try_send() last found no credit
        self._closed = False
        self._ended = False  # in one way or another
        self._peer_closed = False
        self._error: BaseException | None = None
        self._coming_error: BaseException | None = None
        self._sent = self._received = self._bytes_sent = self._bytes_received = 0
        self._large_sent = self._large_received = self._large_placed = self._times_blocked = 0

    @property
    def on_message(self) -> Callable[[Message], None] | None:
        """Called with every message."""
        return self._on_message

    @on_message.setter
    def on_message(self, callback: Callable[[Message], None] | None) -> None:
        self._on_message = callback
        if callback is not None:
            self._notify()

    @property
    def on_closed(self) -> Callable[[BaseException | None], None] | None:
        """Called with the end."""
        return self._end_report.callback

    @on_closed.setter
    def on_closed(self, callback: Callable[[BaseException | None], None] | None) -> None:
        self._end_report.callback = callback

    @property
    def error(self) -> BaseException | None:
        """Why the channel broke."""
        return self._error

    def try_send(self, head: bytes, body: Buffer = b"") -> bool:
        """See ``Channel.try_send``."""
        message = head + bytes(body)
        check_size(len(head), len(message), self.max_message_bytes)
        if self._closed:
            raise ClosedResourceError("this end was closed, or has finished sending")
        if self._error is not None:
            raise BrokenResourceError(f"the connection is lost: {self._error}") from self._error
        if self._peer_closed:
            cause = LinkError("the peer has closed the connection")
            raise BrokenResourceError(str(cause)) from cause
        if not self._out.allows(len(message)):
            self._blocked_at = self._out.reported
            self._times_blocked += 1
            return False
        self._out.send(len(message))
        self._sent += 1
        self._bytes_sent += len(message)
        peer = self._peer
        if len(message) > self._small_bytes:
            self._large_sent += 1
            peer._queue.append((memoryview(message), len(head)))
        else:
            peer._queue.append((message, len(head)))
        if not peer._closed:
            assert peer._in.receive(len(message)), "both halves of the credit agree"
        peer._notify()
        return True

    def spin(self) -> bool:
        """See ``Channel.spin``. What is on its way arrives, if this pair was made to spin."""
        before = self._received
        if self._spins:
            self._deliver()
        return self._received != before or self._closed or self._ended

    def close(self) -> None:
        """See ``Channel.close``."""
        if not self._closed:
            self._end()
            self._peer._peer_closed = True

    def abort(self) -> None:
        """See ``Channel.abort``."""
        if not self._closed:
            self._end()
            self._peer._coming_error = LinkError("the peer aborted the connection")

    def _end(self) -> None:
        self._closed = self._ended = True
        self._queue.clear()
        self.on_message = self.on_writable = self.placer = None
        self._end_report.drop()
        self._peer._notify()

    def break_with(self, error: BaseException) -> None:
        """Fault injection: the connection fails, and both ends learn of it with ``error``."""
        for end in (self, self._peer):
            if not end._closed:
                end._coming_error = error
                end._notify()

    def statistics(self) -> ChannelStatistics:
        """What happened so far."""
        return ChannelStatistics(
            messages_sent=self._sent,
            messages_received=self._received,
            bytes_sent=self._bytes_sent,
            bytes_received=self._bytes_received,
            large_sent=self._large_sent,
            large_received=self._large_received,
            large_placed=self._large_placed,
            times_blocked=self._times_blocked,
            outstanding=self._out.outstanding,
            receive_high_water=self._in.high_water,
        )

    # ---- delivery

    def _notify(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._schedule(self._deliver)

    def _deliver(self) -> None:
        self._scheduled = False
        if self._delivering or self._ended:
            return
        self._delivering = True
        try:
            self._hand_over()
        except BaseException as error:
            _log.exception("a message handler failed: the channel is broken")
            self._peer._coming_error = LinkError("the peer aborted the connection")
            self._peer._notify()
            self._fail(error)
            contain(error)
        finally:
            self._delivering = False

    def _hand_over(self) -> None:
        if self._coming_error is not None and not self._has_unread():
            self._fail(self._coming_error)
            return
        while self._queue and self._on_message is not None:
            message, head_bytes = self._queue.popleft()
            self._received += 1
            self._bytes_received += len(message)
            self._large_received += isinstance(message, memoryview)
            self._in.take(len(message))
            if not self._placed(message, head_bytes):
                self._on_message(message)
        if not self._peer._closed and self._in.reported != self._in.taken:
            self._peer._out.receive_report(self._in.report())
            self._peer._notify()
        news = self._error is not None or self._blocked_at != self._out.reported
        if self._blocked_at is not None and news and self.on_writable is not None:
            self._blocked_at = None
            self.on_writable()
        if self._queue or self._ended:
            return
        if self._error is not None:
            self._fail(self._error)
        elif self._peer_closed:
            self._ended = True
            self._end_report.end(None)

    def _has_unread(self) -> bool:
        """The connection is lost, and its user, who took nothing then, gets what had come before."""
        if self._error is None and self._queue and self._on_message is None:
            self._error = self._coming_error
        return self._error is not None

    def _placed(self, message: Message, head_bytes: int) -> bool:
        """Whether the user has named memory for a long message, and it was handed over there."""
        placer = self.placer
        if placer is None or not 0 < head_bytes < len(message) or not isinstance(message, memoryview):
            return False
        head, body = bytes(message[:head_bytes]), message[head_bytes:]
        placement = placer.place(head, len(body))
        if placement is None:
            return False
        placement.view[:] = body
        placement.release()
        self._large_placed += 1
        placer.placed(head, placement)
        return True

    def withdraw(self, placement: Placement) -> None:
        """See ``Channel.withdraw``. (What arrives is placed at once.)"""
        placement.release()

    def _fail(self, error: BaseException) -> None:
        if self._ended:
            return
        self._ended = True
        self._error = error
        self._queue.clear()
        self._end_report.end(error)


def memory_channels(
    max_message_bytes: int = 1 << 20,
    *,
    receive_bytes: int = 1 << 18,
    small_bytes: int = 4080,
    delivery: Literal["soon"] | Schedule = "soon",
    spin: bool = False,
) -> tuple[MemoryChannel, MemoryChannel]:
    """Two connected ends.

    :param receive_bytes: cost (bytes, and 64 for each message) of what one end holds for its user; beyond
        it, the other's ``try_send()`` returns False. A message that costs more goes alone.
    :param small_bytes: longer messages arrive as a ``memoryview``.
    :param delivery: ``"soon"``: in a callback of the running loop (asyncio or trio); or a function that is
        given the delivery to run, such as ``list.append``, to order the steps by hand.
    :param spin: whether ``spin()`` lets what is on its way arrive.
    """
    if max_message_bytes < 1 or receive_bytes < 1:
        raise ValueError(
            f"max_message_bytes={max_message_bytes}, receive_bytes={receive_bytes}: both must be at least 1"
        )
    schedule = _loop_schedule() if delivery == "soon" else delivery
    one, other = (
        MemoryChannel(max_message_bytes, receive_bytes, small_bytes, schedule, spin) for _ in range(2)
    )
    one._peer, other._peer = other, one
    return one, other

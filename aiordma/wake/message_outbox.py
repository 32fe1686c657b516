"""Whole messages that were accepted and wait for room: :class:`.outbox.Outbox` for messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from anyio import BrokenResourceError, ClosedResourceError

from ..plain import check_plain
from ..proto.message import check_size
from .outbox import Outbox, buffers_of, released_on_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from typing_extensions import Buffer

#: What a message costs beside its bytes: empty ones are bounded, too.
_COST = 64
#: Shorter messages are copied, longer ones kept.
_SMALL_BYTES = 4096


class MessageOutbox(Outbox):
    """:param pipe: its ``on_writable`` belongs to this object from now on.
    :param check: raises for a message that can never be sent, given its length.
    """

    __slots__ = ("_check",)

    _parts: Any

    def __init__(self, pipe: Any, on_room: Callable[[], None] | None, check: Callable[[int], None]) -> None:
        super().__init__(pipe, on_room)
        self._check = check

    def add(self, buffers: Buffer | Iterable[Buffer], limit: int) -> None:
        """Accept all messages, or none; one buffer alone is one message.

        :raises WouldBlock: messages of ``limit`` bytes wait already.
        :raises BufferError: one is not contiguous. :raises TypeError: one is no buffer.
        """
        messages: list[memoryview | bytes] = []
        with released_on_error(messages):
            self._take_messages(buffers, messages)
            self._take(messages, sum(map(len, messages)), limit)

    def _take_messages(self, buffers: Buffer | Iterable[Buffer], messages: list[memoryview | bytes]) -> None:
        for buffer in buffers_of(buffers):
            with memoryview(buffer) as view:
                check_plain(view)
                if not view.c_contiguous:
                    raise BufferError("what is sent must be contiguous")
                self._check(view.nbytes)
                messages.append(view.cast("B") if view.nbytes > _SMALL_BYTES else view.tobytes())

    def _take(self, messages: list[Any], nbytes: int, limit: int) -> None:
        if messages:
            self._check_limit(limit)
        self.nbytes += nbytes + _COST * len(messages)
        self._parts += messages

    def _send(self, send: Callable[..., Any], message: Any) -> int:
        """Send a message: its length; -1: there is no room for it now."""
        return len(message) if send(message) else -1

    def _move(self, send: Callable[..., Any]) -> bool:
        parts = self._parts
        try:
            while parts:
                length = self._send(send, parts[0])
                if not parts:  # dropped meanwhile
                    return True
                if length < 0:
                    return False
                parts.popleft()
                self.nbytes -= length + _COST
        except (BrokenResourceError, ClosedResourceError) as exc:
            self.drop(exc)
            return True
        self._all_sent()
        return True

    @property
    def first_bytes(self) -> int:
        """Length of the message that is next."""
        return len(self._parts[0])


class ChannelOutbox(MessageOutbox):
    """Messages with a head, for a channel.

    :param most: longest message that it takes, in bytes, head included.
    """

    __slots__ = ("_most",)

    def __init__(self, channel: Any, most: int) -> None:
        self._most = most
        super().__init__(channel, None, lambda size: None)

    def add_with(self, head: bytes, bodies: Buffer | Iterable[Buffer], limit: int) -> None:
        """As :meth:`add`; each message has this head. :raises ValueError: one is too long."""
        messages: list[memoryview | bytes] = []
        with released_on_error(messages):
            self._take_messages(bodies, messages)
            sizes = [len(head) + len(body) for body in messages]
            for size in sizes:
                check_size(len(head), size, self._most)
            self._take([(head, body) for body in messages], sum(sizes), limit)

    def _send(self, send: Callable[..., Any], message: Any) -> int:
        head, body = message
        return len(head) + len(body) if send(head, body) else -1

"""Messages on a connection that is a byte stream: the contract of the ring's datagrams over TCP or TLS.

Used where RDMA is not available. A message that the connection took only in part is kept, and its rest goes
before anything else: so a message is sent whole or not at all, as on a ring.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from anyio import BrokenResourceError, ClosedResourceError, EndOfStream

from .. import wake
from ..errors import RemoteProtocolError
from ..plain import check_plain
from ..proto.record import GREETING_BYTES, RecordReader, greeting, header, read_greeting, too_large
from ..wake.draining import Draining

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..wake.base import Handle
    from .contracts import Buffer, Pipe

_READ_BYTES = 256 * 1024
#: How long the rest of a message of a connection that is closed waits for room without progress.
_DELIVER_S = 30.0


class TcpDatagrams:
    """Both directions of a connection that keeps message boundaries, over a pipe. Owns the pipe.

    Sends its greeting at once. Messages may be sent once the peer's has come (:meth:`greeted`).

    :param limit: largest message this end takes, bytes.
    """

    def __init__(self, pipe: Pipe, limit: int) -> None:
        self.pipe = pipe
        self.path = pipe.path
        #: largest message the peer takes
        self.max_message_bytes = limit
        self.messages_sent = self.messages_received = self.times_blocked = 0
        self._reader = RecordReader(limit)
        self._hello = b""
        self._greeted = False
        self._rest: memoryview | None = None
        self._blocked = False
        self._watching = False
        self._ending: Callable[[], None] | None = None
        self._end_pipe: Callable[[], None] = pipe.close
        self._closed = False
        self._waker = wake.current()
        self._timer: Handle | None = None
        self._left = 0  # bytes of the rest when the timer began
        self._fault: RemoteProtocolError | None = None
        self._on_writable: Callable[[], None] | None = None
        self._push(memoryview(greeting(limit)))

    def greeted(self) -> bool:
        """Whether the peer has greeted. Call it again after ``on_readable``.

        :raises RemoteProtocolError: it is not a datagram peer.
        :raises anyio.BrokenResourceError: the connection is lost.
        """
        while not self._greeted:
            data = self.pipe.try_receive(GREETING_BYTES - len(self._hello))
            if data is None:
                return False
            self._hello += data
            limit = read_greeting(self._hello)
            if limit is not None:
                self.max_message_bytes = limit
                self._greeted = True
            elif not data:
                raise RemoteProtocolError(
                    f"the peer ended inside its greeting, after {len(self._hello)} bytes"
                )
        return True

    # -- sending

    def try_send(self, data: Buffer) -> bool:
        """Accept the whole message, or nothing of it (False). Errors as on a ring."""
        if self._ending is not None or self._closed:
            raise ClosedResourceError("this end was closed, or has finished sending")
        if self._fault is not None:
            raise BrokenResourceError(f"the connection is lost: {self._fault}") from self._fault
        check_plain(data)
        with memoryview(data) as given, given.cast("B") as view:
            size = len(view)
            if size > self.max_message_bytes:
                raise too_large(size, self.max_message_bytes)
            if self._rest is not None and not self._push_rest():
                self.times_blocked += 1
                self._blocked = True
                return False
            message = header(size) + view
        self._push(memoryview(message))
        self.messages_sent += 1
        return True

    def send_many(self, messages: Sequence[Buffer], start: int = 0) -> int:
        """Accept messages from index ``start`` on until one finds no room; how many were accepted."""
        for i in range(start, len(messages)):
            try:
                if not self.try_send(messages[i]):
                    return i - start
            except Exception:
                if i == start:
                    raise
                return i - start
        return max(0, len(messages) - start)

    def _push(self, data: memoryview) -> None:
        placed = self.pipe.try_send(data)
        if placed < len(data):
            self._rest = data[placed:]
            if not self._watching:
                self._watching = True
                self.pipe.on_writable = self._on_room
                # Room may have come before the callback was there.
                self._push_rest()

    def _push_rest(self) -> bool:
        """Whether nothing is left of what was accepted."""
        if self._rest is not None:
            self._rest = self._rest[self.pipe.try_send(self._rest) :]
            if len(self._rest):
                return False
            self._rest = None
        return True

    def _on_room(self) -> None:
        with contextlib.suppress(BrokenResourceError, ClosedResourceError):
            if not self._push_rest():
                return
        if self._ending is not None:
            self._ending()
        elif self._blocked and self._on_writable is not None:
            self._blocked = False
            self._on_writable()

    # -- receiving

    def _look(self) -> memoryview | None:
        """The next message, read from the pipe as far as needed; None: not here yet; raises at the end."""
        if self._closed:
            raise ClosedResourceError("this end was closed, or has finished sending")
        if self._fault is not None:
            raise BrokenResourceError(f"the connection is lost: {self._fault}") from self._fault
        try:
            while (view := self._reader.peek()) is None:
                data = self.pipe.try_receive(_READ_BYTES)
                if data is None:
                    return None
                if not data:
                    if self._reader.pending:
                        raise RemoteProtocolError("the peer finished in the middle of a message")
                    raise EndOfStream("the peer has finished sending, and everything was received")
                self._reader.feed(data)
        except RemoteProtocolError as fault:
            self._fault = fault
            self.pipe.abort()
            raise BrokenResourceError(f"the connection is lost: {fault}") from fault
        return view

    def try_receive(self) -> bytes | None:
        """The next message, None when none is here. Errors as on a ring."""
        if self._look() is None:
            return None
        self.messages_received += 1
        return self._reader.take()

    def poll_receive(self) -> bytes | None:
        """try_receive(): there is nothing to poll here."""
        return self.try_receive()

    def receive_many(self, most: int) -> list[bytes] | None:
        """Up to ``most`` messages that are here; None when none is."""
        first = self.try_receive()
        if first is None:
            return None
        messages = [first]
        while (
            len(messages) < most and (message := self._reader.take() if self._whole() else None) is not None
        ):
            self.messages_received += 1
            messages.append(message)
        return messages

    def _whole(self) -> bool:
        """Another message has been read. One that breaks the rules is reported by the next look."""
        try:
            return self._reader.peek() is not None
        except RemoteProtocolError:
            return False

    def peek(self) -> memoryview | None:
        """The next message without taking it. Valid until discard()."""
        return self._look()

    def discard(self) -> None:
        """Take the message that peek() showed."""
        if self._reader.take() is None:
            raise ValueError("discard(): no message is here")
        self.messages_received += 1

    # -- polling

    def spin_readable(self) -> bool:
        """TCP gains nothing from polling."""
        return False

    def look(self) -> None:
        """Notice what has come, whether or not the loop has had a turn since."""
        self.pipe.look()

    def spin_writable(self, message_bytes: int) -> bool:
        """TCP gains nothing from polling."""
        return False

    # -- the end

    def send_eof(self) -> None:
        """Behind what was accepted, the peer gets EndOfStream. Idempotent."""
        self._end(self.pipe.send_eof)

    def part(self) -> None:
        """The event loop ends, and this was not closed: as close(), but for the end of TLS."""
        self._end_pipe = getattr(self.pipe, "part", self.pipe.close)
        self.close()

    def close(self) -> None:
        """Close both directions; what was accepted still arrives, in the background. Idempotent."""
        if not self._closed:
            self._closed = True
            self.pipe.on_readable = self._on_writable = None
            if not self._end(self._close_pipe):
                _draining.add(self._waker, self)
                self._wait_on()

    def _end(self, how: Callable[[], None]) -> bool:
        """Whether it is done, and not when the rest of a message has gone."""
        self._ending = how
        if done := self._deliver():
            how()
        return done

    def _deliver(self) -> bool:
        """Send what the kernel takes; whether nothing is left that could go."""
        try:
            return self._push_rest()
        except (BrokenResourceError, ClosedResourceError):
            return True

    def _wait_on(self) -> None:
        self._left = 0 if self._rest is None else len(self._rest)
        self._timer = self._waker.call_at(self._waker.now() + _DELIVER_S, self._time_is_up)

    def _time_is_up(self) -> None:
        if self._rest is not None and len(self._rest) < self._left:
            self._wait_on()
        else:
            self.abort()

    def _close_pipe(self) -> None:
        self._forget_end()
        self._end_pipe()

    def _forget_end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        _draining.discard(self._waker, self)

    def _end_with_loop(self) -> None:
        if self._deliver():
            self._close_pipe()
        else:
            self.abort()  # the peer must not take it for whole

    def abort(self) -> None:
        """Close at once; the peer gets an error. Idempotent."""
        self._closed = True
        self._ending = self.pipe.abort
        self._rest = None
        self._on_writable = None
        self._forget_end()
        self.pipe.abort()

    # -- callbacks and state

    @property
    def on_readable(self) -> Callable[[], None] | None:
        """Called when something has arrived: bytes, the end, an error."""
        return self.pipe.on_readable

    @on_readable.setter
    def on_readable(self, callback: Callable[[], None] | None) -> None:
        self.pipe.on_readable = callback

    @property
    def on_writable(self) -> Callable[[], None] | None:
        """Called when there is room again after a message found none, or on an error."""
        return self._on_writable

    @on_writable.setter
    def on_writable(self, callback: Callable[[], None] | None) -> None:
        self._on_writable = callback

    @property
    def error(self) -> BaseException | None:
        return self._fault or self.pipe.error

    @property
    def writable(self) -> int:
        """Largest message, in bytes, that would be accepted now; -1: none."""
        if self._ending is not None or self._closed or self.error is not None or self._rest is not None:
            return -1
        return self.max_message_bytes


_draining = Draining[TcpDatagrams](TcpDatagrams._end_with_loop, TcpDatagrams._deliver)

"""The bytes of a negotiation: read up to the end of a message and never beyond, with the clock running."""

from __future__ import annotations

import math
import select
import socket
from typing import TYPE_CHECKING, Self

from .. import wake
from ..addresses import plain_address, show
from ..pipes.tls import TlsLayer
from ..proto import clc

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from ..config import Config
    from ..proto.events import Event
    from ..proto.handshake import ClientHandshake, ServerHandshake
    from ..wake.base import Waiter

__all__ = ["Carrier", "Wire"]

_HEADER_BYTES = 8

Carrier = socket.socket | TlsLayer
"""What the bytes of a negotiation travel on."""


class Wire:
    """The TCP connection while it carries the negotiation."""

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier
        self.tls = carrier if isinstance(carrier, TlsLayer) else None
        self.sock = carrier.sock if isinstance(carrier, TlsLayer) else carrier
        self._fd = self.sock.fileno()
        self._waker = wake.current()
        self._waiter: Waiter | None = None
        self.now: Callable[[], float] = self._waker.now
        self.local = plain_address(self.sock.getsockname())
        self.remote = plain_address(self.sock.getpeername())
        self.peer = show(self.remote)
        self._head = b""  # of a message of which a part was read
        self._missing = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.release()

    async def send(self, data: bytes) -> None:
        """Send a message. A connection that is lost shows when the answer is read."""
        while data or (self.tls is not None and not self.tls.flush()):
            try:
                data = data[self._carrier.send(data) :]
            except (BlockingIOError, InterruptedError):
                await self._waker.wait_writable(self._fd)
            except OSError:
                return

    async def receive(self, handshake: ClientHandshake | ServerHandshake) -> list[Event]:
        """Read up to the end of a message at most; what that, the end, or the clock means.

        Nothing is read, and nothing returned, of what comes when the peer has said its last word, or the
        handshake is done: these bytes are the stream's.
        """
        while not handshake.done:
            try:
                ahead = self._carrier.recv(clc.MAX_MESSAGE_BYTES, socket.MSG_PEEK)
                if ahead and handshake.heard_all:
                    return []
                data = self._carrier.recv(self._rest_of_message(ahead)) if ahead else b""
            except (BlockingIOError, InterruptedError):
                # What has come counts, however late we are to look: this process may not have run.
                if await self._readable(handshake.next_deadline()) or self.has_data():
                    continue
                events = handshake.on_timer(self.now())
            except OSError:
                return handshake.eof(self.now())
            else:
                if not data:
                    return handshake.eof(self.now())
                events = handshake.receive(data, self.now())
                if not events and not self.has_data():
                    events = handshake.on_timer(self.now())
            if events:
                return events
        return []

    def _rest_of_message(self, ahead: bytes) -> int:
        """How many of the bytes that are there belong to the message that has begun, or begins with them."""
        head = self._head + ahead[: _HEADER_BYTES - len(self._head)]
        if len(head) < _HEADER_BYTES:
            self._head = head
            return len(ahead)
        if len(self._head) < _HEADER_BYTES:
            self._missing = max(int.from_bytes(head[5:7]), _HEADER_BYTES) - len(self._head)
        count = min(self._missing, len(ahead))
        self._missing -= count
        self._head = head if self._missing else b""
        return count

    async def _readable(self, deadline: float | None) -> bool:
        """Wait for something to read, not beyond ``deadline``; whether there is something."""
        waiter = self._waiter
        if waiter is None:
            # Watched from the first wait to release(): a registration costs more than a wait.
            waiter = self._waiter = self._waker.new_waiter()
            self._waker.watch_fd(self._fd, waiter.set)
        else:
            waiter.clear()
        return await waiter.wait_until(math.inf if deadline is None else deadline)

    def release(self) -> None:
        """Let go of the socket: before it is closed, or goes to its next owner."""
        if self._waiter is not None:
            self._waiter = None
            self._waker.unwatch_fd(self._fd)

    def has_data(self) -> bool:
        """Whether something can be read now."""
        try:
            return bool(self._carrier.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    def at_end(self) -> bool:
        """Whether the peer has closed the connection, or it broke."""
        try:
            return not self._carrier.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            return True

    async def peek(self, config: Config, *, patient: bool = False) -> bool | None:
        """Whether the client begins with CLC; None when it says nothing. Consumes nothing.

        :param patient: nobody who speaks plain TCP is served: one that is silent has the time of a message.
        :raises OSError: the connection is lost.
        """
        silent_ms = config.server_first_wait_ms
        if patient:
            silent_ms = max(silent_ms, config.negotiate_timeout_ms)
        deadline = self.now() + silent_ms / 1000
        seen = 0
        late = False
        try:
            while True:
                try:
                    head = self._carrier.recv(_HEADER_BYTES, socket.MSG_PEEK)
                except (BlockingIOError, InterruptedError):
                    head = None
                if head is not None:
                    verdict = clc.looks_like_clc(head) if head else False
                    if verdict is not None or (len(head) == seen and self._at_end()):
                        return bool(verdict)
                    if not seen:
                        # The beginning of an eye catcher: it has the time of a message for the rest.
                        deadline = self.now() + config.negotiate_timeout_ms / 1000
                        late = False
                        self._wake_at(_HEADER_BYTES)
                    seen = len(head)
                if late:
                    return False if seen else None
                # Then a last look: what has come while this process did not run counts as well.
                late = not await self._readable(deadline)
        finally:
            if seen:
                self._wake_at(1)

    def _at_end(self) -> bool:
        """Whether the peer has finished, so what is there is all that will ever come."""
        if self.tls is not None:
            return self.tls.at_end
        poll = select.poll()
        poll.register(self._fd, select.POLLRDHUP)
        return bool(poll.poll(0))

    def _wake_at(self, count: int) -> None:
        """A socket with one byte to read is always ready; have the kernel wait for more. The end, too, makes
        it ready."""
        if self.tls is None:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)

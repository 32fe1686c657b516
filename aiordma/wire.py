"""The bytes of a negotiation: read up to the end of a message and never beyond, with the clock running."""

from __future__ import annotations

import math
import socket
from typing import TYPE_CHECKING

import anyio

from . import wake
from .attributes import plain_address
from .dial import show
from .proto import clc
from .tls import TlsLayer

if TYPE_CHECKING:
    from collections.abc import Callable

    from .config import Config
    from .proto.events import Event
    from .proto.handshake import ClientHandshake, ServerHandshake

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
        self._waker = wake.current()
        self.now: Callable[[], float] = self._waker.now
        self.local = plain_address(self.sock.getsockname())
        self.remote = plain_address(self.sock.getpeername())
        self.peer = show(self.remote)
        self._head = b""  # of a message of which a part was read
        self._missing = 0

    async def send(self, data: bytes) -> None:
        """Send a message. A connection that is lost shows when the answer is read."""
        while data or (self.tls is not None and not self.tls.flush()):
            try:
                data = data[self._carrier.send(data) :]
            except (BlockingIOError, InterruptedError):
                await self._waker.wait_writable(self.sock.fileno())
            except OSError:
                return

    async def receive(self, handshake: ClientHandshake | ServerHandshake) -> list[Event]:
        """Read up to the end of a message at most; what that, the end, or the clock means."""
        while True:
            try:
                ahead = self._carrier.recv(clc.MAX_MESSAGE_BYTES, socket.MSG_PEEK)
                data = self._carrier.recv(self._rest_of_message(ahead)) if ahead else b""
            except (BlockingIOError, InterruptedError):
                deadline = handshake.next_deadline()
                with anyio.CancelScope(deadline=math.inf if deadline is None else deadline):
                    await self._waker.wait_readable(self.sock.fileno())
                events = handshake.on_timer(self.now())
            except OSError:
                return handshake.eof(self.now())
            else:
                if not data:
                    return handshake.eof(self.now())
                events = handshake.receive(data, self.now())
            if events:
                return events

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

    async def peek(self, config: Config) -> bool | None:
        """Whether the client begins with CLC; None when it says nothing. Consumes nothing.

        :raises OSError: the connection is lost.
        """
        deadline = self.now() + config.server_first_wait_ms / 1000
        seen = 0
        try:
            while True:
                try:
                    head = self._carrier.recv(_HEADER_BYTES, socket.MSG_PEEK)
                except (BlockingIOError, InterruptedError):
                    head = None
                if head is not None:
                    verdict = clc.looks_like_clc(head) if head else False
                    # Nothing more although it was ready: this is all that will ever come.
                    if verdict is not None or (len(head) == seen and (self.tls is None or self.tls.at_end)):
                        return bool(verdict)
                    if not seen:
                        # The beginning of an eye catcher: it has the time of a message for the rest.
                        deadline = self.now() + config.negotiate_timeout_ms / 1000
                        self._wake_at(_HEADER_BYTES)
                    seen = len(head)
                with anyio.CancelScope(deadline=deadline) as scope:
                    await self._waker.wait_readable(self.sock.fileno())
                if scope.cancelled_caught:
                    return False if seen else None
        finally:
            if seen:
                self._wake_at(1)

    def _wake_at(self, count: int) -> None:
        """A socket with one byte to read is always ready; have the kernel wait for more. The end, too, makes
        it ready."""
        if self.tls is None:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)

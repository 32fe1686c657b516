"""CLC I/O: messages of the negotiation on a TCP connection, against the clock.

Reading stops at the end of a message and never goes beyond: what follows may belong to the stream.
"""

from __future__ import annotations

import math
import socket
from typing import TYPE_CHECKING, Protocol, Self

from .. import wake
from ..addresses import plain_address, show
from ..observe import capture
from ..pipes.tls import TlsLayer
from ..proto import clc

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from ..proto.events import Event
    from ..wake.base import Waiter

#: Eye catcher, type, length and flags of a CLC message.
HEADER_BYTES = 8

Carrier = socket.socket | TlsLayer
"""What the bytes of a negotiation travel on."""


class Hearing(Protocol):
    """What takes the peer's messages: a handshake (``proto.handshake``), or what stands before one."""

    @property
    def done(self) -> bool: ...
    @property
    def heard_all(self) -> bool: ...
    def next_deadline(self) -> float | None: ...
    def receive(self, data: bytes, now: float) -> list[Event]: ...
    def eof(self, now: float) -> list[Event]: ...
    def on_timer(self, now: float) -> list[Event]: ...


def _earlier(deadline: float | None, until: float) -> float:
    return until if deadline is None else min(deadline, until)


class ClcIO:
    """The TCP connection during the negotiation."""

    def __init__(self, carrier: Carrier) -> None:
        self.carrier = carrier
        self.tls = carrier if isinstance(carrier, TlsLayer) else None
        self.sock = carrier.sock if isinstance(carrier, TlsLayer) else carrier
        self._fd = self.sock.fileno()
        self.waker = wake.current()
        self._waiter: Waiter | None = None
        self.now: Callable[[], float] = self.waker.now
        self.local = plain_address(self.sock.getsockname())
        try:
            self.remote = plain_address(self.sock.getpeername())
        except OSError:  # the peer has reset the connection already, which shows when it is read
            self.remote = ("", 0)
        self.peer = show(self.remote)
        self._asked = False  # just now: the answer cannot be there yet
        self._head = b""  # of a message that has been read in part
        self._missing = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.release()

    async def send(self, data: bytes) -> None:
        """Send a message. A lost connection shows when the answer is read."""
        capture.on_clc(self.local, self.remote, data, outbound=True)
        self._asked = True
        while data or (self.tls is not None and not self.tls.flush()):
            try:
                data = data[self.carrier.send(data) :]
            except (BlockingIOError, InterruptedError):
                await self.waker.wait_writable(self._fd)
            except OSError:
                return

    async def receive(self, handshake: Hearing, until: float = math.inf) -> list[Event]:
        """Read up to the end of a message at most, and return what it means to ``handshake``; or what the end
        of the connection or an expired time limit means.

        At the time ``until``, of the loop's clock, this returns nothing.

        Once the peer has sent its last message, or the handshake is done, this reads nothing and returns
        nothing: what arrives then belongs to the stream.
        """
        while not handshake.done:
            ahead = self._peek()
            if ahead and handshake.heard_all:
                return []
            if ahead is None:
                # What has arrived counts, even if this process did not run in time to see it.
                if await self.wait_readable(_earlier(handshake.next_deadline(), until)) or self.has_data():
                    continue
                events = handshake.on_timer(self.now())
                if not events and self.now() >= until:
                    return []
            elif not ahead or not (data := self._read(ahead)):
                return handshake.eof(self.now())
            else:
                capture.on_clc(self.local, self.remote, data, outbound=False)
                events = handshake.receive(data, self.now())
                if not events and not self.has_data():
                    events = handshake.on_timer(self.now())
            if events:
                return events
        return []

    def _peek(self) -> bytes | None:
        """What is there, and stays there; None: nothing yet, empty: the connection has ended."""
        if self._asked and self.tls is None:
            self._asked = False
            return None
        try:
            return self.carrier.recv(clc.MAX_MESSAGE_BYTES, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError:
            return b""

    def _read(self, ahead: bytes) -> bytes:
        """What of ``ahead`` belongs to one message; empty: the connection broke."""
        try:
            return self.carrier.recv(self._rest_of_message(ahead))
        except OSError:
            return b""

    def _rest_of_message(self, ahead: bytes) -> int:
        """How many of the bytes ``ahead`` belong to the message that has begun, or that they begin."""
        head = self._head + ahead[: HEADER_BYTES - len(self._head)]
        if len(head) < HEADER_BYTES:
            self._head = head
            return len(ahead)
        if len(self._head) < HEADER_BYTES:
            self._missing = max(int.from_bytes(head[5:7]), HEADER_BYTES) - len(self._head)
        count = min(self._missing, len(ahead))
        self._missing -= count
        self._head = head if self._missing else b""
        return count

    async def wait_readable(self, deadline: float | None) -> bool:
        """Wait until the connection is readable, but not beyond ``deadline``; return whether it is."""
        waiter = self._waiter
        if waiter is None:
            # Watched from the first wait to release(): a registration costs more than a wait.
            waiter = self._waiter = self.waker.new_waiter()
            self.waker.watch_fd(self._fd, waiter.set)
        else:
            waiter.clear()
        return await waiter.wait_until(math.inf if deadline is None else deadline)

    def wake(self) -> None:
        """End a wait as if the connection had become readable."""
        if self._waiter is not None:
            self._waiter.set()

    def hand_over(self) -> None:
        """The socket goes to a pipe, which takes the watch over with it. To begin one costs the kernel seven
        calls with uvloop, and another callback none."""
        self._waiter = None

    def release(self) -> None:
        """Stop watching the socket: before it is closed, or goes to its next owner."""
        if self._waiter is not None:
            self._waiter = None
            self.waker.unwatch_fd(self._fd)

    def has_data(self) -> bool:
        """Whether there is something to read now."""
        try:
            return bool(self.carrier.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    def at_end(self) -> bool:
        """Whether the peer has closed the connection, or it broke."""
        try:
            return not self.carrier.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            return True

"""The TCP carrier: a stream's TCP connection, plain or inside TLS, that carries it after a failover. Written
without waiting, and read piece by piece."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import socket
import ssl
import struct
import sys
import termios
from typing import TYPE_CHECKING

from ...errors import LinkError
from ...pipes.tls import TlsLayer

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...pipes.tls import Carrier
    from ...wake.base import Waker

PEER_DIED = "the peer's process has ended or closed the TCP connection"

_RESET = struct.pack("ii", 1, 0)  # struct linger: on, 0 seconds, so that close() sends RST


#: That the kernel probes; seconds of silence before the first probe, and between probes; and how many.
_PROBES = {
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE): 1,
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE): 10,
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL): 5,
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT): 3,
}


def lost_because(error: OSError | MemoryError) -> str:
    """In words: TCP failed with ``error``."""
    number = errno.ENOMEM if isinstance(error, MemoryError) else error.errno or 0
    return f"the TCP connection to the peer broke ({errno.errorcode.get(number, error)})"


def ends_tcp(error: OSError | MemoryError) -> bool:
    """Whether connections end in this way whose process has ended: by a reset, or inside TLS without its
    end."""
    return isinstance(error, ConnectionResetError) or (
        isinstance(error, ssl.SSLError)
        and (isinstance(error, ssl.SSLEOFError) or error.reason == "UNEXPECTED_EOF_WHILE_READING")
    )


class TcpCarrier:
    """Owns the connection. Its callbacks come from the loop.

    :param carrier: connected and non-blocking.
    """

    __slots__ = (
        "_before",
        "_carrier",
        "_fd",
        "_out",
        "_reading",
        "_tls",
        "_waker",
        "_writing",
        "closed",
        "failure",
        "on_failed",
        "on_flushed",
        "on_input",
    )

    def __init__(self, carrier: Carrier, waker: Waker) -> None:
        self._carrier, self._waker = carrier, waker
        self._tls = carrier if isinstance(carrier, TlsLayer) else None
        self._fd = carrier.fileno()
        self._out = bytearray()
        self._reading = self._writing = False
        self._before: list[tuple[int, int, int]] | None = None  # options, before the kernel probes
        self.closed = False
        #: Why nothing can be sent any more; what has arrived can still be read.
        self.failure: LinkError | None = None
        self.on_input: Callable[[], None] | None = None
        self.on_flushed: Callable[[], None] | None = None
        self.on_failed: Callable[[], None] | None = None

    # -- sending

    @property
    def pending(self) -> int:
        """Bytes that the kernel has not taken (with TLS, 1 also stands for what is encrypted already)."""
        return len(self._out) or int(self._writing)

    def put(self, *parts: bytes | memoryview) -> None:
        """Send, behind what waits; what the kernel does not take is kept."""
        if self.closed or self.failure is not None:
            return
        try:
            for part in parts:
                self._out += part
        except MemoryError as error:  # part of a message would be worse than none
            self._lose(error)
        if not self._writing:
            self._flush()

    def acknowledged(self) -> bool:
        """Whether the peer's host has acknowledged all that was sent. Its process may not have read it."""
        if self.closed or self.pending or self.failure is not None:
            return False
        return self._in_kernel() == 0

    def _in_kernel(self) -> int | None:
        """Bytes that the peer's host has not acknowledged; None: the kernel does not say."""
        try:
            return int.from_bytes(fcntl.ioctl(self._fd, termios.TIOCOUTQ, bytes(4)), sys.byteorder)
        except OSError:
            return None

    @property
    def unread(self) -> int:
        """Bytes that certainly wait for the peer to read: those of which its host has none."""
        return 0 if self.closed else len(self._out) + (self._in_kernel() or 0)

    def watch_host(self) -> None:
        """Have the kernel probe whether the peer's host lives; if not, reading fails within half a minute, or
        when the kernel gives up what it could not send."""
        sock = self._socket
        with contextlib.suppress(OSError):
            if self._before is None:
                self._before = [(*each, sock.getsockopt(*each)) for each in _PROBES]
            for level, option in reversed(_PROBES):  # what they are like, before there are any
                sock.setsockopt(level, option, _PROBES[level, option])

    @property
    def _socket(self) -> socket.socket:
        return self._carrier.sock if isinstance(self._carrier, TlsLayer) else self._carrier

    def push(self) -> None:
        """Send what the kernel takes now, without waiting for the loop to say so."""
        if self.pending and not self.closed and self.failure is None:
            self._flush()

    def go_on(self) -> None:
        """The same, and tell who waits for it: the loop will not."""
        if self.pending and not self.closed and self.failure is None:
            self._writable()

    def _flush(self) -> None:
        out = self._out
        try:
            while out:
                with memoryview(out) as view:
                    sent = self._carrier.send(view)
                del out[:sent]
            done = self._tls is None or self._tls.flush()
        except (BlockingIOError, InterruptedError):
            done = False
        except (OSError, MemoryError) as error:
            self._lose(error)
            done = True
        if done == self._writing:
            self._writing = not done
            if done:
                self._waker.unwatch_writable(self._fd)
            else:
                self._waker.watch_writable(self._fd, self._writable)

    def _lose(self, error: OSError | MemoryError) -> None:
        self.failure = LinkError(lost_because(error))
        self._out.clear()

    def _writable(self) -> None:
        self._flush()
        if self.failure is not None:
            if self.on_failed is not None:
                self.on_failed()
        elif not self._writing and self.on_flushed is not None:
            self.on_flushed()

    # -- receiving

    def read(self, size: int) -> bytes | None:
        """Up to ``size`` bytes; ``b""`` at the end, None when nothing is there.

        :raises LinkError: the connection broke.
        """
        try:
            return self._carrier.recv(size)
        except (BlockingIOError, InterruptedError):
            return None
        except (OSError, MemoryError) as error:
            raise LinkError(lost_because(error)) from error

    def watch(self, on: bool) -> None:
        """Whether ``on_input`` is called while there is something to read."""
        if on != self._reading and not self.closed:
            self._reading = on
            if on:
                self._waker.watch_fd(self._fd, self._readable)
            else:
                self._waker.unwatch_fd(self._fd)

    def _readable(self) -> None:
        if self.on_input is not None:
            self.on_input()

    # -- the end

    def release(self) -> Carrier:
        """Release the connection, on which nothing is pending, to the caller."""
        self.watch(False)
        self.closed = True
        self.on_input = self.on_flushed = self.on_failed = None
        with contextlib.suppress(OSError):  # on RDMA the link's keepalive decides
            for option in self._before or ():
                self._socket.setsockopt(*option)
        return self._carrier

    def close(self) -> None:
        """Close the connection. Idempotent."""
        if not self.closed:
            self.watch(False)
            self.closed = True
            if self._writing:
                self._writing = False
                self._waker.unwatch_writable(self._fd)
            self._out.clear()
            self.on_input = self.on_flushed = self.on_failed = None
            self._carrier.close()

    def reset(self) -> None:
        """Close so that the peer gets an error."""
        if not self.closed:
            with contextlib.suppress(OSError):
                self._carrier.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.close()

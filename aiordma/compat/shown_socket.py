"""The socket that a transport of aiordma shows: its TCP connection's, but for what ends the connection."""

from __future__ import annotations

import asyncio.trsock
import socket
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import weakref


class _Shuts(Protocol):
    def is_closing(self) -> bool: ...
    def shut_down(self, how: int) -> None: ...


class ShownSocket(asyncio.trsock.TransportSocket):
    """asyncio's `TransportSocket`, whose shutdown() ends the directions of the transport.

    The TCP connection beside a ring says that its peer lives. To shut it down instead would leave the data's
    own directions open, and both ends would take the other for dead.
    """

    __slots__ = ("transport",)

    #: The transport that shows it; none, where the payload travels on this very socket.
    transport: weakref.ref[_Shuts] | None

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self.transport = None

    def dup(self) -> socket.socket:
        """See socket. The duplicate's shutdown() ends the directions of the transport, too."""
        kernels = super().dup()
        if self.transport is None:
            return kernels
        timeout = kernels.gettimeout()
        duplicate = _Duplicate(kernels.family, kernels.type, kernels.proto, kernels.detach())
        duplicate.settimeout(timeout)
        duplicate.shown = self
        return duplicate

    def shutdown(self, how: int) -> None:
        """See socket. :raises OSError: the connection has ended, or there is no such way."""
        transport = None if self.transport is None else self.transport()
        if transport is None or how not in (socket.SHUT_RD, socket.SHUT_WR, socket.SHUT_RDWR):
            super().shutdown(how)
            return
        self.getpeername()  # raises when it has ended
        if not transport.is_closing():
            transport.shut_down(how)


class _Duplicate(socket.socket):
    """A descriptor of its own for the TCP connection beside a ring; close() leaves the transport alone."""

    __slots__ = ("shown",)

    shown: ShownSocket

    def dup(self) -> _Duplicate:
        """See socket."""
        again = super().dup()
        again.shown = self.shown
        return again

    def shutdown(self, how: int) -> None:
        """See socket. :raises OSError: it is closed, the connection has ended, or there is no such way."""
        self.getpeername()  # raises when it is closed
        if self.shown.fileno() == -1:  # the transport has ended, and the connection goes on here as on TCP
            super().shutdown(how)
        else:
            self.shown.shutdown(how)

"""A connected socket that the caller brings: the negotiation takes place on it.

It stays the connection's socket, whatever becomes of the negotiation. A plain peer has seen a Proposal on it,
so it needs a new connection, which takes the place of the old one: same socket object, same descriptor. A
socket that has carried data belongs to a conversation that has begun, perhaps with a proxy in between; then
there is nothing to negotiate.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from typing import TYPE_CHECKING

from ..addresses import plain_address
from ..negotiation.tcp_connect import connect_tcp

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["move_into", "renew_if_late", "why_unfit"]

#: Seconds after which a server may be about to give up waiting for a client's first bytes.
_LATE_S = 0.1

#: Offset in `struct tcp_info` of `tcpi_data_segs_in` and `tcpi_data_segs_out` (linux/tcp.h).
_DATA_SEGMENTS = struct.Struct("=152xII")

#: Options that a program may have set, and a new connection shall have as well.
_OPTIONS = [
    (level, getattr(socket, name))
    for level, names in (
        (socket.SOL_SOCKET, ("SO_KEEPALIVE", "SO_MARK", "SO_PRIORITY")),
        (socket.IPPROTO_IP, ("IP_TOS",)),
        (socket.IPPROTO_IPV6, ("IPV6_TCLASS",)),
        (
            socket.IPPROTO_TCP,
            ("TCP_NODELAY", "TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT"),
        ),
    )
    for name in names
    if hasattr(socket, name)
]


def why_unfit(sock: socket.socket) -> str | None:
    """Why nothing can be negotiated on a caller's socket; None: it is a new TCP connection."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return "it is no TCP socket"
    try:
        sock.getpeername()
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _DATA_SEGMENTS.size)
    except OSError:
        return "it is not connected"
    if len(info) < _DATA_SEGMENTS.size:
        return "the kernel does not say whether it has carried data"
    return "it has carried data before" if any(_DATA_SEGMENTS.unpack(info)) else None


def move_into(sock: socket.socket, new: socket.socket) -> None:
    """Put the connection of `new` into the place of `sock`'s, with the same options. `new` is closed."""
    with new:
        for level, option, value in _set_options(sock):
            with contextlib.suppress(OSError):
                new.setsockopt(level, option, value)
        os.dup2(new.fileno(), sock.fileno(), inheritable=sock.get_inheritable())
    sock.setblocking(False)


async def renew_if_late(sock: socket.socket, seconds: float) -> None:
    """Connect again to where `sock` is connected to, if nothing could be sent on it for so many
    `seconds`. It has carried nothing yet. If that fails, it stays as it is.
    """
    if seconds > _LATE_S and why_unfit(sock) is None:
        with contextlib.suppress(OSError):
            move_into(
                sock,
                await connect_tcp([(sock.family, sock.getpeername())], plain_address(sock.getsockname())[0]),
            )


def _set_options(sock: socket.socket) -> Iterator[tuple[int, int, int]]:
    for level, option in _OPTIONS:
        with contextlib.suppress(OSError):
            yield level, option, sock.getsockopt(level, option)

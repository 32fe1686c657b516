"""A connected socket that the caller brings: the negotiation takes place on it.

It stays the connection's socket, whatever becomes of the negotiation. A plain peer has seen a Proposal on it,
so it needs a new connection, which takes the place of the old one: same socket object, same descriptor, same
options, but another local port. The options are set once it is connected, its local address before. So where
the program has chosen the port, as far as that shows, there is nothing to negotiate; nor on a socket that
has carried data, which belongs to a conversation that has begun, perhaps with a proxy in between.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct

from ..addresses import family_of, plain_address
from ..negotiation.announcement import is_address_of_this_host, is_announced
from ..negotiation.question import question
from ..negotiation.tcp_connect import connect_tcp

#: Seconds after which a server may be about to give up waiting for a client's first bytes.
_LATE_S = 0.1
#: The same for one on this host that negotiates: half of what it gives a client that seems to be a plain one.
_LATE_NEAR_S = 0.025

#: Offset in `struct tcp_info` of `tcpi_data_segs_in` and `tcpi_data_segs_out` (linux/tcp.h).
_DATA_SEGMENTS = struct.Struct("=152xII")
#: The same of `tcpi_last_ack_recv`, in milliseconds.
_LAST_ACK = struct.Struct("=56xI")

#: Options that a program may have set, and a new connection shall have as well; with the bytes that a value
#: has, 0: it is a number. One that sets others comes before them: IP_TOS sets SO_PRIORITY.
_OPTIONS = [
    (level, getattr(socket, name), size)
    for level, size, names in (
        (socket.IPPROTO_IP, 0, ("IP_TOS", "IP_TTL", "IP_MTU_DISCOVER")),
        (socket.IPPROTO_IPV6, 0, ("IPV6_TCLASS", "IPV6_UNICAST_HOPS")),
        (socket.SOL_SOCKET, 16, ("SO_BINDTODEVICE", "SO_LINGER", "SO_RCVTIMEO", "SO_SNDTIMEO")),
        (socket.SOL_SOCKET, 0, ("SO_KEEPALIVE", "SO_MARK", "SO_PRIORITY", "SO_REUSEADDR", "SO_REUSEPORT")),
        (socket.SOL_SOCKET, 0, ("SO_DONTROUTE", "SO_OOBINLINE", "SO_RCVLOWAT", "SO_BUSY_POLL")),
        (socket.IPPROTO_TCP, 16, ("TCP_CONGESTION",)),
        (socket.IPPROTO_TCP, 0, ("TCP_NODELAY", "TCP_CORK", "TCP_NOTSENT_LOWAT", "TCP_USER_TIMEOUT")),
        (socket.IPPROTO_TCP, 0, ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_LINGER2")),
    )
    for name in names
    if hasattr(socket, name)
]
#: Those that Python has no names for, with the numbers of asm-generic/socket.h, linux/in6.h and linux/tcp.h.
_OPTIONS += [
    (socket.SOL_SOCKET, 47, 0),  # SO_MAX_PACING_RATE
    (socket.SOL_SOCKET, 60, 0),  # SO_ZEROCOPY
    (socket.IPPROTO_IPV6, 23, 0),  # IPV6_MTU_DISCOVER
    (socket.IPPROTO_TCP, 16, 0),  # TCP_THIN_LINEAR_TIMEOUTS
]

#: `SO_BUF_LOCK` (asm-generic/socket.h; Linux 5.14): which sizes of buffers the program has set.
_BUF_LOCK = 72
#: By bits of it.
_BUFFERS = {1: socket.SO_SNDBUF, 2: socket.SO_RCVBUF}


def _kernels_ports() -> tuple[int, int]:
    try:
        descriptor = os.open("/proc/sys/net/ipv4/ip_local_port_range", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0, 65535  # then it does not show
    try:
        first, last = os.read(descriptor, 64).split()
        return int(first), int(last)
    finally:
        os.close(descriptor)


#: First and last of the ports that the kernel gives. They are read once, since reading a file may block.
_KERNELS_PORTS = _kernels_ports()


def why_unfit(sock: socket.socket) -> str | None:
    """Why nothing can be negotiated on a caller's socket; None: it is a new TCP connection."""
    if family_of(sock) not in (socket.AF_INET, socket.AF_INET6):
        return "it is no TCP socket"
    try:
        sock.getpeername()
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _DATA_SEGMENTS.size)
    except OSError:
        return "it is not connected"
    if len(info) < _DATA_SEGMENTS.size:
        return "the kernel does not say whether it has carried data"
    return "it has carried data before" if any(_DATA_SEGMENTS.unpack(info)) else None


def has_own_port(sock: socket.socket) -> bool:
    """Whether the program has bound it to a port that it chose: to none of those that the kernel gives."""
    first, last = _KERNELS_PORTS
    return not first <= sock.getsockname()[1] <= last


def move_into(sock: socket.socket, new: socket.socket) -> None:
    """Put the connection of `new` into the place of `sock`'s, with the same options. `new` is closed."""
    with new:
        copy_options(sock, new)
        os.dup2(new.fileno(), sock.fileno(), inheritable=sock.get_inheritable())
    sock.setblocking(False)


def copy_options(sock: socket.socket, new: socket.socket) -> None:
    """Give `new` what was set on `sock`, as far as the kernel allows it to this user."""
    for level, option, size in _OPTIONS:
        with contextlib.suppress(OSError):
            value = _value(sock, level, option, size)
            if value != _value(new, level, option, size):
                new.setsockopt(level, option, value)
    # Unless they were set, the kernel lets the buffers grow: then a size that is read is none to be kept.
    with contextlib.suppress(OSError):
        locked = sock.getsockopt(socket.SOL_SOCKET, _BUF_LOCK) & ~new.getsockopt(socket.SOL_SOCKET, _BUF_LOCK)
        for bit, option in _BUFFERS.items():
            if locked & bit:
                # The kernel doubles what is set.
                new.setsockopt(socket.SOL_SOCKET, option, sock.getsockopt(socket.SOL_SOCKET, option) // 2)


async def renew_if_late(sock: socket.socket, seconds: float, *, in_clear: bool) -> bool:
    """Connect again to where `sock` is connected to, if nothing could be sent on it for so many
    `seconds`. It has carried nothing yet. If that fails, it stays as it is. Whether it is another connection.

    A server of this host that negotiates may have given up waiting much earlier, as it could not know of this
    client. So there it counts how old the connection is. Its program need not see the old one.

    :param in_clear: something may be sent in clear to a server that negotiates.
    """
    if why_unfit(sock) is not None or has_own_port(sock):
        return False
    with contextlib.suppress(OSError):
        peer = sock.getpeername()
        near = is_address_of_this_host(peer[0]) and is_announced(peer[1])
        if (max(seconds, _age(sock)) > _LATE_NEAR_S) if near else (seconds > _LATE_S):
            new = await connect_tcp([(family_of(sock), peer)], plain_address(sock.getsockname())[0])
            if near and in_clear:
                with contextlib.suppress(OSError):
                    sock.send(question())
            move_into(sock, new)
            return True
    return False


def _age(sock: socket.socket) -> float:
    """Seconds since the connection was made, which has carried nothing: since the last that came of the peer.
    0: the kernel does not say it.
    """
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_ACK.size)
    return float(_LAST_ACK.unpack(info)[0]) / 1000 if len(info) == _LAST_ACK.size else 0.0


def _value(sock: socket.socket, level: int, option: int, size: int) -> int | bytes:
    return sock.getsockopt(level, option, size) if size else sock.getsockopt(level, option)

"""The sockets of a datagram endpoint: its UDP port, and the TCP port on which peers query its queue pair."""

from __future__ import annotations

import errno
import ipaddress
import logging
import os
import socket
from typing import TYPE_CHECKING, Any, NamedTuple

from ..addresses import check_address, looking_up, plain_address, show, sockaddr_of
from ..wake.names import getaddrinfo

if TYPE_CHECKING:
    from ..addresses import Address

_log = logging.getLogger("aiordma.datagram")

#: Not in Python's socket module: ask for the number of datagrams that found no room in the socket.
SO_RXQ_OVFL = 40
_BUFFER_BYTES = 1 << 20


class Sockets(NamedTuple):
    """What an endpoint is bound to."""

    udp: socket.socket
    #: listening TCP sockets, for queries of peers
    listening: list[socket.socket]

    def close(self) -> None:
        for sock in (self.udp, *self.listening):
            sock.close()


async def addresses(local: tuple[str | None, int], remote: Address | None) -> tuple[Address | None, int, Any]:
    """The numeric address of ``remote``, and the address family and address to bind to."""
    check_address("local", local)
    family = 0
    if remote is not None:
        check_address("remote", remote)
        with looking_up(*remote):
            infos = await getaddrinfo(*remote, type=socket.SOCK_DGRAM)
        family, remote = infos[0][0], plain_address(infos[0][4])
    host, port = local
    with looking_up(host, port):
        infos = await getaddrinfo(
            host or None, port, family=family, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE
        )
    found = infos[0][4]
    if remote is not None and ipaddress.ip_address(found[0].partition("%")[0]).is_unspecified:
        found = _towards(remote, infos[0][0], found)
    return remote, infos[0][0], found


def _towards(remote: Address, family: int, local: Any) -> Any:
    """The address by which the kernel reaches the only peer, with the port of ``local``: what connect() binds
    a UDP socket to. ``local`` itself if the peer is out of reach."""
    with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(sockaddr_of(*remote))  # sends nothing
        except OSError:
            return local
        own = probe.getsockname()
    return (own[0], local[1], *own[2:])


def bind(family: int, sockaddr: Any, *, alone: bool) -> Sockets:
    """A UDP socket, and a listening TCP socket on the port of the same number.

    Without the TCP socket (the user chose a port that is taken on TCP) peers cannot query this endpoint; it
    can still query them.
    """
    for attempt in range(16):
        sock = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            sock.setsockopt(socket.SOL_SOCKET, SO_RXQ_OVFL, 1)
            if family == socket.AF_INET6:
                # An IPv4 peer would have two addresses.
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
            sock.bind(sockaddr)
            if alone:
                return Sockets(sock, [])
            listening = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            try:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                listening.bind(sock.getsockname())
                listening.listen(128)
            except OSError as exc:
                listening.close()
                if sockaddr[1]:
                    _log.warning(
                        "TCP port %d is taken (%s): peers cannot query the queue pair of the datagram "
                        "endpoint on that UDP port, and reach it by UDP unless it has sent to them first",
                        sockaddr[1],
                        os.strerror(exc.errno or 0),
                    )
                    return Sockets(sock, [])
                if attempt < 15:
                    sock.close()
                    continue
                return Sockets(sock, [])
        except OSError as exc:
            sock.close()
            raise OSError(
                exc.errno, f"cannot bind UDP {show(sockaddr)}: {os.strerror(exc.errno or 0)}"
            ) from exc
        return Sockets(sock, [listening])
    raise OSError(errno.EADDRINUSE, "no port is free for both UDP and TCP")

"""Listening sockets: one for each address of a host, all on one port."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ..addresses import check_host, check_port, family_of, looking_up, show
from ..wake.names import getaddrinfo

if TYPE_CHECKING:
    from collections.abc import Sequence

Around = Callable[[socket.socket], contextlib.AbstractContextManager[None]]


def _nothing_around(_: socket.socket) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


def _hosts(host: Any) -> Sequence[str | None]:
    """:raises TypeError: it is neither text, nor several texts, nor None."""
    if host is None or isinstance(host, str):
        return [host or None]
    names = list(host) if isinstance(host, Iterable) else [host]
    if not all(isinstance(name, str | None) for name in names):
        check_host(host)  # it says so of the whole: often it is a pair of host and port
    return names


async def listening_sockets(
    host: str | Sequence[str] | None,
    port: int,
    backlog: int = 1024,
    reuse_address: bool = True,
    reuse_port: bool = False,
    around: Around = _nothing_around,
) -> list[socket.socket]:
    """Non-blocking listening sockets, one for each address of ``host``, all on the same port.

    :param around: makes the context in which a socket's ``listen()`` is called.

    :raises OSError: the address cannot be listened on, naming it.
    :raises ValueError: ``port`` is no port number. :raises TypeError: ``host`` is no text.
    """
    check_port(port)
    hosts = _hosts(host)
    candidates: dict[tuple[int, Any], None] = {}
    for name in hosts:
        with looking_up(name, port):
            infos = await getaddrinfo(name, port, flags=socket.AI_PASSIVE)
        for info in infos:
            candidates[int(info[0]), info[4]] = None
    with contextlib.ExitStack() as stack:
        sockets: list[socket.socket] = []
        for family, sockaddr in candidates:
            if sockets and not port:
                sockaddr = (sockaddr[0], sockets[0].getsockname()[1], *sockaddr[2:])
            try:
                sock = _bound(family, sockaddr, reuse_address, reuse_port)
            except OSError as exc:
                if exc.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL) and len(candidates) > 1:
                    continue  # a machine without IPv6, or a name with an address of another machine
                raise OSError(
                    exc.errno, f"cannot listen on {show(sockaddr)}: {os.strerror(exc.errno or 0)}"
                ) from exc
            sockets.append(stack.enter_context(sock))
            with around(sock):
                sock.listen(backlog)
        if not sockets:
            raise OSError(
                errno.EADDRNOTAVAIL, f"cannot listen on {host!r}: none of its addresses is this machine's"
            )
        stack.pop_all()
    return sockets


def _bound(family: int, sockaddr: Any, reuse_address: bool, reuse_port: bool) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse_address)
        if reuse_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(sockaddr)
    except BaseException:
        sock.close()
        raise
    return sock


def listen_on(
    sockets: Sequence[socket.socket],
    host: str | Sequence[str] | None,
    port: int,
    backlog: int,
    around: Around = _nothing_around,
) -> None:
    """Begin to listen on sockets that the program brings, unless they listen already.

    :raises ValueError: there is an address beside them, or one is no bound TCP socket.
    :raises OSError: of ``listen(2)``.
    """
    if host or port:
        raise ValueError(f"host={host!r}, port={port}: sockets= have their own addresses; leave these out")
    for sock in sockets:
        if family_of(sock) not in (socket.AF_INET, socket.AF_INET6) or sock.type != socket.SOCK_STREAM:
            raise ValueError(f"sockets={sock!r}: must be TCP sockets")
        if not sock.getsockname()[1]:
            raise ValueError(f"sockets={sock!r}: must be bound to an address")
        sock.setblocking(False)
        with around(sock):
            sock.listen(backlog)

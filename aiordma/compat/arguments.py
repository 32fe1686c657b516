"""The arguments of asyncio's functions, judged as asyncio judges them: same errors, in the same cases."""

from __future__ import annotations

import socket
import sys
from typing import TYPE_CHECKING, Any

from ..addresses import plain_address
from ..wake.names import getaddrinfo

if TYPE_CHECKING:
    from ..addresses import Address

#: Whether asyncio's `create_server()` has this argument.
_HAS_KEEP_ALIVE = sys.version_info >= (3, 13)


def check_port(port: Any) -> None:
    """:raises OverflowError: it is a number, and no port has it. (A look-up would take some of its bits.)"""
    number = port
    if isinstance(port, str | bytes):
        number = int(port) if port.isdigit() else 0
    if isinstance(number, int) and not 0 <= number <= 65535:
        raise OverflowError("port must be 0-65535.")


async def look_up_both(
    local: tuple[str | None, int] | None, remote: Address | None, family: int, proto: int, flags: int
) -> list[Address | None]:
    """The two addresses of a datagram endpoint as numbers, of the family, protocol and flags given."""
    if local is None and remote is None:
        return [("::" if family == socket.AF_INET6 else "0.0.0.0", 0), None]
    found: list[Address | None] = []
    for address in (local, remote):
        if address is None:
            found.append(None)
            continue
        infos = await getaddrinfo(*address, family=family, type=socket.SOCK_DGRAM, proto=proto, flags=flags)
        found.append(plain_address(infos[0][4]))
    return found


def check_limit(limit: int) -> None:
    """:raises ValueError: no reader can have this limit. Found before there is a connection to be closed."""
    if limit <= 0:
        raise ValueError("Limit cannot be <= 0")


def check_client(host: Any, port: Any, options: dict[str, Any]) -> None:
    """The arguments of `create_connection()`.

    :raises ValueError: they do not fit together.
    :raises TypeError: ``sock`` is a socket of the module ``ssl``.
    """
    ssl, sock = options.get("ssl"), options.get("sock")
    if options.get("server_hostname") is not None and not ssl:
        raise ValueError("server_hostname is only meaningful with ssl")
    if options.get("server_hostname") is None and ssl and not host:
        raise ValueError("You must set server_hostname when using ssl without a host")
    _check_ssl_timeouts(options)
    _check_place(host, port, sock, "host and port was not specified and no sock specified")


def check_server(host: Any, port: Any, options: dict[str, Any]) -> None:
    """The arguments of `create_server()`; errors as of :func:`check_client`.

    :raises TypeError: ``ssl`` is no context; or asyncio has no ``keep_alive`` yet.
    """
    if "keep_alive" in options and not _HAS_KEEP_ALIVE:
        raise TypeError("create_server() got an unexpected keyword argument 'keep_alive'")
    if isinstance(options.get("ssl"), bool):
        raise TypeError("ssl argument must be an SSLContext or None")
    _check_ssl_timeouts(options)
    _check_place(host, port, options.get("sock"), "Neither host/port nor sock were specified")


def check_accepted(sock: socket.socket, options: dict[str, Any]) -> None:
    """The arguments of `connect_accepted_socket()`; errors as of :func:`check_client`."""
    _check_stream(sock)
    _check_ssl_timeouts(options)


def _check_ssl_timeouts(options: dict[str, Any]) -> None:
    for name in ("ssl_handshake_timeout", "ssl_shutdown_timeout"):
        if options.get(name) is not None and not options.get("ssl"):
            raise ValueError(f"{name} is only meaningful with ssl")


def _check_place(host: Any, port: Any, sock: Any, nothing: str) -> None:
    if host is not None or port is not None:
        if sock is not None:
            raise ValueError("host/port and sock can not be specified at the same time")
    elif sock is None:
        raise ValueError(nothing)
    else:
        _check_stream(sock)


def _check_stream(sock: socket.socket) -> None:
    # Like asyncio. The module ssl is not imported for it: without it there is no socket of its class.
    module = sys.modules.get("ssl")
    if module is not None and isinstance(sock, module.SSLSocket):
        raise TypeError("Socket cannot be of type SSLSocket")
    if sock.type != socket.SOCK_STREAM:
        raise ValueError(f"A Stream Socket was expected, got {sock!r}")

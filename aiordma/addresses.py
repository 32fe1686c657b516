"""Socket addresses as users see them: a host and a port, and how they read in messages."""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

Address = tuple[str, int]
"""Host and port. An IPv6 scope is part of the host (``fe80::1%2``)."""


def family_of(sock: socket.socket) -> int:
    """The family of a socket as the kernel has it. A descriptor from elsewhere may have been opened as one of
    another family (`socket.fromfd()` must be told one; uvicorn says AF_UNIX).
    """
    try:
        return sock.getsockopt(socket.SOL_SOCKET, socket.SO_DOMAIN)
    except OSError:  # it is closed, or none of the kernel's
        return sock.family


def plain_address(sockaddr: Any) -> Address:
    """Host and port of what ``getsockname()`` gave; an IPv6 scope joins the host (``fe80::1%2``)."""
    if len(sockaddr) == 4 and sockaddr[3] and "%" not in sockaddr[0]:
        return f"{sockaddr[0]}%{sockaddr[3]}", sockaddr[1]
    return sockaddr[0], sockaddr[1]


def sockaddr_of(host: str, port: int) -> Any:
    """What a socket is bound or connected to for a numeric ``host``, whose scope becomes a field of its own.

    :raises OSError: no interface has the scope's name.
    """
    address, _, scope = host.partition("%")
    if not scope:
        return host, port
    return address, port, 0, int(scope) if scope.isdecimal() else socket.if_nametoindex(scope)


def is_nameable(host: str) -> bool:
    """Whether a host of this name can be looked up: Python's codec for names (IDNA) takes neither an empty
    label, as in ``a..b``, nor one of more than 63 bytes, and raises what is no `OSError`."""
    try:
        host.encode("idna").decode("ascii")
    except UnicodeError:
        return False
    return "\0" not in host


def host_of(peer: str) -> str:
    """The host in ``host:port``, as :func:`show` gives them."""
    return peer.rpartition(":")[0] or peer


def writings(host: str) -> list[str]:
    """A host, and how a socket of the other family writes its address: on one for both, an IPv4 client's is
    ``::ffff:10.0.0.1``."""
    found = [host]
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(host)
        if address.version == 4:
            found.append(f"::ffff:{address}")
        elif address.ipv4_mapped is not None:
            found.append(str(address.ipv4_mapped))
    return found


def full_address(address: Address) -> Any:
    """As ``getsockname()`` gives it: of IPv6 with all four fields."""
    return (*sockaddr_of(*address), 0, 0)[:4] if ":" in address[0] else address


def show(sockaddr: Any) -> str:
    """A socket address for people."""
    if not isinstance(sockaddr, tuple):
        return str(sockaddr)
    host, port = plain_address(sockaddr)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@functools.lru_cache(maxsize=256)
def packed_ip(host: str) -> bytes:
    """A numeric address in the 16 bytes of IPv6, without its scope, as GIDs of RoCE have it.

    :raises ValueError: it is none.
    """
    ip = ipaddress.ip_address(host.partition("%")[0].strip("[]"))
    return (ip if ip.version == 6 else ipaddress.IPv6Address(f"::ffff:{ip}")).packed


def leads_to(gid: bytes, host: str) -> bool:
    """Whether packets to this GID go to the address ``host``; False also where that cannot be told."""
    try:
        return packed_ip(host) == gid
    except ValueError:
        return False


def check_port(port: Any) -> None:
    """:raises ValueError: it is a number, and no port has it. (The name of a service is looked up.)
    :raises TypeError: it is neither number nor text.
    """
    if isinstance(port, int):
        if not 0 <= port <= 65535:
            raise ValueError(f"port={port!r}: must be from 0 to 65535")
    elif port is not None and not isinstance(port, str | bytes):
        raise TypeError(f"port={port!r}: must be a number from 0 to 65535")


def check_host(host: Any) -> None:
    """:raises TypeError: it is neither text nor None."""
    if host is not None and not isinstance(host, str | bytes):
        raise TypeError(
            f"host={host!r}: must be text, such as 'localhost' or '::1'; host and port are two arguments"
        )


def check_address(name: str, address: Any) -> None:
    """:raises TypeError: it is no pair of host and port. :raises ValueError: no port has this number.

    :param name: of the parameter.
    """
    if not isinstance(address, tuple | list) or len(address) != 2:
        raise TypeError(f"{name}={address!r}: must be a host and a port, such as ('localhost', 7000)")
    check_host(address[0])
    check_port(address[1])


@contextlib.contextmanager
def looking_up(host: Any, port: Any) -> Iterator[None]:
    """Around a look-up of ``host``: if it fails, the error (a ``socket.gaierror``) names host and port."""
    try:
        yield
    except OSError as error:
        said = error.strerror or str(error)
        raise type(error)(
            error.errno, f"cannot look up {host!r} (port {port}): {said}{_misread(host)}"
        ) from error


def _misread(host: Any) -> str:
    """What is wrong with a host that no look-up finds, if it looks like something else."""
    if not isinstance(host, str):
        return ""
    if "://" in host:
        return "; this is a URL: give its host and its port, as two arguments"
    name, _, port = host.rpartition(":")
    if port.isdecimal() and ":" not in name:
        return f"; host and port are two arguments: {name!r}, {port}"
    return ""

"""A listener tells clients of the same host that it negotiates, without a byte on the wire.

For each port it binds a Unix datagram socket to an abstract name made of the port. A client that may connect
to the name knows beforehand that a Proposal will be understood; where the name does not exist, what
listens on that port of this network namespace is not aiordma. Abstract names belong to the network
namespace, as TCP ports do, and vanish with their process. Nothing is ever sent, and the name is a hint only:
another user could bind it, and then a plain server sees a Proposal, as it would without all this.
"""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Announcement", "is_address_of_this_host", "is_announced"]

#: Processes of one port (`reuse_port`, workers) that can announce it at a time; any one of them suffices.
_SLOTS = 16


def _name(port: int, slot: int) -> str:
    return f"\0aiordma-listener.{port}.{slot}"


def _new_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)


class Announcement:
    """What one listener has announced. That it cannot be is no error: clients then find out by asking."""

    def __init__(self, ports: Iterable[int]) -> None:
        self._sockets: list[socket.socket] = []
        for port in set(ports):
            with contextlib.suppress(OSError):  # no descriptors left
                self._announce(port)

    def _announce(self, port: int) -> None:
        sock = _new_socket()
        for slot in range(_SLOTS):
            try:
                sock.bind(_name(port, slot))
            except OSError:
                continue
            self._sockets.append(sock)
            return
        sock.close()

    def close(self) -> None:
        """Take it back."""
        for sock in self._sockets:
            sock.close()
        self._sockets.clear()


def is_address_of_this_host(address: str) -> bool:
    """Only addresses of this host can be bound; nothing is sent for it.

    :param address: of IPv4 or IPv6, as text.
    """
    if address.startswith("127.") or address == "::1":
        return True
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.bind((address.partition("%")[0], 0))
    except OSError:
        return False
    return True


def is_announced(port: int) -> bool:
    """Whether a listener of aiordma has announced this port, on this host and in this network namespace."""
    with _new_socket() as sock:
        return any(sock.connect_ex(_name(port, slot)) == 0 for slot in range(_SLOTS))

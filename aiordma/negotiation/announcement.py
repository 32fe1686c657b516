"""What both ends on one host tell each other beforehand, without a byte on the wire: names made of a port.

A listener binds a Unix datagram socket to an abstract name of each port. A client that may connect to the
name knows beforehand that a Proposal will be understood; where the name does not exist, what listens on that
port of this network namespace is not aiordma.

A client that is about to negotiate has such a name, too, as long as its first bytes may not have arrived. A
listener with a silent client of its own host looks: where the name does not exist, no client of aiordma is on
its way to this port, so the silent one is plain and waits for the server to speak first. A client of aiordma
that was held up, by the machine or by a signal, still has the name.

Abstract names belong to the network namespace, as TCP ports do, and vanish with their process. Nothing is
ever sent, and a name is a hint only: another user could bind it. Then a plain server sees a Proposal, as it
would without all this, and plain clients wait as long as those of other hosts do.
"""

from __future__ import annotations

import collections
import contextlib
import os
import socket
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class _Names(NamedTuple):
    """Abstract names of one kind."""

    prefix: str
    #: Processes that can have the name of one port at a time.
    slots: int


#: Of listeners: any one of those with this port (`reuse_port`, workers) suffices.
_LISTENER = _Names("\0aiordma-listener.", 16)
#: Of clients on their way. Beyond that, the names of others have to do.
_CLIENT = _Names("\0aiordma-client.", 64)


_KIND = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK


def _bind(names: _Names, port: int) -> socket.socket | None:
    """None: no descriptor, or no name, is left."""
    try:
        sock = socket.socket(socket.AF_UNIX, _KIND)
    except OSError:
        return None
    for slot in range(names.slots):
        try:
            sock.bind(f"{names.prefix}{port}.{slot}")
        except OSError:
            continue
        return sock
    sock.close()
    return None


def _is_bound(names: _Names, port: int) -> bool:
    """:raises OSError: that cannot be found out: no descriptor is left."""
    with socket.socket(socket.AF_UNIX, _KIND) as sock:
        return any(sock.connect_ex(f"{names.prefix}{port}.{slot}") == 0 for slot in range(names.slots))


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


# ---- listeners


class Announcement:
    """What one listener has announced. That it cannot be is no error: clients then find out by asking."""

    def __init__(self, ports: Iterable[int]) -> None:
        self._sockets = [sock for port in set(ports) if (sock := _bind(_LISTENER, port)) is not None]

    def close(self) -> None:
        """Take it back."""
        for sock in self._sockets:
            sock.close()
        self._sockets.clear()


def is_announced(port: int) -> bool:
    """Whether a listener of aiordma has announced this port, on this host and in this network namespace.

    :raises OSError: that cannot be found out: no descriptor is left.
    """
    return _is_bound(_LISTENER, port)


# ---- clients

_lock = threading.Lock()  # loops of several threads
#: Ports that clients have left and that are still counted.
_left: collections.deque[int] = collections.deque()
#: By port, for all clients of this process: the socket with the name, if there is one, and their number.
_names: dict[int, tuple[socket.socket | None, int]] = {}


def arrive(addresses: Iterable[tuple[int, Any]]) -> list[int]:
    """Before a client connects: tell servers of this host, until :func:`leave`.

    :param addresses: family and address of each server that it may come to.
    :returns: what :func:`leave` is to be given. (These functions are called for each connection, so they are
        few and no objects.)
    """
    ports: list[int] = []
    for _, address in addresses:
        port = address[1]
        if port not in ports and is_address_of_this_host(address[0]):
            ports.append(port)
            with _lock:
                sock, clients = _names.get(port, (None, 0))
                _names[port] = sock if clients else _bind(_CLIENT, port), clients + 1
            _discount()  # those that were left meanwhile
    return ports


def leave(ports: list[int]) -> None:
    """The server has heard of the client, or the client has given up."""
    _left.extend(ports)
    _discount()


def _discount() -> None:
    """It never waits for the lock: the collector, which ends a connect that was dropped, may have run while
    this very thread has it. Who has it comes here afterwards.
    """
    while _left and _lock.acquire(blocking=False):
        try:
            with contextlib.suppress(IndexError):  # another thread was faster
                _count_down(_left.popleft())
        finally:
            _lock.release()


def _count_down(port: int) -> None:
    sock, clients = _names.pop(port, (None, 1))  # none in a forked child
    if clients > 1:
        _names[port] = sock, clients - 1
    elif sock is not None:
        sock.close()


@contextlib.contextmanager
def arriving(addresses: Iterable[tuple[int, Any]]) -> Iterator[None]:
    """Around what a client does until the server has heard of it."""
    ports = arrive(addresses)
    try:
        yield
    finally:
        leave(ports)


def is_expected(port: int) -> bool:
    """Whether a client of aiordma of this host and this network namespace is on its way to this port.

    :raises OSError: that cannot be found out: no descriptor is left.
    """
    return _is_bound(_CLIENT, port)


def _leave_to_the_parent() -> None:
    """A forked child would keep the names for as long as it lives."""
    global _lock
    _lock = threading.Lock()  # another thread of the parent may have had it
    for sock, _ in _names.values():
        if sock is not None:
            sock.close()
    _names.clear()
    _left.clear()


os.register_at_fork(after_in_child=_leave_to_the_parent)

"""A client that is about to negotiate tells the listeners of its host, without a byte on the wire.

As long as its first bytes may not have arrived, it has a Unix datagram socket bound to an abstract name that
is made of the server's port, as a listener's announcement is. A listener with a silent client of its own host
looks: where the name does not exist, no client of aiordma is on its way to this port of this network
namespace, so the silent one is plain and waits for the server to speak first. A client of aiordma that was
held up, by the machine or by a signal, still has the name.

Nothing is ever sent, and the name is a hint only: another user could bind it, and then plain clients wait as
long as those of other hosts do.
"""

from __future__ import annotations

import collections
import contextlib
import os
import socket
import threading
from typing import TYPE_CHECKING, Any

from .announcement import is_address_of_this_host

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["arrive", "arriving", "is_expected", "leave"]

#: Processes that can be on their way to one port at a time. Beyond that, those of others have to do.
_SLOTS = 64
#: Of the abstract names of one port.
_PREFIX = "\0aiordma-client."
_KIND = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK

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
                _names[port] = sock if clients else _bind(port), clients + 1
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


def _bind(port: int) -> socket.socket | None:
    """None: no descriptor, or no name, is left."""
    try:
        sock = socket.socket(socket.AF_UNIX, _KIND)
    except OSError:
        return None
    for slot in range(_SLOTS):
        try:
            sock.bind(f"{_PREFIX}{port}.{slot}")
        except OSError:
            continue
        return sock
    sock.close()
    return None


def is_expected(port: int) -> bool:
    """Whether a client of aiordma of this host and this network namespace is on its way to this port.

    :raises OSError: that cannot be found out: no descriptor is left.
    """
    with socket.socket(socket.AF_UNIX, _KIND) as sock:
        return any(sock.connect_ex(f"{_PREFIX}{port}.{slot}") == 0 for slot in range(_SLOTS))


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

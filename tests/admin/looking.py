"""What tests of the admin endpoint ask."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from aiordma.admin import asking, directory
from aiordma.admin.requests import Show
from aiordma.wake.beside import wait_for_threads
from tests.processes import FULL_PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiordma.admin.asked import Loop
    from aiordma.admin.requests import FromTool

EVERYTHING = Show(("connections", "links", "devices", "memory", "rpc", "fallbacks", "totals"))


def listed(pid: int) -> list[Loop]:
    """The loops of one process now. Those of this one that have ended are gone. (The caller may be one that
    runs.)"""
    wait_for_threads()
    with ThreadPoolExecutor(1) as beside:
        return beside.submit(asking.loops, lambda page: page.pid == pid).result()


def loops_of(pid: int) -> list[Loop]:
    """The same, as soon as there is one: an endpoint begins a moment after the first connection. Not called
    in a loop that is to be seen."""
    until = time.monotonic() + FULL_PATIENCE
    while not (found := listed(pid)) and time.monotonic() < until:
        time.sleep(0.005)
    return found


def ask_one(pid: int, request: FromTool = EVERYTHING) -> Loop:
    """The only loop of a process, and its answer."""
    (loop,) = asking.ask(request, loops_of(pid), 20.0)
    return loop


def rows(loop: Loop, kind: type) -> list[Any]:
    """All rows of one view."""
    parts: list[Any] = [part for part in loop.parts if isinstance(part, kind)]
    return [row for part in parts for row in part.rows]


@contextlib.contextmanager
def connected_to(pid: int) -> Iterator[socket.socket]:
    """A connection to the endpoint of a process."""
    (loop,) = loops_of(pid)
    with contextlib.closing(directory.Directory(loop.home, loop.uid)) as home:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with sock:
            sock.settimeout(FULL_PATIENCE)
            sock.connect(home.address(loop.stem + directory.SOCKET))
            yield sock


def drained(sock: socket.socket) -> bytes:
    """All that comes until the other end closes."""
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while part := sock.recv(1 << 16):
            data += part
    return data


def sockets_of(pid: int) -> int:
    """How many it has. (Memory of rings comes and goes as time passes.)"""
    return sum(name.startswith("socket:") for name in descriptors_of(pid))


def descriptors_of(pid: int) -> set[str]:
    found = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return found

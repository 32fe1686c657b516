"""Connections whose sockets a program reads and writes by itself, for `--report`: they stay on TCP.

tornado's streams and twisted's reactor watch descriptors with `add_reader()`; other programs use the loop's
`sock_recv()` and `sock_sendall()`. Nothing of aiordma stands between, so they are counted at their first use.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import stat
from typing import TYPE_CHECKING, Any

from ..borrowed import ENABLED

if TYPE_CHECKING:
    from collections.abc import Callable

    from .report import Report

__all__ = ["RawSockets"]

_REASON = "the program uses the socket itself"
_TCP = (socket.AF_INET, socket.AF_INET6)
#: Methods of loops by which a program uses a socket. (What is only connected may become a transport's.)
_USING = ("sock_recv", "sock_recv_into", "sock_sendall", "sock_sendfile")
_WATCHING = ("add_reader", "add_writer")


class RawSockets:
    """Counts each of them once, for a report that is wanted."""

    def __init__(self, report: Report) -> None:
        self._report = report
        #: By descriptor, the inode of the socket that was looked at last.
        self._known: dict[int, int] = {}
        #: Ports at which the program accepts.
        self._listening: set[int] = set()

    def of_loops(self, cls: type) -> dict[str, Callable[..., Any]]:
        """By name, the methods that take the place of those of a class of event loops."""
        names = [*_USING, "sock_accept"]
        new = {name: self._awaited(getattr(cls, name)) for name in names if hasattr(cls, name)}
        # Without the private methods, aiordma itself watches its sockets by these.
        return {**new, **{name: self.watching(getattr(cls, name)) for name in _WATCHING if ENABLED}}

    def _awaited(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        async def use(loop: Any, sock: Any, *args: Any, **options: Any) -> Any:
            self.used(sock)
            return await method(loop, sock, *args, **options)

        return use

    def watching(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Of a method that watches a descriptor, one that looks at it, too."""

        @functools.wraps(method)
        def watch(loop: Any, fd: Any, *args: Any) -> Any:
            result = method(loop, fd, *args)  # it refuses the descriptors of transports
            self.used(fd)
            return result

        return watch

    def used(self, what: Any) -> None:
        """A descriptor, or what has one, is used by the program."""
        with contextlib.suppress(OSError, ValueError, AttributeError, TypeError):  # the call itself complains
            number = what if isinstance(what, int) else what.fileno()
            status = os.fstat(number)
            if stat.S_ISSOCK(status.st_mode) and self._known.get(number) != status.st_ino:
                with socket.socket(fileno=os.dup(number)) as sock:
                    self._look_at(sock)
                self._known[number] = status.st_ino

    def _look_at(self, sock: socket.socket) -> None:
        """:raises OSError: it is not connected yet."""
        if sock.family not in _TCP or sock.type != socket.SOCK_STREAM:
            return
        host, port = sock.getsockname()[:2]
        if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            self._listening.add(port)
            return
        accepted = port in self._listening
        host, port = sock.getpeername()[:2]
        if accepted:
            self._report.count("client", host, "tcp", _REASON)
        else:
            self._report.count("server", f"{host}:{port}", "tcp", _REASON)

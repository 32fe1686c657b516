"""Connections whose sockets a program reads and writes by itself, for `--report`: they stay on TCP.

tornado's streams and twisted's reactor for asyncio watch descriptors with `add_reader()`, twisted's other
reactors with methods of their own; other programs use the loop's `sock_recv()` and `sock_sendall()`, and on
trio the methods of `trio.socket`. Nothing of aiordma stands between, so they are counted at their first use.
Endpoints of datagrams are counted when they are made.
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

_REASON = "the program uses the socket itself"
_NO_DATAGRAMS = "endpoints of datagrams are not negotiated"
_TCP = (socket.AF_INET, socket.AF_INET6)
#: Methods of loops by which a program uses a socket. (What is only connected may become a transport's.)
_USING = ("sock_recv", "sock_recv_into", "sock_sendall", "sock_sendfile")
_WATCHING = ("add_reader", "add_writer")
#: Methods of trio's sockets by which a program uses one.
_OF_TRIO = (
    "accept", "recv", "recv_into", "recvfrom", "recvfrom_into", "recvmsg", "recvmsg_into", "send", "sendto",
    "sendmsg",
)  # fmt: skip
_WAITING = ("wait_readable", "wait_writable")
#: twisted's reactors without an event loop of asyncio, and their methods that watch.
_REACTORS = ("EPollReactor", "PollReactor", "SelectReactor")
_WATCHING_OF_REACTORS = ("addReader", "addWriter")


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
        new["create_datagram_endpoint"] = self._datagrams(cls.create_datagram_endpoint)  # type: ignore[attr-defined]
        # Without the private methods, aiordma itself watches its sockets by these.
        return {**new, **{name: self.watching(getattr(cls, name)) for name in _WATCHING if ENABLED}}

    def _datagrams(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        async def create_datagram_endpoint(loop: Any, *args: Any, **options: Any) -> Any:
            result = await method(loop, *args, **options)
            own, peer = (result[0].get_extra_info(name) for name in ("sockname", "peername"))
            if isinstance(peer, tuple):
                self._report.count("server", f"{peer[0]}:{peer[1]}", "udp", _NO_DATAGRAMS)
            elif isinstance(own, tuple):
                self._report.count("client", f"of {own[0]}:{own[1]}", "udp", _NO_DATAGRAMS)
            return result

        return create_datagram_endpoint

    def of_trio(self, module: Any) -> dict[Any, dict[str, Callable[..., Any]]]:
        """By owner, what takes the place of functions of `trio.lowlevel` and of methods of trio's sockets."""
        cls, low = _sockets_of_trio(module), module.lowlevel
        return {
            cls: {name: self._of_socket(getattr(cls, name)) for name in _OF_TRIO if hasattr(cls, name)},
            low: {name: self._waiting(getattr(low, name)) for name in _WAITING},
        }

    def of_reactor(self, module: Any) -> dict[Any, dict[str, Callable[..., Any]]]:
        """By owner, what takes the place of methods of one of twisted's reactors."""
        classes = [vars(module)[name] for name in _REACTORS if name in vars(module)]
        return {
            cls: {name: self.watching(getattr(cls, name)) for name in _WATCHING_OF_REACTORS}
            for cls in classes
        }

    def _of_socket(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        async def use(sock: Any, *args: Any, **options: Any) -> Any:
            self.used(sock)
            return await method(sock, *args, **options)

        return use

    def _waiting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        async def wait(what: Any) -> Any:
            self.used(what)
            return await function(what)

        wait.aiordma_own = function  # type: ignore[attr-defined]  # for aiordma's own descriptors
        return wait

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

    def counted(self, sock: Any) -> None:
        """A stream of trio's uses this socket, and not the program: it has its row, or none."""
        with contextlib.suppress(OSError):  # it has ended
            number = sock.fileno()
            self._known[number] = os.fstat(number).st_ino

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


def _sockets_of_trio(module: Any) -> type:
    """The class of trio's sockets, for which there is no public name."""
    one, other = socket.socketpair()
    with one, other:
        return type(module.socket.from_stdlib_socket(one))

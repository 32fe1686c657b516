"""Listening sockets whose connections are negotiated: aiordma clients and plain ones, on one port.

Every accepted connection finds out on its own, in a task of its own, what its client speaks, so a slow or
hostile client holds up nobody else. :meth:`ConnectionListener.accept` hands out what is finished.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import math
import os
import socket
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import anyio
import anyio.abc
from anyio import ClosedResourceError, EndOfStream

from .. import wake
from ..addresses import plain_address, show
from ..attributes import address_attributes
from ..config import Config
from ..errors import AioRdmaError
from . import driver as negotiate
from . import peer_cache as peers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from ssl import SSLContext

    from ..addresses import Address
    from ..config import Mode
    from ..wake.base import Job

__all__ = [
    "ConnectionListener",
    "ListenerStatistics",
    "listening_sockets",
    "open_listener",
]

T = TypeVar("T", bound="anyio.abc.AsyncResource")
L = TypeVar("L", bound="ConnectionListener[Any]")

_log = logging.getLogger("aiordma.clc")

_ACCEPTS_PER_TURN = 64
#: After running out of file descriptors or memory, accepting rests this long: a listening socket that cannot
#: be emptied is ready all the time.
_REST_S = 0.5
_OUT_OF_RESOURCES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class ListenerStatistics(NamedTuple):
    """Counters of a listener."""

    #: connections accepted from the kernel
    accepted: int
    #: of them, those that became RDMA streams
    rdma: int
    #: those that became TCP streams
    tcp: int
    #: those that ended before they became anything
    failed: int
    #: connections whose client's language is being found out now
    undecided: int
    #: negotiations under way now
    negotiating: int
    #: streams that wait for accept()
    waiting: int


class ConnectionListener(anyio.abc.Listener[T]):
    """Listening sockets and the connections that come in, whatever they carry."""

    #: What they carry, as in ``clc.Proposal.kind``; a client that means something else is turned away.
    kind: ClassVar[int] = 0

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        *,
        config: Config,
        mode: Mode | None,
        max_negotiations: int,
        max_pending: int,
        tls: negotiate.Tls | None,
        engine: negotiate.Engine | None = None,
    ) -> None:
        """
        :param engine: gives clients rings in advance (tickets): the connections carry byte streams outside
            TLS, and no other process accepts any of them.
        """
        self._sockets = list(sockets)
        self._config = config
        self._mode = mode
        self._max_negotiations = max_negotiations
        self._max_pending = max_pending
        self._tls = tls
        self._waker = wake.current()
        self._addresses = [plain_address(sock.getsockname()) for sock in sockets]
        self._jobs: dict[socket.socket, Job] = {}
        self._queue, self._finished = anyio.create_memory_object_stream[T](math.inf)
        self._accepting = False
        self._closed = False
        self._accepted = self._rdma = self._tcp = self._failed = self._negotiating = self._waiting = 0
        self._service = None if engine is None else engine.grant_rings(self._has_room)
        self._accept_again()

    async def _make(self, outcome: negotiate.Outcome) -> T:
        """What accept() hands out for a connection whose path is agreed on; it owns the connection now, also
        when this raises.

        :raises OSError: (or AioRdmaError) the connection cannot be used after all.
        """
        raise NotImplementedError

    # -- what users call

    async def accept(self) -> T:
        """The next connection whose path is agreed on.

        :raises anyio.ClosedResourceError: the listener is closed.
        """
        try:
            stream = await self._finished.receive()
        except EndOfStream:
            raise ClosedResourceError("this listener is closed") from None
        self._waiting -= 1
        self._accept_again()
        return stream

    async def serve(
        self,
        handler: Callable[[T], Any],
        task_group: anyio.abc.TaskGroup | None = None,
    ) -> None:
        """Run ``handler(connection)`` in a task of its own for every connection, until cancelled.

        :param task_group: where to run the handlers; default: one of this call, which then waits for them.
        :raises anyio.ClosedResourceError: the listener is closed.
        """
        async with contextlib.AsyncExitStack() as stack:
            if task_group is None:
                task_group = await stack.enter_async_context(anyio.create_task_group())
            while True:
                task_group.start_soon(handler, await self.accept())

    async def aclose(self) -> None:
        """Stop listening. Unfinished connections and streams that nobody accepted are closed. Idempotent."""
        if not self._closed:
            self._closed = True
            self._stop_accepting()
            for sock in self._sockets:
                sock.close()
            if self._service is not None:
                self._service.close()
            for job in self._jobs.values():
                job.cancel()
            self._queue.close()
            with contextlib.suppress(anyio.WouldBlock, EndOfStream):
                while True:
                    await anyio.aclose_forcefully(self._finished.receive_nowait())
            self._finished.close()
        await self._waker.checkpoint()

    @property
    def addresses(self) -> list[Address]:
        """Host and port of every listening socket."""
        return list(self._addresses)

    @property
    def port(self) -> int:
        """The port; all sockets of a listener have the same."""
        return self._addresses[0][1]

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        return address_attributes(self._addresses[0], None)

    def statistics(self) -> ListenerStatistics:
        """What happened so far, and what is going on."""
        return ListenerStatistics(
            accepted=self._accepted,
            rdma=self._rdma,
            tcp=self._tcp,
            failed=self._failed,
            undecided=len(self._jobs) - self._negotiating,
            negotiating=self._negotiating,
            waiting=self._waiting,
        )

    def __repr__(self) -> str:
        state = " closed" if self._closed else ""
        return f"<{type(self).__name__} {', '.join(map(show, self._addresses))}{state}>"

    # -- accepting

    def _is_full(self) -> bool:
        return len(self._jobs) + self._waiting >= self._max_pending

    def _has_room(self) -> bool:
        return not self._is_full()

    def _accept_again(self) -> None:
        if not self._accepting and not self._closed and not self._is_full():
            self._accepting = True
            for sock in self._sockets:
                self._waker.watch_fd(sock.fileno(), functools.partial(self._accept_some, sock))

    def _stop_accepting(self) -> None:
        if self._accepting:
            self._accepting = False
            for sock in self._sockets:
                self._waker.unwatch_fd(sock.fileno())

    def _accept_some(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            if self._is_full():
                self._stop_accepting()
                return
            try:
                sock, _ = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as exc:
                if exc.errno in _OUT_OF_RESOURCES:
                    _log.error("cannot accept connections for now: %s", exc)
                    self._stop_accepting()
                    self._waker.call_at(self._waker.now() + _REST_S, self._accept_again)
                    return
                continue  # this client has gone already
            sock.setblocking(False)
            self._accepted += 1
            self._jobs[sock] = self._waker.spawn(functools.partial(self._admit, sock))

    async def _admit(self, sock: socket.socket) -> None:
        """Find out what one client speaks, and queue its stream."""
        negotiating = False

        def may_use_rdma() -> bool:
            nonlocal negotiating
            if self._negotiating >= self._max_negotiations:
                return False
            negotiating = True
            self._negotiating += 1
            return True

        try:
            outcome = await negotiate.server(
                sock,
                config=self._config,
                mode=self._mode,
                may_use_rdma=may_use_rdma,
                tls=self._tls,
                kind=self.kind,
                service=self._service,
            )
            made = await self._make(outcome)
            host = outcome.remote_address[0]
            peers.announce("client", host, outcome.path, outcome.fallback)
            if outcome.pipe is None:
                self._tcp += 1
            else:
                self._rdma += 1
            if self._closed:
                await anyio.aclose_forcefully(made)
            else:
                self._queue.send_nowait(made)
                self._waiting += 1
        except (AioRdmaError, OSError) as exc:
            self._failed += 1
            _log.warning("a connection was closed before it could be used: %s", exc)
        except BaseException:
            self._failed += 1
            raise
        finally:
            if negotiating:
                self._negotiating -= 1
            del self._jobs[sock]
            self._accept_again()


async def open_listener(
    make: Callable[..., L],
    host: str | Sequence[str] | None,
    port: int,
    *,
    config: Config | None,
    mode: Mode | None,
    backlog: int,
    reuse_address: bool,
    reuse_port: bool,
    max_negotiations: int,
    max_pending: int,
    ssl: SSLContext | None,
    rdma_outside_tls: bool,
    tickets: bool = False,
) -> L:
    """What every ``listen()`` does; the parameters are those of :func:`aiordma.listen`.

    :param make: the class of the listener.
    :param tickets: whether its clients can begin with rings that they were given in advance.
    :raises OSError: the address cannot be listened on, naming it.
    """
    if max_negotiations < 0 or max_pending < 1:
        raise ValueError(
            f"max_negotiations={max_negotiations} must be at least 0, max_pending={max_pending} at least 1"
        )
    config = config or Config.from_env()
    tls = negotiate.Tls.of_server(ssl, rdma_outside_tls)
    with contextlib.ExitStack() as stack:
        sockets = await listening_sockets(host, port, backlog, reuse_address, reuse_port)
        for sock in sockets:
            stack.enter_context(sock)
        engine = await negotiate.warm_up(config, mode)
        stack.pop_all()
    # Of processes that share a port, a connection may meet another than the one that gave the ticket.
    may_issue = tickets and not reuse_port and tls is None
    return make(
        sockets,
        config=config,
        mode=mode,
        max_negotiations=max_negotiations,
        max_pending=max_pending,
        tls=tls,
        engine=engine if may_issue else None,
    )


async def listening_sockets(
    host: str | Sequence[str] | None,
    port: int,
    backlog: int = 1024,
    reuse_address: bool = True,
    reuse_port: bool = False,
) -> list[socket.socket]:
    """Non-blocking listening sockets, one for each address of ``host``, all on the same port.

    :raises OSError: the address cannot be listened on, naming it.
    """
    hosts: Sequence[str | None] = [host or None] if host is None or isinstance(host, str) else host
    candidates: dict[tuple[int, Any], None] = {}
    for name in hosts:
        for info in await anyio.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE):
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

"""A server for asyncio programs: listening sockets, a negotiation per connection, asyncio's interface."""

from __future__ import annotations

import asyncio
import asyncio.trsock
import contextlib
import errno
import functools
import itertools
import logging
import operator
import os
import socket
import sys
import weakref
from typing import TYPE_CHECKING, Any

from .. import wake
from ..addresses import looking_up, plain_address
from ..borrowed import ENABLED
from ..errors import AioRdmaError
from ..negotiation.announcement import Announcement
from ..observe import listeners
from ..observe.listeners import Listening
from ..proto.clc import Kind
from ..wake.accepting import Acceptor
from ..wake.escaping import is_cancellation
from ..wake.names import getaddrinfo
from .arguments import check_port
from .shares import Shares

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from ..links.pregranted import GrantingListener
    from ..negotiation.engine import Engine

_log = logging.getLogger("aiordma.compat")

#: connections that may be negotiated at a time; see `Shares` for those beyond
_MAX_STARTING = 1024
#: A negotiation takes the loop about as long as so many plain connections. Those that come meanwhile would
#: not fit into the queue that a program asks for, and the kernel would have their clients try again later.
_QUEUE_FACTOR = 8
_INT_MAX = (1 << 31) - 1
#: Seconds that the end of a server waits for connections that have begun. They take milliseconds; longer,
#: those of silent clients, and what a client begins and does not go on with.
_HANDED_OVER_S = 1.0
#: Whether asyncio leaves out an address that this machine does not have, beside others: since 3.11.8, 3.12.2.
_LEAVES_OUT_ABSENT = sys.version_info >= (3, 12, 2) or (3, 11, 8) <= sys.version_info < (3, 12)


class RdmaServer(asyncio.AbstractServer):
    """Made by `aiordma.start_server` and `aiordma.create_server`; used as the server objects of asyncio."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sockets: list[socket.socket],
        connect: Callable[[RdmaServer, socket.socket], Awaitable[None]],
        backlog: int,
        engine: Engine | None = None,
        *,
        announces: bool = True,
    ) -> None:
        """`connect(server, socket)` makes a transport on an accepted connection; the socket is its own.

        `engine` gives clients rings in advance (tickets): no other process accepts these connections.
        `announces`: clients of this host may know that it negotiates.
        """
        self._loop, self._waker = loop, wake.current()
        self._announcement: Announcement | None = None
        self.service: GrantingListener | None = None
        self._sockets: list[socket.socket] | None = sockets
        self._connect = connect
        self._backlog = backlog
        # As asyncio's, it serves also when nothing but the loop knows it.
        self._acceptor = Acceptor(self._waker, sockets, self, backlog, holds=True)
        self._serving = False
        self._forever: asyncio.Future[None] | None = None
        self._starting: set[asyncio.Task[None]] = set()
        self._shares = Shares(_MAX_STARTING)
        self._clients: weakref.WeakSet[Any] = weakref.WeakSet()
        self._active = self._accepted = 0
        # Programs that were written for asyncio of before, or for uvloop, would hang.
        as_asyncio = isinstance(loop, asyncio.BaseEventLoop)
        self._waits_for_clients = as_asyncio and sys.version_info >= (3, 12)
        self._ends_clients = as_asyncio and sys.version_info >= (3, 13)
        # What it has lent to the engine must not keep a server that the program and the loop have dropped.
        me = weakref.ref(self)
        if engine is not None:
            self.service = engine.grant_rings(lambda: _has_room(me))
        #: Who waits for the end; None after it, as in asyncio's servers, whose tests look.
        self._waiters: list[asyncio.Future[None]] | None = []
        #: As asyncio's servers have it: test-suites look, to find out whether a server is one of TLS.
        self._ssl_context: object = None
        self._announces = announces
        #: Makes the context in which a socket's `listen()` is called.
        self.around_listen: Callable[[socket.socket], contextlib.AbstractContextManager[Any]] = (
            contextlib.nullcontext
        )

    def __del__(self) -> None:
        # It was dropped: the sockets say so, as asyncio's do, and close themselves.
        if getattr(self, "_sockets", None) is None:
            return
        if self._announcement is not None:
            self._announcement.close()
        service = self.service
        if service is not None and self._waker.pid == os.getpid():
            # The collector may be in any thread.
            self._waker.call_from_anywhere(service.close)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} sockets={self.sockets!r}>"

    # ---- what it is -----------------------------------------------------------------------------------

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """The event loop it belongs to."""
        return self._loop

    def is_serving(self) -> bool:
        """Accepting connections."""
        return self._serving

    @property
    def sockets(self) -> tuple[asyncio.trsock.TransportSocket, ...]:
        """The listening sockets; empty once the server is closed."""
        return tuple(asyncio.trsock.TransportSocket(sock) for sock in self._sockets or ())

    def observed(self) -> Listening | None:
        """See :class:`aiordma.observe.listeners.Observed`."""
        if self._sockets is None or not self._serving:
            return None
        addresses = [plain_address(sock.getsockname()) for sock in self._sockets]
        pending = len(self._starting) + self._shares.waiting
        return Listening(Kind.STREAM, addresses, self._accepted, pending)

    # ---- serving --------------------------------------------------------------------------------------

    async def start_serving(self) -> None:
        """Accept connections from now on; no effect when it does already.

        :raises RuntimeError: the server is closed
        """
        self._start()
        await asyncio.sleep(0)

    async def begin(self, given: socket.socket | None = None) -> None:
        """:meth:`start_serving` for the function that made it: closes the server if that fails.

        `given` is the program's socket, which stays open then, as with asyncio.
        """
        try:
            await self.start_serving()
        except BaseException:
            if given is not None and self._sockets:
                self._acceptor.release(given)
            self.close()
            raise

    def _start(self) -> None:
        if self._sockets is None:
            raise RuntimeError(f"server {self!r} is closed")
        if not self._serving:
            self._serving = True
            for sock in self._sockets:
                with self.around_listen(sock):
                    sock.listen(_queue(self._backlog))
            self._acceptor.resume()
            listeners.enter(self._waker, self)
            if self._announces:
                self._announcement = Announcement(sock.getsockname()[1] for sock in self._sockets)

    async def serve_forever(self) -> None:
        """Accept connections until the caller is cancelled, then close the server.

        On asyncio's own loops, from Python 3.13 on, its connections are closed with it.

        :raises RuntimeError: the server is closed, or another task is in this method
        """
        if self._forever is not None:
            raise RuntimeError(f"server {self!r} is already being awaited on serve_forever()")
        # Without a checkpoint: from its first step on, to cancel this closes the server.
        self._start()
        self._forever = self._loop.create_future()
        try:
            await self._forever
        except asyncio.CancelledError:
            self.close()
            if self._ends_clients:
                self.close_clients()
            await self.wait_closed()
            raise
        finally:
            self._forever = None

    def has_room(self) -> bool:
        """Whether it would take one more connection now."""
        return self._shares.has_room()

    def accept_failed(self, error: OSError | MemoryError, *, pauses: bool) -> None:
        """See :class:`aiordma.wake.accepting.Accepting`."""
        if pauses:
            self._report("socket.accept() out of system resource", error)
        elif not isinstance(error, ConnectionAbortedError):
            raise error

    def take(self, connection: socket.socket) -> None:
        """A connection was accepted."""
        self._accepted += 1
        # As every loop does; a stream that leaves RDMA goes on here.
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        host = self._shares.take(connection)
        if host is not None:
            self._start_negotiation(host, connection)

    def _start_negotiation(self, host: str, connection: socket.socket) -> None:
        task = self._loop.create_task(self._begin(connection))
        self._starting.add(task)
        task.add_done_callback(functools.partial(self._started, host, connection))

    def _started(self, host: str, connection: socket.socket, task: asyncio.Task[None]) -> None:
        self._starting.discard(task)
        if task.cancelled():
            connection.close()  # before its first step, nothing else has closed it
            self._shares.drop()  # all are given up, by the program or at the end of its loop
        for each in self._shares.ended(host):
            self._start_negotiation(*each)
        self._acceptor.resume()

    async def _begin(self, connection: socket.socket) -> None:
        try:
            await self._connect(self, connection)
        except (OSError, AioRdmaError) as exc:
            _log.debug("connection not served: %s", exc)
        except (SystemExit, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as exc:
            if is_cancellation(exc):
                raise
            self._report("Error on transport creation for incoming connection", exc)

    def _report(self, message: str, exc: BaseException) -> None:
        self._loop.call_exception_handler({"message": message, "exception": exc, "server": self})

    # ---- connections ----------------------------------------------------------------------------------

    def attach(self, transport: asyncio.BaseTransport) -> None:
        """A connection has begun."""
        self._clients.add(transport)
        self._attach()

    def detach(self, transport: asyncio.BaseTransport) -> None:
        """A connection is lost."""
        self._clients.discard(transport)
        self._detach()

    # By these names asyncio's servers count their connections, of which its tests pretend some.

    def _attach(self, *_transport: object) -> None:
        self._active += 1

    def _detach(self, *_transport: object) -> None:
        self._active -= 1
        self._wake_when_done()

    def adopt(self, transport: asyncio.Transport) -> None:
        """A connection on one of the loop's own transports has begun.

        asyncio's transports notify their server when they end; uvloop's do not, and are not waited for.
        """
        if ENABLED and getattr(transport, "_server", self) is None:
            transport._server = _AsyncioServer(self, transport)  # type: ignore[attr-defined]
            self.attach(transport)
        else:
            self._clients.add(transport)

    def close_clients(self) -> None:
        """Close all connections that this server accepted (as Python 3.13 has it)."""
        self._give_up_starting()
        for transport in list(self._clients):
            transport.close()

    def abort_clients(self) -> None:
        """Abort all connections that this server accepted (as Python 3.13 has it)."""
        self._give_up_starting()
        for transport in list(self._clients):
            transport.abort()

    def _give_up_starting(self) -> None:
        """To the program, those that are being negotiated would be new connections, which it never closes."""
        self._shares.drop()
        for task in self._starting:
            task.cancel()

    # ---- end ------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop listening. Connections that exist, and those that are being negotiated, go on."""
        if self._sockets is None:
            return
        self._sockets = None
        self._acceptor.close()
        if self._announcement is not None:
            self._announcement.close()
        if self.service is not None:
            self.service.close()
        self._serving = False
        if self._forever is not None and not self._forever.done():
            self._forever.cancel()
            self._forever = None
        self._wake_when_done()

    async def wait_closed(self) -> None:
        """Wait until the server is closed.

        From Python 3.12 on also until all its connections are closed. Before, and on uvloop, asyncio does not
        wait for them once close() was called. What is being negotiated, asyncio would have shown to the
        program already: it is waited for, for a moment. So a program that waits for the end of its server,
        and then for the connections that it has, serves them all.
        """
        if self._waiters is not None and (self._sockets is not None or self._waits_for_clients):
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter
        if self._starting:
            await asyncio.wait(self._starting, timeout=_HANDED_OVER_S)

    def _wake_when_done(self) -> None:
        # Not those that are being negotiated: a program that has closed its connections would wait for one
        # more, of a client that was silent until then, which it does not know of.
        if self._sockets is None and not self._active:
            waiters, self._waiters = self._waiters, None
            for waiter in waiters or ():
                if not waiter.done():
                    waiter.set_result(None)


def _has_room(server: weakref.ref[RdmaServer]) -> bool:
    found = server()
    return found is not None and found.has_room()


class _AsyncioServer:
    """What asyncio's socket transports ask of their server at their end."""

    def __init__(self, server: RdmaServer, transport: asyncio.Transport) -> None:
        self._server = server
        self._transport = transport

    def _detach(self, *_transport: asyncio.Transport) -> None:
        self._server.detach(self._transport)


async def bind_sockets(
    host: str | Iterable[str | None] | None,
    port: int | str | None,
    *,
    family: int = socket.AF_UNSPEC,
    flags: int = socket.AI_PASSIVE,
    reuse_address: bool | None = None,
    reuse_port: bool | None = None,
    keep_alive: bool | None = None,
) -> list[socket.socket]:
    """Sockets bound to every address that `host` (a name, several, or None for all interfaces) stands for.

    :raises OSError: a name cannot be resolved, or an address cannot be bound
    :raises OverflowError: no port has this number
    """
    check_port(port)
    hosts: list[str | None] = (
        [None if host == "" else host] if host is None or isinstance(host, str) else [*host]
    )

    async def look_up(name: str | None) -> list[Any]:
        with looking_up(name, port):
            return await getaddrinfo(name, port, family=family, flags=flags)

    found = await asyncio.gather(*map(look_up, hosts))
    sockets: list[socket.socket] = []
    options = {
        socket.SO_REUSEADDR: reuse_address is None or reuse_address,
        socket.SO_REUSEPORT: reuse_port,
        socket.SO_KEEPALIVE: keep_alive,
    }
    try:
        for family, kind, proto, _, address in dict.fromkeys(itertools.chain.from_iterable(found)):
            try:
                sock = socket.socket(family, kind, proto)
            except OSError:
                _log.debug("no socket of family %r on this machine", family)
                continue
            sockets.append(sock)
            if not _is_bound(sock, address, options):
                sockets.pop().close()
        if not sockets:
            tried = [info[4] for info in itertools.chain.from_iterable(found)]
            raise OSError(errno.EADDRNOTAVAIL, f"could not bind on any address out of {tried!r}")
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    return sockets


def _is_bound(sock: socket.socket, address: Any, options: dict[int, bool | None]) -> bool:
    """Bind it. False: this machine does not have the address, which then does not count.

    :raises OSError: it cannot be bound.
    """
    sock.setblocking(False)
    for option, wanted in options.items():
        if wanted:
            sock.setsockopt(socket.SOL_SOCKET, option, 1)
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    try:
        sock.bind(address)
    except OSError as exc:
        if exc.errno == errno.EADDRNOTAVAIL and _LEAVES_OUT_ABSENT:
            _log.debug("no address %r on this machine", address)
            return False
        reason = os.strerror(exc.errno or 0).lower()
        raise OSError(exc.errno, f"error while attempting to bind on address {address!r}: {reason}") from None
    return True


def _queue(backlog: int) -> int:
    """The length of the kernel's queue, for a program that expects so many connections in it.

    :raises TypeError: it is no integer, in the words of ``listen(2)``'s caller.
    """
    backlog = operator.index(backlog)
    return max(backlog, min(backlog * _QUEUE_FACTOR, _INT_MAX))

"""A listener whose connections are negotiated: aiordma clients and plain ones, on one port.

Every accepted connection has its own task, which finds out what its client speaks. So a slow or hostile
client does not delay the others. :meth:`ConnectionListener.accept` hands out what is finished.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import math
import warnings
import weakref
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import anyio
import anyio.abc
from anyio import ClosedResourceError, EndOfStream

from .. import wake
from ..addresses import plain_address, show
from ..attributes import address_attributes
from ..errors import AioRdmaError, remedy
from ..observe import listeners
from ..observe.listeners import Listening
from ..wake.accepting import Acceptor
from ..wake.ending import release_unclosed
from ..wake.interrupts import uninterrupted
from ..wake.origin import here
from . import peer_cache
from .announcement import Announcement
from .engine import warm_up
from .listening import listen_on, listening_sockets
from .server import OnlyAskedError, negotiate_accepted
from .serving import Abortable, Handlers, check_arguments
from .smc_option import let_ask

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from ..addresses import Address
    from ..links.pregranted import GrantingListener
    from ..wake.base import Job, Waiter
    from .dialogue import NegotiationResult
    from .engine import Engine
    from .options import ListenOptions
    from .serving import OnError

T = TypeVar("T", bound=Abortable)
L = TypeVar("L", bound="ConnectionListener[Any]")

_log = logging.getLogger("aiordma.clc")

_ACCEPTS_PER_TURN = 64


class ListenerStatistics(NamedTuple):
    """Counters of a listener."""

    #: connections accepted from the kernel
    accepted: int
    #: of them, those that became RDMA streams
    rdma: int
    #: those that became TCP streams
    tcp: int
    #: those that ended before they became either
    failed: int
    #: connections whose first bytes have not shown yet what the client speaks
    undecided: int
    #: negotiations under way now
    negotiating: int
    #: streams that wait for accept()
    waiting: int
    #: handlers of serve() that run now
    serving: int = 0
    #: handlers that raised an exception which was not the loss of their client
    handlers_failed: int = 0
    #: handlers that ended because their client was lost (killed, crashed, unreachable)
    handlers_lost: int = 0


@uninterrupted
class ConnectionListener(anyio.abc.Listener[T]):
    """Listening sockets and their connections, whatever these carry."""

    #: The kind of connection (``clc.Proposal.kind``); a client that proposes another one is turned away.
    kind: ClassVar[int] = 0

    def __init__(
        self, sockets: Sequence[socket.socket], options: ListenOptions, engine: Engine | None = None
    ) -> None:
        """
        :param engine: pre-grants rings to clients: the connections carry byte streams outside TLS, and no
            other process accepts any of them.
        """
        self._options = options
        self._waker = wake.current()
        self._addresses = [plain_address(sock.getsockname()) for sock in sockets]
        self._jobs: dict[socket.socket, Job] = {}
        self._when_idle: list[Waiter] = []  # set when a job has ended
        self._queue, self._finished = anyio.create_memory_object_stream[T](math.inf)
        self._closed = False
        self._handlers: Handlers[T] = Handlers()
        self._accepted = self._rdma = self._tcp = self._failed = self._negotiating = self._waiting = 0
        # The loop and the engine must not keep a listener that everybody has dropped.
        me = weakref.ref(self)
        self._acceptor = Acceptor(self._waker, sockets, self, _ACCEPTS_PER_TURN, holds=False)
        self._service = None if engine is None else engine.grant_rings(lambda: _has_room(me))
        ports = [] if options.mode == "tcp" else [port for _, port in self._addresses]
        self._announcement = Announcement(ports)
        self._waker.bind(self)
        listeners.enter(self._waker, self)
        self.origin = here()
        #: It was not closed.
        self._forgotten = True
        self._acceptor.resume()

    async def _make(self, result: NegotiationResult) -> T:
        """Make what accept() hands out of a connection whose path is agreed on. It owns the connection, also
        when this raises.

        :raises OSError: (or AioRdmaError) the connection cannot be used after all.
        """
        raise NotImplementedError

    async def _negotiate(self, sock: socket.socket, may_use_rdma: Callable[[], bool]) -> NegotiationResult:
        """As :func:`negotiate_accepted`, on one accepted connection."""
        return await negotiate_accepted(
            sock, self._options, kind=self.kind, service=self._service, may_use_rdma=may_use_rdma
        )

    # -- what users call

    async def accept(self) -> T:
        """The next connection whose path is agreed on.

        :raises anyio.ClosedResourceError: the listener is closed.
        """
        try:
            stream = await self._finished.receive()
        except (EndOfStream, ClosedResourceError):
            raise ClosedResourceError("this listener is closed") from None
        self._waiting -= 1
        self._acceptor.resume()
        return stream

    async def serve(
        self,
        handler: Callable[[T], Awaitable[object]],
        task_group: anyio.abc.TaskGroup | None = None,
        *,
        on_error: OnError[T] = "log",
    ) -> None:
        """Run ``handler(connection)`` in a new task for every connection, until cancelled.

        The connection belongs to this method: it is closed when its handler returns. It is aborted when the
        handler raises or is cancelled, so that the peer gets an error, and does not take for whole what
        breaks off. (A handler may close it earlier.) So a handler that hands its connection to another task
        must wait for that task; a program that keeps connections calls :meth:`accept` itself.

        A handler that fails ends its own connection only. Its exception is counted (:meth:`statistics`)
        and logged with the client's address by the logger ``aiordma.serve``: at level INFO if the client was
        lost (``BrokenResourceError``, ``EndOfStream``, ``IncompleteRead``, ``ConnectionResetError`` and the
        like, or a group of nothing else), at level ERROR with the traceback if it is anything else.
        A ``CancelledError`` of asyncio that comes from something cancelled that the handler has awaited
        is counted and logged as a ``RuntimeError`` caused by it. Cancellation of the handler,
        ``KeyboardInterrupt``, ``SystemExit``, whatever is no ``Exception``, pass through.

        :param task_group: where to run the handlers; default: a task group of this call, which then waits
            for them.
        :param on_error: ``"log"``; ``"raise"``: the exception of one handler ends this method and all other
            handlers, as with anyio's listeners; or a function that is called with the connection (open, but
            perhaps broken) and the exception instead of logging, and may be async. What it raises ends this
            method.
        :raises anyio.ClosedResourceError: the listener is closed.
        :raises ValueError: ``on_error`` is none of these. :raises TypeError: ``handler`` is no function.
        """
        check_arguments(handler, on_error)
        async with contextlib.AsyncExitStack() as stack:
            if task_group is None:
                task_group = await stack.enter_async_context(anyio.create_task_group())
            while True:
                connection = await self.accept()
                try:
                    task_group.start_soon(self._handlers.run, handler, connection, on_error)
                except BaseException:  # the task group has ended
                    connection.abort()
                    raise

    async def report(self, connection: T, exc: Exception) -> None:
        """Log and count an exception of a handler that :meth:`serve` did not run."""
        await self._handlers.report(connection, exc, "log")

    def close(self) -> None:
        """Stop listening, now: no new client can connect, and tasks in :meth:`accept` and :meth:`serve` get
        ``ClosedResourceError``. Connections that were not accepted are aborted.

        Waits for nothing, so any callback of the event loop may call it. Idempotent; :meth:`aclose` waits for
        what is left.
        """
        self._forgotten = False
        if not self._closed:
            self._close()
            for stream in self._take_waiting():
                stream.abort()

    async def aclose(self) -> None:
        """As :meth:`close`, and wait until negotiations under way have ended, too. Idempotent."""
        self.close()
        await self._waker.checkpoint()
        waiter = self._waker.new_waiter()
        self._when_idle.append(waiter)
        try:
            while self._jobs:
                await waiter.wait()
        finally:
            self._when_idle.remove(waiter)

    @property
    def closed(self) -> bool:
        """Whether it has stopped listening."""
        return self._closed

    def _close(self) -> None:
        self._closed = True
        _stop_listening(self._acceptor, self._service, self._announcement)
        for job in self._jobs.values():
            job.cancel()

    def _take_waiting(self) -> list[T]:
        """The streams that were not accepted yet."""
        with contextlib.suppress(RuntimeError):  # a task waits in accept(), and its loop is closed
            self._queue.close()
        streams = []
        # ClosedResourceError: a finalizer has taken them, and the loop ends before the listener is gone.
        with contextlib.suppress(anyio.WouldBlock, EndOfStream, ClosedResourceError):
            while True:
                streams.append(self._finished.receive_nowait())
        self._finished.close()
        return streams

    def loop_ended(self) -> None:
        """See :class:`aiordma.wake.base.LoopBound`."""
        if not self._closed:
            self._forgotten = True
            self._close()
            self._take_waiting()

    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:
        if not getattr(self, "_forgotten", False):
            return
        if self._closed:  # with its loop
            release_unclosed(self, self._waker, None, _warn)
            return
        acceptor, service, announcement = self._acceptor, self._service, self._announcement
        streams = self._take_waiting()

        def release() -> None:
            _stop_listening(acceptor, service, announcement)
            for stream in streams:
                stream.abort()

        release_unclosed(self, self._waker, release, _warn)

    @property
    def addresses(self) -> list[Address]:
        """Host and port of every listening socket."""
        return list(self._addresses)

    @property
    def port(self) -> int:
        """The port; all sockets of a listener have the same, but those that a program brings."""
        return self._addresses[0][1]

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        return address_attributes(self._addresses[0], None)

    def statistics(self) -> ListenerStatistics:
        """Counters of what has happened so far, and of what is under way."""
        return ListenerStatistics(
            accepted=self._accepted,
            rdma=self._rdma,
            tcp=self._tcp,
            failed=self._failed,
            undecided=len(self._jobs) - self._negotiating,
            negotiating=self._negotiating,
            waiting=self._waiting,
            serving=self._handlers.running,
            handlers_failed=self._handlers.failed,
            handlers_lost=self._handlers.lost,
        )

    def observed(self) -> Listening | None:
        """See :class:`aiordma.observe.listeners.Observed`."""
        counts, jobs = self.statistics(), len(self._jobs)
        paths = counts.rdma, counts.tcp, counts.failed
        return (
            None
            if self._closed
            else Listening(self.kind, self._addresses, counts.accepted, jobs, counts.waiting, *paths)
        )

    def __repr__(self) -> str:
        state = " closed" if self._closed else ""
        return f"<{type(self).__name__} {', '.join(map(show, self._addresses))}{state}>"

    # -- accepting

    def has_room(self) -> bool:
        """Whether it would take one more connection now."""
        return len(self._jobs) + self._waiting < self._options.max_pending

    def accept_failed(self, error: OSError | MemoryError, *, pauses: bool) -> None:
        """See :class:`aiordma.wake.accepting.Accepting`."""
        if pauses:
            hint = remedy(error.errno or 0 if isinstance(error, OSError) else errno.ENOMEM)
            reason = str(error) or "no memory"
            _log.error("cannot accept connections for now: %s%s", reason, hint and f"; {hint}")

    def take(self, sock: socket.socket) -> None:
        """A connection was accepted."""
        self._accepted += 1
        self._jobs[sock] = self._waker.spawn(functools.partial(self._admit, sock))

    async def _admit(self, sock: socket.socket) -> None:
        """Find out what one client speaks, and queue its stream."""
        negotiating = False

        def may_use_rdma() -> bool:
            nonlocal negotiating
            if self._negotiating >= self._options.max_negotiations:
                return False
            negotiating = True
            self._negotiating += 1
            return True

        try:
            made = await self._make(result := await self._negotiate(sock, may_use_rdma))
            peer_cache.announce("client", result.remote_address[0], result.path, result.fallback)
            if result.pipe is None:
                self._tcp += 1
            else:
                self._rdma += 1
            if self._closed:
                made.abort()
            else:
                self._queue.send_nowait(made)
                self._waiting += 1
        except OnlyAskedError:
            pass  # it was no connection
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
            self._acceptor.resume()
            for waiter in self._when_idle:
                waiter.set()


def _has_room(listener: weakref.ref[ConnectionListener[Any]]) -> bool:
    found = listener()
    return found is not None and found.has_room()


def _stop_listening(acceptor: Acceptor, service: GrantingListener | None, announcement: Announcement) -> None:
    announcement.close()
    acceptor.close()
    if service is not None:
        service.close()


@uninterrupted
async def open_listener(
    make: type[L],
    host: str | Sequence[str] | None,
    port: int,
    options: ListenOptions,
    *,
    pre_grants: bool = False,
) -> L:
    """What every ``listen()`` does; ``host`` and ``port`` as of :func:`aiordma.listen`.

    :param make: the class of the listener.
    :param pre_grants: whether its clients may begin with rings that were granted in advance.
    :raises OSError: the address cannot be listened on, naming it.
    :raises ValueError: ``port`` is no port number; or ``options.sockets`` has one that is no bound TCP
        socket, or there is an address beside them. They are closed then.
    """
    around = functools.partial(let_ask, options=options, kind=make.kind)
    with contextlib.ExitStack() as stack:
        if options.sockets is None:
            sockets: Sequence[socket.socket] = await listening_sockets(
                host, port, options.backlog, options.reuse_address, options.reuse_port, around
            )
        else:
            sockets = options.sockets
        for sock in sockets:
            stack.enter_context(sock)
        if options.sockets is not None:
            listen_on(sockets, host, port, options.backlog, around)
        engine = await warm_up(options)
        stack.pop_all()
    # If several processes share a port, another one than the one that granted the ring may accept.
    shared = options.reuse_port or options.sockets is not None
    may_grant = pre_grants and not shared and options.tls is None
    return make(sockets, options, engine if may_grant else None)

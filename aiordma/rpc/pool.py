"""A client of several servers, or of one that comes back: connections kept, calls balanced over them.

The rules are in ``balance.py``. Here are the tasks: one that starts connections when they are wanted, and one
for each connection, which lasts as long as it does and follows the server's health. They live in the task
group of the pool's ``async with``.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

import anyio

from ..addresses import check_address
from ..negotiation.options import check_mode
from ..wake import current
from ..wake.interrupts import uninterrupted
from .balance import Ejection, Picking, Target, Targets, TargetStatistics
from .client import Client, connect
from .errors import Code, RpcError, RpcTimeout
from .health import HEALTH_SERVICE, Status
from .interceptor import ClientCall, ClientInterceptor, chain_stream, chain_unary
from .items import check_window
from .picked import Picked, stream_of
from .retry import Backoff

if TYPE_CHECKING:
    from ssl import SSLContext

    from anyio.abc import TaskGroup

    from ..config import Config, Mode
    from ..wake.base import Waiter

_log = logging.getLogger("aiordma.rpc")


R = TypeVar("R")


@uninterrupted
class Pool:
    """Calls to one of several servers; made by :func:`connect_pool`.

    :param addresses: the servers.
    :param connect: opens a connection to one of them.
    :param health: name of the service whose health is watched on every server ("" for the server as a whole);
        one that is not SERVING gets no calls. None: not watched. Servers without a health service count as
        serving.
    :param connect_timeout_s: longest time for one connection to come up.
    :param drain_timeout_s: how long calls may go on at a server that shuts down; None: as long as they take.
    """

    def __init__(  # noqa: PLR0913  # the keywords of connect_pool()
        self,
        addresses: Sequence[Any],
        connect: Callable[[Any], AbstractAsyncContextManager[Client]],
        *,
        picking: Picking = Picking.PICK_FIRST,
        reconnect: Backoff | None = None,
        ejection: Ejection | None = None,
        health: str | None = None,
        interceptors: Iterable[ClientInterceptor] = (),
        connect_timeout_s: float = 10.0,
        drain_timeout_s: float | None = 60.0,
    ) -> None:
        self._targets: Targets[Client] = Targets(addresses, picking, reconnect=reconnect, ejection=ejection)
        self._connect = connect
        self._health = health
        self._connect_timeout_s = connect_timeout_s
        self._drain_timeout_s = drain_timeout_s
        self._interceptors = interceptors = list(interceptors)
        self._chain = chain_unary(interceptors, self._last) if interceptors else None
        self._streams = chain_stream(interceptors, self._stream) if interceptors else None
        #: Connections as pick() has given them out, while they last.
        self._picked: dict[Client, Client] = {}
        self._waiting: set[Waiter] = set()
        self._scope = anyio.CancelScope()
        self._open = False
        self._ended: anyio.Event | None = None

    async def __aenter__(self) -> Self:
        """Wait for the first connection.

        :raises RpcError: ``UNAVAILABLE``, no server could be reached (the reasons are in the message).
        """
        self._waker = current()
        self._changed = self._waker.new_waiter()
        self._ended = anyio.Event()
        self._open = True
        # Not a task group around the caller's block: what is raised there must not come out as a group.
        self._waker.spawn(functools.partial(self._run, self._ended))
        try:
            await self._pick(None)
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections; calls that are under way fail. Idempotent."""
        ended = self._ended
        if ended is None:
            return
        if not self._open:  # another task closes it, or it is closed
            await ended.wait()
            return
        self._open = False
        self._wake_all()
        self._scope.cancel()
        with anyio.CancelScope(shield=True):
            await ended.wait()

    # ---- calls ---------------------------------------------------------------------------------------------

    @overload
    async def call(
        self,
        method: str,
        /,
        *args: Any,
        returns: type[R],
        timeout: float | None = None,  # noqa: ASYNC109  # it travels with the call
        metadata: Mapping[str, str | bytes] | None = None,
        idempotent: bool | None = None,
        into: None = None,
        **kwargs: Any,
    ) -> R: ...
    @overload
    async def call(
        self,
        method: str,
        /,
        *args: Any,
        returns: Any = None,
        timeout: float | None = None,  # noqa: ASYNC109  # it travels with the call
        metadata: Mapping[str, str | bytes] | None = None,
        idempotent: bool | None = None,
        into: Any = None,
        **kwargs: Any,
    ) -> Any: ...
    async def call(
        self,
        method: str,
        /,
        *args: Any,
        timeout: float | None = None,  # noqa: ASYNC109  # it travels with the call
        metadata: Mapping[str, str | bytes] | None = None,
        returns: Any = None,
        idempotent: bool | None = None,
        into: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Make a call on one of the servers. Parameters, result and errors as of :meth:`Client.call`.

        :raises RpcError: besides: ``UNAVAILABLE`` with ``not_started``, no server is connected and serving.
        """
        if self._chain is None:
            return await self._once(method, args, kwargs, timeout, metadata, returns, idempotent, into)
        call = ClientCall(method, args, kwargs, timeout, dict(metadata or ()), returns, idempotent, into)
        return await self._chain(call)

    async def _last(self, call: ClientCall) -> Any:
        """What the interceptors end with."""
        return await self._once(
            call.method,
            call.args,
            call.kwargs,
            call.timeout,
            call.metadata,
            call.returns,
            call.idempotent,
            call.into,
            call,
        )

    async def _once(  # noqa: PLR0913  # what there is of a call
        self,
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        timeout: float | None,  # noqa: ASYNC109  # it travels with the call
        metadata: Mapping[str, str | bytes] | None,
        returns: Any,
        idempotent: bool | None,
        into: Any,
        seen: ClientCall | None = None,
    ) -> Any:
        now = self._waker.now
        targets = self._targets
        target = targets.pick(now()) if self._open else None
        if target is None:
            begun = now()
            target = await self._pick(None if timeout is None else begun + timeout)
            if timeout is not None:
                timeout -= now() - begun
        client = target.client
        assert client is not None
        if seen is not None:
            seen.server, seen.peer = client.addresses
        targets.begin(target)
        try:
            result = await client.call(
                method,
                *args,
                timeout=timeout,
                metadata=metadata,
                returns=returns,
                idempotent=idempotent,
                into=into,
                **kwargs,
            )
        except BaseException as exc:
            targets.end(target, exc, now())
            raise
        targets.end(target, None, 0.0)
        return result

    def pick(self) -> Client:
        """A connection to the server whose turn it is, for calls that must go to the same one. They pass the
        interceptors of the pool.

        :raises RpcError: ``UNAVAILABLE``, no server is connected and serving.
        """
        client = self._turn()
        if not self._interceptors:
            return client
        picked = self._picked.get(client)
        if picked is None:
            picked = self._picked[client] = Picked(client, self._interceptors)
        return picked

    def _turn(self) -> Client:
        """The connection of the server whose turn it is, without the pool's interceptors."""
        target = self._targets.pick(self._waker.now()) if self._open else None
        if target is None or target.client is None:
            raise self._unavailable()
        return target.client

    def stream(
        self,
        method: str,
        /,
        *args: Any,
        timeout: float | None = None,
        metadata: Mapping[str, str | bytes] | None = None,
        returns: Any = None,
        window: int = 0,
        into: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Begin a streaming call on one of the servers, on which it stays. Parameters, result and errors as
        of :meth:`Client.stream`.

        :raises RpcError: besides: ``UNAVAILABLE``, no server is connected and serving.
        """
        sent = dict(metadata or ())
        call = ClientCall(method, args, kwargs, timeout, sent, returns, into=into, window=window)
        return self._stream(call) if self._streams is None else self._streams(call)

    def _stream(self, call: ClientCall) -> Any:
        """What the interceptors of streams end with."""
        return stream_of(self._turn(), call)

    def statistics(self) -> list[TargetStatistics]:
        """The servers as this client sees them."""
        return self._targets.statistics(self._waker.now())

    async def _pick(self, deadline: float | None) -> Target[Client]:
        """A server for a call, waiting while one may come up."""
        while True:
            if not self._open:
                raise self._unavailable("the client is closed")
            target = self._targets.pick(self._waker.now())
            if target is not None:
                return target
            if not self._targets.may_come_soon():
                raise self._unavailable()
            waiter = self._waker.new_waiter()
            self._waiting.add(waiter)
            try:
                if not await waiter.wait_until(math.inf if deadline is None else deadline):
                    error = RpcTimeout(Code.DEADLINE_EXCEEDED, "no server was connected in time")
                    error.not_started = True
                    raise error
            finally:
                self._waiting.discard(waiter)

    def _unavailable(self, why: str | None = None) -> RpcError:
        reasons = [
            f"{_shown(t.address)}: {t.last_error or ('not serving' if not t.serving else t.state.value)}"
            for t in self._targets.all
        ]
        error = RpcError(Code.UNAVAILABLE, why or f"no server to call; {'; '.join(reasons)}")
        error.not_started = True
        errors = [t.last_error for t in self._targets.all if t.last_error is not None]
        error.__cause__ = errors[0] if errors else None
        return error

    # ---- connections ---------------------------------------------------------------------------------------

    def _wake_all(self) -> None:
        """Something has changed: tasks that wait for a server look again, and so does the manager."""
        self._changed.set()
        for waiter in self._waiting:
            waiter.set()

    async def _run(self, ended: anyio.Event) -> None:
        try:
            with self._scope:
                async with anyio.create_task_group() as tasks:
                    await self._manage(tasks)
        finally:
            ended.set()

    async def _manage(self, tasks: TaskGroup) -> None:
        """Starts what is wanted, whenever something changes."""
        targets = self._targets
        while True:
            now = self._waker.now()
            for target in targets.wanted(now):
                targets.connecting(target)
                tasks.start_soon(self._keep, target)
            await self._changed.wait_until(targets.next_change(now))

    async def _keep(self, target: Target[Client]) -> None:
        """One connection, from the attempt to its end."""
        error: BaseException | None
        error = TimeoutError(f"not connected within {self._connect_timeout_s:g} s")
        told = False
        with anyio.CancelScope(deadline=anyio.current_time() + self._connect_timeout_s) as patience:
            try:
                async with self._connect(target.address) as client:
                    try:
                        error = await self._use(target, client, patience)
                    finally:
                        self._picked.pop(client, None)
                    self._lost(target, error)
                    told = True
                    if error is None:
                        # The server shuts down: the calls that it has are still answered.
                        await client.aclose(self._drain_timeout_s)
            except Exception as exc:
                error = exc
        if not told:
            self._lost(target, error)

    def _lost(self, target: Target[Client], error: BaseException | None) -> None:
        _log.info("rpc server %s: %s", _shown(target.address), error or "it is shutting down")
        self._targets.lost(target, error, self._waker.now())
        self._wake_all()

    async def _use(
        self, target: Target[Client], client: Client, patience: anyio.CancelScope
    ) -> BaseException | None:
        if self._health is None:
            patience.deadline = math.inf
            self._targets.connected(target, client)
            self._wake_all()
            return await client.wait_closed()
        # The first status belongs to connecting: no call goes to a server before it reports that it serves.
        async with anyio.create_task_group() as tasks:
            told = anyio.Event()
            tasks.start_soon(self._watch, target, client, told)
            await told.wait()
            patience.deadline = math.inf
            serving = target.serving
            self._targets.connected(target, client)
            target.serving = serving
            self._wake_all()
            error = await client.wait_closed()
            tasks.cancel_scope.cancel()
        return error

    async def _watch(self, target: Target[Client], client: Client, told: anyio.Event) -> None:
        """Follow the server's health until the connection ends."""
        try:
            async with self._statuses(client) as statuses:
                async for status in statuses:
                    target.serving = status is Status.SERVING
                    told.set()
                    self._wake_all()
        except RpcError as exc:
            if exc.code is not Code.UNIMPLEMENTED:
                _log.warning("rpc server %s: its health cannot be watched: %s", _shown(target.address), exc)
        except Exception:  # of an interceptor
            _log.exception("rpc server %s: its health cannot be watched", _shown(target.address))
        # It reports no more: its calls will show.
        target.serving = True
        told.set()
        self._wake_all()

    def _statuses(self, client: Client) -> Any:
        """The stream of a server's health; a guard of the server's finds in it what it finds in calls."""

        def last(call: ClientCall) -> Any:
            call.timeout = None  # it lasts as long as the connection, whatever calls have
            return stream_of(client, call)

        call = ClientCall(f"{HEALTH_SERVICE}.watch", (self._health,), returns=Status)
        call.server, call.peer = client.addresses
        return chain_stream(self._interceptors, last)(call)


def _shown(address: Any) -> str:
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else str(address)


def _pairs(servers: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """:raises TypeError: one is no pair. (The letters of one address are none.)"""
    for server in servers:
        check_address(f"servers={servers!r}: each", server)
    return list(servers)


# long: the keywords of the user, and what they mean
def connect_pool(  # noqa: PLR0913  # keywords of the user
    servers: Sequence[tuple[str, int]],
    *,
    picking: Picking | str = Picking.PICK_FIRST,
    health: str | None = None,
    reconnect: Backoff | None = None,
    ejection: Ejection | None = None,
    interceptors: Iterable[ClientInterceptor] = (),
    connect_timeout_s: float = 10.0,
    drain_timeout_s: float | None = 60.0,
    config: Config | None = None,
    mode: Mode | None = None,
    ssl: SSLContext | bool | None = None,
    server_hostname: str | None = None,
    rdma_outside_tls: bool = False,
    window: int = 262144,
) -> Pool:
    """A client of several servers, or of one that may come back: ``async with rpc.connect_pool([(host, port),
    ...]) as client: ...``. Lost connections are made again.

    Entering the block waits for the first connection, and raises :class:`RpcError` (``UNAVAILABLE``) when no
    server can be reached.

    :param servers: (host, port) of each, in the order of preference.
    :param picking: which one gets a call, see :class:`Picking`.
    :param health: name of the service whose health is watched on every server ("" for the server as a whole);
        one that is not SERVING gets no calls. None: not watched. Without a health service: SERVING.
    :param reconnect: pauses between attempts to connect.
    :param ejection: when a server whose calls fail is left out for a while.
    :param interceptors: around every call, and the watch of ``health``; with :class:`Retry` each attempt may
        go to another server.
    :param connect_timeout_s: longest time for one connection to come up.
    :param drain_timeout_s: how long calls may go on at a server that shuts down; None: as long as they take.
    :param config, mode, ssl, server_hostname, rdma_outside_tls, window: as of :func:`connect`.
    :raises ValueError: no servers; an unknown ``picking`` or ``mode``; no valid ``window``.
    :raises TypeError: a server is no pair of host and port.
    """
    check_mode("auto" if mode is None else mode)
    check_window(window)

    def open_one(server: tuple[str, int]) -> AbstractAsyncContextManager[Client]:
        return connect(
            *server,
            config=config,
            mode=mode,
            ssl=ssl,
            server_hostname=server_hostname,
            rdma_outside_tls=rdma_outside_tls,
            window=window,
        )

    return Pool(
        _pairs(servers),
        open_one,
        picking=Picking(picking),
        reconnect=reconnect,
        ejection=ejection,
        health=health,
        interceptors=interceptors,
        connect_timeout_s=connect_timeout_s,
        drain_timeout_s=drain_timeout_s,
    )

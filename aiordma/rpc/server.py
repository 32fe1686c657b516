"""What a program that answers calls holds: :class:`Server`, made by :func:`serve`."""

from __future__ import annotations

import contextvars
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio

from ..addresses import show
from ..channels import channel as channels
from ..negotiation.block import block
from ..negotiation.options import config_of
from ..proto.objects import LARGEST_LIMIT, MAX_HELD_OBJECTS, MAX_KEYS, MAX_OBJECTS
from ..wake import current
from ..wake.draining import UNCLOSED_SECONDS
from ..wake.interrupts import uninterrupted
from .counted import UNCOUNTED_BYTES
from .dispatch import ServerConnection
from .interceptor import whole
from .items import check_window
from .routes import Dispatch
from .service import Method, Service

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from ssl import SSLContext

    from ..channels.channel import ChannelListener
    from ..config import Config, Mode
    from ..pipes.contracts import Channel
    from .interceptor import ServerInterceptor

#: Seconds that handlers which were cancelled have for cleaning up.
CLEAN_UP_S = 1.0
#: And those that answers of handlers that have returned have for leaving, as at the end of a loop.
ANSWERS_S = UNCLOSED_SECONDS


class ServerStatistics(NamedTuple):
    """What a server is doing."""

    #: clients that are connected
    connections: int
    #: calls whose handlers run
    in_flight: int
    #: connections since the beginning
    accepted: int


def _services(given: Any) -> Iterable[Service]:
    """:raises TypeError: it is neither a service nor several."""
    services = [given] if hasattr(given, "methods") else list(given) if isinstance(given, Iterable) else None
    if services is None or not all(hasattr(service, "methods") for service in services):
        raise TypeError(
            f"Server({given!r}): give it an aiordma.rpc.Service or several; rpc.Service('name', of=obj) "
            "makes one of an object whose methods are marked with @rpc.method"
        )
    return services


@uninterrupted
class Server:
    """Answers the calls of any number of connections. Belongs to the event loop it was made in.

    :param services: what is served. Methods that they get later are not.
    :param calls: how many calls each client may have in flight; a client waits with more. So many handlers at
        most run at a time for each connection.
    :param window: bytes of items that a client may send on a stream before the handler takes any of them.
    :param interceptors: around every handler, the first one outermost.
    :param expose_errors: send the exceptions of handlers to clients, with tracebacks. For development.
    :param max_message_objects: most objects in the arguments of a call or an item that a client sends
        (:func:`serve`: of the settings).
    :param max_message_keys: most keys in one that could be chosen to collide (:func:`serve`: a 32nd of that).
    :param max_connection_objects: most objects of all calls of one client that are in flight
        (:func:`serve`: four times ``max_message_objects``).
    :raises ValueError: two services have a method of the same name; a limit or ``window`` below 1.
    """

    def __init__(
        self,
        services: Service | Iterable[Service],
        *,
        calls: int = 1024,
        window: int = 262144,
        interceptors: Sequence[ServerInterceptor] = (),
        expose_errors: bool = False,
        max_message_objects: int = MAX_OBJECTS,
        max_message_keys: int = MAX_KEYS,
        max_connection_objects: int = MAX_HELD_OBJECTS,
    ) -> None:
        if not 1 <= calls <= 1 << 20:
            raise ValueError(f"calls={calls}: must be from 1 to {1 << 20}")
        check_window(window)
        self._limits = {
            "max_message_objects": max_message_objects,
            "max_message_keys": max_message_keys,
            "max_connection_objects": max_connection_objects,
        }
        for name, limit in self._limits.items():
            if not UNCOUNTED_BYTES < limit <= LARGEST_LIMIT:
                raise ValueError(f"{name}={limit}: must be from {UNCOUNTED_BYTES + 1} to {LARGEST_LIMIT}")
        interceptors = whole(interceptors)
        methods: dict[str, Method] = {}
        for service in _services(services):
            for name, method in service.methods.items():
                if name in methods:
                    raise ValueError(f"method {name!r} is served twice")
                methods[name] = method
        self._calls = calls
        self._window = window
        self._starter = current().new_starter()
        self._dispatch = Dispatch(
            methods.values(),
            starter=self._starter,
            variables=contextvars.copy_context(),
            interceptors=interceptors,
            expose_errors=expose_errors,
        )
        self._connections: set[ServerConnection] = set()
        self._accepted = 0
        self._leaving = self._closed = False
        self._listener: ChannelListener | None = None

    def attach(self, channel: Channel, peer: str) -> ServerConnection:
        """Serve the client at the other end of ``channel``.

        :param peer: its address, as shown to people.
        """
        connection = ServerConnection(channel, peer, self._dispatch, calls=self._calls, window=self._window)
        connection.most_objects = self._limits["max_message_objects"]
        connection.most_keys = self._limits["max_message_keys"]
        connection.most_held = self._limits["max_connection_objects"]
        self._connections.add(connection)
        self._accepted += 1
        connection.on_end = lambda: self._connections.discard(connection)
        connection.begin()
        if self._closed:
            connection.close()
        elif self._leaving:
            connection.drain()
        return connection

    @property
    def address(self) -> tuple[str, int]:
        """(host, port) that this server listens on.

        :raises RuntimeError: it does not listen.
        """
        if self._listener is None:
            raise RuntimeError("this server does not listen")
        return self._listener.addresses[0]

    @property
    def port(self) -> int:
        """The port that this server listens on."""
        return self.address[1]

    def statistics(self) -> ServerStatistics:
        """What it is doing now."""
        return ServerStatistics(
            connections=len(self._connections),
            in_flight=sum(len(c.machine.calls) for c in self._connections),
            accepted=self._accepted,
        )

    def drain(self) -> None:
        """Take no more calls: clients are informed, and go elsewhere. Those in flight go on. Idempotent."""
        self._leaving = True
        for connection in list(self._connections):
            connection.drain()

    async def aclose(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Shut down: :meth:`drain`, wait for the calls in flight, close every connection. Idempotent.

        :param timeout: seconds for which handlers may go on; None: until they end. Then they are cancelled;
            their clients get ``UNAVAILABLE``. In a cancelled scope that happens at once. What handlers have
            returned has 5 s more to leave, for clients that must make room.
        """
        self.drain()
        connections = list(self._connections)
        self._closed = True
        try:
            with anyio.move_on_after(timeout):
                for connection in connections:
                    await connection.drained()
            for connection in connections:
                connection.stop_all()
            # What was cancelled may clean up, but not for ever.
            with anyio.move_on_after(CLEAN_UP_S):
                for connection in connections:
                    await connection.drained()
            with anyio.move_on_after(ANSWERS_S):
                for connection in connections:
                    if not connection.machine.calls:
                        await connection.drained()
        finally:
            for connection in connections:
                if connection.machine.calls or connection.ended is not None:
                    connection.stop_all()
                    connection.give_up()
                else:
                    connection.close()
            self._starter.close()

    def __repr__(self) -> str:
        s = self.statistics()
        return f"<Server of {len(self._dispatch.routes)} methods: {s.connections} connections>"

    async def accept_from(self, listener: ChannelListener) -> None:
        """Serve what connects to ``listener``, until that is closed."""
        self._listener = listener
        while True:
            try:
                connected = await listener.accept()
            except anyio.ClosedResourceError:
                return
            try:
                self.attach(connected.detach(), show(connected.remote_address))
            except Exception as exc:  # no client may keep the others from connecting
                connected.channel.abort()
                await listener.report(connected, exc)


# long: the keywords of the user, and what they mean
@block
async def serve(  # noqa: PLR0913  # keywords of the user
    services: Service | Iterable[Service],
    host: str | Sequence[str] | None = None,
    port: int = 0,
    *,
    calls: int = 1024,
    window: int = 262144,
    interceptors: Sequence[ServerInterceptor] = (),
    expose_errors: bool = False,
    drain_timeout: float | None = 10.0,
    config: Config | None = None,
    mode: Mode | None = None,
    ssl: SSLContext | None = None,
    reuse_port: bool = False,
    rdma_outside_tls: bool = False,
) -> AsyncIterator[Server]:
    """Serve calls: ``async with rpc.serve(service, host, port) as server: ...``. It listens when the block
    begins.

    At the end of the block the server takes no more connections and calls, and lets those in flight end for
    ``drain_timeout`` seconds (None: as long as they take) before it cancels them. When the block ends with an
    exception, or is cancelled, handlers are cancelled at once.

    Parameters as of :class:`Server`, and:

    :param host: address, or addresses, to listen on; None: all.
    :param port: 0: any; ``server.port`` is the one.
    :param config: settings; None: from the environment.
    :param mode: ``"auto"``: RDMA for clients that can, TCP for the others; ``"rdma"``; ``"tcp"``.
    :param ssl, reuse_port, rdma_outside_tls: as in :func:`aiordma.listen`.
    :raises OSError: the address cannot be had.
    """
    config = config_of(config)
    server = Server(
        services,
        calls=calls,
        window=window,
        interceptors=interceptors,
        expose_errors=expose_errors,
        max_message_objects=config.max_message_objects,
        max_message_keys=config.max_message_keys,
        max_connection_objects=config.max_connection_objects,
    )
    listener = await channels.listen(
        host,
        port,
        config=config,
        mode=mode,
        ssl=ssl,
        reuse_port=reuse_port,
        rdma_outside_tls=rdma_outside_tls,
    )
    server._listener = listener
    job = current().spawn(lambda: server.accept_from(listener))
    patience: float | None = 0.0
    try:
        yield server
        patience = drain_timeout
    finally:
        try:
            server.drain()
            with anyio.CancelScope(shield=True):
                await listener.aclose()
            await server.aclose(patience)
        finally:
            job.cancel()

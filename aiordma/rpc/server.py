"""What a program that answers calls holds: :class:`Server`."""

from __future__ import annotations

import contextvars
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio

from ..wake import current
from .dispatch import Dispatch, ServerConnection

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..channel import Channel
    from .interceptor import ServerInterceptor
    from .service import Method, Service

__all__ = ["Server", "ServerStatistics"]

#: Seconds that handlers which were cancelled have for cleaning up.
CLEAN_UP_S = 1.0


class ServerStatistics(NamedTuple):
    """What a server is doing."""

    #: clients that are connected
    connections: int
    #: calls whose handlers run
    in_flight: int
    #: connections since the beginning
    accepted: int


class Server:
    """Answers the calls of any number of connections. Belongs to the event loop it was made in.

    :param services: what is served. Methods that they get later are not.
    :param calls: how many calls each client may have in flight; a client waits with more. So many handlers at
        most run at a time for each connection.
    :param window: bytes of items that a client may send on a stream before the handler takes any of them.
    :param interceptors: around every handler, the first one outermost.
    :param expose_errors: send the exceptions of handlers to clients, with tracebacks. For development.
    :raises ValueError: two services have a method of the same name; a limit below 1.
    """

    def __init__(
        self,
        services: Service | Iterable[Service],
        *,
        calls: int = 1024,
        window: int = 262144,
        interceptors: Sequence[ServerInterceptor] = (),
        expose_errors: bool = False,
    ) -> None:
        if not 1 <= calls <= 1 << 20:
            raise ValueError(f"calls={calls}: must be from 1 to {1 << 20}")
        methods: dict[str, Method] = {}
        for service in [services] if hasattr(services, "methods") else services:
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
        self._leaving = False
        self._listener: Any = None

    def attach(self, channel: Channel, peer: str) -> ServerConnection:
        """Serve the client at the other end of ``channel``.

        :param peer: its address, as shown to people.
        """
        connection = ServerConnection(channel, peer, self._dispatch, calls=self._calls, window=self._window)
        self._connections.add(connection)
        self._accepted += 1
        connection.on_end = lambda: self._connections.discard(connection)
        connection.begin()
        if self._leaving:
            connection.drain()
        return connection

    @property
    def address(self) -> tuple[str, int]:
        """(host, port) that this server listens on.

        :raises RuntimeError: it does not listen.
        """
        if self._listener is None:
            raise RuntimeError("this server does not listen")
        address: tuple[str, int] = self._listener.local_address
        return address

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
        """Take no more calls: clients are told, and go elsewhere. Those in flight go on. Idempotent."""
        self._leaving = True
        for connection in list(self._connections):
            connection.drain()

    async def aclose(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Shut down: :meth:`drain`, wait for the calls in flight, close every connection. Idempotent.

        :param timeout: seconds for which handlers may go on; None: until they end. Then they are cancelled;
            their clients get ``UNAVAILABLE``. In a cancelled scope that happens at once.
        """
        self.drain()
        connections = list(self._connections)
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

"""Where a behaviour plays: makes its connections on one carrier, and keeps what its protocols have seen."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from aiordma.errors import Code, FallbackReason
from aiordma.negotiation import peer_cache
from tests.health import until
from tests.roles import LOCAL

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from .carriers import Carrier

_PLAIN = FallbackReason.of_local(Code.PLAIN_TCP_PEER)
#: Turns of the loop that are looked through before the processor is left to others.
_TURNS = 10


def kind(exc: BaseException | None) -> str | None:
    """What a handler of asyncio's errors would take this for: the name of the nearest public class."""
    if exc is None:
        return None
    known = ("builtins", "asyncio", "ssl", "socket")
    return next(c.__name__ for c in type(exc).__mro__ if c.__module__.partition(".")[0] in known)


def attempt(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """What a call returns, or the kind of error that it raises."""
    try:
        return function(*args, **options)
    except Exception as exc:
        return kind(exc)


async def outcome(awaitable: Awaitable[Any]) -> Any:
    """What an awaitable returns, or the kind of error that it raises."""
    try:
        return await awaitable
    except (Exception, asyncio.CancelledError) as exc:
        return kind(exc)


class Traces:
    """Notes its callbacks, as one of the two ends. Data that follows data is joined: pieces have no order."""

    def __init__(self, stage: Stage, end: str) -> None:
        self.stage, self.end = stage, end
        self.events = stage.trace.setdefault(end, [])
        self.data = bytearray()
        self.transport: Any = None
        self.ended = False
        stage.protocols.append(self)

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.events.append("made")

    def got(self, data: bytes) -> None:
        self.data += data
        if self.events and isinstance(self.events[-1], list):
            self.events[-1][1] += data
        else:
            self.events.append(["data", bytes(data)])

    def eof_received(self) -> bool | None:
        self.events.append("eof")
        return None

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def connection_lost(self, exc: BaseException | None) -> None:
        self.events.append(("lost", kind(exc)))
        self.ended = True


class Traced(Traces, asyncio.Protocol):
    """Whose data is pushed."""

    def data_received(self, data: bytes) -> None:
        self.got(data)


class Buffered(Traces, asyncio.BufferedProtocol):
    """Gets its data in a buffer of its own."""

    size = 64

    def __init__(self, stage: Stage, end: str) -> None:
        super().__init__(stage, end)
        self.buffer = bytearray(self.size)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.got(bytes(self.buffer[:nbytes]))


class KeepsOpen(Traced):
    """Goes on writing after the peer's EOF."""

    def eof_received(self) -> bool:
        self.events.append("eof")
        return True


class Stage:
    """One run of one behaviour."""

    def __init__(self, carrier: Carrier) -> None:
        self.carrier, self.client, self.server = carrier, carrier.client, carrier.server
        self.loop = asyncio.get_running_loop()
        #: By end, what it has seen in order; under "notes", what the behaviour itself has found.
        self.trace: dict[str, list[Any]] = {"notes": []}
        self.protocols: list[Any] = []
        self.servers: list[Any] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.loop.set_exception_handler(self._report)

    def note(self, what: str, value: Any) -> None:
        """A result of the behaviour, to be compared."""
        self.trace["notes"].append((what, value))

    def _report(self, loop: Any, context: dict[str, Any]) -> None:
        self.trace.setdefault("reported", []).append(kind(context.get("exception")))

    async def until(self, holds: Callable[[], Any]) -> None:
        await until(lambda: bool(holds()), lambda: self.trace)

    async def turns(self, number: int = _TURNS) -> None:
        """Let the loop do what is due."""
        for _ in range(number):
            await asyncio.sleep(0)

    # ---- connections

    def near(self, kind_of: Callable[..., Any] = Traced) -> Callable[[], Any]:
        """A factory of the client's protocols."""
        return lambda: kind_of(self, "near")

    def far(self, kind_of: Callable[..., Any] = Traced) -> Callable[[], Any]:
        """A factory of the server's protocols."""
        return lambda: kind_of(self, "far")

    def keep(self, server: Any) -> int:
        """Have a server closed at the end; returns its port."""
        self.servers.append(server)
        for sock in server.sockets:
            self.met_before(sock.getsockname()[1])
        port: int = server.sockets[0].getsockname()[1]
        return port

    def met_before(self, port: int) -> None:
        """A plain server is known as one, as it is for an hour after it has answered: it is not asked."""
        if self.client.ours and not self.server.ours:
            for host in (LOCAL, "localhost"):
                for tls in (False, True):
                    peer_cache.remember_plain((host, port, tls), _PLAIN, 3600)

    async def listen(self, factory: Callable[[], Any] | None = None, **options: Any) -> int:
        """A server; returns its port."""
        return self.keep(await self.server.create_server(factory or self.far(), LOCAL, 0, **options))

    async def connect(
        self, factory: Callable[[], Any], port: int, *, announced: bool = True, **options: Any
    ) -> Any:
        """A client's protocol, connected.

        :param announced: whether aiordma listens there, and says so within the host.
        """
        transport, protocol = await self.client.create_connection(factory, LOCAL, port, **options)
        if announced or self.client.ours:
            self.check_path(transport)
        return protocol

    def check_path(self, transport: Any) -> None:
        """It must not compare TCP with TCP where RDMA is meant."""
        if self.carrier.path is not None:
            assert transport.get_extra_info("aiordma.path") == self.carrier.path

    async def pair(
        self, near: Callable[..., Any] = Traced, far: Callable[..., Any] = Traced
    ) -> tuple[Any, Any]:
        """The protocols of both ends of a connection."""
        ends: list[Any] = []

        def accepted() -> Any:
            ends.append(far(self, "far"))
            return ends[-1]

        client = await self.connect(self.near(near), await self.listen(accepted))
        await self.until(lambda: ends and ends[0].transport)
        return client, ends[0]

    async def both_end(self) -> None:
        """Until every protocol has lost its connection."""
        await self.until(lambda: all(each.ended for each in self.protocols))

    def made(self, end: str) -> list[Any]:
        """The protocols of one end that have their transports."""
        return [each for each in self.protocols if each.end == end and each.transport is not None]

    # ---- end

    async def finish(self) -> dict[str, list[Any]]:
        """Abort what is open, close the servers; what was seen until now is the trace."""
        trace = {end: list(events) for end, events in self.trace.items()}
        for writer in self.writers:
            attempt(writer.transport.abort)  # one of TLS that has ended has nothing left to abort
        for server in self.servers:
            server.close()
        for protocol in self.protocols:
            if protocol.transport is not None and not protocol.ended:
                protocol.transport.abort()
        await self.until(lambda: all(each.ended for each in self.protocols if each.transport is not None))
        await self.turns()
        return trace

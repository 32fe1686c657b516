"""What callbacks raise that is no `Exception`, while much waits for room and the transport is closing: all
that was accepted arrives, and the end comes; where the loop ends by it, when it runs again.

Beside `tests/contracts`, where plain transports are the reference: plain datagrams never wait for room, and
asyncio's transport does not get over a KeyboardInterrupt in resume_writing().
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvloop

import aiordma
from tests.contracts.escaping import Odd, failing
from tests.health import until
from tests.roles import LOCAL, port_of

from .recorder import Recorder as Recording
from .recorder import one_transport

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
PIECE = bytes(5000)
TOO_LONG = bytes(1 << 20)


class Recorder:
    """Every callback in order, but for what comes after `hello`."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.events: list[Any] = []
        self.sent = self.got = 0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.events.append("made")

    def data_received(self, data: bytes) -> None:
        self.got += len(data)

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self.got += len(data)
        if data == b"hello":
            self.events.append(data)

    def eof_received(self) -> None: ...

    def error_received(self, exc: Exception) -> None:
        self.events.append(type(exc))

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def connection_lost(self, exc: BaseException | None) -> None:
        self.events.append(("lost", exc))

    @property
    def ended(self) -> bool:
        return isinstance(self.events[-1], tuple)


class Streams(Recorder, asyncio.Protocol):
    modes = ("rdma",)  # on TCP the transport is the loop's own
    callbacks = ("connection_made", "pause_writing", "resume_writing", "connection_lost")
    connect = staticmethod(aiordma.create_connection)
    serve = staticmethod(aiordma.create_server)

    def fill(self) -> None:
        """Send until it is told to wait."""
        while "pause" not in self.events:
            self.sent += len(PIECE)
            self.transport.write(PIECE)


class Datagrams(Recorder, asyncio.DatagramProtocol):
    modes = ("rdma", "tcp")
    callbacks = (*Streams.callbacks, "datagram_received", "error_received")
    connect = staticmethod(aiordma.create_datagram_connection)
    serve = staticmethod(aiordma.create_datagram_server)

    def fill(self) -> None:
        """The same."""
        while "pause" not in self.events:
            self.sent += len(PIECE)
            self.transport.sendto(PIECE)


async def play(kind: Any, mode: str, failing_kind: Any) -> tuple[list[Any], list[Any]]:
    """What the failing end has seen, and the other one, which gets all that was sent."""
    loop = asyncio.get_running_loop()
    others: list[Any] = []

    def other() -> Any:
        others.append(kind())
        return others[-1]

    server = await kind.serve(other, LOCAL, 0, mode=mode)
    _, end = await kind.connect(failing_kind, LOCAL, port_of(server), mode=mode)
    await until(lambda: others and others[0].transport)
    (other_end,) = others
    if kind is Datagrams:
        other_end.transport.sendto(b"hello")
        await until(lambda: end.got)
    other_end.transport.pause_reading()
    end.transport.set_write_buffer_limits(high=1 << 16, low=0)  # it is told to go on when all is sent
    loop.call_soon(end.fill)  # what it raises is the loop's
    await until(lambda: "pause" in end.events)
    if kind is Datagrams:
        end.transport.sendto(TOO_LONG)  # which shows when its turn has come
        end.transport.sendto(b"last")
        end.sent += 4
    end.transport.close()
    assert not end.ended
    other_end.transport.resume_reading()
    await until(lambda: end.ended and other_end.ended, lambda: (end.events, other_end.events))
    server.close()
    await server.wait_closed()
    assert other_end.got == end.sent
    return end.events, other_end.events


def run(loop_name: str, main: Any) -> tuple[Any, list[Any], list[Any]]:
    """What it returns; what has ended the loop, which runs again then; and what was reported to it."""
    loop = LOOPS[loop_name]()
    reported: list[Any] = []
    ended: list[Any] = []
    loop.set_exception_handler(lambda _, context: reported.append(type(context["exception"])))
    try:
        task = loop.create_task(main)
        while not task.done():
            try:
                loop.run_until_complete(task)
            except KeyboardInterrupt as exc:
                ended.append(type(exc))
        return task.result(), ended, reported
    finally:
        loop.close()


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(
    ("kind", "mode", "callback"),
    [
        pytest.param(kind, mode, callback, id=f"{kind.__name__.lower()}-{mode}-{callback}")
        for kind in (Streams, Datagrams)
        for callback in kind.callbacks
        for mode in kind.modes
    ],
)
def test_all_arrives_and_the_end_comes(kind: Any, mode: str, callback: str, loop: str) -> None:
    right, _, _ = run(loop, play(kind, mode, kind))
    for error in (asyncio.CancelledError, Odd, KeyboardInterrupt):
        found, ended, reported = run(loop, play(kind, mode, failing(kind, callback, error)))
        assert found == right, error
        assert (ended or reported) == [error]
        assert bool(ended) == (error is KeyboardInterrupt)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("end", ["close", "write_eof"])
def test_the_end_comes_when_nothing_calls_again(end: str, loop: str) -> None:
    """A pipe in memory says once that there is room."""

    async def main() -> list[Any]:
        protocol: Recording = failing(Recording, "resume_writing", KeyboardInterrupt)()
        transport, far = await one_transport(protocol)
        transport.set_write_buffer_limits(high=10, low=0)
        transport.write(PIECE)
        getattr(transport, end)()
        got = 0

        def at_end() -> bool:
            nonlocal got
            got += len(far.try_receive(len(PIECE)) or b"")
            return far.at_eof

        await until(at_end, lambda: protocol.events)
        assert got == len(PIECE)
        transport.abort()
        await protocol.lost
        return protocol.events

    assert run(loop, main()) == (["made", "pause", "resume", "lost"], [KeyboardInterrupt], [])


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("mode", ["rdma", "tcp"])
@pytest.mark.parametrize("kind", [Streams, Datagrams])
def test_a_factory_of_a_server(kind: Any, mode: str, loop: str) -> None:
    """Its connection ends, and what it has raised is reported; the next ones are served."""
    errors = [asyncio.CancelledError, Odd]

    async def main() -> list[Any]:
        left = list(errors)
        made: list[Any] = []

        def factory() -> Any:
            if left:
                raise left.pop(0)
            made.append(kind())
            return made[-1]

        server = await kind.serve(factory, LOCAL, 0, mode=mode)
        for _ in errors:
            _, end = await kind.connect(kind, LOCAL, port_of(server), mode=mode)
            await until(lambda: end.ended, lambda: (end.events, left))  # noqa: B023
        _, end = await kind.connect(kind, LOCAL, port_of(server), mode=mode)
        await until(lambda: made and made[0].transport)
        end.transport.close()
        await until(lambda: end.ended and made[0].ended)
        server.close()
        await server.wait_closed()
        return left

    assert run(loop, main()) == ([], [], errors)

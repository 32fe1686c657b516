"""Cancelled at every await: nothing is left behind, and everything works afterwards."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import aiordma
from tests.cancelling import at_await, at_turn
from tests.health import check_echo, check_end, descriptors, nothing_left, until
from tests.processes import PATIENCE, process
from tests.roles import LOCAL, echo

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Cancel = Callable[[int, Callable[[], Any]], Awaitable[tuple[bool, Any]]]

pytestmark = pytest.mark.anyio

ECHO = "tests.roles:echo_server"
WAYS = {"await": at_await, "turn": at_turn}
#: The first turns one by one; then ever larger steps, as nobody knows how many turns another process's
#: answer takes.
TURNS = [*range(1, 40), *(int(40 * 1.3**k) for k in range(60))]


@pytest.fixture(params=WAYS)
def cancel(request: pytest.FixtureRequest) -> Cancel:
    return WAYS[request.param]


async def settled(listener: aiordma.RdmaListener) -> None:
    def state() -> object:
        return listener.statistics()

    await until(lambda: not listener.statistics().undecided + listener.statistics().negotiating, state)


def beside_slabs() -> list[str]:
    """How many slabs there are depends on how many rings were in use at a time: a client with tickets waits
    for nobody."""
    return [name for name in descriptors() if "slab" not in name]


def part_with_all(engine: Any) -> None:
    """So that the next connection is a first contact."""
    for group in list(engine.all_groups):
        group.close()


@pytest.mark.parametrize("first", [True, False], ids=["first contact", "known peer"])
async def test_connect(cancel: Cancel, first: bool) -> None:
    """The server is another process: what it has of the cancelled ones ends with them."""
    with process(ECHO) as server:
        port = await server.heard()
        async with nothing_left() as engine:
            async with await aiordma.connect(LOCAL, port, mode="rdma") as stream:
                await check_end(stream)
            before = beside_slabs()
            completed = 0
            for n in TURNS:
                if first:
                    part_with_all(engine)
                done, stream = await cancel(n, lambda: aiordma.connect(LOCAL, port, mode="rdma"))
                if done:
                    async with stream:
                        await check_echo(stream, b"x" * 1000)
                    completed += 1
                    if completed > 3:
                        break
            assert completed
            async with await aiordma.connect(LOCAL, port, mode="rdma") as friend:
                await check_echo(friend)
                await check_end(friend)
            await until(lambda: len(beside_slabs()) <= len(before), lambda: (before, beside_slabs()))
        async with await aiordma.connect(LOCAL, port, mode="rdma") as friend:
            server.say("statistics?")
            links = (await server.heard())["links"]
            assert [link["connections"] for link in links] == [1]


@pytest.mark.parametrize("first", [True, False], ids=["first contact", "known peer"])
async def test_the_servers_side(first: bool) -> None:
    """The listener is closed while it negotiates, a turn later each time."""

    async def client(port: int, connected: list[aiordma.RdmaStream]) -> None:
        # The listening socket may go at any time: refused, reset, or up already.
        with contextlib.suppress(OSError):
            connected.append(await aiordma.connect(LOCAL, port))

    async with nothing_left() as engine:
        ended = 0
        for n in TURNS:
            listener = await aiordma.listen(LOCAL)
            connected: list[aiordma.RdmaStream] = []
            async with anyio.create_task_group() as tasks:
                if first:
                    part_with_all(engine)
                tasks.start_soon(client, listener.port, connected)
                for _ in range(n):
                    await anyio.lowlevel.checkpoint()
                await listener.aclose()
            for stream in connected:
                ended += 1
                async with stream:
                    with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                        await stream.receive()
            if ended > 3:
                break
        assert ended
        async with await aiordma.listen(LOCAL) as listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, echo)
            async with await aiordma.connect(LOCAL, listener.port, mode="rdma") as friend:
                await check_echo(friend)
                await check_end(friend)
            tasks.cancel_scope.cancel()


async def test_accept(cancel: Cancel) -> None:
    """A connection that came is not lost with the accept() that was cancelled."""
    async with nothing_left(), await aiordma.listen(LOCAL) as listener:
        streams: list[aiordma.RdmaStream] = []

        async def client() -> None:
            streams.append(await aiordma.connect(LOCAL, listener.port, mode="rdma"))

        for n in range(1, 25):
            accepted: list[aiordma.RdmaStream] = []
            with anyio.fail_after(PATIENCE):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(client)
                    done, stream = await cancel(n, listener.accept)
                    accepted.append(stream if done else await listener.accept())
            async with accepted[0] as mine, streams.pop() as its:
                await its.send(b"hello")
                assert await mine.receive() == b"hello"
        await settled(listener)


async def exchange(stream: aiordma.RdmaStream, cancel: Cancel, n: int) -> None:
    """Zeros and a one to an echo server and back; every call of either direction is cancelled."""
    # Larger than both rings: it waits for the echo to be taken.
    item = bytes(1_000_000)
    sent = got = 0

    async def send() -> None:
        nonlocal sent
        done, _ = await cancel(n, lambda: stream.send(item))
        sent = len(item) if done else -1
        await stream.send(b"\x01")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(send)
        part = b""
        while not part.endswith(b"\x01"):
            done, part = await cancel(n, stream.receive)
            if not done:
                part = await stream.receive()
            assert not any(part[:-1])
            got += len(part)
    assert got - 1 == sent if sent >= 0 else got - 1 <= len(item)


async def test_send_and_receive(cancel: Cancel) -> None:
    """A cancelled send has sent a prefix and a cancelled receive has taken nothing; both go on afterwards."""
    with process(ECHO, ring_bytes=16384) as server:
        port = await server.heard()
        async with nothing_left(), await aiordma.connect(LOCAL, port, mode="rdma") as stream:
            for n in range(1, 40):
                await exchange(stream, cancel, n)
            await check_end(stream)


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "with data under way"])
async def test_aclose(cancel: Cancel, busy: bool) -> None:
    """It is closed or aborted, but never half of it."""
    ends: list[str] = []

    async def serve(stream: aiordma.RdmaStream) -> None:
        async with stream:
            try:
                async for _ in stream:
                    pass
                ends.append("end")
            except anyio.BrokenResourceError:
                ends.append("broken")

    async with nothing_left(), await aiordma.listen(LOCAL) as listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, serve)
            for n in range(6):
                stream = await aiordma.connect(LOCAL, listener.port, mode="rdma")
                if busy:
                    await stream.send(bytes(100_000))
                await cancel(n, stream.aclose)
                with pytest.raises(anyio.ClosedResourceError):
                    await stream.send(b"x")
                if n:
                    await stream.aclose()
                await until(functools.partial(lambda n: len(ends) > n, n), lambda: ends)
            tasks.cancel_scope.cancel()
    assert ends[-1] == "end"


async def test_eof(cancel: Cancel) -> None:
    with process(ECHO) as server:
        port = await server.heard()
        async with nothing_left():
            for n in range(1, 5):
                async with await aiordma.connect(LOCAL, port, mode="rdma") as stream:
                    await stream.send(b"question")
                    await cancel(n, stream.send_eof)
                    await stream.send_eof()
                    assert await stream.receive() == b"question"
                    with pytest.raises(anyio.EndOfStream):
                        await stream.receive()


async def test_aclose_forcefully_breaks_the_peer() -> None:
    async with nothing_left(), await aiordma.listen(LOCAL) as listener:
        async with anyio.create_task_group() as tasks:
            streams: list[aiordma.RdmaStream] = []

            async def client() -> None:
                streams.append(await aiordma.connect(LOCAL, listener.port, mode="rdma"))

            tasks.start_soon(client)
            mine = await listener.accept()
        await anyio.aclose_forcefully(streams[0])
        async with mine:
            with pytest.raises(anyio.BrokenResourceError):
                await mine.receive()

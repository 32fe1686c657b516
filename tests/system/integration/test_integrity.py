"""Every byte, in order, whatever the sizes, the rings and the other streams on the link."""

from __future__ import annotations

import contextlib
import hashlib
import os
from random import Random
from typing import TYPE_CHECKING

import anyio
import pytest

import aiordma
from aiordma.config import Config
from tests.health import ROUNDS, nothing_left
from tests.processes import PATIENCE, process
from tests.roles import LOCAL, echo, statistics

if TYPE_CHECKING:
    from typing import Any

    from tests.program import Control

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

HERE = "tests.system.integration.test_integrity"
SIZES = (1, 2, 7, 63, 64, 65, 500, 4096, 5000, 16384, 20_000, 65_536, 100_000, 400_000)


async def send_random(stream: aiordma.RdmaStream, random: Random, total: int) -> str:
    """Random bytes in random pieces; their checksum."""
    block = random.randbytes(1 << 20)
    digest = hashlib.sha256()
    while total > 0:
        size = min(total, random.choice(SIZES))
        at = random.randrange(len(block) - size + 1)
        piece = block[at : at + size]
        if random.random() < 0.2:
            # What send() has taken is the caller's again.
            own = bytearray(piece)
            await stream.send(own)
            own[:] = bytes(len(own))
        else:
            await stream.send(piece)
        digest.update(piece)
        total -= size
    await stream.send_eof()
    return digest.hexdigest()


async def receive_random(stream: aiordma.RdmaStream, random: Random) -> tuple[str, int]:
    """Everything up to the end, by every way of receiving; checksum and length."""
    digest = hashlib.sha256()
    length = 0
    buffer = bytearray(150_000)
    with contextlib.suppress(anyio.EndOfStream):
        while True:
            size = random.choice(SIZES[2:])
            way = random.randrange(3)
            if way == 0:
                part = await stream.receive(size)
                digest.update(part)
                length += len(part)
            elif way == 1:
                with memoryview(buffer) as view:
                    n = await stream.receive_into(view[:size])
                    digest.update(view[:n])
                length += n
            else:
                with await stream.borrow(size) as view:
                    digest.update(view)
                    length += len(view)
    return digest.hexdigest(), length


async def both_ways(stream: aiordma.RdmaStream, random: Random, total: int) -> list[Any]:
    """[checksum of what was sent, [checksum, length] of what was received]"""
    result: list[Any] = [None, None]

    async def send() -> None:
        result[0] = await send_random(stream, Random(random.random()), total)

    async def receive() -> None:
        result[1] = list(await receive_random(stream, Random(random.random())))

    async with stream, anyio.create_task_group() as tasks:
        tasks.start_soon(send)
        tasks.start_soon(receive)
    return result


async def exchanging_server(control: Control, total: int, **settings: Any) -> None:
    """Says its port, then for every stream what it sent and received."""

    async def serve(stream: aiordma.RdmaStream) -> None:
        control.say(await both_ways(stream, Random(), total))

    async with await aiordma.listen(LOCAL, 0, config=Config(**settings)) as listener:
        control.say(listener.port)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, serve)
            await control.heard_all()
            tasks.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [({}, {}), ({"ring_bytes": 16384}, {"ring_bytes": 16384}), ({"ring_bytes": 16384}, {})],
    ids=["default rings", "tiny rings", "tiny against default"],
)
@pytest.mark.parametrize("busy_poll_us", [None, 0])
async def test_both_ways_at_once(
    mine: dict[str, Any], theirs: dict[str, Any], busy_poll_us: int | None
) -> None:
    total = 3_000_000 * ROUNDS
    config = Config(**mine, busy_poll_us=busy_poll_us)
    with process(f"{HERE}:exchanging_server", total=total, busy_poll_us=busy_poll_us, **theirs) as server:
        port = await server.heard()
        async with nothing_left_with(config):
            results: list[Any] = []

            async def client() -> None:
                stream = await aiordma.connect(LOCAL, port, config=config, mode="rdma")
                results.append(await both_ways(stream, Random(), total))

            with anyio.fail_after(PATIENCE * ROUNDS):
                async with anyio.create_task_group() as tasks:
                    for _ in range(3):
                        tasks.start_soon(client)
            answers = [await server.heard() for _ in results]
    assert sorted(r[0] for r in results) == sorted(a[1][0] for a in answers)
    assert sorted(a[0] for a in answers) == sorted(r[1][0] for r in results)
    assert {length for r in results + answers for length in [r[1][1]]} == {total}


@contextlib.asynccontextmanager
async def nothing_left_with(config: Config) -> Any:
    """The engine takes the settings of the first who asks for it."""
    await aiordma.links.engine.current(config)
    async with nothing_left() as engine:
        yield engine


async def answering_server(control: Control, **settings: Any) -> None:
    """Streams that begin with ``b`` are swallowed, with ``e`` echoed, with ``s`` never read until the test
    says so. Hears "read" and says what the stalled ones got then."""
    stalled: list[aiordma.RdmaStream] = []

    async def serve(stream: aiordma.RdmaStream) -> None:
        kind = await stream.receive(1)
        if kind == b"e":
            await echo(stream)
        elif kind == b"b":
            async with stream:
                length = 0
                with memoryview(bytearray(1 << 18)) as view, contextlib.suppress(anyio.EndOfStream):
                    while True:
                        length += await stream.receive_into(view)
                await stream.send(length.to_bytes(8, "big"))
        else:
            await stream.send(b"!")
            stalled.append(stream)
            await anyio.sleep_forever()  # when this returns, the stream is closed

    async with await aiordma.listen(LOCAL, 0, config=Config(**settings)) as listener:
        control.say(listener.port)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, serve)
            with contextlib.suppress(EOFError):
                while True:
                    await control.hear()
                    for stream in stalled:
                        async with stream:
                            control.say(await receive_random(stream, Random(1)))
            tasks.cancel_scope.cancel()


async def test_a_bulk_stream_lets_others_through() -> None:
    """While one stream sends without pause, 50 others get their answers: each about as many as the next."""
    with process(f"{HERE}:answering_server") as server:
        port = await server.heard()
        async with nothing_left():
            answered = [0] * 50
            sent = 0
            enough = anyio.Event()

            async def bulk() -> None:
                nonlocal sent
                async with await aiordma.connect(LOCAL, port, mode="rdma") as stream:
                    await stream.send(b"b")
                    chunk = bytes(1 << 20)
                    while not enough.is_set():
                        await stream.send(chunk)
                        sent += len(chunk)
                    await stream.send_eof()
                    assert int.from_bytes(await stream.receive(8), "big") == sent

            async def small(number: int) -> None:
                async with await aiordma.connect(LOCAL, port, mode="rdma") as stream:
                    await stream.send(b"e")
                    while not enough.is_set():
                        request = os.urandom(64)
                        await stream.send(request)
                        answer = b""
                        while len(answer) < 64:
                            answer += await stream.receive()
                        assert answer == request
                        answered[number] += 1
                        if min(answered) >= 40 * ROUNDS and sent > 50 << 20:
                            enough.set()

            with anyio.fail_after(PATIENCE * ROUNDS):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(bulk)
                    for number in range(50):
                        tasks.start_soon(small, number)
            # A turn each: nobody gets many times what another gets.
            assert max(answered) < 10 * min(answered), answered


async def test_who_does_not_read_stalls_only_himself() -> None:
    with process(f"{HERE}:answering_server") as server:
        port = await server.heard()
        async with nothing_left():
            data = Random(5).randbytes(2_000_000)
            finished: list[int] = []

            async def stalled(number: int) -> None:
                async with await aiordma.connect(LOCAL, port, mode="rdma") as stream:
                    await stream.send(b"s")
                    assert await stream.receive() == b"!"
                    ready.append(number)
                    await stream.send(data)
                    await stream.send_eof()
                    finished.append(number)
                    with pytest.raises(anyio.EndOfStream):
                        await stream.receive()

            ready: list[int] = []
            async with anyio.create_task_group() as tasks:
                for number in range(3):
                    tasks.start_soon(stalled, number)
                async with await aiordma.connect(LOCAL, port, mode="rdma") as stream:
                    await stream.send(b"e")
                    for _ in range(1000):
                        await stream.send(b"q" * 100)
                        got = 0
                        while got < 100:
                            got += len(await stream.receive())
                    await stream.send(b"x")
                    await stream.receive()
                assert len(ready) == 3
                assert finished == []
                assert len((await statistics())["links"]) == 1
                server.say("read")
                digest = hashlib.sha256(data).hexdigest()
                for _ in range(3):
                    assert await server.heard() == [digest, len(data)]

"""Links break under traffic at random moments, on either side or both: every byte arrives once, in order."""

from __future__ import annotations

from random import Random
from typing import Any

import anyio
import pytest

import aiordma
from aiordma.config import Config
from aiordma.links import engine as engines
from tests.health import ROUNDS, descriptors, nothing_left, until
from tests.processes import PATIENCE, process
from tests.roles import LOCAL
from tests.system.integration.test_integrity import both_ways

from .breaking import WAYS, take_off

pytestmark = pytest.mark.anyio

SERVER = "tests.links.failover.breaking:exchanging_server"
TOTAL = 1_500_000


async def connected(port: int, settings: dict[str, Any]) -> aiordma.RdmaStream:
    """A stream on RDMA, also when the server has not heard yet that this end has lost their link."""
    # Without tickets: with one, a stream is not the server's before that has said so.
    config = Config(**settings, tickets=0)
    with anyio.fail_after(PATIENCE):
        return await aiordma.connect(LOCAL, port, config=config, mode="rdma")


def sockets() -> list[str]:
    return [name for name in descriptors() if name.startswith("socket")]


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"ring_bytes": 16384}], ids=["default rings", "tiny rings"])
async def test_two_processes(settings: dict[str, Any]) -> None:
    seed = Random().randrange(1 << 30)
    print("seed", seed)
    random = Random(seed)
    paths: list[str] = []
    await engines.current(Config(**settings, tickets=0))
    async with nothing_left() as engine:
        with process(SERVER, total=TOTAL, **settings) as server:
            port = await server.heard()
            before: list[str] = []
            for number in range(60 * ROUNDS):
                # Three breaks in ten come when everything has arrived already, sometimes six in a row.
                if number >= 6 * ROUNDS and "tcp" in paths:
                    break
                streams = [await connected(port, settings) for _ in range(random.choice((1, 3)))]
                results: list[list[Any]] = []
                goal = random.randrange(TOTAL)
                here, there = random.choice([(1, 0), (0, 1), (1, 1)])
                way = random.choice(WAYS)

                async def exchange(stream: aiordma.RdmaStream, results: list[list[Any]] = results) -> None:
                    results.append([*await both_ways(stream, Random(random.random()), TOTAL), stream.path])

                async def harm(
                    streams: list[aiordma.RdmaStream] = streams,
                    goal: int = goal,
                    here: int = here,
                    there: int = there,
                    way: str = way,
                ) -> None:
                    await until(lambda: streams[0].statistics().bytes_received >= goal)
                    if there:
                        server.say(way)
                    if here:
                        take_off(engine, way)

                with anyio.fail_after(PATIENCE):
                    async with anyio.create_task_group() as tasks:
                        for stream in streams:
                            tasks.start_soon(exchange, stream)
                        tasks.start_soon(harm)
                theirs = [await server.heard() for _ in streams]
                # What one end sent is what the other received, whole.
                assert sorted([r[0], TOTAL] for r in results) == sorted(r[1] for r in theirs), way
                assert sorted([r[0], TOTAL] for r in theirs) == sorted(r[1] for r in results), way
                paths += [r[2] for r in results]
                await until(lambda: not any(group.members for group in engine.all_groups), engine.statistics)
                before = before or sockets()
            await until(lambda: len(sockets()) <= len(before), lambda: (before, sockets()))
    assert "tcp" in paths


@pytest.mark.parametrize("inline", [64, 220])
async def test_from_registered_memory(inline: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of network cards: nobody knows which WRITEs arrived, and all of them are sent again."""
    engine = await engines.current()
    monkeypatch.setattr(engine.backend.limits, "max_inline_bytes", inline)
    random = Random(inline)
    paths: list[str] = []
    async with nothing_left() as engine, await aiordma.listen(LOCAL, mode="rdma") as listener:
        for way in WAYS:
            theirs: list[Any] = []

            async def serve(theirs: list[Any] = theirs) -> None:
                theirs.extend(await both_ways(await listener.accept(), Random(random.random()), TOTAL))

            with anyio.fail_after(PATIENCE):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(serve)
                    stream = await aiordma.connect(LOCAL, listener.port, mode="rdma")

                    async def harm(
                        stream: aiordma.RdmaStream = stream,
                        goal: int = random.randrange(1, TOTAL // 3),
                        way: str = way,
                    ) -> None:
                        await until(lambda: stream.statistics().bytes_received >= goal)
                        take_off(engine, way)

                    tasks.start_soon(harm)
                    ours = await both_ways(stream, Random(random.random()), TOTAL)
            assert [ours[0], TOTAL] == theirs[1]
            assert [theirs[0], TOTAL] == ours[1]
            paths.append(stream.path)
    assert "tcp" in paths


@pytest.mark.slow
async def test_many_streams_on_a_link_that_breaks() -> None:
    """Each goes on over its own TCP connection."""
    config = Config(ring_bytes=16384)
    count = 300
    async with nothing_left() as engine, await aiordma.listen(LOCAL, config=config, mode="rdma") as listener:
        accepted: list[aiordma.RdmaStream] = []

        async def accept() -> None:
            while len(accepted) < count:
                accepted.append(await listener.accept())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(accept)
            streams = [
                await aiordma.connect(LOCAL, listener.port, config=config, mode="rdma") for _ in range(count)
            ]
        by_port = {stream._remote_address[1]: stream for stream in accepted}
        pairs = [(stream, by_port[stream._local_address[1]]) for stream in streams]
        for number, (one, other) in enumerate(pairs):
            await one.send(b"before %d" % number)
            await other.send(b"BEFORE %d" % number)
        take_off(engine, "link")
        for number, (one, other) in enumerate(pairs):
            await one.send(b"after %d" % number)
            await other.send(b"AFTER %d" % number)
        for number, (one, other) in enumerate(pairs):
            for stream, expected in (
                (other, b"before %dafter %d" % (number, number)),
                (one, b"BEFORE %dAFTER %d" % (number, number)),
            ):
                got = b""
                while len(got) < len(expected):
                    got += await stream.receive()
                assert got == expected
                assert stream.path == "tcp"
        for one, other in pairs:
            await one.aclose()
            with pytest.raises(anyio.EndOfStream):
                await other.receive()
            await other.aclose()

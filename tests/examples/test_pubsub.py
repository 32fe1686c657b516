"""Publish and subscribe: messages, broker, slow subscribers, and the programs as a user runs them."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest
from demolib.processes import Program
from hypothesis import given
from hypothesis import strategies as st
from pubsublib import wire
from pubsublib.broker import Broker

import aiordma
from aiordma.config import Config
from tests.health import until
from tests.processes import FULL_PATIENCE

from .conftest import EXAMPLES, MODES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

LOCAL = "127.0.0.1"
topics = st.text(min_size=1, max_size=60).filter(lambda topic: not topic.endswith("*"))


@given(topics, st.binary(max_size=300))
def test_messages_come_back(topic: str, payload: bytes) -> None:
    published = wire.publish(topic, payload)
    assert wire.read_message(published) == (topic, payload)
    assert wire.read_message(wire.relay(published)) == (topic, payload)
    assert wire.read_pattern(wire.subscribe(topic + "*")) == topic + "*"


@given(st.binary(max_size=60))
def test_garbage_is_refused_or_understood(data: bytes) -> None:
    for read in (wire.read_message, wire.read_pattern, wire.read_lost):
        with contextlib.suppress(wire.WireError):
            read(data)


@pytest.mark.parametrize("topic", ["", "x" * 256, "a*"])
def test_topics_that_cannot_be(topic: str) -> None:
    with pytest.raises(wire.WireError):
        wire.publish(topic, b"")


@contextlib.asynccontextmanager
async def serving(broker: Broker, mode: str = "rdma") -> AsyncIterator[int]:
    config = Config(ring_bytes=16384)
    listener = await aiordma.listen_datagram(LOCAL, mode=mode, config=config)  # type: ignore[arg-type]
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, broker.serve)
        yield listener.port
        tasks.cancel_scope.cancel()


async def connect(port: int, *subscribe: str, mode: str = "rdma") -> Any:
    config = Config(ring_bytes=16384)
    connection = await aiordma.connect_datagram(LOCAL, port, mode=mode, config=config)  # type: ignore[arg-type]
    for topic in subscribe:
        await connection.send(wire.subscribe(topic))
    for topic in subscribe:
        assert await connection.receive() == wire.subscribe(topic)
    return connection


@pytest.mark.anyio
@pytest.mark.parametrize("mode", MODES)
async def test_everybody_gets_what_he_asked_for(mode: str) -> None:
    async with serving(Broker(), mode) as port:
        publisher = await connect(port, mode=mode)
        wanted = {"a": ("a",), "b*": ("b", "b/1", "bb"), "*": ("a", "b", "b/1", "bb", "c")}
        subscribers = {topic: [await connect(port, topic, mode=mode) for _ in range(5)] for topic in wanted}
        for topic in ("a", "b", "b/1", "bb", "c"):
            await publisher.send(wire.publish(topic, topic.encode() * 3))
        for topic, connections in subscribers.items():
            for connection in connections:
                for name in wanted[topic]:
                    assert wire.read_message(await connection.receive()) == (name, name.encode() * 3)
                await connection.aclose()
        await publisher.aclose()


@pytest.mark.anyio
async def test_a_slow_subscriber_loses_and_is_told_how_much() -> None:
    """All other subscribers receive everything."""
    broker = Broker()
    async with serving(broker) as port:
        publisher, slow, quick = await connect(port), await connect(port, "t"), await connect(port, "t")
        count = 500
        got: list[bytes | memoryview] = []
        async with anyio.create_task_group() as tasks:

            async def read() -> None:
                while len(got) < count:
                    got.extend(await quick.receive_many())

            tasks.start_soon(read)
            for number in range(count):
                await publisher.send(wire.publish("t", b"%d" % number + bytes(500)))
                await until(lambda number=number: len(got) > number - 5)  # type: ignore[misc]
        assert len({bytes(data) for data in got}) == count
        late: list[int] = []
        lost = 0
        while len(late) + lost < count:
            try:
                data = slow.receive_nowait()
            except anyio.WouldBlock:
                # It receives the loss report only with the next message.
                await publisher.send(wire.publish("t", b"%d" % count + bytes(500)))
                count += 1
                await until(lambda count=count: broker.published == count)  # type: ignore[misc]
                continue
            if data[:1] == wire.LOST:
                lost += wire.read_lost(data)
            else:
                late.append(int(wire.read_message(data).payload[:-500]))
        assert lost > 0
        assert late == sorted(set(late))
        for connection in (publisher, slow, quick):
            await connection.aclose()


@pytest.mark.anyio
async def test_publishers_wait_if_that_is_wanted() -> None:
    async with serving(Broker(wait=True)) as port:
        publisher, slow = await connect(port), await connect(port, "t")

        async def publish() -> None:
            for number in range(300):
                await publisher.send(wire.publish("t", b"%d" % number + bytes(500)))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(publish)
            await anyio.wait_all_tasks_blocked()
            for number in range(300):
                assert wire.read_message(await slow.receive()).payload == b"%d" % number + bytes(500)
        await publisher.aclose()
        await slow.aclose()


@pytest.mark.anyio
async def test_nonsense_ends_its_own_connection(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(Broker()) as port:
        friend = await connect(port, "t")
        for nonsense in (b"", b"?", b"P", b"P\xff", b"P\x00", b"S", b"S" + bytes([255]), b"M\x01t"):
            fiend = await connect(port)
            await fiend.send(nonsense)
            with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                await fiend.receive()
            await fiend.aclose()
        await friend.send(wire.publish("t", b"still here"))
        assert wire.read_message(await friend.receive()).payload == b"still here"
        await friend.aclose()


def program(*arguments: str) -> list[str]:
    return [sys.executable, str(EXAMPLES / "pubsub.py"), *arguments]


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_the_programs(mode: str) -> None:
    broker = Program(*program("broker", "--listen", f"{LOCAL}:0", "--mode", mode), ready="listening on ")
    try:
        address = f"{LOCAL}:{broker.first_line.rpartition(':')[2]}"
        subscriber = Program(
            *program("subscribe", address, "weather/*", "news", "--count", "4", "--mode", mode),
            ready=f"subscribed by {mode}",
        )
        try:
            publish = program("publish", "--mode", mode, address, "weather/berlin")
            subprocess.run([*publish, "sunny", "windy"], timeout=FULL_PATIENCE, check=True)
            lines = program("publish", "--mode", mode, address, "news")
            subprocess.run(lines, input=b"one\ntwo\n", timeout=FULL_PATIENCE, check=True)
            subscriber.wait_for("news: two")
            assert subscriber.process.wait(FULL_PATIENCE) == 0
        finally:
            subscriber.stop()
        assert [line for line in subscriber.lines if ": " in line] == [
            "weather/berlin: sunny",
            "weather/berlin: windy",
            "news: one",
            "news: two",
        ]
        wrong = subprocess.run(
            program("publish", address, "a*", "x"), capture_output=True, text=True, timeout=FULL_PATIENCE
        )
        assert wrong.returncode == 1
        assert "pattern" in wrong.stderr
    finally:
        broker.stop()
    assert "Traceback" not in broker.output


def test_help_teaches() -> None:
    for arguments, words in (
        ((), ("broker", "subscribe", "publish", "--wait")),
        (("broker",), ("--listen", "slow subscribers")),
        (("subscribe",), ("a final * matches", "--count")),
        (("publish",), ("lines of standard input",)),
    ):
        text = subprocess.run(
            program(*arguments, "--help"), capture_output=True, text=True, timeout=FULL_PATIENCE, check=True
        ).stdout
        for word in words:
            assert word in text
    gone = subprocess.run(
        program("publish", f"{LOCAL}:1", "t", "x"), capture_output=True, text=True, timeout=FULL_PATIENCE
    )
    assert gone.returncode == 1
    assert "Traceback" not in gone.stderr

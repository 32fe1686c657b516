"""Records on a ring: random traffic, bad peers, devices with little room, the end."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiordma.datagrams.connection import DatagramConnection
from aiordma.errors import RemoteProtocolError
from aiordma.pipes._ring_records import RingDatagrams
from tests.health import nothing_left, until
from tests.pipes.link_pairs import connect, open_engine
from tests.processes import process
from tests.streams.pairs import ONE, OTHER
from tests.world import DEVICE

from .pairs import LOCAL, rdma_pair, receive_on
from .roles import echo

if TYPE_CHECKING:
    from aiordma.links.engine import Engine

pytestmark = pytest.mark.anyio

RING = 16384


async def raw_pair(engine: Engine) -> tuple[RingDatagrams, Any]:
    """A datagram end, and the bare ring of its peer, which can send anything."""
    one, other = await connect(engine)
    return RingDatagrams(one), other


async def ring_pair(engine: Engine) -> tuple[RingDatagrams, RingDatagrams]:
    one, other = await connect(engine)
    return RingDatagrams(one), RingDatagrams(other)


def over(pipe: RingDatagrams) -> DatagramConnection:
    return DatagramConnection(pipe, local_address=ONE, remote_address=OTHER)


async def turn() -> None:
    for _ in range(4):
        await anyio.lowlevel.checkpoint()


steps = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, 200)),
        st.tuples(st.just("send"), st.integers(0, RING - 4)),
        st.tuples(st.just("many"), st.integers(1, 40)),
        st.tuples(st.just("receive"), st.integers(1, 20)),
        st.tuples(st.just("peek"), st.just(0)),
        st.tuples(st.just("turn"), st.just(0)),
    ),
    max_size=80,
)


@given(plan=steps, seed=st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_any_order_of_operations_keeps_messages_whole(plan: list[tuple[str, int]], seed: int) -> None:
    """Against a model: accepted messages form a queue."""

    async def main() -> None:
        rng = random.Random(seed)
        expected: list[bytes] = []

        def check(message: bytes | memoryview | None) -> None:
            if message is not None:
                assert message == expected[0]
                del expected[0]

        async with open_engine(ring_bytes=RING) as engine:
            one, other = await ring_pair(engine)
            for what, size in plan:
                match what:
                    case "send":
                        message = rng.randbytes(size)
                        if one.try_send(message if size % 2 else bytearray(message)):
                            expected.append(message)
                    case "many":
                        batch = [rng.randbytes(rng.randrange(300)) for _ in range(size)]
                        expected += batch[: one.send_many(batch)]
                    case "receive":
                        for message in other.receive_many(size) or []:
                            check(message)
                    case "peek":
                        if (view := other.peek()) is not None:
                            check(view)
                            other.discard()
                    case _:
                        await turn()
            one.send_eof()
            rest: list[bytes] = []
            async with over(other) as end:
                with pytest.raises(anyio.EndOfStream):
                    await receive_on(end, rest)
            for message in rest:
                check(message)
            assert not expected
            one.close()
            other.close()
            await turn()

    anyio.run(main)


@pytest.mark.parametrize(
    ("forged", "reason"),
    [
        (b"\xff\xff\xff\xff", "a message of 4294967295 bytes"),
        ((RING - 3).to_bytes(4) + b"x", f"a message of {RING - 3} bytes"),
        (b"\x00\x00\x00\x05four", "in the middle of a message"),
        (b"\x00\x00", "in the middle of a message"),
        (b"\x00\x00\x00\x01a\x80\x00\x00\x00", "a message of 2147483648 bytes"),
    ],
)
async def test_bytes_that_are_no_records(forged: bytes, reason: str) -> None:
    """The misbehaving peer's connection ends with the reason, and nothing else does."""
    async with open_engine(ring_bytes=RING) as engine:
        one, liar = await raw_pair(engine)
        friend, other = await ring_pair(engine)
        victim = over(one)
        assert liar.try_send(forged) == len(forged)
        liar.send_eof()
        got: list[bytes] = []
        with pytest.raises(anyio.BrokenResourceError) as caught:
            await receive_on(victim, got)
        assert set(got) <= {b"a"}
        assert isinstance(caught.value.__cause__, RemoteProtocolError)
        assert reason in str(caught.value.__cause__)
        for call in (victim.receive, victim.receive_many, victim.borrow, lambda: victim.send(b"x")):
            with pytest.raises(anyio.BrokenResourceError):
                await call()
        assert friend.try_send(b"still here")
        async with over(other) as bystander:
            assert await bystander.receive() == b"still here"
        await victim.aclose()
        liar.close()


async def test_a_message_in_pieces_waits_for_its_end() -> None:
    async with open_engine(ring_bytes=RING) as engine:
        one, slow = await raw_pair(engine)
        record = (5000).to_bytes(4) + random.Random(1).randbytes(5000)
        for at in range(0, len(record), 617):
            assert one.try_receive() is None
            assert slow.try_send(record[at : at + 617]) == len(record[at : at + 617])
            await turn()
        async with over(one) as end:
            assert await end.receive() == record[4:]


@pytest.mark.parametrize("inline", [1, 64, 220])
async def test_devices_with_little_room(inline: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Accepted messages may wait for work requests; they arrive whole, even after the close."""
    rng = random.Random(inline)
    sent = [rng.randbytes(rng.choice((0, 10, 3000, 9000, RING - 4))) for _ in range(200)]
    async with open_engine(ring_bytes=RING, fragment_bytes=4096, max_outstanding_wrs=1) as engine:
        monkeypatch.setattr(engine.backend.limits, "max_inline_bytes", inline)
        pairs = [await ring_pair(engine) for _ in range(3)]

        async def feed(connection: DatagramConnection) -> None:
            for message in sent:
                await connection.send(message)
            await connection.aclose()

        async def take(connection: DatagramConnection) -> None:
            assert [message async for message in connection] == sent
            await connection.aclose()

        async with anyio.create_task_group() as tasks:
            for one, other in pairs:
                tasks.start_soon(feed, over(one))
                tasks.start_soon(take, over(other))
        await until(lambda: not any(group.members for group in engine.all_groups))


async def test_a_burst_is_few_writes() -> None:
    """Small messages of one tick are sent together, a single one at once."""
    async with open_engine() as engine:
        one, other = await ring_pair(engine)
        # A round trip, so that nothing is in flight on the link.
        async with over(one) as at_one, over(other) as at_other:
            assert one.try_send(b"there")
            assert await at_other.receive() == b"there"
            assert other.try_send(b"back")
            assert await at_one.receive() == b"back"
            posts = one.posts
            assert one.try_send(b"lone")
            assert one.posts == posts + 1
            assert one.send_many([b"x" * 64] * 1000) == 1000
            # How many depends on when completions come: a kernel's device has its own time.
            assert one.posts - posts < 100
            got = await at_other.receive_many(5000)
            while len(got) < 1001:
                got += await at_other.receive_many(5000)
        assert got == [b"lone"] + [b"x" * 64] * 1000
        ring = one.ring.statistics()
        assert ring.cdcs_sent < 120


async def test_statistics_and_state() -> None:
    one, other = await rdma_pair()
    assert one.writable == one.max_message_bytes == RING - 4
    await one.send(bytes(RING - 4))
    assert one.writable == -1
    with pytest.raises(anyio.WouldBlock):
        one.send_nowait(b"")
    await other.receive()
    assert one.statistics()[:2] == (1, 0)
    assert other.statistics()[:2] == (0, 1)
    await one.aclose()
    await other.aclose()


async def test_killed_peers() -> None:
    """kill -9 while messages flow: the other side gets the complete ones, then the end: in order if the
    process had held nothing back, as on TCP, else an error."""
    from aiordma.datagrams.connection import connect_datagram, listen_datagram

    async with nothing_left(), await listen_datagram(LOCAL) as listener:
        for size in (0, 60, 3000, 100_000):
            with process("tests.datagrams.roles:sprayer", port=listener.port, size=size) as victim:
                connection = await listener.accept()
                got = [await connection.receive() for _ in range(1500)]
                victim.kill()
                with pytest.raises((anyio.BrokenResourceError, anyio.EndOfStream)):
                    await receive_on(connection, got)
                assert {len(message) for message in got} == {4 + size}
                assert [int.from_bytes(message[:4]) for message in got] == list(range(len(got)))
                await connection.aclose()
        with process("tests.datagrams.roles:echo_server") as server:
            connection = await connect_datagram(LOCAL, await server.heard(), mode="rdma")
            await connection.send(b"one")
            assert await connection.receive() == b"one"
            server.kill()
            with pytest.raises(anyio.EndOfStream):
                await connection.receive()
            with pytest.raises(anyio.BrokenResourceError):
                await connection.send(b"two")
            await connection.aclose()


@pytest.mark.parametrize("way", ["send", "send_soon"])
async def test_what_a_killed_writer_had_not_sent(way: str) -> None:
    """Its peer reads what was sent before, and then that the rest is lost."""
    from aiordma.datagrams.connection import listen_datagram

    async with nothing_left(), await listen_datagram(LOCAL) as listener:
        with process("tests.datagrams.roles:holder", port=listener.port, way=way) as victim:
            async with await listener.accept() as connection:
                assert await victim.heard() == "connected"
                victim.say("go")
                assert await victim.heard() == "waits"
                victim.kill()
                got: list[bytes] = []
                with pytest.raises(anyio.BrokenResourceError):
                    await receive_on(connection, got)
                assert [int.from_bytes(message[:4]) for message in got] == list(range(len(got)))
                assert got


# What it has read and not told its peer yet is in a note that the software device keeps for killed processes.
READ_ALL = pytest.mark.skipif(
    DEVICE != "soft", reason="a card says nothing of what a killed reader had taken"
)


@pytest.mark.parametrize(
    ("count", "end"),
    [pytest.param(3, anyio.EndOfStream, marks=READ_ALL), (1, anyio.BrokenResourceError)],
)
async def test_what_a_killed_reader_had_taken(count: int, end: type[Exception]) -> None:
    """The end is in order if it had read everything, as on TCP; what was not read is an error."""
    from aiordma.datagrams.connection import listen_datagram

    async with nothing_left(), await listen_datagram(LOCAL) as listener:
        with process("tests.datagrams.roles:reader", port=listener.port, count=count) as victim:
            async with await listener.accept() as connection:
                for message in (b"one", b"two", b"three"):
                    await connection.send(message)
                victim.say("sent")
                assert await victim.heard() == "read"
                victim.kill()
                with pytest.raises(end):
                    await connection.receive()


async def test_many_connections_leave_nothing() -> None:
    from aiordma.datagrams.connection import connect_datagram, listen_datagram

    async with nothing_left(), await listen_datagram(LOCAL) as listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, echo)

            async def client(number: int) -> None:
                async with await connect_datagram(LOCAL, listener.port, mode="rdma") as connection:
                    for step in range(5):
                        await connection.send(b"%d %d" % (number, step))
                        assert await connection.receive() == b"%d %d" % (number, step)

            async with anyio.create_task_group() as clients:
                for number in range(50):
                    clients.start_soon(client, number)
            tasks.cancel_scope.cancel()

"""Memory that a receiver names for the bodies of long messages: what goes there, and until when."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from aiordma import faults
from aiordma.errors import LinkError
from aiordma.pipes.placement import Placement
from aiordma.testing.channel import memory_channels
from tests.health import until

from .channel_ends import End
from .link_pairs import connect_channels
from .test_tcp_channel import channel_on, sockets

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from aiordma.pipes.contracts import Channel

    from .link_pairs import Open

pytestmark = pytest.mark.anyio

__all__ = ["sockets"]  # a fixture

LONG = 300_000
BODY = random.Random(5).randbytes(LONG)


class PlacingEnd(End):
    """Names memory for messages whose head begins with "to"."""

    def __init__(self, channel: Channel) -> None:
        super().__init__(channel)
        self.asked: list[tuple[bytes, int]] = []
        self.placements: list[Placement] = []
        self.heads: list[bytes] = []
        #: called instead
        self.instead: Callable[[bytes, int], Placement | None] | None = None
        channel.placer = self

    def place(self, head: bytes, body_bytes: int) -> Placement | None:
        self.asked.append((head, body_bytes))
        self._wake()
        if self.instead is not None:
            return self.instead(head, body_bytes)
        if not head.startswith(b"to"):
            return None
        self.placements.append(Placement(memoryview(bytearray(body_bytes))))
        return self.placements[-1]

    def placed(self, head: bytes, placement: Placement) -> None:
        self.heads.append(head)
        self._on_message(bytes(placement.view))


async def exchange(at_a: End, at_b: PlacingEnd) -> None:
    """Long messages with and without a place, in order; a short one is never asked about."""
    await at_a.send(b"to here", BODY)
    await at_a.send(b"elsewhere", BODY)
    await at_a.send(b"to", b"short")
    await at_a.send(b"to there", memoryview(BODY)[1:])
    assert await at_b.received(4) == [BODY, b"elsewhere" + BODY, b"toshort", BODY[1:]]
    assert at_b.asked == [(b"to here", LONG), (b"elsewhere", LONG), (b"to there", LONG - 1)]
    assert at_b.heads == [b"to here", b"to there"]
    assert all(each.released for each in at_b.placements)
    assert at_b.channel.statistics().large_placed == 2
    assert at_b.channel.statistics().large_received == 3


async def test_on_a_link(open_engine: Open) -> None:
    async with open_engine() as engine:
        a, b = await connect_channels(engine)
        await exchange(End(a), PlacingEnd(b))


async def test_no_memory_of_the_engine_is_used(open_engine: Open) -> None:
    """The sender's copy is the only one."""
    async with open_engine() as engine:
        a, b = await connect_channels(engine)
        at_a, at_b = End(a), PlacingEnd(b)
        for i in range(3):
            await at_a.send(b"to", BODY)
            await at_b.received(i + 1)
        assert at_b.channel.statistics().large_placed == 3
        assert not engine.pool.kept
        for group in engine.all_groups:
            assert group._link_memory is None or not group._link_memory._registrations


async def test_on_tcp(sockets: tuple[socket.socket, socket.socket]) -> None:
    a, b = map(channel_on, sockets)
    await exchange(End(a), PlacingEnd(b))
    a.close()
    b.close()


async def test_in_memory() -> None:
    a, b = memory_channels(receive_bytes=1 << 20)
    await exchange(End(a), PlacingEnd(b))


async def test_what_may_not_be_registered_is_copied_there(
    open_engine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_engine() as engine:
        a, b = await connect_channels(engine)
        at_a, at_b = End(a), PlacingEnd(b)
        for group in engine.all_groups:
            monkeypatch.setattr(group.link_memory, "begin_placement", lambda _: None)
        await at_a.send(b"to", BODY)
        assert await at_b.received(1) == [BODY]
        assert at_b.heads == [b"to"]
        assert at_b.placements[0].released
        assert b.statistics().large_placed == 0


async def test_withdrawn_while_reads_are_under_way(open_engine: Open) -> None:
    """The device lets go first; the message still comes, the channel goes on."""
    async with open_engine() as engine:
        a, b = await connect_channels(engine)
        at_a, at_b = End(a), PlacingEnd(b)
        with faults.injected("delay op=read ms=50"):
            await at_a.send(b"to", BODY)
            await at_a.send(b"", b"after")
            await at_b.until(lambda: bool(at_b.placements))
            (placement,) = at_b.placements
            released: list[bool] = []
            placement.on_released = lambda: released.append(True)
            b.withdraw(placement)
            assert not placement.released
            await at_b.until(lambda: bool(released))
            assert len(await at_b.received(2)) == 2
        assert at_b.messages[1] == b"after"
        await at_a.send(b"to", BODY)
        assert (await at_b.received(3))[2] == BODY
        for group in engine.all_groups:
            assert group._link_memory is None or not group._link_memory._registrations


async def test_withdrawn_on_tcp_in_mid_message(sockets: tuple[socket.socket, socket.socket]) -> None:
    a, b = sockets
    at_b = PlacingEnd(channel_on(b, 1 << 20))
    sender = channel_on(a)
    at_a = End(sender)
    await until(lambda: at_b.channel.greeted)  # type: ignore[attr-defined]
    from aiordma.proto.channel_frames import message_header

    sender._put(message_header(LONG + 2, 2) + b"to" + BODY[:40_000])
    sender._flush()
    await at_b.until(lambda: bool(at_b.placements))
    (placement,) = at_b.placements
    await until(lambda: bytes(placement.view[:40_000]) == BODY[:40_000])
    at_b.channel.withdraw(placement)
    assert placement.released
    before = bytes(placement.view)
    sender._put_long(BODY[40_000:])
    await at_a.send(b"", b"after")
    assert (await at_b.received(2))[1] == b"after"
    assert bytes(placement.view) == before
    sender.close()
    at_b.channel.close()


async def test_a_channel_that_is_closed_lets_go(open_engine: Open) -> None:
    async with open_engine() as engine:
        a, b = await connect_channels(engine)
        at_a, at_b = End(a), PlacingEnd(b)
        with faults.injected("delay op=read ms=50"):
            await at_a.send(b"to", BODY)
            await at_b.until(lambda: bool(at_b.placements))
            b.close()
            (placement,) = at_b.placements
            assert not placement.released
            await until(lambda: placement.released)
        assert at_b.heads == []
        await at_a.ended()
        a.close()
        await until(lambda: b.is_finished)


async def test_a_link_that_fails_holds_what_the_device_may_touch(open_engine: Open) -> None:
    """Whoever waits is woken; the memory stays until the queue pair is silenced."""
    async with open_engine() as engine:
        a, b = await connect_channels(engine)
        at_a, at_b = End(a), PlacingEnd(b)
        with faults.injected("delay op=read ms=300"):
            await at_a.send(b"to", BODY)
            await at_b.until(lambda: bool(at_b.placements))
            (placement,) = at_b.placements
            (group,) = [g for g in engine.all_groups if g._link_memory is not None]
            assert len(group.link_memory._placements) == 1
            group.link.queue_pair.break_link(LinkError("broken by the test"))
            await at_b.ended()
            assert placement.released
            assert placement.registration is not None
            b.close()
            a.close()
            await until(lambda: placement.registration is None)


@pytest.mark.parametrize("carrier", ["link", "tcp", "memory"])
async def test_a_place_that_cannot_be_named_breaks_the_channel(
    open_engine: Open, sockets: tuple[socket.socket, socket.socket], carrier: str
) -> None:
    def fails(head: bytes, body_bytes: int) -> Placement | None:
        raise ZeroDivisionError("in place()")

    async def run(a: Any, b: Any) -> None:
        at_a, at_b = End(a), PlacingEnd(b)
        at_b.instead = fails
        await at_a.send(b"to", BODY)
        assert isinstance(await at_b.ended(), ZeroDivisionError)
        await at_a.ended()
        a.close()
        b.close()

    if carrier == "link":
        async with open_engine() as engine:
            await run(*await connect_channels(engine))
    elif carrier == "tcp":
        await run(*map(channel_on, sockets))
    else:
        await run(*memory_channels(receive_bytes=1 << 20))


async def test_a_user_that_closes_the_channel_while_it_is_asked(open_engine: Open) -> None:
    async with open_engine() as engine:
        a, b = await connect_channels(engine)
        at_a, at_b = End(a), PlacingEnd(b)

        def closes(head: bytes, body_bytes: int) -> Placement | None:
            b.abort()
            return Placement(memoryview(bytearray(body_bytes)))

        at_b.instead = closes
        await at_a.send(b"to", BODY)
        assert isinstance(await at_a.ended(), LinkError)
        a.close()
        with anyio.fail_after(20):
            await until(lambda: b.is_finished)

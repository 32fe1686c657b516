"""Links that have carried out billions of requests: their counts wrap, and what rested meanwhile goes on."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from aiordma import faults
from aiordma.datapath._qp import QueuePair
from aiordma.links import link as links
from tests.health import settle, until
from tests.virtual import in_virtual_time

from .channel_ends import End
from .link_pairs import connect, connect_channels

if TYPE_CHECKING:
    from aiordma.links.engine import Engine

    from .link_pairs import Open

pytestmark = pytest.mark.anyio

#: Requests that have completed since something was noted of a request: as seen from there, half of the
#: numbers are ahead, and the other half behind.
MANY = [0x70000000, 0x80000000, 0xF0000000]
in_billions = pytest.mark.parametrize("requests", MANY, ids=hex)


def go_on(engine: Engine, requests: int) -> None:
    """Others on the links have completed so many requests."""
    for group in engine.all_groups:
        group.link.queue_pair.count_on(requests)


def ended(engine: Engine) -> bool:
    return not any(group.members for group in engine.all_groups)


@in_billions
async def test_the_first_message_of_a_channel(
    requests: int, open_engine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the device takes little inline, messages are built in places that become free again."""
    async with open_engine() as engine:
        monkeypatch.setattr(engine.backend.limits, "max_inline_bytes", 64)
        a, b = await connect_channels(engine)
        at_a, at_b = End(a), End(b)
        for round_ in range(3):
            go_on(engine, requests)
            await at_a.send(b"head", bytes(1000))
            await at_b.send(b"back", bytes(100_000))
            assert len(await at_b.received(round_ + 1)) == len(await at_a.received(round_ + 1)) == round_ + 1


@in_virtual_time
@in_billions
async def test_the_end_of_a_stream_whose_peer_answers_late(requests: int, open_engine: Open) -> None:
    async with open_engine() as engine:
        a, b = await connect(engine)
        with faults.injected("delay side=server dir=out op=cdc ms=20"):
            a.close()
            await settle()
            go_on(engine, requests)
            b.close()
            await until(lambda: ended(engine))


@in_billions
async def test_the_end_of_a_channel_whose_peer_reads_late(requests: int, open_engine: Open) -> None:
    async with open_engine() as engine:
        a, b = await connect_channels(engine)
        assert a.try_send(b"unread")
        a.close()
        await settle()
        go_on(engine, requests)
        at_b = End(b)
        assert await at_b.ended() is None
        b.close()
        await until(lambda: ended(engine))


@in_billions
async def test_what_a_stream_had_placed_stays_placed(requests: int, open_engine: Open) -> None:
    """It would send all that it has kept once more, should it leave RDMA."""
    async with open_engine() as engine:
        a, b = await connect(engine)
        with faults.injected("delay op=cdc nth=1000000 ms=1"):  # a filter: what passes it is kept
            assert a.try_send(bytes(100)) == 100
            await until(lambda: b.has_unread)
            await settle()
        go_on(engine, requests)
        sent, placed, *_ = a.ring.ledger()
        assert (sent, placed) == (100, 100)


@pytest.mark.parametrize("begin", [0x7FFFFFC0, 0xFFFFFFC0, 0xFFFFFC0], ids=hex)
@pytest.mark.parametrize("inline", [64, None], ids=["little inline", "as the device has it"])
async def test_everything_goes_on_where_the_counts_wrap(
    begin: int, inline: int | None, open_engine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Late(QueuePair):
        def start(self) -> None:
            super().start()
            self.count_on(begin)

    monkeypatch.setattr(links, "QueuePair", Late)
    draw = random.Random(begin)
    async with open_engine() as engine:
        if inline is not None:
            monkeypatch.setattr(engine.backend.limits, "max_inline_bytes", inline)
        a, b = await connect_channels(engine)
        at_a, at_b = End(a), End(b)
        one, other = await connect(engine)
        sent: list[bytes] = []
        for _ in range(200):
            sent.append(draw.randbytes(draw.choice((8, 1000, 20_000))))
            await at_a.send(b"", sent[-1])
            await at_b.send(b"", sent[-1])
            data = draw.randbytes(3000)
            await _through(one, other, data)
        assert await at_b.received(len(sent)) == await at_a.received(len(sent)) == sent
        one.close()
        other.close()
        a.close()
        assert await at_b.ended() is None
        b.close()
        await until(lambda: ended(engine))


async def _through(one: Any, other: Any, data: bytes) -> None:
    rest, got = data, b""

    def passed() -> bool:
        nonlocal rest, got
        rest = rest[one.try_send(rest) :] if rest else rest
        got += other.try_receive(1 << 16) or b""
        return got == data

    await until(passed)

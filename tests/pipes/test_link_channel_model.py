"""Announce, READ, credit and the end against a model: what arrives is what was sent, in order, up to an end
that both
sides understand in the same way; and afterwards nothing of it is left, whatever was broken at which step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiordma import faults
from aiordma.errors import LinkError
from tests.health import until

from .channel_ends import End
from .link_pairs import connect_channels
from .link_pairs import open_engine as open_an_engine
from .test_link_channel_overload import rnr

if TYPE_CHECKING:
    from aiordma.links.engine import Engine

    from .link_pairs import Open

pytestmark = pytest.mark.anyio

SETTINGS = {"window": 4, "recv_reserve": 4, "channel_receive_bytes": 32768, "fragment_bytes": 4096}


class Side:
    """One end, and what the model knows of it."""

    def __init__(self, end: End) -> None:
        self.end = end
        self.channel = end.channel
        self.sent: list[bytes] = []
        self.has_ended = False  # by its own close() or abort()
        self.aborted = False

    def send(self, size: int) -> None:
        message = b"%d:" % len(self.sent) + bytes([len(self.sent) % 256]) * size
        try:
            if self.channel.try_send(message[:3], message[3:]):
                self.sent.append(message)
        except anyio.ClosedResourceError:
            assert self.has_ended
        except anyio.BrokenResourceError:
            assert not self.has_ended

    def check(self, other: Side) -> None:
        got = [bytes(message) for message in self.end.messages]
        assert got == other.sent[: len(got)]
        if self.end.closed == [None]:
            assert other.has_ended
            assert not other.aborted
            assert got == other.sent
        assert len(self.end.closed) <= 1


async def nothing_left(engine: Engine, sides: list[Side]) -> None:
    for side in sides:
        side.channel.abort()
        side.end.messages.clear()
    await until(lambda: not any(group.members for group in engine.all_groups))
    parts = [group.link.parts for group in engine.all_groups] + engine.cache.parked
    assert engine.pool.used_bytes == sum(part.pool_bytes for part in parts)


async def turns(count: int) -> None:
    for _ in range(count):
        await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("side", ["client", "server"])
async def test_the_link_is_lost_at_every_step(open_engine: Open, side: str) -> None:
    """Both ends send small and large messages; the link breaks after so many turns of the loop."""
    for step in range(30):
        async with open_engine(**SETTINGS, max_outstanding_wrs=2) as engine:
            a, b = await connect_channels(engine)
            sides = [Side(End(a)), Side(End(b))]
            for size in (10, 20_000, 0, 9_000, 5_000, 300):
                for one in sides:
                    one.send(size)
            await turns(step)
            group = next((group for group in engine.groups.values() if group.key[1] == side), None)
            assert group is not None
            group.link.queue_pair.break_link(LinkError("cut"))
            for one, other in (sides, sides[::-1]):
                one.send(1)
                one.check(other)
            await turns(5)
            for one, other in (sides, sides[::-1]):
                one.send(1)
                await one.end.ended()
                one.check(other)
                assert isinstance(one.end.closed[0], Exception)
            await nothing_left(engine, sides)


OPERATION = st.one_of(
    st.tuples(st.just("send"), st.integers(0, 1), st.sampled_from([0, 5, 4096, 5000, 9000, 40_000])),
    st.tuples(st.just("turns"), st.integers(1, 4)),
    st.tuples(st.just("pause"), st.integers(0, 1)),
    st.tuples(st.just("resume"), st.integers(0, 1)),
    st.tuples(st.just("forget views"), st.integers(0, 1)),
)
END = st.sampled_from(["close", "abort", "cut", "close both", "nothing"])
RULES = st.sampled_from(["", "delay op=read ms=1 p=0.3", "delay op=message ms=1 p=0.2"])


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(operations=st.lists(OPERATION, max_size=40), end=END, rule=RULES)
def test_model(operations: list[tuple[str, int, int]], end: str, rule: str) -> None:
    async def play() -> None:
        async with open_an_engine(**SETTINGS, max_outstanding_wrs=3) as engine:
            counted = rnr()
            a, b = await connect_channels(engine)
            sides = [Side(End(a)), Side(End(b))]
            for operation, *arguments in operations:
                side = sides[arguments[0] % 2]
                if operation == "send":
                    side.send(arguments[1])
                elif operation == "turns":
                    await turns(arguments[0])
                elif operation == "pause":
                    side.channel.on_message = None
                elif operation == "resume":
                    side.channel.on_message = side.end._on_message
                else:
                    # What was a view is a copy from now on.
                    side.end.messages[:] = map(bytes, side.end.messages)
                for one, other in (sides, sides[::-1]):
                    one.check(other)
            for side in sides:
                side.channel.on_message = side.end._on_message
            await finish(engine, sides, end)
            for one, other in (sides, sides[::-1]):
                one.check(other)
            assert rnr() == counted
            await nothing_left(engine, sides)

    with faults.injected(rule):
        anyio.run(play)


async def finish(engine: Engine, sides: list[Side], end: str) -> None:
    first, second = sides
    if end == "nothing":
        await until(lambda: len(second.end.messages) == len(first.sent))
        await until(lambda: len(first.end.messages) == len(second.sent))
    elif end == "cut":
        next(iter(engine.groups.values())).link.queue_pair.break_link(LinkError("cut"))
        for side in sides:
            side.send(1)
            await side.end.ended()
    elif end == "close both":
        for side in sides:
            side.has_ended = True
            side.channel.close()
        await until(lambda: all(side.channel.is_finished for side in sides))  # type: ignore[attr-defined]
    else:
        first.has_ended = True
        first.aborted = end == "abort"
        (first.channel.abort if first.aborted else first.channel.close)()
        assert isinstance(await second.end.ended(), LinkError) == first.aborted


async def test_a_peer_that_does_not_answer_an_abort_gets_nothing_kept(open_engine: Open) -> None:
    async with open_engine(**SETTINGS) as engine:
        a, b = await connect_channels(engine)
        a.try_send(b"", bytes(20_000))
        b.forget()  # and so never answers
        a.abort()
        await turns(5)
        (group,) = (group for group in engine.all_groups if group.key[1] == "client")
        now = engine.waker.now()
        group.look(now)
        group.look(now + engine.config.link_timeout_ms / 1000 - 1)
        too_early = a.is_finished
        group.look(now + engine.config.link_timeout_ms / 1000 + 1)
        assert (too_early, a.is_finished) == (False, True)
        assert engine.pool.used_bytes == sum(g.link.parts.pool_bytes for g in engine.all_groups) + sum(
            g._page.length for g in engine.all_groups if g._page
        )

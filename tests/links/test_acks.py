"""A received message that no other message acknowledges is acknowledged when AIORDMA_ACK_DELAY_MS is over."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest

from aiordma.links.link import AckTimer
from tests.health import until
from tests.pipes.link_pairs import connect, open_engine
from tests.tuned import tuned
from tests.virtual import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiordma.links.engine import Engine
    from aiordma.links.link import Link

# ---- in virtual time


class Handle:
    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Clock:
    """The part of a Waker that the timer uses."""

    def __init__(self) -> None:
        self.time = 100.0
        self._calls: list[tuple[float, int, Handle, Callable[[], None]]] = []

    def now(self) -> float:
        return self.time

    def call_at(self, when: float, callback: Callable[[], None]) -> Handle:
        handle = Handle()
        heapq.heappush(self._calls, (when, len(self._calls), handle, callback))
        return handle

    @property
    def waiting(self) -> int:
        return sum(not handle.cancelled for _, _, handle, _ in self._calls)

    def advance(self, seconds: float) -> None:
        end = self.time + seconds
        while self._calls and self._calls[0][0] <= end:
            when, _, handle, callback = heapq.heappop(self._calls)
            self.time = max(self.time, when)
            if not handle.cancelled:
                callback()
        self.time = end


class Owing:
    """A link that notes when it is called, and refuses at first."""

    def __init__(self, clock: Clock, refusals: int = 0) -> None:
        self._clock, self._refusals = clock, refusals
        self.called_at: list[float] = []

    def acknowledge(self) -> bool:
        self.called_at.append(self._clock.time)
        self._refusals -= 1
        return self._refusals < 0


def timer(clock: Clock, delay: Callable[[], float] = lambda: 0.02) -> Any:
    return AckTimer(clock, delay)  # type: ignore[arg-type]


def test_a_lone_message_waits_for_the_delay_and_no_longer() -> None:
    clock = Clock()
    acks, link = timer(clock), Owing(clock)
    assert not acks.running
    acks.owe(link)
    clock.advance(0.019)
    assert link.called_at == []
    clock.advance(0.002)
    assert link.called_at == [pytest.approx(100.02)]


def test_nothing_wakes_the_loop_when_nothing_is_owed() -> None:
    clock = Clock()
    acks = timer(clock)
    acks.owe(Owing(clock))
    clock.advance(1)
    assert not acks.running
    assert clock.waiting == 0


def test_links_share_one_timer_and_none_waits_longer_than_the_delay() -> None:
    clock = Clock()
    acks, links = timer(clock), [Owing(clock) for _ in range(3)]
    for link in links:
        acks.owe(link)
        clock.advance(0.005)
        assert clock.waiting == 1
    clock.advance(0.02)
    assert [link.called_at for link in links] == [[pytest.approx(100.02)]] * 3


def test_a_link_that_cannot_acknowledge_is_called_again() -> None:
    clock = Clock()
    acks, link = timer(clock), Owing(clock, refusals=2)
    acks.owe(link)
    clock.advance(1)
    assert link.called_at == [pytest.approx(100 + delay) for delay in (0.02, 0.04, 0.06)]
    assert clock.waiting == 0


def test_a_changed_delay_holds_from_the_next_time_on() -> None:
    clock, seconds = Clock(), [0.02]
    acks, link = timer(clock, lambda: seconds[0]), Owing(clock)
    acks.owe(link)
    seconds[0] = 0.5
    clock.advance(0.1)
    acks.owe(link)
    clock.advance(1)
    assert link.called_at == [pytest.approx(100.02), pytest.approx(100.6)]


def test_after_the_end_no_link_is_called() -> None:
    clock = Clock()
    acks, link = timer(clock), Owing(clock)
    acks.owe(link)
    acks.close()
    clock.advance(1)
    assert link.called_at == []
    assert clock.waiting == 0


# ---- on a link


def server_link(engine: Engine) -> Link:
    (link,) = (group.link for group in engine.all_groups if group.key.side == "server")
    return link


async def check_acknowledged_after(seconds: float, engine: Engine, client: Any) -> None:
    """Send a message that the server's program does not answer: so long it stays unacknowledged."""
    queue_pair = server_link(engine).queue_pair
    await until(lambda: not queue_pair.ack_owed)
    client.try_send(b"x")
    while not queue_pair.ack_owed:
        await anyio.lowlevel.checkpoint()
    await anyio.sleep(0.9 * seconds)
    assert queue_pair.ack_owed
    await anyio.sleep(0.2 * seconds)
    assert not queue_pair.ack_owed


@in_virtual_time
@pytest.mark.anyio
async def test_a_lone_message_on_a_link_is_acknowledged() -> None:
    """Well before the engine's regular tick (once a second). The delay can be changed at run time."""
    async with open_engine(ack_delay_ms=20) as engine:
        client, server = await connect(engine)
        for _ in range(5):
            await check_acknowledged_after(0.02, engine, client)
        engine.config = tuned(engine.config, ack_delay_ms=400)
        await check_acknowledged_after(0.4, engine, client)
        client.abort()
        server.abort()


@in_virtual_time
@pytest.mark.anyio
async def test_an_idle_link_sends_nothing() -> None:
    """Acknowledgements are not acknowledged in turn."""
    async with open_engine(ack_delay_ms=1) as engine:
        client, server = await connect(engine)
        await check_acknowledged_after(0.001, engine, client)
        await anyio.sleep(1)
        links = [group.link for group in engine.all_groups]
        sent = [link.queue_pair.messages_sent for link in links]
        await anyio.sleep(0.9 * engine.config.keepalive_ms / 1000)
        assert [link.queue_pair.messages_sent for link in links] == sent
        assert not engine._ack_timer.running
        client.abort()
        server.abort()

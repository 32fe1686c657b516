"""The effect of each act on streams: the data is whole, or an end gets an error with the reason."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

import anyio
import pytest

from aiordma import faults
from aiordma.errors import AioRdmaError, CompletionError, LinkError, RemoteProtocolError
from aiordma.links import engine as engines
from aiordma.streams.connector import connect
from aiordma.streams.listener import listen
from tests.health import nothing_left, until
from tests.streams.pairs import negotiated_pair
from tests.tuned import tuned
from tests.world import DEVICE, SLOWER

from .kit import PATIENCE, Outcome, exchange

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiordma.streams.stream import RdmaStream

pytestmark = pytest.mark.anyio

# Here, a broken link breaks its streams, so that they report the reason (otherwise: tests/links/failover).
CONFIG = tuned(
    device=DEVICE,
    ring_bytes=16384,
    keepalive_ms=100,
    keepalive_timeout_ms=round(200 * SLOWER),
    link_idle_ms=0,
    failover_timeout_ms=0,
)


@pytest.fixture(autouse=True)
async def engine() -> AsyncIterator[engines.Engine]:
    """All resources are released, whatever happened."""
    engine = await engines.current(CONFIG)
    yield engine
    for group in list(engine.all_groups):
        assert not group.members
    used = engine.pool.statistics().used_bytes
    parts = [group.link.parts for group in engine.all_groups] + engine.cache.parked
    assert used == sum(part.pool_bytes for part in parts)
    assert faults.rules() == {}
    engine.close()


async def pair() -> tuple[RdmaStream, RdmaStream]:
    return await negotiated_pair(config=CONFIG, mode="rdma")


async def under(*rules: str, size: int = 200_000) -> tuple[Outcome, Outcome, faults.Injected]:
    one, other = await pair()
    with faults.injected(*rules) as injected:
        forth, back = await exchange(one, other, size)
    for outcome in (forth, back):
        # No receiver ever got a byte that was not sent, or at a wrong position.
        assert outcome.sent.startswith(outcome.got)
        assert outcome.whole or not outcome.ended
    await settled()
    return forth, back, injected


async def settled() -> None:
    engine = await engines.current()
    await until(lambda: not any(group.members for group in engine.all_groups))


@pytest.mark.parametrize(
    "rule",
    [
        "delay op=write p=0.05 ms=1",
        "delay op=cdc p=0.05 ms=1",
        "delay p=0.02 ms=0",
        "delay dir=in op=cdc p=0.05 ms=1",
        "duplicate op=write p=0.3",
        "duplicate dir=in op=cdc p=0.5",
        "reorder dir=in op=cdc p=0.3 ms=1",
        "reorder dir=in op=cdc ms=1",
        "delay dir=in p=0.05 ms=1; reorder dir=in p=0.2 ms=1; duplicate dir=in p=0.2; delay p=0.02 ms=1",
    ],
)
async def test_what_a_network_may_do_costs_time_only(rule: str) -> None:
    forth, back, injected = await under(rule)
    assert injected.fired > 0
    assert forth.whole, forth.errors
    assert back.whole, back.errors


def told(outcomes: tuple[Outcome, Outcome], kind: type[AioRdmaError], text: str) -> bool:
    """At least one end got an error of this kind with this text."""
    causes = [cause for outcome in outcomes for cause in outcome.causes()]
    return any(isinstance(cause, kind) and re.search(text, str(cause)) for cause in causes)


@pytest.mark.parametrize(
    ("rule", "kind", "text"),
    [
        ("drop op=write nth=20 ms=1 side=client", CompletionError, "WRITE.*RETRY_EXC_ERR"),
        ("drop op=cdc nth=7 ms=1 side=server", CompletionError, "SEND.*RETRY_EXC_ERR"),
        ("rnr op=cdc nth=5 ms=1", CompletionError, "RNR_RETRY_EXC_ERR"),
        ("error op=write nth=9 status=REM_ACCESS_ERR", CompletionError, "REM_ACCESS_ERR"),
        ("error op=cdc nth=3", CompletionError, "REM_OP_ERR"),
        ("error dir=in op=cdc nth=3", CompletionError, "RECV.*LOC_PROT_ERR"),
        ("disconnect op=write nth=11", LinkError, "stopped QP|ended or closed|aborted"),
        ("disconnect dir=in op=cdc nth=11", LinkError, "stopped QP|ended or closed|aborted"),
        ("duplicate op=cdc nth=4", RemoteProtocolError, "came twice"),
        ("drop op=write nth=20 ms=never side=client", LinkError, "keepalive"),
    ],
)
async def test_what_breaks_a_link_is_told_with_its_reason(
    rule: str, kind: type[AioRdmaError], text: str
) -> None:
    forth, back, injected = await under(rule, size=400_000)
    assert injected.fired == 1
    assert told((forth, back), kind, text), (forth.causes(), back.causes())


async def test_a_message_lost_above_the_link_is_made_up_for_by_the_next() -> None:
    one, other = await pair()
    with faults.injected("drop dir=in op=cdc nth=1") as injected:
        await one.send(b"first ")
        while not injected.fired:  # noqa: ASYNC110  (nothing tells: that is the point)
            await anyio.sleep(0.001)
        with pytest.raises(anyio.WouldBlock):
            other.receive_nowait()
        await one.send(b"second")
        assert await other.receive() == b"first second"
    await one.aclose()
    await other.aclose()


async def test_a_corrupted_write_changes_one_bit_and_nobody_notices() -> None:
    """Detecting this is up to TLS over the stream, or the application's own checks."""
    one, other = await pair()
    with faults.injected("corrupt op=write at=3"):
        await one.send(bytes(8))
        (changed,) = [byte for byte in enumerate(await other.receive()) if byte[1]]
    assert changed[0] == 3
    assert changed[1].bit_count() == 1
    await one.aclose()
    await other.aclose()


async def test_rules_hold_for_one_connection_of_a_link() -> None:
    async with nothing_left():
        pairs = [await pair() for _ in range(2)]
        victim = pairs[0][0]._pipe.ring.token  # type: ignore[attr-defined]
        with faults.injected(f"delay op=write,cdc connection={victim} ms=0") as injected:
            for one, other in pairs[1:]:
                await one.send(b"not meant")
                assert await other.receive() == b"not meant"
            assert injected.fired == 0
            await pairs[0][0].send(b"meant")
            assert await pairs[0][1].receive() == b"meant"
            assert injected.fired > 0
        for one, other in pairs:
            await one.aclose()
            await other.aclose()


@pytest.mark.parametrize("rule", ["delay op=llc ms=5", "delay dir=in op=llc ms=5"])
async def test_first_contact_waits_for_slow_confirmations(rule: str) -> None:
    """The Confirm Link messages are LLC messages on the new link."""
    with faults.injected(rule) as injected:
        one, other = await pair()
    # If the engine's timer fires meanwhile, an end acknowledges the other's message with one of its own.
    assert injected.fired >= 2
    await one.send(b"works")
    assert await other.receive() == b"works"
    await one.aclose()
    await other.aclose()


@pytest.mark.parametrize(
    "rule",
    [
        "drop op=llc nth=1 ms=1",
        "error op=llc nth=1",
        "error op=llc nth=2",
        "corrupt op=llc nth=1 at=0",
        "corrupt dir=in op=llc nth=2 at=30",
        "disconnect op=llc nth=1",
    ],
)
async def test_first_contact_fails_or_the_stream_says_so(rule: str) -> None:
    """The client may have finished when its last confirmation is lost: then its stream breaks."""

    async def echo(stream: RdmaStream) -> None:
        async with stream:
            async for part in stream:
                await stream.send(part)

    async with await listen("127.0.0.1", config=CONFIG, mode="rdma") as listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, echo)
            with faults.injected(rule) as injected, anyio.fail_after(PATIENCE):
                with contextlib.suppress(AioRdmaError, OSError, anyio.EndOfStream, anyio.BrokenResourceError):
                    # Where the server has failed, the client would wait for its word.
                    brief = tuned(CONFIG, negotiate_timeout_ms=5000)
                    async with await connect("127.0.0.1", listener.port, config=brief, mode="rdma") as stream:
                        await stream.send(b"works")
                        assert await stream.receive() == b"works"
                        assert "corrupt" in rule  # a bit without meaning
                assert injected.fired == 1
            async with await connect("127.0.0.1", listener.port, config=CONFIG, mode="rdma") as stream:
                await stream.send(b"the next one works")
                assert await stream.receive() == b"the next one works"
            tasks.cancel_scope.cancel()
    await settled()


async def test_rules_taken_away_in_the_middle_leave_nothing_held() -> None:
    one, other = await pair()
    number = faults.add("delay ms=1")
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one.send, bytes(100_000))
            got = 0
            while got < 100_000:
                got += len(await other.receive())
                if got > 30_000 and number:
                    faults.remove(number)
                    number = 0
    finally:
        faults.clear()
    await one.aclose()
    await other.aclose()

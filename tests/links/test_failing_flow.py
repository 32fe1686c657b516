"""A link fails, and something fails as it hears of that: the streams of the link hear of it all the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from aiordma import faults
from aiordma.errors import LinkError
from aiordma.links import engine as engines
from aiordma.links.failover.leave import Leaver
from aiordma.links.link import Link
from tests.links.failover.test_first_contact import both_ways
from tests.streams.pairs import rdma_pair

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("side", ["client", "server"])
async def test_the_others_fail_over(side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [await rdma_pair() for _ in range(3)]
    groups = [group for group in (await engines.current()).all_groups if group.key[1] == side]
    (group,) = groups
    link: Link = group.link
    fail_over = Leaver.fail_over
    raised: list[Any] = []

    def fail_first(member: Leaver, reason: BaseException) -> bool:
        if not raised:
            raised.append(member)
            raise RuntimeError("the first one fails")
        return fail_over(member, reason)

    monkeypatch.setattr(Leaver, "fail_over", fail_first)
    link.queue_pair.break_link(LinkError("broken by the test", group.peer))
    assert len(raised) == 1
    assert link.failure is not None
    monkeypatch.undo()
    whole = [pair for pair in pairs if raised[0].pipe not in [each._pipe.ring for each in pair]]  # type: ignore[attr-defined]
    assert len(whole) == 2
    for one, other in whole:
        async with one, other:
            await both_ways(one, other)
            assert one.path == other.path == "tcp"
    for pair in pairs:
        for each in pair:
            each.abort()


class Stuck:
    """A timer of the loop that cannot be cancelled."""

    def cancel(self) -> None:
        raise RuntimeError("no timer is cancelled")


def failing(*_: object) -> object:
    raise RuntimeError("the owner fails")


def hook_that_does_not_end(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    faults.add("delay op=cdc ms=100000")
    monkeypatch.setattr(link, "call_later", lambda seconds, callback: Stuck())


def owner_that_cannot_explain(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "explain", failing)


def owner_that_does_not_know_the_peer(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "peer_left_whole", failing)


@pytest.mark.parametrize(
    "fault", [hook_that_does_not_end, owner_that_cannot_explain, owner_that_does_not_know_the_peer]
)
@pytest.mark.parametrize("side", ["client", "server"])
async def test_all_fail_over(
    side: str, fault: Callable[..., object], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pairs = [await rdma_pair() for _ in range(3)]
    (group,) = (group for group in (await engines.current()).all_groups if group.key[1] == side)
    link: Link = group.link
    try:
        fault(link, monkeypatch)
        if fault is hook_that_does_not_end:
            for pair in pairs:
                for each in pair:
                    each.send_nowait(b"held")
        link.queue_pair.break_link(LinkError("broken by the test", group.peer))
    finally:
        faults.clear()
    assert link.failure is not None
    assert "RuntimeError" in caplog.text
    monkeypatch.undo()
    for one, other in pairs:
        async with one, other:
            if fault is hook_that_does_not_end:
                assert await one.receive_exactly(4) == await other.receive_exactly(4) == b"held"
            await both_ways(one, other)
            assert one.path == other.path == "tcp"

"""A link fails, and one of those that run over it fails as it hears of that: the others hear of it, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from aiordma.errors import LinkError
from aiordma.links import engine as engines
from aiordma.links.failover.leave import Leaver
from tests.links.failover.test_first_contact import both_ways
from tests.streams.pairs import rdma_pair

if TYPE_CHECKING:
    from aiordma.links.link import Link

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

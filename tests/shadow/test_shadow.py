"""The shadow finds what is done differently, and says nothing where nothing is."""

from __future__ import annotations

import pytest

from aiordma.links.failover.framed_pipe import FramedPipe
from tests.health import nothing_left, until
from tests.links.failover.breaking import take_off
from tests.proto.life.machine import StreamLife
from tests.proto.life.machine.rings import RingsLife
from tests.streams.pairs import rdma_pair

from .hooks import Shadows

pytestmark = pytest.mark.anyio


async def through_a_life() -> None:
    """Leaves RDMA, ends one direction, and closes."""
    async with nothing_left() as engine:
        one, other = await rdma_pair()
        take_off(engine, "switch one")
        await until(lambda: one.path == other.path == "tcp")
        await one.send(b"all")
        await one.send_eof()
        assert await other.receive() == b"all"
        await one.aclose()
        await other.aclose()


def does_nothing(*_: object) -> None:
    """Instead of what is to be done."""


@pytest.mark.parametrize(
    ("kind", "name", "found"),
    [
        (FramedPipe, "send_eof", "tcp"),
        (StreamLife, "_send_by", "sending"),
        (RingsLife, "free", "rings"),
    ],
)
async def test_a_difference_is_found(
    kind: type[object], name: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of today's objects, and of the life."""
    monkeypatch.setattr(kind, name, does_nothing)
    shadows = Shadows()
    with shadows.watching():
        await through_a_life()
    assert found in [each for each, _ in shadows.differences]


async def test_without_one() -> None:
    shadows = Shadows()
    with shadows.watching():
        await through_a_life()
    assert shadows.count == 2
    assert shadows.differences == []
    assert FramedPipe.close.__module__ == FramedPipe.__module__  # and the hooks are gone

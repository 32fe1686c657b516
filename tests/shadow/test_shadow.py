"""The shadow finds what is done differently, and says nothing where nothing is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from aiordma.links.failover.framed_pipe import FramedPipe
from aiordma.proto.life.frames import FramesLife
from aiordma.proto.life.rings import RingsLife
from tests.health import nothing_left, until
from tests.links.failover.breaking import take_off
from tests.streams.pairs import rdma_pair

from .hooks import Shadows

if TYPE_CHECKING:
    from collections.abc import Callable

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


def says_no_end(frames: FramesLife) -> None:
    """Instead of ``put_end()``."""


def is_never_done(ring: RingsLife) -> None:
    """Instead of ``free()``."""


def returns_always(frames: FramesLife, now: float) -> bool:
    """Instead of ``close()``: an END frame too few."""
    frames.closed = True
    return False


@pytest.mark.parametrize(
    ("kind", "instead", "found"),
    [
        (FramesLife, {"put_end": says_no_end}, {"tcp", "frames' end sent"}),
        (FramesLife, {"close": returns_always}, {"tcp"}),
        (RingsLife, {"free": is_never_done}, {"rings", "ring freed"}),
    ],
    ids=["no end", "no close", "never freed"],
)
async def test_a_difference_is_found(
    kind: type[Any],
    instead: dict[str, Callable[..., object]],
    found: set[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, function in instead.items():
        monkeypatch.setattr(kind, name, function)
    shadows = Shadows()
    with shadows.watching():
        await through_a_life()
    assert found & {each for each, _ in shadows.differences}


async def test_without_one() -> None:
    shadows = Shadows()
    with shadows.watching():
        await through_a_life()
    assert shadows.count == 2
    assert shadows.differences == []
    assert FramedPipe.close.__module__ == FramedPipe.__module__  # and the hooks are gone

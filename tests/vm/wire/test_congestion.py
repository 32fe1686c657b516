"""DCQCN between two software devices, with a slow router between them that marks packets (RED with ECN)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from .ends import run
from .router import LENGTH, router, transfer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WRITES = 100  # what is under way from the first moment on is more than RED lets pass unmarked


@pytest.fixture(scope="module")
def slow_router() -> Iterator[None]:
    with router():
        yield


def red() -> dict[str, Any]:
    qdiscs = json.loads(run("tc", "-n", "middle", "-s", "-j", "qdisc", "show", "dev", "right"))
    return next(qdisc for qdisc in qdiscs if qdisc["kind"] == "red")


@pytest.mark.parametrize("kind", ["sigcomm15", "connectx", "off"])
def test_marks_reach_the_sender(library: Path, slow_router: None, kind: str) -> None:
    """All arrives, and the sender hears of the marks, whether it does something about them or not."""
    before = red()
    seen, sent = transfer(library, {"SOFTDEV_CONGESTION": kind}, WRITES)
    after = red()
    assert after["marked"] > before["marked"]
    assert sent["cnps_received"] > 0
    assert seen[-1].passed - seen[0].passed > WRITES * LENGTH / 2  # it was this queue

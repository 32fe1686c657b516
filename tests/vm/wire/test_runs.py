"""Packets that leave as one over IPv4 for the kernel's rxe, which sees their numbers when they come."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .ends import RXE, SOFT, End, connect

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LENGTH = 64 << 10
MTU = 1024
COUNT = 40
TRANSFERS = 50  # at most


def transfer(pair: tuple[End, End, int, int], what: str) -> int:
    """Bytes from the software device to rxe, checked. Returns in how many runs they left."""
    soft, rxe, soft_qpn, rxe_qpn = pair
    before: int = soft.counters()["runs"]
    soft.fill(0, LENGTH, before + 3)
    rxe.clear(0, LENGTH)
    if what == "write":
        assert soft.write_many(soft_qpn, COUNT, LENGTH, rxe.addr, rxe.rkey) == COUNT
    else:
        for first in range(0, COUNT, 8):
            for number in range(first, first + 8):
                rxe.post(rxe_qpn, "read", wr_id=number, pieces=[(0, LENGTH)], raddr=soft.addr, rkey=soft.rkey)
            assert [wc["status"] for wc in rxe.poll(8)] == [0] * 8
    assert rxe.digest(0, LENGTH) == soft.digest(0, LENGTH)
    found: int = soft.counters()["runs"] - before
    return found


@pytest.fixture(params=["", "wire_renumber=1"], ids=["numbered from 0", "numbered otherwise"])
def numbering(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def pair(cable: None, library: Path, numbering: str) -> Iterator[tuple[End, End, int, int]]:
    with (
        End(SOFT, {"SOFTDEV_FAULTS": numbering}, library) as soft,
        End(RXE, {}, library) as kernel,
    ):
        first, second = connect(soft, kernel, "ipv4", MTU, timeout=17)
        yield soft, kernel, first.qpn, second.qpn
        first.close()
        second.close()


@pytest.mark.parametrize("what", ["write", "read"])
def test_runs(pair: tuple[End, End, int, int], numbering: str, what: str) -> None:
    """Found out where they arrive; where they do not, all goes on by single packets after a few trials."""
    if not numbering:
        assert any(transfer(pair, what) > COUNT for _ in range(TRANSFERS))
        return
    tried = 0
    while tried < 3:
        tried += transfer(pair, what)
    for _ in range(4):
        tried += transfer(pair, what)
    assert tried <= 30

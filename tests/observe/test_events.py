"""Events of links, devices and paths: what repeats is one, and their number has a limit."""

from __future__ import annotations

import time

import pytest

from aiordma.observe import events


@pytest.fixture(autouse=True)
def empty(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that events have, which a test may change."""
    now = [1000.0]
    monkeypatch.setattr(events, "_events", {})
    monkeypatch.setattr(events, "_older", [])
    monkeypatch.setattr(time, "time", lambda: now[0])
    return now


def test_what_repeats_is_one_event(empty: list[float]) -> None:
    events.note("left RDMA", "the link failed")
    empty[0] += 1
    events.note("link lost", "a")
    for _ in range(6500):
        events.note("left RDMA", "the link failed")
    assert [(each.kind, each.count, each.first_at, each.last_at) for each in events.recent()] == [
        ("link lost", 1, 1001.0, 1001.0),
        ("left RDMA", 6501, 1000.0, 1001.0),
    ]


def test_what_happens_again_later_is_another_event(empty: list[float]) -> None:
    for _ in range(3):
        events.note("link up", "b")
        empty[0] += 60
    assert [each.first_at for each in events.recent()] == [1000.0, 1060.0, 1120.0]


def test_the_last_ones_are_kept(empty: list[float]) -> None:
    for number in range(10_000):
        empty[0] += 20
        events.note("link up", str(number // 2))
    kept = events.recent()
    assert len(kept) <= 256
    assert [each.text for each in kept[-3:]] == ["4998", "4999", "4999"]
    assert all(len(each.text) <= 300 for each in kept)


def test_a_long_text_is_cut() -> None:
    events.note("link lost", "x" * 10_000)
    assert [len(each.text) for each in events.recent()] == [300]

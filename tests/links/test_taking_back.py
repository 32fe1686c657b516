"""Memory that a stopped peer may still write into is kept, also by a loop that has ended."""

from __future__ import annotations

import contextlib
import errno
from types import SimpleNamespace
from typing import Any

import pytest

from aiordma.errors import VerbsError
from aiordma.links import taking_back


class Region:
    """The device says that a peer is inside as long as ``busy``."""

    busy = True

    def close(self) -> None:
        if self.busy:
            raise VerbsError(errno.EBUSY, "ibv_dereg_mr")


class Loop:
    """A waker whose timers a test runs."""

    ended = False

    def __init__(self) -> None:
        self.timers: list[Any] = []

    def now(self) -> float:
        return 0.0

    def call_at(self, _when: float, callback: Any) -> None:
        if self.ended:
            raise RuntimeError("Event loop is closed")
        self.timers.append(callback)


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(taking_back, "translated", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(taking_back, "_waiting", set())
    return SimpleNamespace(in_forked_child=False, soft=object(), binding=None)


def test_it_is_free_when_the_peer_has_left(backend: Any) -> None:
    loop, region, ended = Loop(), Region(), list[bool]()
    taking_back.take_back(backend, loop, region, object(), lambda: ended.append(True))  # type: ignore[arg-type]
    loop.timers.pop()()
    assert not ended
    region.busy = False
    loop.timers.pop()()
    assert ended == [True]
    assert not loop.timers
    assert not taking_back._waiting


def test_a_loop_that_has_ended_keeps_it(backend: Any, caplog: pytest.LogCaptureFixture) -> None:
    loop, ended = Loop(), list[bool]()
    loop.ended = True
    taking_back.take_back(backend, loop, Region(), object(), lambda: ended.append(True))  # type: ignore[arg-type]
    assert not ended
    assert len(taking_back._waiting) == 1
    assert "is not free before that process" in caplog.text

"""What a limit of time says, and when a host is called busy."""

from __future__ import annotations

import os

import anyio
import pytest

from aiordma.measure import limits
from tests.virtual import in_virtual_time

pytestmark = pytest.mark.anyio


@in_virtual_time
async def test_a_limit_says_what_was_waited_for() -> None:
    with pytest.raises(TimeoutError, match=r"^there was no connection within 15 s$"):
        with limits.limit(15, "there was no connection"):
            await anyio.sleep(60)
    with limits.limit(15, "there was no connection"):
        await anyio.sleep(14)


@pytest.mark.parametrize(("load", "busy"), [(0.1, False), (2.0, False), (2.1, True), (13.0, True)])
def test_a_busy_host(load: float, busy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert bool(limits.busy()) == busy
    assert load < 13 or limits.busy().startswith("this host is busy (load 13 on 2 CPUs)")

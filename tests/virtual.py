"""Event loops whose time is the test's: nothing that the machine does otherwise takes any of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import trio.testing

from aiordma.testing import VirtualLoop
from tests.world import DEVICE

#: Seconds in which nothing happens before time jumps: what a socket has sent arrives a moment later.
_GRACE = 0.01
#: Longer than any test. The kernel's device has a time of its own, so the loop's stands still there.
_STILL = 3600.0

#: ``tests/orders.py`` puts another one in its place.
new_asyncio_loop: Callable[[float], VirtualLoop] = VirtualLoop

_NAMES = ["virtual asyncio", "virtual trio"]

#: For a test that needs no timer. On a device of the kernel's, time stands still.
while_time_stands_still = pytest.mark.parametrize("anyio_backend", _NAMES, indirect=True)
_soft_only = pytest.mark.skipif(DEVICE != "soft", reason="a device of the kernel has a time of its own")


#: For a test of asyncio only, on TCP: its peer may be a thread that waits for the test, and not the reverse.
on_virtual_asyncio = pytest.mark.parametrize(
    "anyio_backend", [("asyncio", {"loop_factory": VirtualLoop})], ids=["virtual asyncio"]
)


def in_virtual_time(test: Any) -> Any:
    """The test's time jumps to the next timer when nothing else can happen: a sleep of ten minutes ends at
    once, and what would have come within them has come."""
    return while_time_stands_still(_soft_only(test))


def loop(name: str) -> tuple[str, dict[str, Any]]:
    """As ``anyio.run`` wants it."""
    grace = _GRACE if DEVICE == "soft" else _STILL
    if name == "virtual trio":
        return "trio", {"clock": trio.testing.MockClock(autojump_threshold=grace)}
    return "asyncio", {"loop_factory": partial(new_asyncio_loop, grace)}

"""Operations that do not wait, tried again and again without giving the event loop a turn."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from aiordma.links import engine as engines
from tests.health import until
from tests.processes import FULL_PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


async def poll_on_events_only() -> None:
    """As with ``busy_poll_us=0``: the engine looks when the loop lets it, and no operation polls."""
    (await engines.current()).poller.set_busy_poll(0)


def without_a_turn(attempt: Callable[[], T]) -> T:
    """What ``attempt()`` returns as soon as it does not raise ``WouldBlock``."""
    until = time.monotonic() + FULL_PATIENCE
    while True:
        try:
            return attempt()
        except anyio.WouldBlock:
            if time.monotonic() > until:
                raise


def true_without_a_turn(holds: Callable[[], bool]) -> None:
    """Until it holds."""

    def attempt() -> None:
        if not holds():
            raise anyio.WouldBlock

    without_a_turn(attempt)


async def check_ask_in_a_thread(one: Any, other: Any) -> None:
    """``one`` ends. Another thread asks whether ``other`` is over: that dispatches nothing there."""
    poller = (await engines.current()).poller
    seen: list[bool] = []

    def ask() -> bool:
        thread = threading.Thread(target=lambda: seen.extend([other.closed, other.at_eof]))
        thread.start()
        thread.join()
        return seen[-1]

    one._pipe.send_eof()
    before = poller.polls, poller.completions
    ask()
    assert (poller.polls, poller.completions) == before
    await until(ask)
    assert not any(seen[::2])

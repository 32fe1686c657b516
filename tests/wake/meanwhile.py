"""What happens while an operation is in its checkpoint, behind its first look at the state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiordma import wake

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import pytest


def in_the_next_checkpoint(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Awaitable[object]]) -> None:
    """Have ``act()`` done in the next checkpoint of this loop, before tasks have their turn."""
    in_the_next("checkpoint", monkeypatch, act)


def in_the_next(name: str, monkeypatch: pytest.MonkeyPatch, act: Callable[[], Awaitable[object]]) -> None:
    """The same for another method of the waker that is one, perhaps."""
    kind: Any = type(wake.current())
    original = getattr(kind, name)

    async def instead(waker: Any) -> None:
        monkeypatch.setattr(kind, name, original)
        await act()
        await original(waker)

    monkeypatch.setattr(kind, name, instead)

"""How many connections of an event loop are open: one number for its page, its totals and its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..observe import connections

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..wake.base import Waker


def open_connections(waker: Waker) -> int:
    """As many as ``aiordma stat`` has rows for."""
    to_valkey: Iterable[Any] = waker.locals.get("valkey", ())
    return len(connections.of_loop(waker)) + sum(each.seen is not None for each in to_valkey)

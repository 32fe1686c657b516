"""What this process knows about its peers, and what it has logged about them.

A client that found a plain TCP peer sends it no Proposal for a while. While one connection finds out about an
unknown peer, the others wait for the answer: a thousand connections to a new peer cost it one Proposal.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

from .. import wake

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Hashable

    from ..errors import FallbackReason
    from ..wake.base import Waiter

__all__ = [
    "announce",
    "ask_alone",
    "forget",
    "is_known",
    "observe",
    "plain_reason",
    "remember_clc",
    "remember_plain",
]

_log = logging.getLogger("aiordma.clc")

#: Peers remembered at most; the one not seen for longest is forgotten first.
_PEERS = 4096

K = TypeVar("K", bound="Hashable")
V = TypeVar("V")


class _Recent(OrderedDict[K, V], Generic[K, V]):
    """The newest entries of a table that must not grow with the number of peers."""

    def put(self, key: K, value: V) -> None:
        self[key] = value
        self.move_to_end(key)
        if len(self) > _PEERS:
            self.popitem(last=False)


# Address of a peer -> why it counts as plain, and until when (time.monotonic()); None: it negotiates.
_known: _Recent[object, tuple[FallbackReason, float] | None] = _Recent()
_announced: _Recent[tuple[str, str], str] = _Recent()
_observer: Callable[[str, str, str, FallbackReason | None], object] | None = None
_asking: dict[tuple[object, object], list[Waiter]] = {}


def remember_plain(peer: object, reason: FallbackReason, seconds: float) -> None:
    """``peer`` does not negotiate: propose nothing to it for this time."""
    _known.put(peer, (reason, time.monotonic() + seconds))


def remember_clc(peer: object) -> None:
    """``peer`` negotiates, whatever it answers."""
    _known.put(peer, None)


def is_known(peer: object) -> bool:
    """Whether ``peer`` was asked before, and the answer still counts."""
    return plain_reason(peer) is not None or peer in _known


def plain_reason(peer: object) -> FallbackReason | None:
    """Why ``peer`` counts as a plain TCP peer now, None when it does not."""
    entry = _known.get(peer)
    if entry is None:
        return None
    reason, until = entry
    if time.monotonic() < until:
        return reason
    del _known[peer]
    return None


def forget() -> None:
    """Forget all peers."""
    _known.clear()
    _announced.clear()


@contextlib.asynccontextmanager
async def ask_alone(peer: object) -> AsyncIterator[None]:
    """Around a connection attempt: while another one is finding out about an unknown peer, wait for it.

    Once only: if that one found out nothing, further attempts do not go one by one.
    """
    waker = wake.current()
    key = (waker, peer)
    others = None if is_known(peer) else _asking.get(key)
    if others is not None:
        waiter = waker.new_waiter()
        others.append(waiter)
        await waiter.wait()
    if is_known(peer) or others is not None:
        yield
        return
    waiting: list[Waiter] = []
    _asking[key] = waiting
    try:
        yield
    finally:
        del _asking[key]
        for waiter in waiting:
            waiter.set()


def observe(observer: Callable[[str, str, str, FallbackReason | None], object] | None) -> None:
    """Have every :func:`announce` call this as well, or nothing any more."""
    global _observer
    _observer = observer


def announce(role: str, host: str, path: str, reason: FallbackReason | None) -> None:
    """Log the path of connections with ``host``: once, and again when it changes."""
    if _observer is not None:
        _observer(role, host, path, reason)
    text = f"{path}: {reason.text}" if reason is not None else path
    if _announced.get((role, host)) != text:
        _announced.put((role, host), text)
        _log.info("%s %s: %s", role, host, text)

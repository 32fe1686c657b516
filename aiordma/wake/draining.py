"""What still delivers what it accepted: closed, until its loop ends; not closed, when that has ended."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import anyio

from .base import run_guarded

if TYPE_CHECKING:
    from collections.abc import Callable

    from .base import Waker

T = TypeVar("T")

#: How long what was accepted may take to leave when the loop has ended.
_LINGER_SECONDS = 2.0
#: The same of what was not closed: as long as on RDMA (`links/parting.py`).
UNCLOSED_SECONDS = 5.0
_PAUSE_SECONDS = 0.005


def sent_all(pipe: Any) -> bool:
    """Whether all that a pipe has taken is out of this process' hands: only pipes on TCP hold some. If not,
    it is worth asking again when ``pipe.on_writable`` is called."""
    return pipe.path != "tcp" or bool(pipe.sent_all())


class Draining(Generic[T]):
    """Keeps closed pipes or channels alive until they have delivered.

    :param end: ends one at once, when its loop ends. It may call :meth:`discard`.
    :param push: sends of one what the kernel takes, without the loop; whether nothing is left that could
        go. When its loop ends in order, it is given a moment for that.
    :param seconds: how long a moment.
    """

    def __init__(
        self,
        end: Callable[[T], None],
        push: Callable[[T], bool] | None = None,
        seconds: float = _LINGER_SECONDS,
    ) -> None:
        self._end = end
        self._push = push
        self._seconds = seconds

    def add(self, waker: Waker, one: T) -> None:
        kept = waker.locals.get(self)
        if kept is None:
            # With the loop, not here: it must not keep a loop that was dropped.
            kept = waker.locals[self] = set()
            waker.at_loop_end(
                lambda: self._wait_and_end(waker), lambda patient: self._end_all(waker, patient=patient)
            )
        kept.add(one)

    def discard(self, waker: Waker, one: T) -> None:
        """It has delivered. Nothing happens if it was not added."""
        kept = waker.locals.get(self)
        if kept is not None:
            kept.discard(one)

    async def _wait_and_end(self, waker: Waker) -> None:
        deadline = waker.now() + self._seconds
        with anyio.CancelScope(shield=True):
            # The loop may watch nothing any more.
            while not self._push_all(waker) and waker.now() < deadline:  # noqa: ASYNC110
                await anyio.sleep(_PAUSE_SECONDS)
        self._end_all(waker, patient=False)

    def _push_all(self, waker: Waker) -> bool:
        left = [one for one in list(waker.locals[self]) if not self._has_gone(one)]
        return not left

    def _has_gone(self, one: T) -> bool:
        gone = True

        def push() -> None:
            nonlocal gone
            gone = self._push is None or self._push(one)

        run_guarded(push)  # the others go on
        return gone

    def _end_all(self, waker: Waker, *, patient: bool) -> None:
        deadline = time.monotonic() + (self._seconds if patient else 0)
        while not self._push_all(waker) and time.monotonic() < deadline:
            time.sleep(_PAUSE_SECONDS)
        for one in list(waker.locals[self]):
            run_guarded(partial(self._end, one))
        del waker.locals[self]

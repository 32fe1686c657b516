"""How an object waits that one task receives from and one sends to: see :mod:`aiordma.stream`."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from anyio import BusyResourceError, ClosedResourceError

from .. import wake

if TYPE_CHECKING:
    from collections.abc import Callable

    from .base import Waiter

__all__ = ["BUSY", "CLOSED", "EOF_SENT", "Waiting"]

T = TypeVar("T")

# Why a direction cannot be used now. None means that it can: one look instead of three on the fast path.
BUSY, EOF_SENT, CLOSED = 1, 2, 3


class Waiting:
    """Guards, checkpoints and waiting. What there is to wait for is the subclass's."""

    def __init__(self) -> None:
        self._waker = wake.current()
        self._full_checkpoints = self._waker.name == "trio"
        self._send_guard: int | None = None
        self._receive_guard: int | None = None
        self._send_waiter: Waiter | None = None
        self._receive_waiter: Waiter | None = None

    # -- what a subclass has

    def _spin_readable(self) -> bool:
        """Poll where the policy allows it; True when it is worth to look."""
        raise NotImplementedError

    def _spin_writable(self, size: int) -> bool:
        """The same for room for ``size`` bytes."""
        raise NotImplementedError

    def _call_when_readable(self, callback: Callable[[], None]) -> None:
        """From now on call ``callback`` when something has come."""
        raise NotImplementedError

    def _call_when_writable(self, callback: Callable[[], None]) -> None:
        """From now on call ``callback`` when there is room after there was none."""
        raise NotImplementedError

    # -- waiting

    async def _send_when_room(self, place: Callable[[], bool], size: int, begun: bool) -> None:
        """Until ``place()`` says that it has placed the message.

        :param begun: the operation has begun, and a first attempt found no room.
        """
        if self._send_guard is not None:
            raise self._refusal(self._send_guard, "sending to")
        self._send_guard = BUSY
        try:
            await self._place_when_room(place, size, begun)
        finally:
            if self._send_guard is BUSY:
                self._send_guard = None

    async def _place_when_room(self, place: Callable[[], bool], size: int, begun: bool) -> None:
        """The same for who guards the direction himself."""
        waker = self._waker
        waited = False
        placed = False
        if not begun:
            await self._begin()
            placed = place()
        while not placed:
            if self._spin_writable(size):
                if waker.share_overdue():
                    await waker.checkpoint()
                if place():
                    break
            waiter = self._send_waiter
            if waiter is None:
                waiter = self._send_waiter = waker.new_waiter()
                self._call_when_writable(waiter.set)
            else:
                waiter.clear()
            if place():
                break
            await waiter.wait()
            waited = True
            waker.renew_share()
            placed = place()
        await self._end(waited)

    async def _receive_when_there(self, take: Callable[[], T | None], looked: bool) -> T:
        """What ``take()`` gives, as soon as it gives something.

        :param looked: the operation has begun, and a first look found nothing.
        """
        if self._receive_guard is not None:
            raise self._refusal(self._receive_guard, "receiving from")
        self._receive_guard = BUSY
        try:
            taken = None
            if not looked:
                await self._begin()
                taken = take()
            if taken is None and self._spin_readable():
                if self._waker.share_overdue():
                    await self._waker.checkpoint()
                taken = take()
            waited = False
            if taken is None:
                waiter = self._receive_waiter
                if waiter is None:
                    waiter = self._receive_waiter = self._waker.new_waiter()
                    self._call_when_readable(waiter.set)
                else:
                    waiter.clear()
                while (taken := take()) is None:
                    await waiter.wait()
                    waited = True
                    self._waker.renew_share()
            await self._end(waited)
            return taken
        finally:
            if self._receive_guard is BUSY:
                self._receive_guard = None

    def _wake_all(self) -> None:
        """For the end: whoever waits looks again, and finds it."""
        for waiter in (self._send_waiter, self._receive_waiter):
            if waiter is not None:
                waiter.set()

    # -- checkpoints

    async def _begin(self) -> None:
        """The checkpoint before an operation takes or places anything."""
        if self._full_checkpoints or self._waker.share > 0:
            await self._waker.cancel_check()
        else:
            await self._waker.checkpoint()

    async def _end(self, waited: bool) -> None:
        """Behind an operation that went the slow way: what it took or placed must not be lost."""
        if not self._full_checkpoints:
            self._waker.share -= 1
        elif not waited:
            await self._waker.shielded_yield()

    def _refusal(self, guard: int, action: str) -> Exception:
        if guard is BUSY:
            return BusyResourceError(action)
        name = type(self).__name__
        return ClosedResourceError(
            f"this {name} is closed" if guard is CLOSED else f"send_eof() was called on this {name}"
        )

"""Waiting for an object that one task sends to and one task receives from.

Streams, datagram connections and datagram endpoints wait here, and always in the same order: take or place
what is possible now; poll for a moment if the engine's policy allows it; let the pipe call back; **look once
more**, since nothing announces what came before the callback was set; sleep.

Checkpoints. On trio every call is a full checkpoint. On asyncio an operation that can complete at once checks
for cancellation before it takes anything, and yields only when its share is used up (see
:mod:`aiordma.wake.base`): a busy stream then pays no loop iteration per message and still starves no task.
The subclasses have fast paths for operations that complete at once; everything else comes here.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Protocol, TypeVar

from anyio import BusyResourceError, ClosedResourceError

from .. import wake
from .ending import note_unclosed
from .interrupts import uninterrupted
from .origin import here

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from .base import Waiter

wake.preload()

T = TypeVar("T")

# Why a direction cannot be used now. None means that it can: one look instead of three on the fast path.
BUSY, EOF_SENT, CLOSED, LOOP_ENDED = 1, 2, 3, 4
# It can be used, but not by the fast path: something that was accepted must be sent first; something that was
# taken from the pipe must be received first.
PENDING, KEPT = 5, 6


class Outgoing(Protocol):
    """An item that is being sent. Bytes of a stream may be put in parts, a message only as a whole."""

    def put(self) -> bool:
        """Put what there is room for now into the peer's memory; True when nothing is left."""

    def poll(self) -> bool | None:
        """Poll for room as the policy allows, and put what fits.

        True: nothing is left. False: it was worth it, poll again. None: polling is over, wait.
        """


class OutgoingMessage:
    """A message.

    :param put: puts all of it into the peer's memory, or nothing (False).
    :param poll: polls for room as the policy allows; True when there is some.
    """

    __slots__ = ("_poll", "put")

    def __init__(self, put: Callable[[], bool], poll: Callable[[], bool]) -> None:
        self.put = put
        self._poll = poll

    def poll(self) -> bool | None:
        # A message may need more than room for its bytes, so room alone is no reason to poll again.
        return True if self._poll() and self.put() else None


@uninterrupted
class Duplex:
    """Guards, checkpoints and waiting. The subclass knows what it waits for."""

    #: One more with each loan that begins, and with each that ends: odd while data is lent.
    loan_changes = 0
    #: What was taken from the pipe and not received; b"": nothing.
    _kept: memoryview | bytes = b""

    def __init__(self) -> None:
        self._waker = wake.current()
        self._full_checkpoints = self._waker.name == "trio"
        self._send_guard: int | None = None
        self._receive_guard: int | None = None
        self._send_waiter: Waiter | None = None
        self._receive_waiter: Waiter | None = None

    # -- of the subclass

    #: polls where the policy allows it; True when it is worth looking again
    _spin_readable: Callable[[], bool]

    def _call_when_readable(self, callback: Callable[[], None]) -> None:
        """From now on call ``callback`` when something has arrived."""
        raise NotImplementedError

    def _call_when_writable(self, callback: Callable[[], None]) -> None:
        """From now on call ``callback`` when there is room after there was none."""
        raise NotImplementedError

    # -- waiting

    async def _send_when_room(self, item: Outgoing, begun: bool) -> None:
        """Put ``item`` into the peer's memory.

        :param begun: the operation has begun, and a first attempt found too little room.
        """
        if self._send_guard is not None and self._send_guard is not PENDING:
            raise self._refusal(self._send_guard, "sending to")
        self._send_guard = BUSY
        try:
            await self._place_when_room(item, begun)
        finally:
            if self._send_guard is BUSY:
                self._send_guard = None

    async def _place_when_room(self, item: Outgoing, begun: bool) -> None:
        """The same for a caller that guards the direction itself."""
        waker = self._waker
        waited = False
        done = False
        if not begun:
            await self._begin()
            done = item.put()
        while not done:
            polled = item.poll()
            if polled is not None:
                done = polled
                if waker.share_overdue():
                    if done:
                        waker.share = 0  # a cancellation must not come now; the next operation yields
                    else:
                        await waker.checkpoint()
                continue
            waiter = self._send_waiter
            if waiter is None:
                waiter = self._send_waiter = waker.new_waiter()
                self._call_when_writable(waiter.set)
            else:
                waiter.clear()
            done = item.put()
            if not done:
                await waiter.wait()
                waited = True
                waker.renew_share()
                done = item.put()
        await self._end(waited)

    async def _receive_when_there(self, take: Callable[[], T | None], looked: bool) -> T:
        """What ``take()`` returns, as soon as that is not None.

        :param looked: the operation has begun, and a first look found nothing.
        """
        if self._receive_guard is not None:
            return await self._receive_behind_kept(take, looked)
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
                    waiter = self._readable_waiter()
                else:
                    waiter.clear()
                while (taken := take()) is None:
                    await waiter.wait()
                    waited = True
                    self._waker.renew_share()
            if self._full_checkpoints:
                await self._end(waited)
            else:
                self._waker.share -= 1  # as _end(), without a coroutine for each wait
            return taken
        finally:
            if self._receive_guard is BUSY:
                self._receive_guard = None

    async def _receive_behind_kept(self, take: Callable[[], T | None], looked: bool) -> T:
        """The same when something was taken from the pipe before, and comes first: ``take()`` knows that.
        Apart, because nothing is kept as a rule, and each look at it costs every receiver that waits."""
        self._begin_receiving()
        self._receive_guard = None
        try:
            return await self._receive_when_there(take, looked)
        finally:
            self._look_for_kept()

    def _look_for_kept(self) -> None:
        if self._receive_guard is None and self._kept:
            self._receive_guard = KEPT

    def _readable_waiter(self) -> Waiter:
        """What is set when something has arrived from now on. Look once more before waiting."""
        waiter = self._receive_waiter
        if waiter is None:
            waiter = self._receive_waiter = self._waker.new_waiter()
            self._call_when_readable(waiter.set)
        else:
            waiter.clear()
        return waiter

    def _begin_receiving(self) -> None:
        if self._receive_guard is not None and self._receive_guard is not KEPT:
            raise self._refusal(self._receive_guard, "receiving from")
        self._receive_guard = BUSY

    def _end_receiving(self) -> None:
        if self._receive_guard is BUSY:
            self._receive_guard = KEPT if self._kept else None

    def _give_back(self, view: memoryview) -> None:
        """A loan was dropped: its data was not received."""
        self.loan_changes += 1
        self._end_receiving()
        with contextlib.suppress(BufferError):  # somebody has made another view of it
            view.release()

    def _wake_all(self) -> None:
        """At the end: tasks that wait look again, and find the reason."""
        for waiter in (self._send_waiter, self._receive_waiter):
            if waiter is not None:
                waiter.set()

    @property
    def in_use(self) -> bool:
        """Whether a task sends or receives now."""
        return self._send_guard is BUSY or self._receive_guard is BUSY

    # -- checkpoints

    async def _begin(self) -> None:
        """The checkpoint before an operation takes or places anything.

        :raises RuntimeError: the caller runs in another loop.
        """
        self._waker.check_loop()
        if self._full_checkpoints or self._waker.share > 0:
            await self._waker.cancel_check()
        else:
            await self._waker.checkpoint()

    async def _end(self, waited: bool) -> None:
        """After an operation on the slow path: what it took or placed must not be lost to a cancellation."""
        if not self._full_checkpoints:
            self._waker.share -= 1
        elif not waited:
            await self._waker.shielded_yield()

    def _refusal(self, guard: int, action: str) -> Exception:
        if guard is BUSY:
            return BusyResourceError(action)
        name = type(self).__name__
        if guard is LOOP_ENDED:
            return ClosedResourceError(
                f"this {name} cannot be used any more: the event loop that it was made in was closed or has "
                "ended. Make a new connection in the running loop"
            )
        return ClosedResourceError(
            f"this {name} is closed" if guard is CLOSED else f"send_eof() was called on this {name}"
        )


@uninterrupted
class Loan:
    """Received data that still lies in the ring, for the duration of a ``with`` block.

    One that is dropped without having entered its block is given back, and its data can be received again;
    that is counted as a leak (:mod:`aiordma.observe.leaks`).

    :param take: consumes the data; called when the block is left.
    """

    __slots__ = ("_origin", "_owner", "_take", "_view")

    def __init__(self, owner: Duplex, view: memoryview, take: Callable[[], None]) -> None:
        self._owner = owner
        self._view = view
        self._take: Callable[[], None] | None = take
        self._origin = here()
        owner._receive_guard = BUSY
        owner.loan_changes += 1

    def __enter__(self) -> memoryview:
        return self._view

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        owner, take = self._owner, self._take
        self._take = None
        if take is not None:
            owner.loan_changes += 1
            if owner._receive_guard is BUSY:  # otherwise the owner was closed inside the block
                take()
                owner._end_receiving()
        # A view that was kept raises ValueError from now on; it does not show other data.
        self._view.release()

    def __del__(self) -> None:
        if getattr(self, "_take", None) is not None:
            owner, view = self._owner, self._view
            note_unclosed(f"a loan of {len(view)} bytes by {owner!r}", self._origin, "loan")
            owner._waker.call_from_anywhere(lambda: owner._give_back(view))

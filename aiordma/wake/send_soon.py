"""Sending without waiting, for an end of a pipe: what was accepted goes out before everything that follows.

Streams accept bytes, connected datagrams whole messages; each says what its outbox is, and how it polls for
room.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from anyio import BrokenResourceError, ClosedResourceError, EndOfStream

from .draining import UNCLOSED_SECONDS, Draining
from .duplex import BUSY, CLOSED, LOOP_ENDED, PENDING
from .interrupts import uninterrupted
from .outbox import OUTBOX_BYTES, Outbox
from .pipe_end import PipeEnd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from typing_extensions import Buffer


@uninterrupted
class SendsSoon(PipeEnd):
    """A :class:`.PipeEnd` with ``send_soon()`` and ``flush()``."""

    #: While so many bytes of :meth:`send_soon` wait for room, it accepts no more.
    send_soon_limit = OUTBOX_BYTES

    _pipe: Any
    _outbox: Any = None

    def _new_outbox(self, on_room: Callable[[], None] | None) -> Outbox:
        raise NotImplementedError

    def _poll_outbox(self, outbox: Outbox) -> bool:
        """Poll for room as the policy allows, and send what fits; whether it was worth it to poll."""
        raise NotImplementedError

    def _receive_something(self) -> object:
        """Take something that has arrived, to drop it; false: nothing is there."""
        raise NotImplementedError

    def _accept(self, buffers: Buffer | Iterable[Buffer]) -> None:
        """What ``send_soon()`` does."""
        if self._send_guard is not None and self._send_guard is not PENDING:
            raise self._refusal(self._send_guard, "sending to")
        outbox = self._outbox
        if outbox is None:
            waiter = self._send_waiter
            outbox = self._outbox = self._new_outbox(None if waiter is None else waiter.set)
        outbox.check()
        if self._pipe.error is not None:
            self._pipe.try_send(b"")  # raises
        outbox.add(buffers, self.send_soon_limit)
        outbox.push()
        outbox.check()
        self._settle(outbox)

    async def flush(self) -> None:
        """Wait until everything that :meth:`send_soon` accepted is in the peer's ring, or on its way there.

        Any number of tasks may wait. Cancelled: nothing is lost; it goes on being sent.

        :raises anyio.ClosedResourceError: this end was closed
        :raises anyio.BrokenResourceError: the connection was lost, and what waited with it
        """
        if self._send_guard is CLOSED or self._send_guard is LOOP_ENDED:
            raise self._refusal(self._send_guard, "sending to")
        await self._begin()
        waited = False
        outbox = self._outbox
        if outbox is not None:
            waited = await self._drain(outbox)
            outbox.check()
            if self._send_guard is CLOSED:
                raise self._refusal(CLOSED, "sending to")
            self._settle(outbox)
        await self._end(waited)

    async def _drain(self, outbox: Outbox) -> bool:
        """Until nothing waits in the outbox; whether that needed waiting."""
        waker = self._waker
        waited = False
        while not outbox.push():
            if self._send_guard is not BUSY and self._poll_outbox(outbox):
                if waker.share_overdue():
                    await waker.checkpoint()
                continue
            await outbox.wait(waker.new_waiter())
            waited = True
            waker.renew_share()
        return waited

    def _settle(self, outbox: Outbox) -> None:
        """Have operations that follow look into the outbox first, as long as something waits there."""
        if self._send_guard is None or self._send_guard is PENDING:
            self._send_guard = PENDING if outbox.nbytes else None

    def _send_now_behind(self) -> bool:
        """For an operation that does not wait: whether nothing waits before it any more.

        :raises ClosedResourceError, BusyResourceError: nothing can be sent now.
        """
        if self._send_guard is not PENDING:
            raise self._refusal(self._send_guard or CLOSED, "sending to")
        assert self._outbox is not None
        if not self._outbox.push():
            return False
        self._send_guard = None
        return True

    def _end_sending(self) -> None:
        outbox = self._outbox
        if outbox is not None and not outbox.push():
            outbox.then_eof = True
        elif outbox is None or outbox.error is None:
            self._pipe.send_eof()

    async def _deliver(self) -> None:
        outbox = self._outbox
        if outbox is None or outbox.push():
            return
        # Two ends that close while both have much to send would wait for each other's reader.
        self._pipe.on_readable = self._discard
        self._discard()
        await self._drain(outbox)

    def _discard(self) -> None:
        with contextlib.suppress(BrokenResourceError, ClosedResourceError, EndOfStream):
            while self._receive_something():
                pass

    def _drop_outgoing(self) -> None:
        if self._outbox is not None:
            self._outbox.drop(ClosedResourceError("this end was closed"))

    def _part(self) -> None:
        if self._outbox is None or self._outbox.push():
            super()._part()
        else:
            _unclosed.add(self._waker, self)

    def _push_out(self) -> bool:
        return bool(self._outbox.push())

    def _end_parting(self) -> None:
        if self._outbox.push():
            super()._part()
        else:
            self._pipe.abort()  # the peer must not take it for whole
            self._drop_outgoing()

    def _call_when_writable(self, callback: Callable[[], None]) -> None:
        if self._outbox is None:
            super()._call_when_writable(callback)
        else:
            self._outbox.on_room = callback
            self._outbox.watch()


_unclosed = Draining[SendsSoon](SendsSoon._end_parting, SendsSoon._push_out, UNCLOSED_SECONDS)

"""What a stream is sending: an item that is placed in parts, behind what ``send_soon()`` accepted before."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..pipes.contracts import Pipe
    from ..wake.outbox import Outbox

# A poll_send() that has placed less, and not everything, has polled in vain.
_SEND_STEP = 256 * 1024


class OutgoingBytes:
    """An item of which ``placed`` bytes are in the peer's ring, or at least accepted."""

    __slots__ = ("_pipe", "_placed", "_total", "_view")

    def __init__(self, pipe: Pipe, view: memoryview, placed: int) -> None:
        self._pipe = pipe
        self._view = view
        self._placed = placed
        self._total = len(view)

    def put(self) -> bool:
        """See :class:`~aiordma.wake.duplex.Outgoing`."""
        self._placed += self._pipe.try_send(self._view, self._placed)
        return self._placed == self._total

    def poll(self) -> bool | None:
        """See :class:`~aiordma.wake.duplex.Outgoing`."""
        if self._pipe.path == "tcp":
            return None
        step = self._pipe.poll_send(self._view, self._placed)
        self._placed += step
        if self._placed == self._total:
            return True
        return False if step >= _SEND_STEP else None


class Behind:
    """An item that follows what waits in the outbox."""

    __slots__ = ("_item", "_outbox", "_pipe")

    def __init__(self, outbox: Outbox, pipe: Pipe, item: OutgoingBytes) -> None:
        self._outbox, self._pipe, self._item = outbox, pipe, item

    def put(self) -> bool:
        """See :class:`~aiordma.wake.duplex.Outgoing`."""
        return self._outbox.push() and self._item.put()

    def poll(self) -> bool | None:
        """See :class:`~aiordma.wake.duplex.Outgoing`."""
        if not self._outbox.nbytes:
            return self._item.poll()
        return False if poll_outbox(self._outbox, self._pipe) else None


def poll_outbox(outbox: Outbox, pipe: Pipe) -> bool:
    """Poll for room as the policy allows, and send what fits; whether it was worth it to poll."""
    if pipe.path == "tcp":
        return False
    before = outbox.nbytes
    return outbox.push_by(pipe.poll_send) or before - outbox.nbytes >= _SEND_STEP

"""A stream's end on TCP, in frames: END, ON_RING, and how the connection is closed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from ..cdc import StateFlag
from ..frames import end_frame, on_ring_frame
from .outputs import Broken, CloseTcp, Put, ResetTcp

if TYPE_CHECKING:
    from typing import Protocol

    from .outputs import Output

    class Revocable(Protocol):
        """An attempt to return to RDMA, as its stream's end on TCP sees it."""

        @property
        def may_be_revoked(self) -> bool:
            """The peer need not hear of its end."""


#: How long a closed end waits for the peer's last frame, in seconds: closing with something unread would
#: reset the connection, and discard what the peer has not read yet.
_LINGER_S = 5.0


A = TypeVar("A", bound="Revocable")


class FramesLife(Generic[A]):
    """:param out: outputs go there.
    :param number: of the rings that the stream has left.
    :param peer_closed: the peer has closed already: it takes nothing.
    """

    __slots__ = (
        "_end_sent", "_flushed", "_out", "_peer_closed_before", "attempt", "closed", "deadline", "eof_sent",
        "failure", "fault", "gone", "lost", "moved", "number", "on_ring", "peer",
    )  # fmt: skip

    def __init__(self, out: list[Output], number: int = 0, *, peer_closed: bool) -> None:
        self.number = number
        #: The attempt that is under way.
        self.attempt: A | None = None
        self.closed = self.eof_sent = self._end_sent = False
        #: What this end sends goes to a ring; the peer's last frame has come.
        self.moved = self.on_ring = False
        #: What the peer's END frames say (``StateFlag``).
        self.peer = 0
        #: Why nothing more comes. What could not be sent is in :attr:`lost`.
        self.failure: str | None = None
        #: The peer broke the protocol.
        self.fault = False
        self.lost: str | None = None
        #: The connection is closed, or has been handed over.
        self.gone = False
        self.deadline: float | None = None
        self._flushed = False
        self._peer_closed_before = peer_closed
        self._out = out

    # ---- questions

    @property
    def done(self) -> bool:
        """Nothing follows from the peer."""
        return bool(self.peer & StateFlag.SENDING_DONE)

    @property
    def peer_closed(self) -> bool:
        """The peer takes nothing any more."""
        return self._peer_closed_before or bool(self.peer & StateFlag.CLOSED)

    @property
    def ended(self) -> bool:
        """The peer's last word has come, or it will never come."""
        return self.done or self.failure is not None

    @property
    def rejoining(self) -> bool:
        """An attempt is under way."""
        return self.attempt is not None

    @property
    def may_rejoin(self) -> bool:
        """Whether the stream is on TCP and whole."""
        shut = self.closed or self.eof_sent or self.ended
        return not (shut or self.moved or self.gone or self.lost)

    @property
    def awaits_flush(self) -> bool:
        """Whether the owner is to report when the kernel has all that was put."""
        return not self.gone and (self.closed or (self.moved and self.on_ring))

    # ---- this end

    def send_eof(self) -> None:
        """The peer reads the end behind what was sent."""
        if not self.closed:
            self.eof_sent = True
            self.put_end()

    def put_end(self) -> None:
        """Send the end of this direction, unless it may still end on a ring."""
        if not (self._end_sent or self.moved or self.rejoining):
            self._end_sent = True
            self._put(end_frame(closed=False))

    def close(self, now: float) -> bool:
        """Close both directions; whether an attempt is under way, and is to be given up."""
        if self.closed:
            return False
        self.closed = True
        if self.gone:
            return False
        if self.attempt is not None and self.attempt.may_be_revoked:
            return True  # the peer may not read for long: the end goes by TCP
        if self.attempt is not None:
            self.deadline = now + _LINGER_S
        else:
            self._put_close()
            self.end_if_done(now)
        return False

    def abort(self) -> None:
        """Reset the connection: the peer gets an error."""
        self.closed = True
        self._leave_tcp(ResetTcp())

    def move(self) -> None:
        """This end's last frame: what follows goes by a ring."""
        self._put(on_ring_frame())
        self.moved = True

    def stay(self, now: float) -> bool:
        """The attempt has failed. False: the stream is lost, as part of it has gone to the ring already."""
        self.attempt = None
        if self.moved:
            self._lose("the stream was lost on its way back to RDMA")
            self._leave_tcp(ResetTcp())
            return False
        if self.closed and not self.gone:
            self._put_close()
            self.end_if_done(now)
        elif self.eof_sent:
            self.put_end()
        return True

    def release(self) -> bool:
        """Hand the connection over to the rings; whether that is possible now."""
        if self.gone or not (self.moved and self.on_ring and self._flushed):
            return False
        self.gone = True
        self.deadline = None
        return True

    # ---- the peer, and the connection

    def acknowledge(self) -> None:
        """A peer that takes nothing any more waits for this end's END before it closes TCP."""
        if self.peer & StateFlag.CLOSED and not self._peer_closed_before:
            self.put_end()

    def fail(self, reason: str, *, fault: bool = False) -> None:
        """Nothing more comes from the peer, and it was not its end."""
        if self.gone or (self.ended and not fault):
            return
        self._lose(reason, fault=fault)
        if fault:
            self._leave_tcp(ResetTcp())

    def fail_sending(self, reason: str) -> None:
        """The kernel takes nothing more; what has arrived can still be read."""
        if self.lost is None:
            self.lost = reason

    def flushed(self, now: float) -> None:
        """The kernel has all that was put."""
        self._flushed = True
        if self.closed:
            self.end_if_done(now)

    def end_if_done(self, now: float) -> None:
        """A closed end closes the connection when the peer has ended as well, or after some time."""
        if not self.closed or self.gone or self.rejoining:
            return
        if self.lost or self.failure or (self.ended and self._flushed):
            self._leave_tcp(CloseTcp())
        elif self._flushed and self.deadline is None:
            self.deadline = now + _LINGER_S

    def on_timer(self) -> None:
        """The closed end has waited long enough."""
        self._leave_tcp(CloseTcp())

    # ---- inside

    def _put_close(self) -> None:
        self._end_sent = True
        self._put(end_frame(closed=True))

    def _put(self, frame: bytes) -> None:
        if not self.gone and self.lost is None:
            self._flushed = False
            self._out.append(Put(frame))

    def _lose(self, reason: str, *, fault: bool = False) -> None:
        if self.failure is None:
            self.failure, self.fault = reason, fault
            if not self.closed and not self.done:
                self._out.append(Broken(reason, fault))

    def _leave_tcp(self, how: CloseTcp | ResetTcp) -> None:
        self.deadline = None
        if not self.gone:
            self.gone = True
            self._out.append(how)

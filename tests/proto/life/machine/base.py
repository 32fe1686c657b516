"""What all parts of a stream's life share: its transports, what is read and sent by which, and its states."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from aiordma.proto.failover import MESSAGE_BYTES, CursorExchange, State
from aiordma.proto.handshake import Timeouts
from aiordma.proto.life.frames import FramesLife
from aiordma.proto.life.outputs import CloseTcp

from .outputs import Finished, SendBy
from .rings import ABORTED, DONE, RingsLife
from .states import Leg, Receiving, RingStage, Sending, Tcp, Transport

if TYPE_CHECKING:
    from aiordma.proto.life.attempt import Attempt
    from aiordma.proto.life.outputs import Output

__all__ = ["LifeBase", "Limits"]


class Limits(NamedTuple):
    """Seconds. ``exchange`` 0: failover is off."""

    exchange: float = 10.0
    stopped_peer: float = 300.0
    negotiation: Timeouts = Timeouts()


class LifeBase:
    """The state of :class:`~.stream.StreamLife`, and what can be asked of it.

    :param tokens: the alert tokens of the first rings, this end's and the peer's.
    :param connected: the peer's half of the rings is known.
    :param takes_part: the peer is known to have the connection (False: it began on a pre-granted ring).
    """

    def __init__(
        self,
        tokens: tuple[int, int],
        limits: Limits | None = None,
        *,
        connected: bool = True,
        takes_part: bool = True,
    ) -> None:
        self.limits = limits or Limits()
        self.tcp = Tcp.AWAITED
        #: The peer is known to have the connection.
        self.takes_part = takes_part
        self.closed = self.eof_sent = self.finished = False
        self._out: list[Output] = []
        #: The rings that were agreed on last, and all of which something is left.
        self.ring = RingsLife(0, self._out, connected=connected)
        self._rings = {0: self.ring}
        self._tokens = {0: tokens}
        #: The stream's end on TCP while the connection carries it.
        self.frames: FramesLife[Attempt[RingsLife]] | None = None
        #: While the stream leaves RDMA.
        self._exchange: CursorExchange | None = None
        #: Why the link has failed before the TCP connection came.
        self._held: str | None = None
        self._end_shows: float | None = None
        #: What is read, in order, and what is sent by.
        self.legs = [Leg("ring", 0)]
        self.sends_by = self.legs[0]

    # ---- states

    @property
    def transport(self) -> Transport:
        """What carries the stream."""
        frames, ring = self.frames, self.ring
        if frames is not None:
            if frames.failure or frames.lost or frames.gone:
                return Transport.OVER
            if frames.attempt is None:
                return Transport.TCP
            return Transport.RETURNING if frames.attempt.agreed else Transport.NEGOTIATING
        if ring.failure is not None or ring.freed:
            return Transport.OVER
        if self._exchange is not None and self._exchange.state is not State.ON_RDMA:
            quiescing = self._exchange.state is State.QUIESCING
            return Transport.DRAINING if quiescing else Transport.EXCHANGING
        if self._held is not None:
            return Transport.HELD
        return Transport.OPENING if self.tcp is Tcp.AWAITED else Transport.RING

    @property
    def sending(self) -> Sending:
        """What this end sends."""
        path = self._find(self.sends_by)
        if path is None or path.failure is not None or (isinstance(path, FramesLife) and path.lost):
            return Sending.RESET
        if self.closed or self.eof_sent:
            return Sending.DATA_SENT
        if isinstance(path, FramesLife):
            return Sending.STOPPED if path.peer_closed else Sending.SEND
        if path.shut:
            return Sending.STOPPED
        return Sending.SEND if path.stage is RingStage.ON_RDMA else Sending.HELD

    @property
    def receiving(self) -> Receiving:
        """What this end receives, by the leg that it reads now."""
        if self.closed:
            return Receiving.DISCARDED
        path = self._find(self.legs[0])
        if path is None:
            return Receiving.RECV  # the rest of a TCP connection that was released
        if isinstance(path, FramesLife):
            done, lost = path.done, path.failure is not None
        else:
            done, lost = bool(path.peer & DONE) and not path.peer & ABORTED, path.failure is not None
        return Receiving.SIZE_KNOWN if done else Receiving.RESET if lost else Receiving.RECV

    @property
    def missing(self) -> int:
        """Bytes that may be read from TCP now, while the stream is not in frames."""
        if self._exchange is not None:
            return self._exchange.missing
        return MESSAGE_BYTES if self.tcp is Tcp.SILENT else 0

    @property
    def may_leave(self) -> bool:
        """Whether ``leave()`` does something."""
        return self.tcp is Tcp.SILENT and self.ring.may_leave and self.takes_part

    @property
    def may_rejoin(self) -> bool:
        """Whether ``rejoin()`` does something."""
        frames = self.frames
        return frames is not None and frames.may_rejoin and frames.attempt is None

    @property
    def awaits_flush(self) -> bool:
        """Whether ``tcp_flushed()`` is to be reported when nothing waits to be sent."""
        return self.frames is not None and self.frames.awaits_flush

    def flags(self, ring: int) -> int:
        """What this end says on these rings (``StateFlag``), for any cursor message."""
        return self._rings[ring].own

    def deadline(self) -> float | None:
        """When ``on_timer()`` is to be called; None: nothing is awaited for a limited time."""
        times = [self._end_shows]
        if self._exchange is not None:
            times.append(self._exchange.deadline)
        if self.frames is not None:
            times.append(self.frames.deadline)
            if self.frames.attempt is not None:
                times.append(self.frames.attempt.deadline())
        return min((time for time in times if time is not None), default=None)

    # ---- inside

    def _find(self, leg: Leg) -> RingsLife | FramesLife[Attempt[RingsLife]] | None:
        """None: frames whose connection was handed on to the next rings."""
        if leg.path == "ring":
            return self._rings[leg.number]
        frames = self.frames
        return frames if frames is not None and frames.number == leg.number else None

    def _in_use(self) -> list[RingsLife | FramesLife[Attempt[RingsLife]]]:
        """All transports that the user's end concerns, each once."""
        legs = dict.fromkeys((*self.legs, self.sends_by))
        return [path for path in map(self._find, legs) if path is not None]

    def _send_by(self, leg: Leg, now: float) -> None:
        """Send by another transport; the user's end follows."""
        self.sends_by = leg
        self._out.append(SendBy(leg))
        path = self._find(leg)
        assert path is not None
        if self.closed:
            self._close(path, now)
        elif self.eof_sent:
            path.send_eof()

    def _close(self, path: RingsLife | FramesLife[Attempt[RingsLife]], now: float) -> bool:
        """Close one transport; whether an attempt that is under way on it is not needed any more."""
        if isinstance(path, FramesLife):
            return path.close(now)
        path.close()
        return False

    def _take(self) -> list[Output]:
        """The outputs of this input. The TCP connection beside rings ends with them."""
        if self.frames is not None:
            if self.frames.gone:
                self.tcp = Tcp.GONE
        elif self.ring.freed and self.tcp in (Tcp.SILENT, Tcp.ENDED):
            if self.tcp is Tcp.SILENT:
                self._out.append(CloseTcp())
            self.tcp, self._end_shows = Tcp.GONE, None
        read = {leg.number for leg in self.legs if leg.path == "ring"}
        for number in [n for n, ring in self._rings.items() if ring.freed and n not in read]:
            if self._rings[number] is not self.ring and self.sends_by != Leg("ring", number):
                del self._rings[number]
        over = all(ring.freed for ring in self._rings.values())
        if self.closed and not self.finished and over and self.tcp is Tcp.GONE:
            self.finished = True
            self._out.append(Finished())
        out = self._out[:]
        self._out.clear()
        return out

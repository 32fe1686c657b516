"""Leaving RDMA: a link that fails, a request, or a peer that announces it; then the exchange of cursors."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from aiordma.proto.cdc import StateFlag
from aiordma.proto.codes import Code
from aiordma.proto.failover import Agreed, CursorExchange, Ledger, Quiesce, Refuse, Send
from aiordma.proto.life.frames import FramesLife
from aiordma.proto.life.outputs import CloseTcp, Put, ResetTcp

from .base import LifeBase
from .outputs import LeftRdma, PeerLostLink, ReadAhead, ReceiveFrom, Resend, SuspectLink
from .rings import CLOSED, DONE
from .states import Leg, RingStage, Tcp

if TYPE_CHECKING:
    from aiordma.proto.failover import Event
    from aiordma.proto.life.outputs import Output

    from .rings import RingsLife

__all__ = ["PEER_DIED", "Cursors", "LeavingLife"]

#: Longest time from the end of a process' TCP connection until the device knows of the end of the process.
_END_SHOWS_S = 5.0
PEER_DIED = "the peer's process has ended or closed the TCP connection"


class Cursors(NamedTuple):
    """Where a pair of rings stands once it has quiesced: the fields of ``failover.Ledger`` of these names."""

    sent: int
    placed: int
    freed: int
    arrived: int
    announced: int
    ring: int


class LeavingLife(LifeBase):
    """What the rings and their link report, and what comes on TCP beside them."""

    _cursors: Cursors | None = None
    _reason = ""

    # ---- what the rings report

    def opened(self, now: float) -> list[Output]:
        """The peer's half of the rings is known."""
        ring = self.ring
        ring.connected = True
        if ring.failure is not None and ring.link_failed and not ring.closed:
            # The link failed before there was anything to save; now the stream may fail over.
            reason, ring.failure = ring.failure, None
            self._link_failed(ring, reason, now, may_leave=True)
        return self._take()

    def peer_flags(self, ring: int, flags: int) -> list[Output]:
        """A cursor message has come."""
        if ring in self._rings:
            self._rings[ring].peer_flags(flags)
        return self._take()

    def peer_fault(self, ring: int, reason: str) -> list[Output]:
        """What came by the link breaks the protocol."""
        if ring in self._rings:
            self._rings[ring].fault(reason)
        return self._take()

    def delivered(self, ring: int) -> list[Output]:
        """The peer's device has the message of the last ``Announce``."""
        if ring in self._rings:
            self._rings[ring].delivered = True
            self._rings[ring].free_if_done()
        return self._take()

    def stands_alone(self) -> list[Output]:
        """The peer has never taken part, and never will: nothing is waited for at the end."""
        self.ring.stand_alone()
        return self._take()

    def link_failed(
        self, ring: int, reason: str, now: float, *, may_leave: bool, left_whole: bool = False
    ) -> list[Output]:
        """The link of these rings has failed.

        :param may_leave: the reason allows a failover, and so does the configuration.
        :param left_whole: the peer's process has ended with nothing undone, and took all that was sent.
        """
        found = self._rings.get(ring)
        if found is not None and not found.link_failed:
            found.link_failed = True
            if left_whole and found.stage is RingStage.ON_RDMA and found.failure is None:
                found.end_for_peer()
            else:
                self._link_failed(found, reason, now, may_leave=may_leave)
        return self._take()

    def quiesced(self, ring: int, cursors: Cursors, now: float) -> list[Output]:
        """After ``StopSending``: nothing of these rings is under way, or their link has failed."""
        found = self._rings.get(ring)
        if found is not None and found.stage is RingStage.STOPPING:
            found.stage = RingStage.QUIESCED
            self._cursors = cursors
            if self._exchange is not None:  # otherwise tcp_attached() begins it
                self._quiesced(now)
        return self._take()

    # ---- what comes on TCP beside the rings

    def tcp_attached(self, now: float, rest: bytes = b"") -> list[Output]:
        """The TCP connection is here, silent.

        :param rest: what has come on it since.
        """
        if self.ring.freed:
            self.tcp = Tcp.GONE
            self._out.append(CloseTcp())
            return self._take()
        self.tcp = Tcp.SILENT
        held, self._held = self._held, None
        if held is not None:
            self._begin_exchange()
            self._leave(Code.LINK_LOST, held, now)
        if rest:
            self._tcp_bytes(rest, now)
        return self._take()

    def tcp_bytes(self, data: bytes, now: float) -> list[Output]:
        """What came on TCP while the stream is not in frames: at most :attr:`missing` bytes."""
        self._tcp_bytes(data, now)
        return self._take()

    def _tcp_bytes(self, data: bytes, now: float) -> None:
        if self._exchange is None:
            if self.tcp is not Tcp.SILENT:
                return  # a message of the link ended the connection
            if not self.ring.may_leave:
                self._out += [Put(self._refusal()), CloseTcp()]
                self.tcp = Tcp.GONE
                return
            self._begin_exchange()
        exchange = self._exchange
        assert exchange is not None
        ring = self.ring
        self._run(exchange.receive(data, now), now)
        if exchange.peer_code == Code.LINK_LOST:
            self._out.append(PeerLostLink(ring.number))

    def _refusal(self) -> bytes:
        return Refuse(self._tokens[self.ring.number][1], Code.FAILOVER_REFUSED).encode()

    def _lose_tcp(self, reason: str) -> None:
        """The TCP connection beside the rings has ended: so has the stream, unless the peer has finished."""
        if self.tcp is Tcp.SILENT:
            self._out.append(CloseTcp())
        self.tcp, self._end_shows = Tcp.GONE, None
        if not self.ring.peer_gone:
            self.ring.stay_broken(reason)
            self._out.append(SuspectLink(self.ring.number))

    def _silent_tcp_ended(self, now: float, *, shows_end: bool) -> None:
        if self.ring.peer_gone or not shows_end or not self.takes_part:
            self._lose_tcp(PEER_DIED)
        else:
            self.tcp = Tcp.ENDED
            self._out.append(CloseTcp())
            self._end_shows = now + _END_SHOWS_S

    # ---- the failure of a link

    def _link_failed(self, ring: RingsLife, reason: str, now: float, *, may_leave: bool) -> None:
        if ring.freed or ring.stage is not RingStage.ON_RDMA:
            return  # it has been left, or quiesced() follows
        if ring.may_leave and not ring.peer & CLOSED and may_leave and self._fail_over(ring, reason, now):
            return
        ring.break_with(reason)

    def _fail_over(self, ring: RingsLife, reason: str, now: float) -> bool:
        """Whether the stream may outlive its link."""
        attempt = None if self.frames is None else self.frames.attempt
        returning = attempt is not None and attempt.ring is ring
        awaited = returning or (ring is self.ring and self.tcp is Tcp.AWAITED)
        if not self.takes_part or not (awaited or (ring is self.ring and self.tcp is Tcp.SILENT)):
            return False
        if awaited:
            self._held = reason
            ring.stop_sending()
            if returning:
                self._look_ahead()
        else:
            self._begin_exchange()
            self._leave(Code.LINK_LOST, reason, now)
        return True

    def _look_ahead(self) -> None:
        """What comes behind the peer's data on TCP is needed, whether the user reads or not.

        A user that waits to send does not read. When the rings that it sends on have failed, it waits for
        the TCP connection, the connection for the peer's last frame, and that for the user to read: for ever.
        """
        self._out.append(ReadAhead(True))

    # ---- the exchange of cursors

    def leave(self, code: int, reason: str, now: float) -> list[Output]:
        """Take the stream from RDMA to TCP, if :attr:`may_leave`."""
        if self.may_leave:
            self._begin_exchange()
            self._leave(code, reason, now)
        return self._take()

    def _begin_exchange(self) -> None:
        token, peer_token = self._tokens[self.ring.number]
        limits = self.limits
        self._exchange = CursorExchange(token, peer_token, limits.exchange, limits.stopped_peer)
        self._reason = ""
        self.tcp = Tcp.MESSAGES

    def _leave(self, code: int, reason: str, now: float) -> None:
        assert self._exchange is not None
        self._reason = self._reason or reason
        self._run(self._exchange.leave(code, now), now)

    def _quiesced(self, now: float) -> None:
        assert self._exchange is not None
        assert self._cursors is not None
        known, ring = DONE | CLOSED, self.ring
        ledger = Ledger(*self._cursors, ring.own & known, ring.peer & known)
        self._run(self._exchange.quiesced(ledger, link_failed=ring.link_failed), now)

    def _run(self, events: list[Event], now: float) -> None:
        for event in events:
            if isinstance(event, Quiesce):
                if self.ring.stop_sending():
                    self._quiesced(now)
            elif isinstance(event, Send):
                self._out.append(Put(event.data))
            elif isinstance(event, Agreed):
                self._agreed(event, now)
            else:
                self._exchange = None
                self.tcp = Tcp.GONE
                self._out.append(ResetTcp())
                because = f"{self._reason}; the stream could not fail over to TCP: " if self._reason else ""
                self.ring.stay_broken(because + event.reason, fault=event.fault)

    def _agreed(self, event: Agreed, now: float) -> None:
        ring = self.ring
        self._exchange = self._cursors = None
        self.tcp = Tcp.FRAMES
        peer_closed = bool(event.peer_flags & StateFlag.CLOSED)
        self.frames = FramesLife(self._out, ring.number, peer_closed=peer_closed)
        if not peer_closed:
            self._out.append(Resend(event.send_from))
        leg = Leg("tcp", ring.number)
        self.legs.append(leg)
        self._out.append(ReceiveFrom(leg, event.read_until))
        ring.leave()
        self._send_by(leg, now)
        self._out.append(LeftRdma(event.code, event.by_peer))

    def _cancel_exchange(self) -> None:
        """The stream is aborted while it leaves."""
        if self._exchange is not None:
            self._exchange = None
            self.tcp = Tcp.GONE
            self._out.append(ResetTcp())

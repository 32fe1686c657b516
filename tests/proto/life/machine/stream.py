"""The owner of a stream's life: what its user does, what comes in frames on TCP, and the way back to RDMA.

Inputs are methods; outputs are what they return. A driver keeps to these rules:

* The outputs of an input are carried out before the next input, and without a turn of the event loop.
* Before ``tcp_bytes()`` and ``tcp_eof()`` it polls the link, and reports what was there: the peer's last
  cursor
  messages were delivered before the peer wrote to TCP.
* Until the stream is in frames, it reads at most ``missing`` bytes of TCP.
* It calls ``on_timer()`` at ``deadline()``. A stream has no other timer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiordma.proto import clc
from aiordma.proto.codes import Code
from aiordma.proto.errors import RemoteProtocolError
from aiordma.proto.frames import negotiation_frame
from aiordma.proto.life.attempt import Attempt
from aiordma.proto.life.frames import FramesLife
from aiordma.proto.life.outputs import Put

from .leaving import PEER_DIED, LeavingLife
from .outputs import Abandon, ReadAhead, ReceiveFrom, Rejoined, ReleaseTcp, SendBy
from .rings import DONE, RingsLife
from .states import Leg, RingStage, Tcp

if TYPE_CHECKING:
    from aiordma.proto.clc import Accept, Confirm, Proposal
    from aiordma.proto.life.outputs import Output

__all__ = ["StreamLife"]

#: Answers of the negotiation that may wait for a peer that does not read. It would not read more of them
#: either.
_MOST_ANSWERS = 64


class StreamLife(LeavingLife):
    """One end of one stream."""

    _answers = 0
    _last_number = 0

    # ---- what the user does

    def send_eof(self) -> list[Output]:
        """Half-close: the peer reads the end behind what was sent."""
        if not self.eof_sent and not self.closed:
            self.eof_sent = True
            path = self._find(self.sends_by)
            assert path is not None
            path.send_eof()
        return self._take()

    def close(self, now: float) -> list[Output]:
        """Close both directions; what was sent still arrives."""
        self.closed = True
        for path in self._in_use():
            if self._close(path, now):
                self._fail_attempt(Code.SHUTTING_DOWN, "the stream was closed", now)
        return self._take()

    def abort(self, now: float) -> list[Output]:
        """Close at once; the peer gets an error."""
        self.closed = True
        for path in self._in_use():
            if isinstance(path, FramesLife):
                path.abort()
                self._fail_attempt(Code.SHUTTING_DOWN, "the stream was closed", now)
            elif path.close(abort=True):
                self._cancel_exchange()
        return self._take()

    def drained(self, leg: Leg) -> list[Output]:
        """The first leg is read up to where the next one begins."""
        assert leg == self.legs[0]
        path = self._find(leg)
        if isinstance(path, RingsLife):
            if path.stage is RingStage.LEFT:
                path.free()
            if path.peer & DONE:
                return self._take()  # nothing follows: this is the end of what is received
        if len(self.legs) > 1:
            del self.legs[0]
        return self._take()

    # ---- what comes in frames

    def tcp_end(self, flags: int, now: float) -> list[Output]:
        """An END frame with these flags."""
        frames = self.frames
        assert frames is not None
        frames.peer |= flags
        if frames.attempt is not None:
            frames.attempt.peer_stays()
            self._fail_attempt(Code.SHUTTING_DOWN, "the stream was closed", now)
        frames.acknowledge()
        frames.end_if_done(now)
        return self._take()

    def tcp_on_ring(self, now: float) -> list[Output]:
        """The peer's last frame: what it sends from here on comes by the next rings."""
        frames = self.frames
        assert frames is not None
        if frames.attempt is None:
            self._fail_frames("frames: the peer goes to a ring that it does not have", now, fault=True)
        else:
            frames.on_ring = True
            self._peer_moved(frames.attempt, now)
        return self._take()

    def tcp_message(self, message: bytes, now: float, *, pending: bool = False) -> list[Output]:
        """A message of the negotiation.

        :param pending: earlier bytes wait for the peer to read.
        """
        frames = self.frames
        assert frames is not None
        try:
            if frames.attempt is not None:
                frames.attempt.receive(message, now)
                self._after_attempt(now)
            else:
                self._new_message(frames, message, now, pending)
        except RemoteProtocolError as error:
            self._fail_frames(str(error), now, fault=True)
        return self._take()

    def tcp_eof(self, now: float, *, shows_end: bool = False) -> list[Output]:
        """The TCP connection has ended.

        :param shows_end: the device will show how the peer's process has left the link.
        """
        if self._exchange is not None:
            self._run(self._exchange.eof(PEER_DIED), now)
        elif self.frames is not None:
            self._fail_frames(PEER_DIED, now)
        elif self.tcp is Tcp.SILENT:
            self._silent_tcp_ended(now, shows_end=shows_end)
        return self._take()

    def tcp_failed(
        self, reason: str, now: float, *, sending: bool = False, fault: bool = False
    ) -> list[Output]:
        """The TCP connection has failed.

        :param sending: nothing more can be sent; what has arrived may still be read.
        :param fault: what came in its place is no frame.
        """
        if self.frames is not None:
            if sending:
                self.frames.fail_sending(reason)
                self.frames.end_if_done(now)
            else:
                self._fail_frames(reason, now, fault=fault)
        elif sending:
            pass  # reading fails next
        elif self._exchange is not None:
            self._run(self._exchange.eof(reason), now)
        elif self.tcp is Tcp.SILENT:
            self._lose_tcp(reason)
        return self._take()

    def tcp_flushed(self, now: float) -> list[Output]:
        """The kernel has all that was put (to be reported while :attr:`awaits_flush`)."""
        if self.frames is not None:
            self.frames.flushed(now)
            self._hand_over(self.frames)
        return self._take()

    def _fail_frames(self, reason: str, now: float, *, fault: bool = False) -> None:
        frames = self.frames
        assert frames is not None
        frames.fail(reason, fault=fault)
        if frames.failure is not None:
            self._fail_attempt(Code.SHUTTING_DOWN, "the stream was closed", now)
        frames.end_if_done(now)

    # ---- back to RDMA: the negotiation

    def rejoin(self, now: float) -> list[Output]:
        """Ask the peer to return to RDMA, if :attr:`may_rejoin`."""
        if self.may_rejoin:
            self._new_attempt().ask()
            self._look_ahead()
        return self._take()

    def proposed(self, proposal: Proposal, now: float) -> list[Output]:
        """After ``Negotiate(None)``: the Proposal is made."""
        if self._attempt is not None:
            self._attempt.proposed(proposal, now)
            self._after_attempt(now)
        return self._take()

    def prepared(self, answer: Accept | Confirm | Proposal, now: float) -> list[Output]:
        """After ``Negotiate``: the answer is made. A Proposal: the Accept names a link that is not known
        here.
        """
        if self._attempt is not None:
            self._attempt.prepared(answer, now)
            self._after_attempt(now)
        return self._take()

    def established(self, tokens: tuple[int, int], now: float) -> list[Output]:
        """The new rings can be used at this end.

        :param tokens: their alert tokens, this end's and the peer's.
        """
        attempt = self._attempt
        if attempt is not None:
            ring = RingsLife(attempt.number, self._out)
            self._rings[attempt.number], self._tokens[attempt.number] = ring, tokens
            attempt.established(ring, now)
            self._after_attempt(now)
        return self._take()

    def refused(self, code: int, text: str, now: float) -> list[Output]:
        """After ``Negotiate``: this end cannot use RDMA now."""
        if self._attempt is not None:
            self._attempt.refused(code, text, now)
            self._after_attempt(now)
        return self._take()

    @property
    def _attempt(self) -> Attempt[RingsLife] | None:
        return None if self.frames is None else self.frames.attempt

    def _new_attempt(self) -> Attempt[RingsLife]:
        assert self.frames is not None
        self._last_number += 1
        attempt = Attempt[RingsLife](self.limits.negotiation, self._out, self._last_number)
        self.frames.attempt = attempt
        return attempt

    def _new_message(
        self, frames: FramesLife[Attempt[RingsLife]], data: bytes, now: float, pending: bool
    ) -> None:
        """A message while no attempt is under way."""
        message = clc.decode(data)
        if isinstance(message, clc.Decline):
            return  # of an attempt that has ended here already
        self._answers = self._answers + 1 if pending else 0
        if self._answers > _MOST_ANSWERS:
            return
        if frames.closed or frames.eof_sent:
            return  # the END that was sent is the answer; one behind it could find the connection closed
        if isinstance(message, clc.Proposal) and not (frames.moved or frames.done):
            self._new_attempt().answer(data, now)
            self._look_ahead()
            self._after_attempt(now)
        else:
            decline = clc.Decline(diagnosis=Code.OUT_OF_SYNC).encode()
            self._out.append(Put(negotiation_frame(decline)))

    def _after_attempt(self, now: float) -> None:
        """The negotiation has gone on, and may have ended."""
        attempt = self._attempt
        assert attempt is not None
        if attempt.failed is not None:
            self._fail_attempt(*attempt.failed, now)
        elif attempt.agreed and not attempt.begun:
            attempt.begun = True
            assert attempt.handshake is not None
            if not attempt.handshake.is_client:
                self._move(attempt, now)  # of the two ends, the server moves first
            self._peer_moved(attempt, now)

    # ---- back to RDMA: each direction moves

    def _move(self, attempt: Attempt[RingsLife], now: float) -> None:
        """This end's last frame; what follows goes by the new rings."""
        assert self.frames is not None
        self.frames.move()
        self._send_by(Leg("ring", attempt.number), now)

    def _peer_moved(self, attempt: Attempt[RingsLife], now: float) -> None:
        frames, ring = self.frames, attempt.ring
        assert frames is not None
        if not frames.on_ring or not attempt.begun or ring is None:
            return
        if not frames.moved:
            self._move(attempt, now)
        leg = Leg("ring", attempt.number)
        self.legs.append(leg)
        self._out.append(ReceiveFrom(leg, None))
        if self.closed:
            ring.close()
        self._hand_over(frames)

    def _hand_over(self, frames: FramesLife[Attempt[RingsLife]]) -> None:
        """Once nothing more of the stream is on TCP, the connection is the rings' again."""
        attempt = frames.attempt
        if attempt is None or attempt.ring is None or not frames.release():
            return
        self.frames = None
        self.ring = attempt.ring
        self.tcp = Tcp.AWAITED
        self._out += [Rejoined(attempt.number), ReleaseTcp()]

    def _fail_attempt(self, code: int, text: str, now: float) -> None:
        """The stream stays on TCP, or is lost half-way."""
        frames, attempt = self.frames, self._attempt
        if frames is None or attempt is None:
            return
        self._out += [Abandon(code, text), ReadAhead(False)]
        self._held = self._cursors = None
        if not frames.stay(now):
            new, old = Leg("ring", attempt.number), Leg("tcp", frames.number)
            self.legs = [leg for leg in self.legs if leg != new] or [old]
            if self.sends_by == new:
                self.sends_by = old
                self._out.append(SendBy(old))  # which tells the user that it is lost
        if attempt.ring is not None:
            attempt.ring.close(abort=True)

    # ---- the clock

    def on_timer(self, now: float, *, host_answers: bool = False) -> list[Output]:
        """The time of :meth:`deadline` has come.

        :param host_answers: the peer's host has acknowledged this end's message on TCP.
        """
        if self._end_shows is not None and now >= self._end_shows:
            self._lose_tcp(PEER_DIED)
        if self._exchange is not None:
            self._run(self._exchange.on_timer(now, host_answers=host_answers), now)
        frames = self.frames
        if frames is not None and frames.deadline is not None and now >= frames.deadline:
            frames.on_timer()
            self._fail_attempt(Code.SHUTTING_DOWN, "the stream was closed", now)
        if self._attempt is not None:
            self._attempt.on_timer(now)
            self._after_attempt(now)
        return self._take()

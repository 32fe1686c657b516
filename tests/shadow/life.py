"""The life of one stream beside the objects that have it today: they report to it, and are compared with it.

What is compared after each input: which rings are freed, closed, broken and left, what this end has announced
on them, what was written to TCP and how that was closed, what is sent and received by which transport, and
which timers run.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from aiordma.proto.cdc import MESSAGE_BYTES, CdcMessage
from aiordma.proto.failover import State
from aiordma.proto.frames import Assembler
from tests.proto.life import machine as machine
from tests.proto.life.machine import Leg, Limits, RingStage
from tests.proto.life.machine.rings import ABORTED, CLOSED, DONE

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiordma.links.failover.framed_pipe import FramedPipe

__all__ = ["ShadowLife"]


class ShadowLife:
    """:param member: holds the first rings.

    :param differ: is told of each difference: its kind, and what happened.
    """

    def __init__(self, member: Any, peer_token: int, differ: Callable[[str, str], None]) -> None:
        config = member._engine.config
        limits = Limits(config.failover_timeout_ms / 1000, config.stopped_peer_ms / 1000)
        self.waker = member._engine.waker
        self.engine = member._engine
        self.life = machine.StreamLife((member.pipe.token, peer_token), limits, connected=False)
        self.members = {0: member}
        self.rings = {0: member.pipe}
        self.framed: dict[int, Any] = {}
        self.assemblers: dict[int, Assembler] = {}
        self.carrier: Any = None
        self.over = False
        self.depth = 0
        self.stopped: set[int] = set()
        self.read_until: int | None = None
        self._differ = differ
        self._expected: dict[str, list[object]] = defaultdict(list)
        self._actual: dict[str, list[object]] = defaultdict(list)
        self.trace: list[str] = []

    # ---- inputs and outputs

    def report(self, name: str, *args: Any, **options: Any) -> None:
        """Something has happened; what the life answers is what today's objects should do."""
        if self.over:
            return
        self.trace.append(f"{name}{args}"[:160])
        for output in getattr(self.life, name)(*args, **options):
            self.trace.append(f"    {output}"[:160])
            self._expect(output)

    def _expect(self, output: machine.Output) -> None:
        match output:
            case machine.Put(data):
                self._expected["tcp"].append(("put", bytes(data)))
            case machine.CloseTcp() | machine.ResetTcp() | machine.ReleaseTcp():
                self._expected["tcp"].append(type(output).__name__)
            case machine.StopSending(ring) | machine.FreeRing(ring):
                self._expected["rings"].append((type(output).__name__, ring))
            case machine.SendBy(leg):
                self._expected["sending"].append(leg)
            case machine.ReceiveFrom(leg, until):
                self._expected["receiving"].append((leg, until))
            case machine.LeftRdma(code, by_peer):
                self._expected["moves"].append(("left", code, by_peer))
            case machine.Rejoined():
                self._expected["moves"].append("rejoined")

    def saw(self, group: str, what: object) -> None:
        """Today's objects have done this."""
        if not self.over:
            self.trace.append(f"  * {group} {what}"[:160])
            self._actual[group].append(what)

    def number_of(self, transport: Any) -> Leg:
        """The leg that this transport is."""
        for number, ring in self.rings.items():
            if ring is transport:
                return Leg("ring", number)
        for number, framed in self.framed.items():
            if framed is transport:
                return Leg("tcp", number)
        return Leg("ring", -1)

    def now(self) -> float:
        """The time of the stream's loop."""
        return float(self.waker.now())

    # ---- what nobody reports

    def look(self, *, link: bool = True) -> None:
        """Report what has come by the link, and what has been read or written, since the last time."""
        life = self.life
        member = self.members.get(life.ring.number)
        if member is not None:
            life.takes_part = member._peer_takes_part
        for number in list(self.rings):
            ring, pipe = life._rings.get(number), self.rings[number]
            if ring is None or pipe.position is None or ring.freed:
                continue
            if link and pipe.link_failed and not ring.link_failed:
                self.link_failed(number, pipe)
            flags = pipe.ledger()[7]
            if pipe.error is not None and str(pipe.error).endswith("the peer aborted the stream"):
                flags |= ABORTED
            for kept in gc.get_referents(pipe):  # while cursors are exchanged, it says nothing of it
                if type(kept) is bytes and len(kept) == MESSAGE_BYTES:
                    flags |= CdcMessage.decode(kept).state_flags
            if flags & ~(ring.peer | ring._early):
                self.report("peer_flags", number, flags)
        self.look_at_tcp()

    def link_failed(self, number: int, pipe: Any, reason: str = "", *, may_leave: bool = False) -> None:
        flags = pipe.ledger()[7]
        whole = pipe.error is None and flags & DONE and flags & ~self.life._rings[number].peer
        self.report(
            "link_failed",
            number,
            reason or str(pipe.error),
            self.now(),
            may_leave=may_leave,
            left_whole=bool(whole),
        )

    def look_at_tcp(self) -> None:
        life = self.life
        if life.awaits_flush and self.carrier is not None and not self.carrier.pending:
            self.report("tcp_flushed", self.now())
        while len(life.legs) > 1:
            leg = life.legs[0]
            if leg.path == "ring":
                pipe = self.rings[leg.number]
                if not pipe.drained:
                    return
            else:
                framed = self.framed.get(leg.number)
                if framed is None or not framed.drained:
                    return
            before = len(life.legs)
            self.report("drained", leg)
            if len(life.legs) == before:
                return

    # ---- the comparison

    def compare(self, after: str) -> None:
        """Everything that was asked for has been done, and nothing else; and the states are the same."""
        if self.over:
            return
        self.look()
        if after == "Leaver._time_is_up" and self.carrier.closed and self.life._exchange is not None:
            self.report("on_timer", self.now())  # the time had come for today's object, which looked later
        found = []
        for group in {*self._expected, *self._actual}:
            expected, actual = self._expected.pop(group, []), self._actual.pop(group, [])
            if expected != actual:
                found.append((f"{group}", f"life {expected}, today {actual}"))
        for name, of_life, today in self._states():
            if of_life != (bool(today) if isinstance(today, str) else today):
                found.append((name, f"life {of_life}, today {today}"))
        for name, text in found:
            trace = "\n".join(self.trace[-40:])
            self._differ(name, f"after {after}: {text}\n{trace}")
        if found:
            self.over = True  # what follows from it would not be news

    def _states(self) -> list[tuple[str, object, object]]:
        states: list[tuple[str, object, object]] = []
        life = self.life
        for number, pipe in self.rings.items():
            ring = life._rings.get(number)
            if pipe.position is None:
                continue
            freed = ring is None or ring.freed
            states.append(("ring freed", freed, pipe.is_finished))
            if ring is None or freed:
                continue
            left = ring.stage is RingStage.LEFT
            states += [
                ("ring closed", ring.closed, pipe.is_closed),
                ("ring broken", ring.failure is not None, pipe.error is not None and str(pipe.error)),
                ("ring left", left, pipe.has_left),
                ("ring may leave", ring.may_leave, pipe.can_leave),
                ("ring's flags", ring.own & (DONE | CLOSED), pipe.ledger()[6]),
            ]
        states += self._states_of_leaving()
        if life.frames is not None and life.frames.number in self.framed:
            states += self._states_of_frames(life.frames, self.framed[life.frames.number])
        return states

    def _states_of_leaving(self) -> list[tuple[str, object, object]]:
        member = self.members.get(self.life.ring.number)
        today = None if member is None else member.exchange
        busy = (
            member is not None
            and today is not None
            and today.state not in (State.AGREED, State.BROKEN)
            and not member._tcp.closed
        )
        exchange = self.life._exchange
        states: list[tuple[str, object, object]] = [("exchange", exchange is not None, busy)]
        if exchange is not None and member is not None and busy:
            states.append(("exchange's timer", exchange.deadline is not None, member._timer is not None))
        return states

    def _states_of_frames(self, frames: Any, framed: FramedPipe) -> list[tuple[str, object, object]]:
        today = framed.life
        states: list[tuple[str, object, object]] = [
            ("frames closed", frames.closed, today.closed),
            ("frames gone", frames.gone, framed._carrier.closed),
            ("frames moved", frames.moved, today.moved),
            ("frames broken", frames.failure is not None and not frames.done, framed.error is not None),
            ("frames ended", frames.done, framed._assembler.done),
            ("frames' end sent", frames._end_sent, today._end_sent),
            ("frames' attempt", frames.attempt is not None, today.attempt is not None),
        ]
        if not frames.gone:
            states.append(("frames' timer", frames.deadline is not None, framed._limit is not None))
        return states

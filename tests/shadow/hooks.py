"""Hooks in the objects that have a stream's life today, for the time of a test."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import traceback
from typing import TYPE_CHECKING, Any, cast

from aiordma.errors import LinkError, RemoteProtocolError
from aiordma.links.engine import Engine
from aiordma.links.failover.framed_pipe import FramedPipe
from aiordma.links.failover.leave import Leaver, may_fail_over
from aiordma.links.failover.rejoin import Rejoin
from aiordma.links.failover.tcp_carrier import TcpCarrier
from aiordma.links.member import Member
from aiordma.pipes._ring import RingPipe
from aiordma.pipes._switchable import SwitchablePipe
from aiordma.proto.codes import Code
from aiordma.proto.failover import CursorExchange, Refuse
from aiordma.proto.frames import Assembler, Kind
from aiordma.proto.life.attempt import Attempt
from tests.proto.life.machine import Cursors, Leg, RingStage, Tcp

from .life import ShadowLife

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Shadows"]


class Shadows:
    """The lives beside all streams that begin while :meth:`watching`."""

    def __init__(self) -> None:
        #: Each difference that was found: its kind, and what led to it.
        self.differences: list[tuple[str, str]] = []
        self.count = 0
        self._of: dict[int, ShadowLife] = {}
        self._kept: list[object] = []  # what is known by its id
        self._undo: list[Callable[[], None]] = []
        self._reset: set[int] = set()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        try:
            self._hook_all()
            yield
        finally:
            while self._undo:
                self._undo.pop()()
            for shadow in set(self._of.values()):
                shadow.over = True
            self._of.clear()
            self._kept.clear()

    def _differ(self, kind: str, text: str) -> None:
        self.differences.append((kind, text))

    def _bind(self, what: object, shadow: ShadowLife) -> None:
        self._of[id(what)] = shadow
        self._kept.append(what)

    def _find(self, what: object) -> ShadowLife | None:
        return self._of.get(id(what))

    @contextlib.contextmanager
    def _guard(self, shadow: ShadowLife) -> Iterator[None]:
        """What goes wrong here is no fault of today's objects, which go on."""
        try:
            yield
        except Exception:
            shadow.over = True
            self._differ("the shadow failed", traceback.format_exc() + "\n".join(shadow.trace[-30:]))

    # ---- hooking

    def _replace(self, cls: type, name: str, function: Any) -> None:
        (known,) = [each for each in gc.get_referents(cls.__dict__) if isinstance(each, dict)]
        original = known[name]

        def put(value: Any) -> None:
            known[name] = value
            ctypes.pythonapi.PyType_Modified(ctypes.py_object(cls))

        put(function)
        self._undo.append(lambda: put(original))

    def _hook(
        self,
        cls: type,
        name: str,
        before: Callable[..., object] | None = None,
        *,
        link: bool = True,
        deep: bool = False,
    ) -> None:
        """Call ``before(shadow, object, ...)`` before this method, and compare after it.

        :param link: look for a failure of the link first.
        :param deep: what it reports is asked for at the end of the caller only.
        """
        cls = next(base for base in cls.__mro__ if name in base.__dict__)
        original = cls.__dict__[name]

        @functools.wraps(original)
        def hooked(what: Any, *args: Any, **options: Any) -> Any:
            shadow = self._find(what)
            if shadow is None or shadow.over:
                return original(what, *args, **options)
            with self._guard(shadow):
                if shadow.depth == 0:
                    shadow.look(link=link)
            shadow.depth += 1
            try:
                with self._guard(shadow):
                    if before is not None:
                        before(shadow, what, *args, **options)
                return original(what, *args, **options)
            finally:
                shadow.depth -= 1
                if shadow.depth == 0 and not deep:
                    with self._guard(shadow):
                        shadow.compare(f"{cls.__name__}.{name}")

        self._replace(cls, name, hooked)

    def _hook_all(self) -> None:
        self._hook_member()
        self._hook_pipes()
        self._hook_failover()
        self._hook_carrier()
        self._hook_framed()
        self._hook_rejoin()
        end = Engine.close

        def close(engine: Engine) -> None:
            for shadow in set(self._of.values()):
                if shadow.engine is engine:
                    shadow.over = True
            end(engine)

        self._replace(Engine, "close", close)

    # ---- the member: the link, and TCP beside it

    def _hook_member(self) -> None:
        connect, new = Member.connect, self._connected

        def connected(member: Member, **fields: Any) -> Any:
            if member.pipe.position is not None or member.pipe.is_finished:
                return connect(member, **fields)
            return new(connect, member, fields)

        self._replace(Member, "connect", connected)
        self._hook(Leaver, "attach_tcp", self._attached)
        self._hook(Leaver, "_on_tcp")
        self._hook(Leaver, "_tcp_ended", self._tcp_ended)
        self._hook(Leaver, "_received", self._tcp_bytes)
        self._hook(Leaver, "_refuse", self._refused)
        self._hook(Leaver, "_drop_tcp", self._dropped)
        self._hook(Leaver, "leave", self._leave)
        self._hook(Leaver, "fail_over", self._link_failed, link=False, deep=True)
        self._hook(Leaver, "quiesced", self._quiesced, deep=True)
        self._hook(Leaver, "lose_tcp", self._lost_tcp)
        self._hook(Member, "_on_finished", self._ring_finished, deep=True)
        for name in ("discard", "withdraw"):
            self._hook(Member, name, self._never_began)

    def _never_began(self, shadow: ShadowLife, member: Member, **how: Any) -> None:
        shadow.over = True

    def _connected(self, connect: Any, member: Member, fields: dict[str, Any]) -> Any:
        shadow = ShadowLife(member, fields["peer_token"], self._differ)
        self.count += 1
        shadow.life.tcp = Tcp.AWAITED
        self._bind(member, shadow)
        self._bind(member.pipe, shadow)
        if member.pipe.error is not None:
            shadow.report("link_failed", 0, str(member.pipe.error), shadow.now(), may_leave=False)
        shadow.depth += 1
        may = member.group.streams_go_on and (member.carrier is not None or member.awaits_tcp)
        if may or member.pipe.error is None:
            shadow.report("opened", shadow.now())
        else:
            shadow.over = True
        try:
            connection = connect(member, **fields)
        finally:
            shadow.depth -= 1
        self._bind(connection, shadow)
        with self._guard(shadow):
            shadow.compare("connect")
        return connection

    def _attached(self, shadow: ShadowLife, member: Member, carrier: Any, received: bytes = b"") -> None:
        shadow.report("tcp_attached", shadow.now(), received)
        if member.pipe.is_finished:
            shadow.saw("tcp", "CloseTcp")

    def _tcp_ended(self, shadow: ShadowLife, member: Member) -> None:
        member._engine.poller.drain()
        shadow.look()
        if member.carrier is not None:
            shadow.report("tcp_eof", shadow.now(), shows_end=member._link.shows_end)

    def _tcp_bytes(self, shadow: ShadowLife, member: Member, carrier: Any, data: bytes) -> None:
        early = member.early_open
        if early is not None and not early.bound and data[:1] != b"A":
            shadow.report("tcp_failed", early.explain(data), shadow.now())
            return
        member._engine.poller.drain()
        shadow.look()
        if shadow.life.tcp is Tcp.SILENT or shadow.life._exchange is not None:
            shadow.report("tcp_bytes", data, shadow.now())

    def _refused(self, shadow: ShadowLife, member: Member, carrier: Any, data: bytes) -> None:
        shadow.saw("tcp", ("put", Refuse(member.pipe.peer_token, Code.FAILOVER_REFUSED).encode()))

    def _dropped(self, shadow: ShadowLife, member: Member) -> None:
        if member.carrier is not None:
            shadow.saw("tcp", "CloseTcp")

    def _leave(self, shadow: ShadowLife, member: Member, code: int, text: str) -> None:
        if member.group.streams_go_on:
            shadow.report("leave", code, text, shadow.now())

    def _link_failed(self, shadow: ShadowLife, member: Member, reason: BaseException) -> None:
        leg = shadow.number_of(member.pipe)
        if leg.number < 0 or shadow.life._rings[leg.number].link_failed:
            return  # attach_tcp() asks again
        has_tcp = member.carrier is not None or member.awaits_tcp
        may = has_tcp and member.group.streams_go_on and may_fail_over(reason)
        text = getattr(reason, "reason", "") or str(reason)
        shadow.link_failed(leg.number, member.pipe, text, may_leave=may)

    def _quiesced(self, shadow: ShadowLife, member: Member) -> None:
        leg = shadow.number_of(member.pipe)
        shadow.look()
        shadow.report("quiesced", leg.number, Cursors(*member.pipe.ledger()[:6]), shadow.now())

    def _lost_tcp(self, shadow: ShadowLife, member: Member, reason: str) -> None:
        if shadow.life._end_shows is not None:
            shadow.report("on_timer", max(shadow.now(), shadow.life._end_shows))
        elif shadow.life.tcp is Tcp.SILENT and member.carrier is not None:
            shadow.report("tcp_failed", reason, shadow.now())

    def _ring_finished(self, shadow: ShadowLife, member: Member, pipe: RingPipe) -> None:
        number = shadow.number_of(pipe).number
        ring = shadow.life._rings.get(number)
        shadow.look()
        if ring is not None and not ring.freed:
            if ring.stage is RingStage.LEFT:
                shadow.report("drained", shadow.life.legs[0])
            elif not ring.link_failed:
                shadow.report("delivered", number)
        shadow.saw("rings", ("FreeRing", number))

    # ---- the pipes

    def _hook_pipes(self) -> None:
        self._hook(SwitchablePipe, "send_eof", lambda shadow, _: shadow.report("send_eof"))
        self._hook(SwitchablePipe, "close", lambda shadow, _: shadow.report("close", shadow.now()))
        self._hook(SwitchablePipe, "abort", lambda shadow, _: shadow.report("abort", shadow.now()))
        self._hook(
            SwitchablePipe,
            "send_by",
            lambda shadow, _, transport: shadow.saw("sending", shadow.number_of(transport)),
        )
        self._hook(SwitchablePipe, "receive_by", self._receives)
        self._hook(SwitchablePipe, "left_rdma", self._left)
        self._hook(SwitchablePipe, "rejoined_rdma", lambda shadow, _: shadow.saw("moves", "rejoined"))
        self._hook(RingPipe, "close", self._ring_closed)
        self._hook(RingPipe, "abort", functools.partial(self._ring_closed, abort=True))
        self._hook(RingPipe, "stop_sending", self._stopped)
        self._hook(RingPipe, "stand_alone", self._alone)
        self._hook(RingPipe, "leave", self._ring_left)

    def _receives(self, shadow: ShadowLife, switch: SwitchablePipe, transport: Any) -> None:
        until, shadow.read_until = shadow.read_until, None
        shadow.saw("receiving", (shadow.number_of(transport), until))

    def _ring_closed(self, shadow: ShadowLife, pipe: RingPipe, *, abort: bool = False) -> None:
        """By its owner, past the pipe that the user has."""
        if shadow.depth == 1 and shadow.number_of(pipe) == Leg("ring", 0) and len(shadow.rings) == 1:
            shadow.report("abort" if abort else "close", shadow.now())

    def _stopped(self, shadow: ShadowLife, pipe: RingPipe) -> None:
        number = shadow.number_of(pipe).number
        if number not in shadow.stopped:
            shadow.stopped.add(number)
            shadow.saw("rings", ("StopSending", number))

    def _alone(self, shadow: ShadowLife, pipe: RingPipe) -> None:
        if shadow.depth == 1 and shadow.life.ring.number == shadow.number_of(pipe).number:
            shadow.report("stands_alone")

    def _ring_left(self, shadow: ShadowLife, pipe: RingPipe, read_until: int) -> None:
        if shadow.depth == 1:
            shadow.over = True  # by a test that moves the pipe by hand
        shadow.read_until = read_until

    def _left(self, shadow: ShadowLife, switch: SwitchablePipe, framed: FramedPipe) -> None:
        number = shadow.life.frames.number if shadow.life.frames is not None else -1
        shadow.framed[number] = framed
        shadow.assemblers[number] = Assembler()
        self._bind(framed, shadow)
        by_peer = framed.reason.peer is not None
        shadow.saw("moves", ("left", framed.reason.code, by_peer))

    # ---- leaving

    def _hook_failover(self) -> None:
        begin = Leaver._begin

        def began(member: Leaver) -> CursorExchange:
            exchange = begin(member)
            shadow = self._find(member)
            if shadow is not None:
                shadow.carrier = member._tcp
                self._bind(member._tcp, shadow)
            return exchange

        self._replace(Leaver, "_begin", began)
        self._hook(Leaver, "_on_exchange")
        self._hook(Leaver, "_exchanged", self._exchanged)
        self._hook(
            Leaver,
            "_time_is_up",
            lambda shadow, member: shadow.report(
                "on_timer", shadow.now(), host_answers=member._tcp.acknowledged()
            ),
        )

    def _exchanged(self, shadow: ShadowLife, member: Leaver, data: bytes) -> None:
        """What came behind the negotiation, or before: reported by attach_tcp() or _received()."""

    # ---- TCP

    def _hook_carrier(self) -> None:
        read = TcpCarrier.read

        def reads(carrier: TcpCarrier, size: int) -> bytes | None:
            shadow = self._find(carrier)
            try:
                data = read(carrier, size)
            except LinkError as error:
                if shadow is not None:
                    shadow.report("tcp_failed", error.reason, shadow.now())
                raise
            if shadow is not None and not shadow.over and data is not None:
                with self._guard(shadow):
                    self._read(shadow, data)
            return data

        self._replace(TcpCarrier, "read", reads)
        self._hook(TcpCarrier, "put", self._put)
        self._hook(TcpCarrier, "_writable")
        self._hook(TcpCarrier, "push")
        self._hook(
            TcpCarrier,
            "_lose",
            lambda shadow, carrier, error: shadow.report(
                "tcp_failed", str(error), shadow.now(), sending=True
            ),
        )
        self._hook(TcpCarrier, "release", self._released)
        self._hook(TcpCarrier, "close", self._closed)
        self._hook(TcpCarrier, "reset", self._was_reset)

    def _read(self, shadow: ShadowLife, data: bytes) -> None:
        if not data:
            if shadow.life._exchange is not None:
                shadow.engine.poller.drain()
                shadow.look()
            shadow.report("tcp_eof", shadow.now())
        elif shadow.life._exchange is not None:
            shadow.report("tcp_bytes", data, shadow.now())

    def _put(self, shadow: ShadowLife, carrier: TcpCarrier, *parts: bytes) -> None:
        if carrier.closed or carrier.failure is not None:
            return
        data = b"".join(parts)
        if data[0] != Kind.DATA:
            shadow.saw("tcp", ("put", data))

    def _released(self, shadow: ShadowLife, carrier: TcpCarrier) -> None:
        shadow.look_at_tcp()
        shadow.saw("tcp", "ReleaseTcp")

    def _closed(self, shadow: ShadowLife, carrier: TcpCarrier) -> None:
        if not carrier.closed and id(carrier) not in self._reset:
            shadow.saw("tcp", "CloseTcp")

    def _was_reset(self, shadow: ShadowLife, carrier: TcpCarrier) -> None:
        if not carrier.closed:
            self._reset.add(id(carrier))
            shadow.saw("tcp", "ResetTcp")

    # ---- frames

    def _hook_framed(self) -> None:
        reading = ("_on_input", "look", "_read_on", "_read_again", "_pull_and_wake")
        for name in (*reading, "_begin", "_on_flushed"):
            self._hook(FramedPipe, name)
        self._hook(FramedPipe, "_take", self._frames)
        self._hook(FramedPipe, "rejoin", self._rejoin)
        self._hook(FramedPipe, "_end", self._limit)
        self._hook(FramedPipe, "_fail", self._framed_failed)

    def _frames(self, shadow: ShadowLife, framed: FramedPipe, data: bytes) -> None:
        number = shadow.number_of(framed).number
        assembler = shadow.assemblers[number]
        flags = assembler.flags
        try:
            assembler.feed(data)
        except RemoteProtocolError as error:
            shadow.report("tcp_failed", str(error), shadow.now(), fault=True)
            return
        if assembler.flags != flags:
            shadow.report("tcp_end", assembler.flags, shadow.now())
        while assembler.messages:
            shadow.report(
                "tcp_message", assembler.messages.pop(0), shadow.now(), pending=bool(framed._carrier.pending)
            )
        if assembler.on_ring:
            shadow.report("tcp_on_ring", shadow.now())

    def _framed_failed(
        self, shadow: ShadowLife, framed: FramedPipe, reason: str, *, fault: bool = False
    ) -> None:
        frames = shadow.life.frames
        if not fault and frames is not None and not frames.ended:
            shadow.report("tcp_failed", reason, shadow.now())

    def _rejoin(self, shadow: ShadowLife, framed: FramedPipe) -> None:
        if framed.life.attempt is None:
            shadow.report("rejoin", shadow.now())

    def _limit(self, shadow: ShadowLife, framed: FramedPipe) -> None:
        if shadow.depth > 1:
            return
        deadline = None if shadow.life.frames is None else shadow.life.frames.deadline
        if deadline is not None and shadow.now() >= deadline:
            shadow.report("on_timer", shadow.now())
        else:
            shadow.over = True  # its loop ends

    # ---- the way back

    def _hook_rejoin(self) -> None:
        begin = Rejoin.__init__

        def began(attempt: Rejoin, framed: FramedPipe, *args: Any) -> None:
            begin(attempt, framed, *args)
            shadow = self._find(framed)
            if shadow is not None:
                self._bind(attempt, shadow)
                self._bind(attempt._attempt, shadow)

        self._replace(Rejoin, "__init__", began)
        for name in ("_go_on", "_fail", "_begin_moving", "peer_moved", "try_hand_over"):
            self._hook(Rejoin, name)
        self._hook(Rejoin, "cancel", self._cancelled)
        self._hook(
            Rejoin,
            "_on_timer",
            lambda shadow, attempt: shadow.report("on_timer", shadow.now()),
        )
        for name in ("proposed", "prepared", "refused"):
            self._hook(Attempt, name, functools.partial(self._worked, name), deep=True)
        self._hook(Attempt, "established", self._established, deep=True)

    def _cancelled(self, shadow: ShadowLife, attempt: Rejoin) -> None:
        if shadow.depth == 1:
            shadow.over = True  # by a test, past the stream

    def _worked(self, name: str, shadow: ShadowLife, attempt: Attempt[Any], *what: Any) -> None:
        shadow.report(name, *what)

    def _established(self, shadow: ShadowLife, attempt: Attempt[Any], ring: RingPipe, now: float) -> None:
        frames = shadow.life.frames
        assert frames is not None
        if frames.attempt is None:
            return
        number, member = frames.attempt.number, cast("Member | None", ring.owner)
        self._bind(ring, shadow)
        shadow.rings[number] = ring
        if member is not None:
            shadow.members[number] = member
            self._bind(member, shadow)
        shadow.report("established", (ring.token, ring.peer_token), now)
        reason = None if member is None else member._failed_because
        if reason is not None:  # before it was bound
            shadow.link_failed(number, ring, str(reason), may_leave=True)
            self._stopped(shadow, ring)
            shadow.report("quiesced", number, Cursors(*ring.ledger()[:6]), now)

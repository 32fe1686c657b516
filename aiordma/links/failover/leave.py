"""Leaving RDMA: the I/O around ``proto/carry.py`` for one stream, from its last WRITE to its first frame.

It begins in one of three ways: the link fails, somebody asks for it, or the peer says that it leaves. In each
the stream's own TCP connection, which was silent since the negotiation, becomes the stream.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ...errors import (
    Code,
    CompletionError,
    FallbackReason,
    LinkError,
    RemoteProtocolError,
    VerbsError,
    describe,
)
from ...proto.cdc import StateFlag
from ...proto.failover import Agreed, Broken, Crossing, Ledger, Say, State, Stop
from .framed_pipe import PEER_DIED, FramedPipe
from .tcp_carrier import Road

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...pipes._ring import RingPipe
    from ...pipes.tls import Carrier
    from ...proto.failover import Event
    from ...wake.base import Handle
    from ..contracts import EngineView, GroupView

__all__ = ["Carry", "may_carry", "switch_engine", "switch_group", "switch_pipe"]

logger = logging.getLogger("aiordma.link")

#: Completion errors that say that the way to the peer, its device or ours is gone. The others say that one
#: end broke the rules of RDMA: with such a peer nothing goes on.
_OF_THE_WAY = {
    "WR_FLUSH_ERR",
    "RETRY_EXC_ERR",
    "RNR_RETRY_EXC_ERR",
    "FATAL_ERR",
    "RESP_TIMEOUT_ERR",
    "GENERAL_ERR",
}


def may_carry(reason: BaseException) -> bool:
    """Whether streams outlive a link that failed for this reason."""
    if isinstance(reason, CompletionError):
        return reason.status_name in _OF_THE_WAY
    return isinstance(reason, (LinkError, VerbsError))


class Carry:
    """One stream on its way. Takes the TCP connection over.

    :param peer: the other end, for people.
    :param traffic_class: of the link that it leaves, and of the next one.
    :param peer_lost_link: called when the peer says that it leaves because its end of the link has failed.
    :param has_another: should the link have failed, this end looks for another one.
    """

    def __init__(
        self,
        pipe: RingPipe,
        carrier: Carrier,
        engine: EngineView,
        peer: str,
        traffic_class: int,
        peer_lost_link: Callable[[], None],
        *,
        has_another: bool = False,
    ) -> None:
        self._pipe, self._engine, self._peer = pipe, engine, peer
        self._traffic_class = traffic_class
        self._peer_lost_link, self._has_another = peer_lost_link, has_another
        self._waker = engine.waker
        self._crossing = Crossing(pipe.token, pipe.peer_token, engine.config.carry_timeout_ms / 1000)
        self._reason = ""
        self._timer: Handle | None = None
        self._road = Road(carrier, engine.waker)
        self._road.on_input = self._road.on_failed = self._input
        self._road.watch(True)

    def leave(self, code: Code, reason: str) -> None:
        """This end leaves RDMA. :param reason: why, in the words of whoever found out."""
        self._reason = self._reason or reason
        self._run(self._crossing.leave(code, self._waker.now()))

    def settled(self) -> None:
        """The pipe sends no more, and nothing of it is under way."""
        self._run(self._crossing.stopped(Ledger(*self._pipe.ledger())))

    def heard(self, data: bytes) -> None:
        """What came on the TCP connection before this took it over."""
        self._run(self._crossing.receive(data, self._waker.now()))
        if self._crossing.peer_code == Code.LINK_LOST:
            self._peer_lost_link()

    def stop(self) -> None:
        """The stream is aborted: so is the TCP connection."""
        self._end()
        self._road.reset()

    def _input(self) -> None:
        while not self._road.closed:
            missing = self._crossing.missing
            if not missing:
                self._road.watch(False)  # what comes now is the stream's
                return
            try:
                data = self._road.read(missing)
            except LinkError as error:
                self._run(self._crossing.eof(error.reason))
                return
            if data is None:
                return
            if not data:
                # Perhaps it had come to its end on RDMA, and its last word has not been polled yet.
                self._engine.poller.drain()
                self._run(self._crossing.eof(PEER_DIED))
                return
            self.heard(data)

    def _run(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Stop):
                self._pipe.stop_sending()  # which may come back here at once, through settled()
            elif isinstance(event, Say):
                self._road.put(event.data)
            elif isinstance(event, Agreed):
                self._go_on(event)
            else:
                self._give_up(event)
        deadline = self._crossing.deadline
        under_way = self._crossing.state not in (State.AGREED, State.BROKEN)
        if self._timer is None and deadline is not None and under_way:
            self._timer = self._waker.call_at(deadline, self._time_is_up)

    def _time_is_up(self) -> None:
        self._timer = None
        self._run(self._crossing.on_timer(self._waker.now()))

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._road.on_input = self._road.on_failed = None

    def _go_on(self, event: Agreed) -> None:
        self._end()
        pipe = self._pipe
        why = describe(event.code)
        why += " (the peer left first)" if event.by_peer else f": {self._reason}" if self._reason else ""
        peer_code = event.code if event.by_peer else None
        reason = FallbackReason(event.code, why, event.code, peer_code)
        logger.debug("a stream with %s goes on over TCP: %s", self._peer, why)
        closed = bool(event.peer_flags & StateFlag.CLOSED)
        rest = b"" if closed else pipe.unplaced(event.send_from)
        framed = FramedPipe(self._road, self._engine, self._peer, self._traffic_class, rest, reason)
        pipe.go_on(framed, event.read_until, closed)
        if self._has_another and event.code == Code.LINK_LOST:
            self._engine.devices.find_another(framed, why)

    def _give_up(self, event: Broken) -> None:
        self._end()
        self._road.reset()
        if event.fault:
            error: Exception = RemoteProtocolError(f"the peer broke the protocol: {event.reason}")
        elif self._reason:
            text = f"{self._reason}; the stream could not go on over TCP: {event.reason}"
            error = LinkError(text, self._peer)
        else:
            error = LinkError(event.reason, self._peer)
        self._pipe.break_with(error)


# ---- by request


def switch_pipe(pipe: RingPipe, text: str = "") -> bool:
    """Have one stream leave RDMA; it goes on over its TCP connection as soon as both ends are ready.

    :return: whether it has begun; False: it is not on RDMA, is over, or has no TCP connection.
    """
    return pipe.leave(Code.SWITCHED, text)


async def switch_back(pipe: RingPipe) -> None:
    """Bring a stream that has gone on over TCP back to RDMA; returns when this end is there, and the other on
    its last step. Sending and receiving go on meanwhile.

    :raises NegotiationError: not now, with the reason; the stream stays on TCP.
    """
    if pipe.path == "tcp":
        await pipe.come_back().wait()


def switch_group(group: GroupView, text: str = "") -> int:
    """Have all streams of a link group leave RDMA; their number. New connections still use the link."""
    return sum([member.leave(Code.SWITCHED, text) for member in list(group.members)])


def switch_engine(engine: EngineView, text: str = "") -> int:
    """Have all streams of an engine leave RDMA; their number."""
    return sum([switch_group(group, text) for group in list(engine.all_groups)])

"""Leaving RDMA: the I/O around ``proto/failover.py`` for one stream, from its last WRITE to its first frame.

It begins in one of three ways: the link fails, it is requested, or the peer announces that it leaves. In each
the stream's own TCP connection, which was silent since the negotiation, carries the stream on.
"""

from __future__ import annotations

import functools
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
from ...observe import connections
from ...proto.cdc import StateFlag
from ...proto.failover import Agreed, Broken, CursorExchange, Ledger, Quiesce, Send, State
from ...verbs.remedies import warn_once
from .framed_pipe import FramedPipe
from .rejoin import Rejoin
from .tcp_carrier import PEER_DIED, TcpCarrier

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...pipes._ring import RingPipe
    from ...pipes._switchable import SwitchablePipe
    from ...pipes.tls import Carrier
    from ...proto.failover import Event
    from ...wake.base import Handle
    from ..contracts import EngineView, GroupView

__all__ = ["Failover", "may_fail_over", "switch_engine", "switch_group", "switch_pipe"]

logger = logging.getLogger("aiordma.link")

#: Completion errors for which the path to the peer, its device or ours is to blame. The others mean that one
#: end broke the rules of RDMA: with such a peer nothing goes on.
_PATH_ERRORS = {
    "WR_FLUSH_ERR",
    "RETRY_EXC_ERR",
    "RNR_RETRY_EXC_ERR",
    "FATAL_ERR",
    "RESP_TIMEOUT_ERR",
    "GENERAL_ERR",
    # An end could not carry it out for want of something: the software device without descriptors, for one.
    "LOC_QP_OP_ERR",
    "REM_OP_ERR",
}


def may_fail_over(reason: BaseException) -> bool:
    """Whether streams outlive a link that failed for this reason."""
    if isinstance(reason, CompletionError):
        return reason.status_name in _PATH_ERRORS
    return isinstance(reason, (LinkError, VerbsError))


class Failover:
    """One stream that leaves its rings. Takes the TCP connection over.

    :param switch: what the user holds.
    :param pipe: the rings it leaves.
    :param peer: the other end, for people.
    :param traffic_class: of the link that it leaves, and of the next one.
    :param peer_lost_link: called when the peer announces that its end of the link has failed.
    :param has_another: should the link have failed, this end looks for another one.
    """

    def __init__(
        self,
        switch: SwitchablePipe,
        pipe: RingPipe,
        carrier: Carrier,
        engine: EngineView,
        peer: str,
        traffic_class: int,
        peer_lost_link: Callable[[], None],
        *,
        has_another: bool = False,
    ) -> None:
        self._switch, self._pipe, self._engine, self._peer = switch, pipe, engine, peer
        self._traffic_class = traffic_class
        self._peer_lost_link, self._has_another = peer_lost_link, has_another
        self._waker = engine.waker
        timeout, stopped = engine.config.carry_timeout_ms / 1000, engine.config.stopped_peer_ms / 1000
        self._exchange = CursorExchange(pipe.token, pipe.peer_token, timeout, stopped)
        self._peer_is_stopped = False
        self._reason = ""
        self._timer: Handle | None = None
        self._carrier = TcpCarrier(carrier, engine.waker)
        self._carrier.on_input = self._carrier.on_failed = self._input
        self._carrier.watch(True)

    def leave(self, code: Code, reason: str) -> None:
        """This end leaves RDMA. :param reason: why, as found at this end."""
        self._reason = self._reason or reason
        self._run(self._exchange.leave(code, self._waker.now()))

    def quiesced(self) -> None:
        """The rings send no more, and nothing of them is under way."""
        pipe = self._pipe
        self._run(self._exchange.quiesced(Ledger(*pipe.ledger()), link_failed=pipe.link_failed))

    def receive(self, data: bytes) -> None:
        """What came on the TCP connection before this took it over."""
        self._run(self._exchange.receive(data, self._waker.now()))
        if self._exchange.peer_code == Code.LINK_LOST:
            self._peer_lost_link()

    def cancel(self) -> None:
        """The stream is aborted: so is the TCP connection."""
        self._end()
        self._carrier.reset()

    def _input(self) -> None:
        while not self._carrier.closed:
            missing = self._exchange.missing
            if not missing:
                self._carrier.watch(False)  # what comes now is the stream's
                return
            try:
                data = self._carrier.read(missing)
            except LinkError as error:
                self._run(self._exchange.eof(error.reason))
                return
            if data is None:
                return
            if not data:
                # Perhaps it had come to its end on RDMA, and its last message has not been polled yet.
                self._engine.poller.drain()
                self._run(self._exchange.eof(PEER_DIED))
                return
            self.receive(data)

    def _run(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Quiesce):
                self._pipe.stop_sending()  # which may come back here at once, through quiesced()
            elif isinstance(event, Send):
                self._carrier.put(event.data)
            elif isinstance(event, Agreed):
                self._fail_over(event)
            else:
                self._give_up(event)
        deadline = self._exchange.deadline
        under_way = self._exchange.state not in (State.AGREED, State.BROKEN)
        if self._timer is None and deadline is not None and under_way:
            self._timer = self._waker.call_at(deadline, self._time_is_up)

    def _time_is_up(self) -> None:
        self._timer = None
        answers = self._carrier.acknowledged()
        events = self._exchange.on_timer(self._waker.now(), host_answers=answers)
        if answers and not events and not self._peer_is_stopped:
            self._peer_is_stopped = True
            self._carrier.watch_host()
            logger.warning(
                "%s: its process does not run, and its host answers on TCP: a stream waits up to %g s for it",
                self._peer,
                self._engine.config.stopped_peer_ms / 1000,
            )
        self._run(events)

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._carrier.on_input = self._carrier.on_failed = None

    def _fail_over(self, event: Agreed) -> None:
        self._end()
        pipe, engine = self._pipe, self._engine
        why = describe(event.code)
        soft = engine.backend.soft
        # What never worked may have lacked something; the failure looks like that of a peer that is gone.
        missing = soft.shortage() if soft is not None and not pipe.bytes_received else None
        if missing is not None:
            warn_once(missing.error())
            why += f": {missing.text}"
        else:
            why += " (the peer left first)" if event.by_peer else f": {self._reason}" if self._reason else ""
        peer_code = event.code if event.by_peer else None
        reason = FallbackReason(event.code, why, event.code, peer_code)
        logger.debug("a stream with %s fails over to TCP: %s", self._peer, why)
        closed = bool(event.peer_flags & StateFlag.CLOSED)
        rest = b"" if closed else pipe.unplaced(event.send_from)
        if engine.config.keepalive_ms:
            self._carrier.watch_host()  # as the link's keepalive did until now
        framed = FramedPipe(self._carrier, engine.waker, self._peer, rest, reason, peer_closed=closed)
        framed.new_rejoin = functools.partial(
            Rejoin, framed, self._switch, engine, self._peer, self._traffic_class
        )
        pipe.leave(event.read_until)
        self._switch.left_rdma(framed)
        connections.left_rdma(reason)
        if self._has_another and event.code in (Code.LINK_LOST, Code.DRAINED):
            engine.devices.find_another(framed, why)

    def _give_up(self, event: Broken) -> None:
        self._end()
        self._carrier.reset()
        if event.fault:
            error: Exception = RemoteProtocolError(f"the peer broke the protocol: {event.reason}")
        elif self._reason:
            text = f"{self._reason}; the stream could not fail over to TCP: {event.reason}"
            error = LinkError(text, self._peer)
        else:
            error = LinkError(event.reason, self._peer)
        self._pipe.break_with(error)


# ---- by request


def switch_pipe(pipe: SwitchablePipe, text: str = "") -> bool:
    """Have one stream leave RDMA; it goes on over its TCP connection as soon as both ends are ready.

    :return: whether it has begun; False: it is not on RDMA, is over, or has no TCP connection.
    """
    return pipe.leave(Code.SWITCHED, text)


async def switch_back(pipe: SwitchablePipe) -> None:
    """Return a stream that has failed over to TCP to RDMA; returns when this end is there, and the other on
    its last step. Sending and receiving go on meanwhile.

    :raises NegotiationError: not now, with the reason; the stream stays on TCP.
    """
    if pipe.path == "tcp":
        await pipe.rejoin().wait()


def switch_group(group: GroupView, text: str = "") -> int:
    """Have all streams of a link group leave RDMA; their number. New connections still use the link."""
    return sum([member.leave(Code.SWITCHED, text) for member in list(group.members)])


def switch_engine(engine: EngineView, text: str = "") -> int:
    """Have all streams of an engine leave RDMA; their number."""
    return sum([switch_group(group, text) for group in list(engine.all_groups)])

"""A stream's TCP connection while the stream is on RDMA, and how the stream leaves for it.

The connection is silent first: its end shows that the peer's process has ended. Leaving begins in one of
three ways: the link fails, it is requested, or the peer announces that it leaves. In each, both ends exchange
their cursors over the connection (``proto/failover.py``), and it carries the stream on.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from typing import TYPE_CHECKING, Any

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
from ...pipes.tls import TlsLayer
from ...proto.cdc import StateFlag
from ...proto.failover import (
    MAGIC,
    MESSAGE_BYTES,
    Agreed,
    Broken,
    CursorExchange,
    Ledger,
    Quiesce,
    Refuse,
    Send,
    State,
)
from ...verbs.remedies import warn_once
from .framed_pipe import FramedPipe
from .rejoin import Rejoin
from .tcp_carrier import PEER_DIED, TcpCarrier, ends_tcp, lost_because

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...pipes._switchable import SwitchablePipe
    from ...pipes.tls import Carrier
    from ...proto.failover import Event
    from ...wake.base import Handle
    from ..contracts import EarlyOpenView, EngineView, GroupView
    from ..link import Link

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

#: Longest time from the end of a process' TCP connection until the device knows of the end of the process.
_END_SHOWS_SECONDS = 5.0


def may_fail_over(reason: BaseException) -> bool:
    """Whether streams outlive a link that failed for this reason."""
    if isinstance(reason, CompletionError):
        return reason.status_name in _PATH_ERRORS
    return isinstance(reason, (LinkError, VerbsError))


class Leaver:
    """What one connection holds of a link group, as far as its TCP connection is concerned.

    Base of the members. Streams leave for that connection; others end with it, and with their link
    (:attr:`whole`).
    """

    #: A RingPipe or a MessageChannel: they live and end in the same way.
    pipe: Any
    #: What the user holds, from connect() on: a SwitchablePipe over the rings, or the MessageChannel itself.
    connection: Any = None
    #: How far both ends have come in leaving; None: neither has begun.
    exchange: CursorExchange | None = None
    #: The connection, once it is not silent any more.
    _tcp: TcpCarrier
    _timer: Handle | None = None
    #: Why this end leaves, as it has found.
    _reason = ""
    #: Should the link have failed, this end looks for another one.
    _has_another = False
    _peer_is_stopped = False
    _on_tcp_needed: Callable[[], None] | None = None
    #: The peer's TCP connection has ended, and what its process has left is about to show.
    _end_shows: Handle | None = None

    group: GroupView
    _engine: EngineView
    _link: Link
    #: The TCP connection while it is silent.
    carrier: Carrier | None = None
    #: The caller will attach the TCP connection; why the link has failed meanwhile.
    awaits_tcp = False
    _failed_because: BaseException | None = None
    #: Set for a connection that began with a ticket.
    early_open: EarlyOpenView | None = None

    # ---- questions

    @property
    def whole(self) -> bool:
        """Whether the connection can fail over to TCP if the peer leaves RDMA."""
        return bool(self.pipe.can_leave)

    @property
    def takes_part(self) -> bool:
        """Whether the peer has the connection, on the link."""
        return self.exchange is None and self._peer_takes_part

    @property
    def _peer_takes_part(self) -> bool:
        return self.early_open is None or self.early_open.bound

    @property
    def fails_over(self) -> bool:
        """Whether it leaves a link that has failed, or will as soon as it has its TCP connection."""
        return self._failed_because is not None or self.exchange is not None

    # ---- the TCP connection is silent: for liveness, and the order of the end

    def attach_tcp(self, carrier: Carrier, received: bytes = b"") -> None:
        """:param received: bytes that came on it since the negotiation."""
        if self.pipe.is_finished:
            self._engine.waker.unwatch_fd(carrier.fileno())
            carrier.close()
            return
        self.carrier = carrier
        self._engine.waker.watch_fd(carrier.fileno(), self._on_tcp, instead=True)
        self.awaits_tcp = False
        self._on_tcp_needed = None
        if isinstance(carrier, TlsLayer):
            # TLS may have decrypted the next bytes together with those before.
            self._engine.waker.call_soon(self._on_tcp)
        reason = self._failed_because
        if reason is not None and self.fail_over(reason) and self.exchange is not None:
            if received:
                self._exchanged(received)
        elif received:
            self._received(carrier, received)

    def needs_tcp(self, callback: Callable[[], None]) -> None:
        """Call this when the link has failed, or if it has, and the TCP connection is not here yet."""
        self._on_tcp_needed = callback
        if self._failed_because is not None:
            callback()

    def look_at_tcp(self) -> None:
        """See whether the connection says something that the loop has not seen yet."""
        self._on_tcp()

    def _on_tcp(self) -> None:
        carrier = self.carrier
        if carrier is None:
            return
        try:
            # Never more than one message: the bytes behind it are the stream's.
            data = carrier.recv(MESSAGE_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except (OSError, MemoryError) as error:
            if ends_tcp(error):
                self._tcp_ended(lost_because(error))
            else:
                self.lose_tcp(lost_because(error))
            return
        if not data:
            self._tcp_ended(PEER_DIED)
            return
        self._received(carrier, data)

    def _tcp_ended(self, reason: str) -> None:
        """The peer's process has ended, or closed the TCP connection. Inside TLS that is an error, or
        a reset, where the process has not read the tickets of its server.

        Where the device finds out by itself that the process has ended, it also knows whether anything was
        left undone, and is about to say so.
        """
        self._engine.poller.drain()
        if self.pipe.peer_gone or not self._link.shows_end or not self._peer_takes_part:
            self.lose_tcp(reason)
        elif self.carrier is not None:
            self._drop_tcp()
            waker = self._engine.waker
            self._end_shows = waker.call_at(waker.now() + _END_SHOWS_SECONDS, lambda: self.lose_tcp(reason))

    def _received(self, carrier: Carrier, data: bytes) -> None:
        if self.early_open is not None and not self.early_open.bound and data[:1] != MAGIC[:1]:
            self.lose_tcp(self.early_open.explain(data))
            return
        # The peer leaves RDMA, or the bytes are not the peer's. Its last messages on the link were delivered
        # before it sent this, but may not have been polled yet.
        self._engine.poller.drain()
        if self.exchange is not None:
            self._exchanged(data)  # the link has failed at this end, too
            return
        if self.carrier is None:
            return  # a message of the link ended the connection
        # After an early open these may be the server's first bytes.
        if not self.whole:
            self._refuse(carrier, data)
            return
        self._begin()
        self._exchanged(data)

    def _refuse(self, carrier: Carrier, data: bytes) -> None:
        with contextlib.suppress(OSError):
            carrier.send(Refuse(self.pipe.peer_token, Code.FAILOVER_REFUSED).encode())
        self._drop_tcp()

    def lose_tcp(self, reason: str) -> None:
        """The TCP connection ends, and the stream with it unless the peer has finished."""
        early_open = self.early_open
        self._drop_tcp()
        # The peer's last messages were delivered before it closed the TCP connection, but may not have been
        # polled yet.
        self._engine.poller.drain()
        if not self.pipe.peer_gone:
            self.pipe.break_with(LinkError(reason, self.group.peer))
            self._link.suspect()
        if early_open is not None:
            early_open.tcp_lost()

    def _drop_tcp(self) -> None:
        carrier, self.carrier = self.carrier, None
        if carrier is not None:
            self._engine.waker.unwatch_fd(carrier.fileno())
            carrier.close()

    def _forget_end(self) -> None:
        if self._end_shows is not None:
            self._end_shows.cancel()
            self._end_shows = None

    # ---- leaving

    def leave(self, code: Code, text: str) -> bool:
        """Begin to take the stream from RDMA to its TCP connection; whether that has begun."""
        if self.carrier is None or not self.whole or not self._peer_takes_part:
            return False
        if not self.group.streams_go_on:
            return False
        self._begin_leaving(code, text)
        return True

    def fail_over(self, reason: BaseException) -> bool:
        """The link has failed; whether the stream may outlive it."""
        if (self.carrier is None and not self.awaits_tcp) or not self._peer_takes_part:
            return False
        if not self.group.streams_go_on or not may_fail_over(reason):
            return False
        if self.carrier is None:
            self._failed_because = reason
            self.pipe.stop_sending()
            if self._on_tcp_needed is not None:
                self._on_tcp_needed()
            return True
        self._begin_leaving(Code.LINK_LOST, getattr(reason, "reason", "") or str(reason))
        return True

    def _begin_leaving(self, code: Code, reason: str) -> None:
        exchange = self._begin()
        self._reason = reason
        self._run(exchange.leave(code, self._engine.waker.now()))

    def _begin(self) -> CursorExchange:
        """The connection is not silent any more."""
        carrier, self.carrier = self.carrier, None
        assert carrier is not None
        engine, pipe = self._engine, self.pipe
        engine.waker.unwatch_fd(carrier.fileno())
        timeout, stopped = engine.config.failover_timeout_ms / 1000, engine.config.stopped_peer_ms / 1000
        self._has_another = self.group.has_another
        self.exchange = CursorExchange(pipe.token, pipe.peer_token, timeout, stopped)
        self._tcp = TcpCarrier(carrier, engine.waker)
        self._tcp.on_input = self._tcp.on_failed = self._on_exchange
        self._tcp.watch(True)
        return self.exchange

    def quiesced(self) -> None:
        """The pipe has stopped sending, and nothing of it is under way."""
        if self.exchange is not None:  # otherwise attach_tcp() asks again
            pipe = self.pipe
            self._run(self.exchange.quiesced(Ledger(*pipe.ledger()), link_failed=pipe.link_failed))

    def cancel_failover(self) -> None:
        """The stream is aborted while it leaves: so is the TCP connection."""
        if self.exchange is not None:
            self._end_exchange()
            self._tcp.reset()

    def _exchanged(self, data: bytes) -> None:
        """The peer's next bytes, up to its last message on rings."""
        assert self.exchange is not None
        self._run(self.exchange.receive(data, self._engine.waker.now()))
        if self.exchange.peer_code == Code.LINK_LOST:
            self._link.lost_by_peer()

    def _on_exchange(self) -> None:
        assert self.exchange is not None
        while not self._tcp.closed:
            missing = self.exchange.missing
            if not missing:
                self._tcp.watch(False)  # what comes now is the stream's
                return
            try:
                data = self._tcp.read(missing)
            except LinkError as error:
                self._run(self.exchange.eof(error.reason))
                return
            if data is None:
                return
            if not data:
                # Perhaps it had come to its end on RDMA, and its last message has not been polled yet.
                self._engine.poller.drain()
                self._run(self.exchange.eof(PEER_DIED))
                return
            self._exchanged(data)

    def _run(self, events: list[Event]) -> None:
        exchange = self.exchange
        assert exchange is not None
        for event in events:
            if isinstance(event, Quiesce):
                self.pipe.stop_sending()  # which may come back here at once, through quiesced()
            elif isinstance(event, Send):
                self._tcp.put(event.data)
            elif isinstance(event, Agreed):
                self._go_on_by_tcp(event)
            else:
                self._give_up_leaving(event)
        under_way = exchange.state not in (State.AGREED, State.BROKEN)
        if self._timer is None and exchange.deadline is not None and under_way:
            self._timer = self._engine.waker.call_at(exchange.deadline, self._time_is_up)

    def _time_is_up(self) -> None:
        assert self.exchange is not None
        self._timer = None
        answers = self._tcp.acknowledged()
        events = self.exchange.on_timer(self._engine.waker.now(), host_answers=answers)
        if answers and not events and not self._peer_is_stopped:
            self._peer_is_stopped = True
            self._tcp.watch_host()
            logger.warning(
                "%s: its process does not run, and its host answers on TCP: a stream waits up to %g s for it",
                self.group.peer,
                self._engine.config.stopped_peer_ms / 1000,
            )
        self._run(events)

    def _end_exchange(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._tcp.on_input = self._tcp.on_failed = None

    def _go_on_by_tcp(self, event: Agreed) -> None:
        self._end_exchange()
        pipe, engine, group, switch = self.pipe, self._engine, self.group, self.connection
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
        logger.debug("a stream with %s fails over to TCP: %s", group.peer, why)
        closed = bool(event.peer_flags & StateFlag.CLOSED)
        rest = b"" if closed else pipe.unplaced(event.send_from)
        if engine.config.keepalive_ms:
            self._tcp.watch_host()  # as the link's keepalive did until now
        framed = FramedPipe(self._tcp, engine.waker, group.peer, rest, reason, peer_closed=closed)
        framed.new_rejoin = functools.partial(
            Rejoin, framed, switch, engine, group.peer, group.key.traffic_class
        )
        pipe.leave(event.read_until)
        switch.left_rdma(framed)
        connections.left_rdma(reason)
        if self._has_another and event.code in (Code.LINK_LOST, Code.DRAINED):
            engine.devices.find_another(framed, why)

    def _give_up_leaving(self, event: Broken) -> None:
        self._end_exchange()
        self._tcp.reset()
        if event.fault:
            error: Exception = RemoteProtocolError(f"the peer broke the protocol: {event.reason}")
        elif self._reason:
            text = f"{self._reason}; the stream could not fail over to TCP: {event.reason}"
            error = LinkError(text, self.group.peer)
        else:
            error = LinkError(event.reason, self.group.peer)
        self.pipe.break_with(error)


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

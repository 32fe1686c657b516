"""The pipe of a stream that has left RDMA: the contract of the ring pipe on its TCP connection, in frames
(``proto/frames.py``).

What was sent by RDMA and did not arrive goes first. What the kernel does not take at once is kept and counts
as sent, one frame at most beyond that; so a frame is always whole, whatever becomes of the sending task.

If both ends find the way back (``comeback.py``), each direction ends here with a frame that says so and goes
on in a ring pipe, which in the end gets the TCP connection back, silent as it was.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from anyio import BrokenResourceError, ClosedResourceError

from ...errors import Code, LinkError, NegotiationError, RemoteProtocolError
from ...pipes.draining import Draining
from ...proto import clc
from ...proto.cdc import StateFlag
from ...proto.frames import (
    MAX_BODY_BYTES,
    Assembler,
    data_header,
    end_frame,
    negotiation_frame,
    on_ring_frame,
)
from .rejoin import Comeback

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...errors import FallbackReason
    from ...pipes._ring import RingPipe
    from ...wake.base import Handle
    from ..contracts import EngineView
    from .tcp_carrier import Road

__all__ = ["FramedPipe"]

#: Bytes read ahead of the user, about, and at a time.
_AHEAD_BYTES = 256 * 1024
_READ_BYTES = 256 * 1024
#: How long a closed pipe waits for the peer's last word: closing with something unread would reset the
#: connection, and with it what the peer has not read yet.
_LINGER_S = 5.0

PEER_DIED = "the peer's process has ended or closed the TCP connection"


class FramedPipe:
    """Takes the road over. Non-blocking, in the thread of its loop.

    :param peer: the other end, for people.
    :param traffic_class: of the link, should it find one again.
    :param unplaced: bytes to be sent first.
    :param reason: why the stream is here.
    """

    __slots__ = (
        "_ahead",
        "_assembler",
        "_blocked",
        "_chunks",
        "_closed",
        "_comeback",
        "_engine",
        "_eof_sent",
        "_failure",
        "_limit",
        "_next",
        "_on_readable",
        "_on_writable",
        "_out_on_ring",
        "_reason",
        "_received",
        "_road",
        "_sent",
        "_waker",
        "first",
        "peer",
        "traffic_class",
    )

    def __init__(
        self,
        road: Road,
        engine: EngineView,
        peer: str,
        traffic_class: int,
        unplaced: bytes,
        reason: FallbackReason,
    ) -> None:
        waker = engine.waker
        self._road, self._waker, self._engine, self.peer = road, waker, engine, peer
        self.traffic_class = traffic_class
        self._reason = reason
        self._comeback: Comeback | None = None
        self._next: RingPipe | None = None  # the ring pipe that takes over
        self._out_on_ring = False  # what we send goes there
        #: Of two ends that come back, the one that says so first.
        self.first = False
        self._assembler = Assembler()
        self._chunks: deque[memoryview] = deque()
        self._ahead = 0  # bytes in them
        self._blocked = False  # a sender came short and is to be called
        self._closed = self._eof_sent = False
        self._failure: BaseException | None = None
        self._limit: Handle | None = None
        self._on_readable: Callable[[], None] | None = None
        self._on_writable: Callable[[], None] | None = None
        self._sent = self._received = 0
        road.on_input, road.on_flushed, road.on_failed = self._input, self._flushed, self._pull_and_wake
        rest = memoryview(unplaced)
        for at in range(0, len(rest), MAX_BODY_BYTES):
            part = rest[at : at + MAX_BODY_BYTES]
            road.put(data_header(len(part)), part)
        # With TLS, what follows the last message may have been decrypted with it: no readiness tells.
        waker.call_soon(self._begin)

    def _begin(self) -> None:
        if not self._road.closed:
            self._road.watch(True)
            self._input()

    # -- sending

    def try_send(self, data: bytes | bytearray | memoryview, start: int = 0) -> int:
        """Take as many bytes of ``data[start:]`` as may go now; their number."""
        if self._out_on_ring and self._next is not None and not self._closed:
            return self._next.try_send(data, start)
        if self._closed or self._eof_sent:
            raise ClosedResourceError
        if self._peer_closed:
            raise BrokenResourceError from LinkError("the peer has closed the stream")
        road = self._road
        self._check_road()
        with memoryview(data) as given, given.cast("B") as whole, whole[start:] as view:
            at = 0
            while at < len(view) and not road.pending:
                with view[at : at + MAX_BODY_BYTES] as part:
                    road.put(data_header(len(part)), part)
                    at += len(part)
            total = len(view)
        self._check_road()
        self._sent += at
        self._blocked = at < total
        return at

    def _check_road(self) -> None:
        reason = self._failure or self._road.failure
        if reason is not None:
            raise BrokenResourceError from reason

    def _flushed(self) -> None:
        if self._next is not None and self._assembler.on_ring:
            self._hand_over()
        elif self._closed:
            self._end_if_done()
        elif self._blocked and self._on_writable is not None:
            self._blocked = False
            self._on_writable()

    def send_eof(self) -> None:
        """The peer reads the end behind what was sent. Idempotent."""
        if self._eof_sent or self._closed:
            return
        self._eof_sent = True
        if self._out_on_ring and self._next is not None:
            self._next.send_eof()
        elif not self._coming_back:
            self._road.put(end_frame(closed=False))

    # -- receiving

    def _input(self) -> None:
        if self._ahead >= _AHEAD_BYTES:
            self._road.watch(False)  # nobody takes what is here: the kernel slows the peer down
        else:
            self._pull_and_wake()

    def _pull_and_wake(self) -> None:
        self._pull()
        if self._closed and not self._coming_back:
            self._end_if_done()
            return
        if self._on_readable is not None and (self._ahead or self._ended):
            self._on_readable()
        if self._on_writable is not None and (self._failure or self._road.failure or self._peer_closed):
            self._on_writable()

    def _pull(self) -> None:
        """Read until nothing is there or enough is."""
        road = self._road
        assembler = self._assembler
        while self._failure is None and self._ahead < _AHEAD_BYTES and self._is_read_here:
            try:
                data = road.read(_READ_BYTES)
                if data is None:
                    road.watch(True)
                    return
                if not data:
                    if not self._assembler.done:
                        self._fail(LinkError(PEER_DIED))
                    road.watch(False)
                    return
                before = self._peer_closed
                for part in self._assembler.feed(data):
                    self._received += len(part)
                    if not self._closed:
                        self._chunks.append(part)
                        self._ahead += len(part)
                if self._peer_closed and not before and not self._eof_sent:
                    # It takes nothing any more. Say that we know: it waits for that before it leaves.
                    road.put(end_frame(closed=False))
                if assembler.done and self._comeback is not None:
                    self._comeback.cancel()
                while assembler.messages:
                    self._negotiate(clc.decode(assembler.messages.pop(0)))
                if assembler.on_ring:
                    road.watch(False)
                    self._peer_is_on_ring()
            except (LinkError, RemoteProtocolError) as error:
                self._fail(error)

    @property
    def _is_read_here(self) -> bool:
        return not (self._road.closed or self._assembler.on_ring)

    def _fail(self, reason: BaseException) -> None:
        self._failure = reason
        if isinstance(reason, RemoteProtocolError):
            self._road.reset()
        else:
            self._road.watch(False)
        if self._comeback is not None:
            self._comeback.cancel()

    def try_receive(self, max_bytes: int) -> bytes | None:
        """What is there, at most ``max_bytes``; None when nothing is; ``b""`` at the end."""
        if not self._ahead:
            self._pull()
            if not self._ahead:
                return self._nothing() if self._beyond is None else self._beyond.try_receive(max_bytes)
        first = self._chunks[0]
        if len(first) > max_bytes:
            self._chunks[0] = first[max_bytes:]
            first = first[:max_bytes]
        else:
            self._chunks.popleft()
        self._ahead -= len(first)
        return bytes(first)

    def try_receive_into(self, buffer: bytearray | memoryview) -> int:
        """Fill ``buffer`` with what is there; -1 when nothing is, 0 at the end."""
        if self._beyond is not None:
            return self._beyond.try_receive_into(buffer)
        with memoryview(buffer) as given, given.cast("B") as view:
            data = self.try_receive(len(view))
            if data is None:
                return -1
            view[: len(data)] = data
            return len(data)

    def view(self) -> memoryview:
        """The received bytes that can be lent without a copy; may be empty."""
        if not self._ahead:
            self._pull()
            if not self._ahead:
                if self._beyond is not None:
                    return self._beyond.view()
                self._nothing()
                return memoryview(b"")
        return self._chunks[0][:]

    def consume(self, n: int) -> None:
        """The first ``n`` bytes of :meth:`view` are taken."""
        if self._beyond is not None:
            self._beyond.consume(n)
            return
        if not 0 <= n <= (len(self._chunks[0]) if self._chunks else 0):
            raise ValueError(f"consume({n}): fewer bytes are readable")
        if n:
            self._ahead -= n
            if n == len(self._chunks[0]):
                self._chunks.popleft()
            else:
                self._chunks[0] = self._chunks[0][n:]

    def _nothing(self) -> bytes | None:
        if self._assembler.done:
            return b""
        if self._failure is not None:
            raise BrokenResourceError from self._failure
        return None

    # -- the way back to RDMA

    def come_back(self) -> Comeback:
        """Try to find a ring again. :raises NegotiationError: not in this state."""
        if self._next is not None and self._handed_over:
            return self._next.come_back()
        if self._coming_back and self._comeback is not None:
            return self._comeback
        if not self.may_come_back:
            raise NegotiationError(Code.OUT_OF_SYNC, "the stream is closed, half-closed or on RDMA")
        self._comeback = Comeback(self, self._engine, self.peer)
        self._comeback.ask()
        return self._comeback

    @property
    def may_come_back(self) -> bool:
        """Whether the stream is on TCP and whole."""
        shut = self._closed or self._eof_sent or self._ended
        return not (shut or self._next is not None or self._road.failure)

    @property
    def _coming_back(self) -> bool:
        return self._comeback is not None and not self._comeback.over

    def say(self, frame: bytes) -> None:
        """A frame of the negotiation."""
        if not self._out_on_ring:
            self._road.put(frame)

    def _negotiate(self, message: clc.Message) -> None:
        if self._coming_back and self._comeback is not None:
            self._comeback.heard(message)
        elif isinstance(message, clc.Decline):
            pass  # of an attempt that has ended here already
        elif isinstance(message, clc.Proposal) and not (self._closed or self._eof_sent or self._next):
            self._comeback = Comeback(self, self._engine, self.peer)
            self._comeback.answer(message)
        else:
            self.say(negotiation_frame(clc.Decline(diagnosis=Code.OUT_OF_SYNC).encode()))

    def ready(self, pipe: RingPipe) -> None:
        """The ring is there."""
        self._next = pipe
        pipe.on_readable, pipe.on_writable = self._on_readable, self._on_writable
        if self.first:
            self._go_on_ring()
        if self._assembler.on_ring:
            self._peer_is_on_ring()

    def stay(self) -> None:
        """The attempt has failed."""
        pipe, self._next = self._next, None
        if pipe is not None:
            pipe.abort()
        if self._out_on_ring:
            lost = LinkError("the stream was lost on its way back to RDMA", self.peer)
            self._failure = self._failure or lost
            self._road.reset()
        elif self._closed:
            self._road.put(end_frame(closed=True))
            self._end_if_done()
        elif self._eof_sent:
            self._road.put(end_frame(closed=False))
        if self._out_on_ring and not self._closed:
            for callback in (self._on_readable, self._on_writable):
                if callback is not None:
                    callback()

    def _go_on_ring(self) -> None:
        pipe = self._next
        assert pipe is not None
        self._road.put(on_ring_frame())
        self._out_on_ring = True
        if self._closed:
            pipe.close()
        elif self._eof_sent:
            pipe.send_eof()
        elif self._blocked and self._on_writable is not None:
            self._blocked = False
            self._on_writable()

    def _peer_is_on_ring(self) -> None:
        if self._next is None:
            if not self._coming_back:
                self._fail(RemoteProtocolError("frames: the peer goes to a ring that it does not have"))
            return
        if not self._out_on_ring:
            self._go_on_ring()
        self._hand_over()

    def _hand_over(self) -> None:
        """Nothing more of the stream is on TCP: the connection is the ring's again."""
        if self._road.pending or self._road.closed or self._next is None or self._comeback is None:
            return
        if self._limit is not None:
            self._limit.cancel()
        _lingering.discard(self._waker, self)
        self._comeback.succeed()
        self._next.attach_tcp(self._road.release(), self._assembler.rest)
        if self._on_readable is not None:
            self._on_readable()

    @property
    def _beyond(self) -> RingPipe | None:
        """What is read after the last byte on TCP."""
        return self._next if self._assembler.on_ring and not self._ahead else None

    @property
    def path(self) -> str:
        """ "tcp", or "rdma" when both directions are there again."""
        return self._next.path if self._next is not None and self._handed_over else "tcp"

    @property
    def fallback_reason(self) -> FallbackReason | None:
        """Why the stream is not on RDMA."""
        handed_over = self._next is not None and self._handed_over
        return self._next.fallback_reason if handed_over and self._next is not None else self._reason

    @property
    def _handed_over(self) -> bool:
        return self._road.closed and self._assembler.on_ring

    def leave(self, code: Code, text: str) -> bool:
        """Leave RDMA again; whether that has begun."""
        return self._next is not None and self._next.leave(code, text)

    # -- state

    @property
    def _peer_closed(self) -> bool:
        return bool(self._assembler.flags & StateFlag.CLOSED)

    @property
    def _ended(self) -> bool:
        return self._assembler.done or self._failure is not None

    @property
    def readable(self) -> int:
        """Bytes that are there."""
        if not self._ahead:
            self._pull()
        return self._ahead if self._beyond is None else self._beyond.readable

    @property
    def writable(self) -> int:
        """1 when some can be sent now, else 0: the kernel does not tell how much."""
        if self._out_on_ring and self._next is not None and not self._closed:
            return self._next.writable
        shut = self._closed or self._eof_sent or self._peer_closed or self.error is not None
        return 0 if shut or self._road.pending else 1

    @property
    def at_eof(self) -> bool:
        """The peer has finished, and everything was taken."""
        if self._beyond is not None:
            return self._beyond.at_eof
        return self._assembler.done and not self._ahead

    @property
    def peer_done(self) -> bool:
        """The peer has said that it sends no more."""
        return self._assembler.done or (self._next is not None and self._next.peer_gone)

    @property
    def error(self) -> BaseException | None:
        """Why the connection is lost, None while it is not (or when everything came before that)."""
        if self._next is not None and self._failure is None:
            return self._next.error
        return None if self._assembler.done else self._failure

    @property
    def on_readable(self) -> Callable[[], None] | None:
        """Called when data, the end or an error has come."""
        return self._on_readable

    @on_readable.setter
    def on_readable(self, callback: Callable[[], None] | None) -> None:
        self._on_readable = callback
        if self._next is not None:
            self._next.on_readable = callback

    @property
    def on_writable(self) -> Callable[[], None] | None:
        """Called when there is room again after try_send() came short, or on an error."""
        return self._on_writable

    @on_writable.setter
    def on_writable(self, callback: Callable[[], None] | None) -> None:
        self._on_writable = callback
        if self._next is not None:
            self._next.on_writable = callback

    def spin_readable(self) -> bool:
        """One look into the kernel; on the ring, as the engine's policy allows."""
        if self._beyond is not None:
            return self._beyond.spin_readable()
        return self.readable > 0 or self._ended

    def spin_writable(self) -> bool:
        """TCP gains nothing from polling."""
        return self._out_on_ring and self._next is not None and self._next.spin_writable()

    @property
    def counters(self) -> tuple[int, int]:
        """Bytes of the stream that were sent and received here."""
        beyond = (0, 0) if self._next is None else self._next.counters
        return self._sent + beyond[0], self._received + beyond[1]

    @property
    def own_counters(self) -> tuple[int, int]:
        """The same without those of the ring that has taken over."""
        return self._sent, self._received

    @property
    def target(self) -> RingPipe | None:
        """The ring pipe, when all is there; else None."""
        return self._next if self._handed_over and not self._ahead else None

    # -- the end

    def close(self) -> None:
        """Close both directions; what was sent still arrives. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._on_readable = self._on_writable = None
        self._chunks.clear()
        self._ahead = 0
        if self._out_on_ring and self._next is not None:
            self._next.close()
        if self._road.closed:
            return
        _lingering.add(self._waker, self)
        if self._coming_back:
            self._limit = self._waker.call_at(self._waker.now() + _LINGER_S, self._end)
        else:
            self._road.put(end_frame(closed=True))
        self._pull()
        if not self._coming_back:
            self._end_if_done()

    def _end_if_done(self) -> None:
        road = self._road
        if road.closed or road.failure is not None or self._ended:
            if not road.pending or road.failure is not None or self._failure is not None:
                self._end()
        elif not road.pending and self._limit is None:
            self._limit = self._waker.call_at(self._waker.now() + _LINGER_S, self._end)

    def _end(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
        self._road.close()
        if self._comeback is not None:
            self._comeback.cancel()
        _lingering.discard(self._waker, self)

    def abort(self) -> None:
        """Reset the connection: the peer gets an error. Idempotent."""
        self._closed = True
        self._on_readable = self._on_writable = None
        self._chunks.clear()
        self._ahead = 0
        if self._next is not None:
            self._next.abort()
        self._road.reset()
        self._end()


_lingering = Draining[FramedPipe](FramedPipe._end)

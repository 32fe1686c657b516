"""The pipe of a stream that has left RDMA: the contract of the ring pipe on its TCP connection, in frames
(``proto/frames.py``).

What was sent by RDMA and did not arrive goes first. What the kernel does not take at once is kept and counts
as sent, one frame at most beyond that; so a frame is always whole, whatever becomes of the sending task.
"""

from __future__ import annotations

import functools
from collections import deque
from typing import TYPE_CHECKING

from anyio import BrokenResourceError, ClosedResourceError

from .errors import LinkError, RemoteProtocolError
from .proto.cdc import StateFlag
from .proto.frames import MAX_BODY_BYTES, Assembler, data_header, end_frame

if TYPE_CHECKING:
    from collections.abc import Callable

    from .road import Road
    from .wake.base import Handle, Waker

__all__ = ["FramedPipe"]

#: Bytes read ahead of the user, about, and at a time.
_AHEAD_BYTES = 256 * 1024
_READ_BYTES = 256 * 1024
#: How long a closed pipe waits for the peer's last word: closing with something unread would reset the
#: connection, and with it what the peer has not read yet.
_LINGER_S = 5.0

PEER_DIED = "the peer's process has ended or closed the TCP connection"


class FramedPipe:
    """Takes the road over. Non-blocking, in the thread of its loop."""

    __slots__ = (
        "_ahead",
        "_assembler",
        "_blocked",
        "_chunks",
        "_closed",
        "_eof_sent",
        "_failure",
        "_limit",
        "_on_readable",
        "_on_writable",
        "_received",
        "_road",
        "_sent",
        "_waker",
    )

    path = "tcp"

    def __init__(self, road: Road, waker: Waker, unplaced: bytes) -> None:
        self._road, self._waker = road, waker
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
        if self._closed:
            self._end_if_done()
        elif self._blocked and self._on_writable is not None:
            self._blocked = False
            self._on_writable()

    def send_eof(self) -> None:
        """The peer reads the end behind what was sent. Idempotent."""
        if not self._eof_sent and not self._closed:
            self._eof_sent = True
            self._road.put(end_frame(closed=False))

    # -- receiving

    def _input(self) -> None:
        if self._ahead >= _AHEAD_BYTES:
            self._road.watch(False)  # nobody takes what is here: the kernel slows the peer down
        else:
            self._pull_and_wake()

    def _pull_and_wake(self) -> None:
        self._pull()
        if self._closed:
            self._end_if_done()
            return
        if self._on_readable is not None and (self._ahead or self._ended):
            self._on_readable()
        if self._on_writable is not None and (self._failure or self._road.failure or self._peer_closed):
            self._on_writable()

    def _pull(self) -> None:
        """Read until nothing is there or enough is."""
        road = self._road
        while self._failure is None and self._ahead < _AHEAD_BYTES and not road.closed:
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
            except (LinkError, RemoteProtocolError) as error:
                self._fail(error)

    def _fail(self, reason: BaseException) -> None:
        self._failure = reason
        if isinstance(reason, RemoteProtocolError):
            self._road.reset()
        else:
            self._road.watch(False)

    def try_receive(self, max_bytes: int) -> bytes | None:
        """What is there, at most ``max_bytes``; None when nothing is; ``b""`` at the end."""
        if not self._ahead:
            self._pull()
            if not self._ahead:
                return self._nothing()
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
                self._nothing()
                return memoryview(b"")
        return self._chunks[0][:]

    def consume(self, n: int) -> None:
        """The first ``n`` bytes of :meth:`view` are taken."""
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
        return self._ahead

    @property
    def writable(self) -> int:
        """1 when some can be sent now, else 0: the kernel does not tell how much."""
        shut = self._closed or self._eof_sent or self._peer_closed or self.error is not None
        return 0 if shut or self._road.pending else 1

    @property
    def at_eof(self) -> bool:
        """The peer has finished, and everything was taken."""
        return self._assembler.done and not self._ahead

    @property
    def peer_done(self) -> bool:
        """The peer has said that it sends no more."""
        return self._assembler.done

    @property
    def error(self) -> BaseException | None:
        """Why the connection is lost, None while it is not (or when everything came before that)."""
        return None if self._assembler.done else self._failure

    @property
    def on_readable(self) -> Callable[[], None] | None:
        """Called when data, the end or an error has come."""
        return self._on_readable

    @on_readable.setter
    def on_readable(self, callback: Callable[[], None] | None) -> None:
        self._on_readable = callback

    @property
    def on_writable(self) -> Callable[[], None] | None:
        """Called when there is room again after try_send() came short, or on an error."""
        return self._on_writable

    @on_writable.setter
    def on_writable(self, callback: Callable[[], None] | None) -> None:
        self._on_writable = callback

    def spin_readable(self) -> bool:
        """One look into the kernel."""
        return self.readable > 0 or self._ended

    def spin_writable(self) -> bool:
        """TCP gains nothing from polling."""
        return False

    @property
    def counters(self) -> tuple[int, int]:
        """Bytes of the stream that were sent and received here."""
        return self._sent, self._received

    # -- the end

    def close(self) -> None:
        """Close both directions; what was sent still arrives. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._on_readable = self._on_writable = None
        self._chunks.clear()
        self._ahead = 0
        self._road.put(end_frame(closed=True))
        _lingering_on(self._waker).add(self)
        self._pull()
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
        _lingering_on(self._waker).discard(self)

    def abort(self) -> None:
        """Reset the connection: the peer gets an error. Idempotent."""
        self._closed = True
        self._on_readable = self._on_writable = None
        self._chunks.clear()
        self._ahead = 0
        self._road.reset()
        self._end()


# Closed pipes that are still delivering, by event loop: they end with it at the latest.
_lingering: dict[Waker, set[FramedPipe]] = {}


def _lingering_on(waker: Waker) -> set[FramedPipe]:
    pipes = _lingering.get(waker)
    if pipes is None:
        pipes = _lingering[waker] = set()
        waker.at_loop_end(functools.partial(_end_all, waker))
    return pipes


def _end_all(waker: Waker) -> None:
    for pipe in list(_lingering[waker]):
        pipe._end()
    del _lingering[waker]

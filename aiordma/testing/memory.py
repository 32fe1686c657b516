"""A ring pipe in memory: the contract of the RDMA ring (`aiordma.pipes._ring.RingPipe`) without a device.

Everything that sits on a ring pipe (streams, the asyncio transport, examples) can be tested over it: the
rings are as small as the test wants, so partial writes and wrap-around happen all the time; delivery is
immediate, on the event loop, or by hand; and the connection can be broken at any moment with any error.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, NamedTuple

import anyio

from .. import wake
from ..plain import check_plain

if TYPE_CHECKING:
    import socket

Bytes = bytes | bytearray | memoryview
Schedule = Callable[[Callable[[], None]], object]


class MemoryPipeStatistics(NamedTuple):
    """Counters of one end."""

    #: payload bytes placed in the peer's ring
    bytes_sent: int
    #: payload bytes taken from the own ring
    bytes_received: int
    #: calls of try_send() that could not place everything
    short_sends: int
    #: calls of spin_readable() and spin_writable()
    busy_polls: int
    #: those of them that ended with the condition fulfilled
    busy_poll_hits: int


class _Direction:
    """One ring with its cursors: absolute byte counts, so full and empty cannot be confused.

    The writer sees `produced` and `credited`, the reader `arrived` and `consumed`; what lies between
    `produced` and `arrived`, or `consumed` and `credited`, is still on its way.
    """

    __slots__ = (
        "arrived",
        "buffer",
        "closed",
        "consumed",
        "credited",
        "fin",
        "fin_arrived",
        "produced",
        "size",
    )

    def __init__(self, size: int) -> None:
        self.size = size
        self.buffer = memoryview(bytearray(size))
        self.produced = self.arrived = self.consumed = self.credited = 0
        self.fin = self.fin_arrived = False
        self.closed = False  # the reader has gone: what is written now is lost

    def put(self, data: memoryview) -> int:
        n = min(len(data), self.size - (self.produced - self.credited))
        at = self.produced % self.size
        first = min(n, self.size - at)
        self.buffer[at : at + first] = data[:first]
        self.buffer[: n - first] = data[first:n]
        self.produced += n
        return n

    def contiguous(self) -> memoryview:
        at = self.consumed % self.size
        return self.buffer[at : at + min(self.arrived - self.consumed, self.size - at)]


class MemoryPipe:
    """One end of `memory_pipe_pair`. All methods are synchronous and none blocks."""

    path = "memory"
    pushes = False
    reads_ahead = 0

    def __init__(self, out: _Direction, inc: _Direction, schedule: Schedule | None, spin: bool) -> None:
        self._on_readable: Callable[[], None] | None = None
        self._on_writable: Callable[[], None] | None = None
        self._out = out
        self._in = inc
        self._schedule = schedule
        self._spin = spin
        self._peer: MemoryPipe = self
        self._scheduled = False  # a delivery to this end is on its way
        self._blocked = False  # try_send() came short: on_writable is due when credit comes back
        self._closed = False
        self._peer_gone = False
        self._error: BaseException | None = None
        self._coming_error: BaseException | None = None
        self._sock: socket.socket | None = None
        self._sent = self._received = self._short = self._spins = self._hits = 0

    @property
    def on_readable(self) -> Callable[[], None] | None:
        """Called when data, EOF or an error arrives.

        Setting it is what an operation does before it waits, and so polls: with ``spin``, what is on its way
        arrives, which calls the callback at once.
        """
        return self._on_readable

    @on_readable.setter
    def on_readable(self, callback: Callable[[], None] | None) -> None:
        self._on_readable = callback
        if callback is not None and self._spin:
            self._deliver()

    @property
    def on_writable(self) -> Callable[[], None] | None:
        """Called when credit comes back after a short try_send(), or an error. Setting it polls, too."""
        return self._on_writable

    @on_writable.setter
    def on_writable(self, callback: Callable[[], None] | None) -> None:
        self._on_writable = callback
        if callback is not None and self._spin:
            self._deliver()

    # ---- sending ------------------------------------------------------------------------------------

    def try_send(self, data: Bytes, start: int = 0) -> int:
        """Place as much of `data[start:]` as the peer's ring has room for; return the number of bytes.

        :raises anyio.ClosedResourceError: after close(), abort() or send_eof() on this end
        :raises anyio.BrokenResourceError: the connection failed, or the peer has closed its end
        """
        if self._closed:
            raise anyio.ClosedResourceError
        if self._error is not None:
            raise anyio.BrokenResourceError from self._error
        if self._out.fin:
            raise anyio.ClosedResourceError
        if self._peer_gone:
            raise anyio.BrokenResourceError from BrokenPipeError(errno.EPIPE, "the peer has closed its end")
        check_plain(data)
        with memoryview(data) as given, given.cast("B") as view:
            total = len(view)
            if not 0 <= start <= total:
                raise ValueError(f"start must be between 0 and {total}, not {start}")
            with view[start:] as rest:
                n = self._out.put(rest)
        self._sent += n
        if start + n < total:
            self._short += 1
            self._blocked = True
        if n:
            self._notify_peer()
        return n

    @property
    def writable(self) -> int:
        """Bytes that try_send() would place now."""
        if self._closed or self._error is not None or self._peer_gone or self._out.fin:
            return 0
        return self._out.size - (self._out.produced - self._out.credited)

    def send_eof(self) -> None:
        """Announce to the peer that nothing more will be sent. Idempotent."""
        if not self._closed and self._error is None and not self._out.fin:
            self._out.fin = True
            self._notify_peer()

    # ---- receiving ----------------------------------------------------------------------------------

    def _check_receive(self) -> None:
        if self._closed:
            raise anyio.ClosedResourceError
        if self._error is not None and not self.readable and not self._in.fin_arrived:
            raise anyio.BrokenResourceError from self._error

    def try_receive(self, max_bytes: int) -> bytes | None:
        """At most `max_bytes` bytes; None when there are none now; b"" when the peer has finished.

        :raises ValueError: max_bytes < 1
        :raises anyio.ClosedResourceError: this end is closed
        :raises anyio.BrokenResourceError: the connection failed, and what had arrived is read
        """
        if max_bytes < 1:
            raise ValueError(f"max_bytes must be at least 1, not {max_bytes}")
        self._check_receive()
        n = min(max_bytes, self.readable)
        if not n:
            return b"" if self._in.fin_arrived else None
        data = bytearray(n)
        self._take(memoryview(data))
        return bytes(data)

    def poll_send(self, data: Bytes, start: int = 0) -> int:
        """try_send(), and again for as long as polling finds room, if this pair was made to spin."""
        placed = self.try_send(data, start)
        total = memoryview(data).nbytes - start
        while placed < total and self.spin_writable() and self._error is None and not self._peer_gone:
            placed += self.try_send(data, start + placed)
        return placed

    def poll_receive(self, max_bytes: int) -> bytes | None:
        """try_receive(): there is nothing to poll here."""
        return self.try_receive(max_bytes)

    def try_receive_into(self, buf: bytearray | memoryview) -> int:
        """Fill `buf` with what is there; -1 when there is nothing now, 0 when the peer has finished."""
        check_plain(buf)
        with memoryview(buf) as given, given.cast("B") as view:
            if not len(view):
                raise ValueError("the buffer must hold at least 1 byte")
            self._check_receive()
            if not self.readable:
                return 0 if self._in.fin_arrived else -1
            n = min(len(view), self.readable)
            self._take(view[:n])
            return n

    def _take(self, into: memoryview) -> None:
        done = 0
        while done < len(into):
            part = self._in.contiguous()[: len(into) - done]
            into[done : done + len(part)] = part
            done += len(part)
            self._in.consumed += len(part)
        self._received += done
        self._notify_peer()

    def view(self) -> memoryview:
        """The contiguous readable part, without a copy; valid until consume()."""
        self._check_receive()
        return self._in.contiguous().toreadonly()

    def consume(self, n: int) -> None:
        """Release `n` bytes that were read through view()."""
        if not 0 <= n <= self.readable:
            raise ValueError(f"cannot consume {n} bytes of {self.readable} readable ones")
        if n:
            self._in.consumed += n
            self._received += n
            self._notify_peer()

    @property
    def readable(self) -> int:
        """Bytes that have arrived and were not taken yet; 0 once this end is closed."""
        return 0 if self._closed else self._in.arrived - self._in.consumed

    @property
    def at_eof(self) -> bool:
        """The peer has finished sending, and everything was read."""
        return self._in.fin_arrived and self._in.arrived == self._in.consumed

    @property
    def error(self) -> BaseException | None:
        """Why the connection failed, None while it has not."""
        return self._error

    # ---- polling, end, statistics ---------------------------------------------------------------------

    def spin_readable(self) -> bool:
        """Poll for data, EOF or an error, if this pair was made to spin; what is on its way arrives."""
        return self._poll(lambda: bool(self.readable) or self._in.fin_arrived or self._error is not None)

    def spin_writable(self) -> bool:
        """Poll for room in the peer's ring or an error, if this pair was made to spin."""
        return self._poll(lambda: self.writable > 0 or self._error is not None or self._peer_gone)

    def look(self) -> None:
        """What is on its way arrives, whether this pair was made to spin or not."""
        if not self._closed:
            self._deliver()

    def _poll(self, holds: Callable[[], bool]) -> bool:
        if self._closed:
            raise anyio.ClosedResourceError
        self._spins += 1
        if self._spin and not holds():
            self._deliver()
        if holds():
            self._hits += 1
            return True
        return False

    def close(self) -> None:
        """End of both directions; bytes already sent still reach the peer. Idempotent."""
        if not self._closed:
            self._out.fin = True
            self._end()

    def abort(self) -> None:
        """End of the connection at once: the peer gets an error. Idempotent, also after close()."""
        if not self._closed:
            self._peer._coming_error = ConnectionResetError(
                errno.ECONNRESET, "the peer aborted the connection"
            )
            self._end()

    def _end(self) -> None:
        self._closed = True
        self._in.closed = True
        self._on_readable = self._on_writable = None
        if self._sock is not None:
            self._sock.close()
        self._notify_peer()

    def break_with(self, error: BaseException) -> None:
        """Fault injection: the link fails, and both ends learn of it with `error`."""
        for end in (self, self._peer):
            if not end._closed:
                end._coming_error = error
                end._notify()

    def attach_tcp(self, sock: socket.socket) -> None:
        """Own the TCP connection that this pipe was negotiated on: closed together with the pipe."""
        wake.current().unwatch_fd(sock.fileno())  # its negotiation is over
        self._sock = sock

    def statistics(self) -> MemoryPipeStatistics:
        """What happened so far."""
        return MemoryPipeStatistics(self._sent, self._received, self._short, self._spins, self._hits)

    # ---- delivery -------------------------------------------------------------------------------------

    def _notify_peer(self) -> None:
        self._peer._notify()

    def _notify(self) -> None:
        if self._schedule is None:
            self._deliver()
        elif not self._scheduled:
            self._scheduled = True
            self._schedule(self._deliver)

    def _deliver(self) -> None:
        """Everything that is on its way to this end arrives: bytes, EOF, credit, the error."""
        self._scheduled = False
        if self._closed or self._error is not None:
            return
        inc, out = self._in, self._out
        news = inc.produced > inc.arrived or (inc.fin and not inc.fin_arrived)
        inc.arrived = inc.produced
        inc.fin_arrived = inc.fin
        credit = out.consumed > out.credited
        out.credited = out.consumed
        gone = out.closed and not self._peer_gone
        self._peer_gone = out.closed
        self._error = self._coming_error
        failed = self._error is not None
        room = self._blocked and (credit or gone or failed)
        if room:
            self._blocked = False
        if (news or failed) and self.on_readable is not None:
            self.on_readable()
        if room and self.on_writable is not None:  # the first callback may have closed this end
            self.on_writable()


def memory_pipe_pair(
    ring_bytes: int = 65536,
    *,
    delivery: Literal["soon", "immediate"] | Schedule = "soon",
    spin: bool = False,
) -> tuple[MemoryPipe, MemoryPipe]:
    """Two connected ends, each with a receive ring of `ring_bytes` (any size of at least 1 byte).

    :param delivery: when the other end sees bytes, credit, EOF and errors. ``"soon"``: in a callback of the
        running event loop (asyncio or trio); ``"immediate"``: inside the call that caused it, so callbacks
        nest; or a function that is given the delivery to run, such as ``list.append``, to order the steps
        by hand
    :param spin: whether spin_readable() and spin_writable() poll, which lets what is on its way arrive
    """
    if ring_bytes < 1:
        raise ValueError(f"ring_bytes must be at least 1, not {ring_bytes}")
    schedule: Schedule | None
    if delivery == "soon":
        schedule = _loop_schedule()
    elif delivery == "immediate":
        schedule = None
    elif callable(delivery):
        schedule = delivery
    else:
        raise ValueError(f'delivery must be "soon", "immediate" or a function, not {delivery!r}')
    there, back = _Direction(ring_bytes), _Direction(ring_bytes)
    one, other = MemoryPipe(there, back, schedule, spin), MemoryPipe(back, there, schedule, spin)
    one._peer, other._peer = other, one
    return one, other


def _loop_schedule() -> Schedule:
    import asyncio

    try:
        return asyncio.get_running_loop().call_soon
    except RuntimeError:
        import trio

        return trio.lowlevel.current_trio_token().run_sync_soon

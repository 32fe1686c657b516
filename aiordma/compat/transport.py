"""An asyncio transport on a ring pipe.

It keeps the contract of asyncio's own socket transport: write() never blocks (what the peer's ring has no
room for waits in a queue), pause_writing() and resume_writing() alternate, and connection_made(), data,
eof_received() and connection_lost() come in this order, the last exactly once and always from the loop.

:mod:`.reading` has how data reaches the protocol; here is what writes, and how the connection ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
import sys
import warnings
import weakref
from asyncio import constants
from asyncio.log import logger as asyncio_logger
from typing import TYPE_CHECKING, Any

import anyio

from ..borrowed import ENABLED, shapes
from ..errors import as_connection_error
from ..plain import check_plain
from ..streams.info import StreamInfo
from ..wake.draining import sent_all
from ..wake.ending import note_unclosed
from ..wake.origin import here
from ..wake.outbox import release
from .backlog import GATHER_BYTES, Backlog, as_bytes
from .claims import claim
from .reading import ReadingTransport
from .sendfile import from_the_beginning
from .shown_socket import ShownSocket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from ..pipes.contracts import Buffer, Pipe
    from .contracts import TransportOwner

_log = logging.getLogger("aiordma.compat")

_BYTES = (bytes, bytearray, memoryview)

#: seconds in which a program that has paused reading may write after the peer's end, as if on a long way
_DISCARD_S = 0.2
#: and bytes, as much as such a way would hold: `loop.sendfile()` pauses reading, and would send all its file
_DISCARD_BYTES = 256 * 1024
#: whether asyncio's writelines() takes None for a list of nothing
_NONE_IS_EMPTY = sys.version_info >= (3, 12)
#: polls for room in one drain() before it parks
_FLUSH_BUDGET = 64


#: Whether asyncio's way to send files by a transport like ours is as expected.
_SENDS_FILES = ENABLED and not shapes.sendfile()


class RingTransport(ReadingTransport):
    """`asyncio.Transport` over a ring pipe; made by `aiordma.create_connection` and its relatives."""

    # With a dictionary beside them: test suites replace write() and its like in a transport.
    __slots__ = (
        "__dict__",
        "__weakref__",
        "_backlog",
        "_claim",
        "_conn_lost",
        "_direct",
        "_discarded",
        "_discards_until",
        "_eof",
        "_lost_writes",
        "_met_end",
        "_sender",
        "_server",
        "_shut",
        "_sock",
        "_try_send",
        "origin",
    )

    _protocol_paused: bool
    _maybe_pause_protocol: Callable[[], None]
    _maybe_resume_protocol: Callable[[], None]

    #: Whether its payload has an end of its own beside that of the TCP connection.
    _ends_beside_tcp = True

    #: asyncio asks for these two before loop.start_tls() and loop.sendfile() take a transport, and for the
    #: base class, which also brings the water marks
    _start_tls_compatible = True

    @property
    def _sendfile_compatible(self) -> Any:
        if not _SENDS_FILES:
            raise AttributeError("loop.sendfile() is switched off")
        from_the_beginning(self._loop)
        return constants._SendfileMode.FALLBACK

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        pipe: Pipe,
        protocol: asyncio.BaseProtocol,
        *,
        extra: Mapping[str, Any] | None = None,
        server: TransportOwner | None = None,
        waiter: asyncio.Future[None] | None = None,
        at_once: bool = False,
        sock: socket.socket | None = None,
    ) -> None:
        """`waiter` is set when connection_made() has been called.

        `sock`: the socket that the caller brought, closed at the end; the pipe has one of its own beside it.

        `at_once`: connection_made() is called here, not from the loop: the protocol is none of a user's.
        """
        info = {"aiordma.path": "rdma", "aiordma.fallback_reason": None, "aiordma.stream": StreamInfo(pipe)}
        super().__init__(loop, pipe, {**info, **(extra or {})})
        self.origin = here()
        self._try_send = pipe.try_send
        self._server = server
        self._sock = sock
        self._backlog = Backlog()
        self._direct = True  # a write may go straight into the ring: open, nothing queued
        #: The peer takes nothing more, and what it sent before is not delivered yet.
        self._discards_until: float | None = None
        self._discarded = 0
        self._conn_lost = False  # connection_lost() is scheduled or over
        self._lost_writes = 0
        self._met_end = False  # a write has met the peer's end, and was no error
        self._eof = False
        self._shut = False  # shutdown() of the socket has ended writing
        self._sender: asyncio.Task[Any] | None = None  # sends a file; others may not write
        self._set_protocol(protocol)
        self._claim_descriptor()
        if server is not None:
            server.attach(self)
        pipe.on_writable = self._on_writable
        if at_once:
            protocol.connection_made(self)
            self._start_reading()
            return
        self._call_soon(protocol.connection_made, self)
        self._call_soon(self._start_reading)
        if waiter is not None:
            self._call_soon(_set_unless_done, waiter)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """See asyncio. The path may change from "rdma" to "tcp" while the connection goes on."""
        if name in ("aiordma.path", "aiordma.fallback_reason"):
            reason = getattr(self._pipe, "fallback_reason", None)
            if reason is not None:
                return "tcp" if name == "aiordma.path" else reason
        return super().get_extra_info(name, default)

    def __repr__(self) -> str:
        state = "closed" if self._conn_lost else "closing" if self._closing else "open"
        return (
            f"<{type(self).__name__} {state} peer={self._extra.get('peername')} queued={self._backlog.size}>"
        )

    def __del__(self, _warn: Any = warnings.warn) -> None:
        if not getattr(self, "_conn_lost", True):
            note_unclosed(repr(self), self.origin)
            _warn(f"unclosed transport {self!r}", ResourceWarning, source=self)
            self._drop_pipe()
            self._close_socket()

    def _drop_pipe(self) -> None:
        """The program has dropped the transport, and did not close it."""
        self._pipe.abort()

    def _claim_descriptor(self) -> None:
        """Have the loop's add_reader() and its like refuse the connection's descriptor."""
        shown = self._extra.get("socket")
        if shown is not None:
            self._claim = claim(self._loop, self, shown)
        if isinstance(shown, ShownSocket) and self._ends_beside_tcp:
            shown.transport = weakref.ref(self)

    def _close_socket(self) -> None:
        sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()

    def ring_finished(self) -> None:
        """The peer will send nothing more and everything it sent is taken: eof_received(), once."""
        if self._eof_received or self._closing:
            return
        self._eof_received = True
        try:
            keep_open = self._protocol.eof_received()  # type: ignore[attr-defined]
        except (SystemExit, KeyboardInterrupt):
            self._eof_received = False  # it comes again, if the loop is run again, as from a socket
            raise
        except BaseException as exc:
            self._fatal_error(exc, "Fatal error: protocol.eof_received() call failed.")
            return
        if not keep_open:
            self.close()
        elif self._discards_until is not None:
            self._discards_until, self._discarded = None, 0
            self._direct = self._writes_directly()
            if self._protocol_paused:  # what it waits for does not come any more
                self.ring_failed(anyio.ClosedResourceError())

    # ---- writing --------------------------------------------------------------------------------------

    def _writes_directly(self) -> bool:
        """Whether a write may go straight into the ring, once nothing is queued."""
        return not self._closing and not self._eof and not self._shut and self._sender is None

    @contextlib.contextmanager
    def sends_file(self) -> Iterator[None]:
        """The running task sends a file: what others write meanwhile is refused, as on a socket.

        :raises RuntimeError: another one is being sent
        """
        if self._sender is not None:
            raise RuntimeError("unable to send a file; sendfile is in progress")
        self._sender = asyncio.current_task(self._loop)
        self._direct = False
        try:
            yield
        finally:
            self._sender = None
            self._direct = not self._backlog and self._discards_until is None and self._writes_directly()

    def write(self, data: Buffer) -> None:
        """Send `data`: into the peer's ring as far as it has room, the rest when there is room.

        :raises TypeError: `data` is not bytes-like
        :raises RuntimeError: after write_eof(), or while `loop.sendfile()` sends a file
        """
        if self._direct and type(data) is bytes:
            try:
                n = self._try_send(data)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError) as exc:
                if data:
                    self._write_failed(exc)
                return
            if n != len(data):
                self._enqueue(data, n)
        else:
            self._write_any(data)

    def _write_any(self, data: Buffer) -> None:
        if not isinstance(data, _BYTES):
            raise TypeError(f"data argument must be a bytes-like object, not {type(data).__name__!r}")
        if self._eof:
            raise RuntimeError("Cannot call write() after write_eof()")
        sender = self._sender
        if sender is not None and sender is not asyncio.current_task(self._loop):
            raise RuntimeError("unable to write; sendfile is in progress")
        if not data:
            return
        if self._closing:
            self._warn_lost_write()
            return
        if self._shut:
            self._send_failed(anyio.ClosedResourceError())
            return
        if isinstance(data, memoryview):
            check_plain(data)
            data = data.cast("B") if data.c_contiguous else data.tobytes()
        if self._discards_until is not None:
            self._discard(len(data))
            return
        n = 0
        if self._direct or (sender is not None and not self._backlog):
            try:
                n = self._try_send(data)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError) as exc:
                data = b""  # the protocol may keep the error, and its traceback this
                self._write_failed(exc)
                return
        if n != len(data):
            self._enqueue(data, n)

    def _write_failed(self, exc: BaseException) -> None:
        """As on TCP, the write that meets the peer's end in order succeeds, also where EOF was seen before: a
        reader that holds an answer must not lose it.
        """
        if self._eof_received and not self._met_end and self._pipe.error is None:
            self._met_end = True
        else:
            self._send_failed(exc)

    def _send_failed(self, exc: BaseException) -> None:
        """The peer takes nothing more. What it has sent before is read first, as on TCP, where the write that
        meets the peer's end succeeds: an answer may explain why the rest was not wanted.
        """
        pipe = self._pipe
        if self._closing or self._eof_received or not (pipe.readable or pipe.at_eof):
            self.ring_failed(exc)
            return
        self._backlog.clear()
        self._direct = False
        self._met_end = True
        self._discards_until = self._loop.time() + _DISCARD_S
        if self._reader is not None and not self._paused:
            self._reader.ring_attached(self, None)  # takes all that is there, and the end or the failure
        else:
            self._look_again()
        self._maybe_resume_protocol()

    @property
    def discards(self) -> bool:
        """The peer takes nothing more, and what is written is lost."""
        return self._discards_until is not None

    def _discard(self, n: int) -> None:
        """`n` bytes are written meanwhile. Who does not read learns from it that the peer has gone.

        Who reads is told to wait, as by a full buffer: while it writes on, no callback tells it of the end.
        """
        assert self._discards_until is not None
        self._discarded += n
        late = self._loop.time() > self._discards_until
        if self._paused and (late or self._discarded > _DISCARD_BYTES):
            self.ring_failed(anyio.ClosedResourceError())
        elif not self._protocol_paused and self.get_write_buffer_size() > self.get_write_buffer_limits()[1]:
            self._maybe_pause_protocol()
            self._loop.call_later(_DISCARD_S, self._end_discarding)

    def _end_discarding(self) -> None:
        """Who was told to wait, and has paused reading since, learns here that the peer has gone."""
        if self._discards_until is None or self._closing:
            return
        if self._paused:
            self.ring_failed(anyio.ClosedResourceError())
        else:
            self._loop.call_later(_DISCARD_S, self._end_discarding)

    def _warn_lost_write(self) -> None:
        self._lost_writes += 1
        if self._lost_writes >= constants.LOG_THRESHOLD_FOR_CONNLOST_WRITES:
            asyncio_logger.warning("write() on a closed aiordma connection: the data is lost.")

    def _enqueue(self, data: Buffer, start: int) -> None:
        """There is no room for ``data[start:]`` now."""
        self._backlog.put(data, start)
        self._direct = False
        self._maybe_pause_protocol()

    def writelines(self, list_of_data: Iterable[Buffer] | None) -> None:
        """write() of each; small pieces are joined, large ones are not copied for it."""
        if list_of_data is None and _NONE_IS_EMPTY:
            return
        parts = list(list_of_data)  # type: ignore[arg-type]  # None is an error, as before Python 3.12
        for part in parts:
            check_plain(part)
        # All of them are looked at before any is sent: one that is not bytes-like must not leave a part.
        pieces: list[bytes | memoryview] = []
        try:
            pieces += [data if type(data) is bytes else as_bytes(data) for data in parts]
            if sum(map(len, pieces)) <= GATHER_BYTES:
                self.write(b"".join(pieces))
            else:
                met_end = self._met_end
                for piece in pieces:
                    self.write(piece)
                    if self._met_end is not met_end:
                        break  # the rest is of this one write
        finally:
            release(pieces)  # an error's traceback would keep them

    def _on_writable(self) -> None:
        if self._direct and not self._protocol_paused:
            return  # nothing waits for room
        if self._reader is None and asyncio.current_task(self._loop) is not None:
            self._call_soon(self._flush)
        else:
            self._flush()

    def _flush(self) -> None:
        """Move queued bytes into the ring until it is full, then resume the protocol."""
        if self._conn_lost:
            return
        backlog = self._backlog
        try:
            backlog.move(self._try_send)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as exc:
            self._send_failed(exc)
            return
        if not backlog.size:
            self._direct = self._writes_directly()
        try:
            self._maybe_resume_protocol()  # which may write
        except (SystemExit, KeyboardInterrupt):
            self._call_soon(self._flush)  # the loop may be run again: the end comes then
            raise
        if backlog.size or self._conn_lost:
            return
        if self._closing:
            self._finish()
        elif self._eof and not self._shut:
            self._pipe.send_eof()

    def spin_flush(self) -> None:
        """Poll, as the engine's policy allows, until the protocol need not wait any more."""
        for _ in range(_FLUSH_BUDGET):
            if not self._protocol_paused or self._conn_lost or not self._pipe.spin_writable():
                return
            self._flush()

    def park_writing(self) -> None:
        """The same as :meth:`park_reading`, for a task that waits in drain()."""
        self._pipe.on_writable = self._on_writable

    def write_eof(self) -> None:
        """Send EOF after what was written; reading goes on."""
        if self._closing or self._eof:
            return
        self._eof = True
        self._direct = False
        if not self._backlog and not self._shut:
            self._pipe.send_eof()

    def shut_down(self, how: int) -> None:
        """What shutdown() does to a connection on TCP. What this end has not handed over yet is lost, what
        has come is delivered before the end.
        """
        if how != socket.SHUT_RD and not self._shut:
            self._shut = True
            self._direct = False
            if self._backlog or not self._eof:
                self._pipe.send_eof()
            if self._backlog:
                self._call_soon(self._send_failed, anyio.ClosedResourceError())
        if how != socket.SHUT_WR and not self._cut:
            self._cut = True
            self._look_again()

    def can_write_eof(self) -> bool:
        """True: each direction ends by itself."""
        return True

    def get_write_buffer_size(self) -> int:
        """Bytes that wait for room in the peer's ring, or for the end, beyond what it would hold."""
        return self._backlog.size + max(0, self._discarded - _DISCARD_BYTES)

    @property
    def unsent(self) -> int:
        """The same, for the end of the loop."""
        return self._backlog.size

    # ---- end ------------------------------------------------------------------------------------------

    def is_closing(self) -> bool:
        """close() was called, or the connection is lost."""
        return self._closing

    def close(self) -> None:
        """Stop reading; connection_lost(None) when everything written is in the peer's ring."""
        if self._closing:
            return
        self._stop()
        if not self._backlog:
            self._finish()

    def _finish(self) -> None:
        """It was closed, and nothing is queued here: connection_lost(), unless the pipe holds some bytes."""
        if sent_all(self._pipe):
            self._lose(None)

    def abort(self) -> None:
        """Close at once. Data still queued is lost, and the peer gets a reset."""
        self._force_close(None)

    def ring_failed(self, exc: BaseException) -> None:
        """The pipe does not work any more: connection_lost() with a ConnectionError."""
        if isinstance(exc, anyio.ClosedResourceError):  # we have not closed it, so the peer has
            closed = BrokenPipeError(errno.EPIPE, "the other end has closed the connection")
            exc = self._pipe.error or closed
        error = as_connection_error(exc.__cause__ or exc)
        if self._loop.get_debug():
            _log.debug("%r: connection lost: %s", self, error)
        self._force_close(error)

    def _fatal_error(self, exc: BaseException, message: str) -> None:
        if not isinstance(exc, OSError):
            self._report(exc, message)
        elif self._loop.get_debug():
            _log.debug("%r: %s", self, message, exc_info=exc)
        self._force_close(exc)

    def _report(self, exc: BaseException, message: str) -> None:
        self._loop.call_exception_handler(
            {"message": message, "exception": exc, "transport": self, "protocol": self._protocol}
        )

    def _force_close(self, exc: BaseException | None) -> None:
        if self._conn_lost:
            return
        unread = self._leaves_unread()
        if not self._closing:
            self._stop()
        # What failed is told by a reset, but where TLS has told the peer already, by what was written here.
        failed = exc is not None and not isinstance(exc, ssl.SSLError)
        lossy = failed or unread or bool(self._backlog) or not sent_all(self._pipe)
        self._backlog.clear()
        self._lose(exc, lossy)

    def _leaves_unread(self) -> bool:
        """Whether there is what would lie unread in a socket, whose end then is a reset. (asyncio's reader
        would have taken what a pulling one leaves in the ring, unless it is full.)
        """
        if self._closing or not self._ends_beside_tcp or not self._pipe.readable:
            return False
        return self._reader is None or self._paused or self._reader.is_full()

    def _stop(self) -> None:
        """No more reading, and no more direct writes."""
        self._closing = True
        self._direct = False
        if self._reader is not None:
            self._reader.ring_closing()
        self._pipe.on_readable = None

    def _lose(self, exc: BaseException | None, lossy: bool = False) -> None:
        self._conn_lost = True
        self._discarded = 0
        self._pipe.on_writable = None
        self._call_soon(self._call_connection_lost, exc, lossy)

    def _close_pipe(self) -> None:
        self._pipe.close()

    def _call_connection_lost(self, exc: BaseException | None, lossy: bool) -> None:
        try:
            self._protocol.connection_lost(exc)  # type: ignore[arg-type]
        finally:
            # None of these may keep the transport until the garbage collector comes: asyncio's forget the
            # protocol, too.
            self._reader = None
            self._receive = _nothing_more
            self._protocol = None  # type: ignore[assignment]
            if lossy:
                self._pipe.abort()
            else:
                self._close_pipe()
            self._close_socket()
            if self._server is not None:
                self._server.detach(self)
                self._server = None


def _nothing_more() -> bool:
    """Receive for a transport that is lost."""
    return False


def _set_unless_done(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)

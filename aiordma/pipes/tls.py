"""TLS on the TCP connection of a stream: around the negotiation, and around payload that stays on TCP.

:class:`TlsLayer` looks like the non-blocking socket below it, so the negotiation and the TCP pipe use it in
a socket's place. One difference remains: one call may encrypt more than the kernel takes, so there can be
ciphertext left that must go out before anything else, though its plaintext counts as sent. :class:`TlsPipe`
takes care of that.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import ssl
from typing import TYPE_CHECKING, Self

import anyio

from .. import wake
from ..plain import check_plain
from ..wake.draining import Draining
from .tcp import TcpPipe

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from ..wake.base import Handle
    from .contracts import Buffer

_READ = 64 * 1024
#: Ciphertext decrypted in one call at most, about; and what of it may be no plaintext, which is more than the
#: record that has not come whole yet. The rest stays in the kernel, where readiness tells of it: a peer that
#: sends faster than this end decrypts would hold the event loop.
_READ_MOST = 512 * 1024
_BESIDE_MOST = 32 * 1024
#: Ciphertext that waits for a peer that does not read. This end's own stays below: the rest is answers.
_UNSENT_MOST = 1024 * 1024
#: Plaintext encrypted ahead of the kernel at most.
_WRITE_MOST = 256 * 1024
#: How long a closed stream waits without progress: for room, and then for the peer's end. asyncio's limit.
_SHUTDOWN_S = 30.0
#: How long it drops what a peer goes on sending that could have read the end.
_DROP_S = 1.0
#: Sends of a client that look for its server's session tickets.
_LOOKS = 16
#: Reads in one callback of a closed stream, which drops them.
_DROP_MOST = 16


def _too_many_answers() -> OSError:
    return OSError(errno.ENOBUFS, "the peer asks for answers of TLS, and reads none of them")


class TlsLayer:
    """One TLS session on a connected, non-blocking socket, which it owns.

    :param shutdown_seconds: how long a pipe that is closed waits without progress.
    :raises ValueError: (from the ssl module) a host name is needed to check the server's certificate.
    """

    def __init__(
        self,
        sock: socket.socket,
        context: ssl.SSLContext,
        *,
        server_side: bool = False,
        server_hostname: str | None = None,
        shutdown_seconds: float | None = None,
    ) -> None:
        self.sock = sock
        self.shutdown_seconds = shutdown_seconds or _SHUTDOWN_S
        self.family = sock.family
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self.session = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=server_hostname
        )
        self._left = memoryview(b"")  # ciphertext that the kernel did not take
        self._ahead = b""  # plaintext that was decrypted ahead of its use
        self._fed = self._gained = 0  # in one recv(): ciphertext, plaintext
        self.failure: OSError | None = None  # raised when what came before it is received
        self._cut_off = False  # TCP has ended; TLS had not, then
        self.at_end = False  # TLS has ended

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    async def handshake(self, seconds: float) -> None:
        """Agree on keys, and check the certificates as the context demands.

        :raises ssl.SSLError: (an ``OSError``) they do not agree, or the peer's certificate is not accepted.
        :raises TimeoutError: not done in time.
        """
        waker = wake.current()
        fd = self.sock.fileno()
        fed = 0
        with anyio.fail_after(seconds):
            while True:
                try:
                    self.session.do_handshake()
                    wanting = False
                except ssl.SSLWantReadError:
                    wanting = True
                except ssl.SSLError:
                    with contextlib.suppress(OSError):
                        self.flush()  # the alert that gives the peer the reason
                    raise
                while not self.flush():
                    await waker.wait_writable(fd)
                if not wanting:
                    return
                if fed > _BESIDE_MOST:  # some messages are skipped, however many come
                    await waker.checkpoint()
                    fed = 0
                try:
                    fed += self._feed()
                except BlockingIOError:
                    await waker.wait_readable(fd)

    # -- the parts of a socket that are used of it

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Up to ``size`` bytes of plaintext: fewer only if there are no more now, or others shall have their
        turn before more is decrypted. ``MSG_PEEK`` works.

        :raises BlockingIOError: nothing is there. The socket may be readable.
        :raises OSError: the connection is lost, or was cut off without TLS's own end.
        :raises MemoryError: nothing is lost: a smaller piece may be had.
        """
        data = self._ahead
        self._fed = self._gained = 0
        while len(data) < size and not self.at_end:
            try:
                part = self._decrypted(size - len(data))
            except OSError as exc:
                if not data:
                    raise
                if not isinstance(exc, BlockingIOError):
                    self.failure = exc
                break
            except MemoryError:
                if not data:
                    raise
                break
            self.at_end = not part
            data = self._joined(data, part)
        self._ahead = data if flags & socket.MSG_PEEK else data[size:]
        if self._outgoing.pending:
            # TLS answers some of what it reads, and the peer may be gone: what it sent before counts all the
            # same. What has become of the connection, the next read and the next send report.
            with contextlib.suppress(OSError, MemoryError):
                self.flush()
        return data[:size]

    def _joined(self, data: bytes, part: bytes) -> bytes:
        try:
            return data + part
        except MemoryError as exc:  # the session has forgotten the part: nothing may come behind the gap
            self.failure = OSError(errno.ENOMEM, "no memory for what TLS has decrypted")
            raise self.failure from exc

    def _decrypted(self, size: int) -> bytes:
        if self.failure is not None:
            raise self.failure
        while True:
            try:
                part = self.session.read(size)
            except ssl.SSLWantReadError:  # it has used what it was fed
                if self._fed >= _READ_MOST or self._fed - self._gained > _BESIDE_MOST:
                    raise BlockingIOError from None
                if len(self._left) + self._outgoing.pending > _UNSENT_MOST:
                    raise _too_many_answers() from None
                self._fed += self._feed()
                continue
            except ssl.SSLZeroReturnError:
                part = b""
            if not part and self._cut_off:
                # TLS's own end would have shown before that of TCP. The session does not report it, because
                # Python's default contexts ignore it.
                raise ssl.SSLEOFError(
                    ssl.SSL_ERROR_EOF, "the peer ended TCP, but not TLS: the end may be missing"
                )
            self._gained += len(part)
            return part

    def recv_into(self, buffer: memoryview) -> int:
        """As ``recv``."""
        data = self.recv(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _feed(self) -> int:
        data = self.sock.recv(_READ)
        if data:
            self._incoming.write(data)
        else:
            self._cut_off = True
            self._incoming.write_eof()
        return len(data)

    def send(self, data: Buffer) -> int:
        """Encrypt and send; the number of bytes of plaintext that it accepted.

        :raises BlockingIOError: not before what is left was sent.
        """
        if not self.flush():
            raise BlockingIOError
        taken = 0
        check_plain(data)
        with memoryview(data) as view:
            while taken < len(view) and taken < _WRITE_MOST:
                # Released here: a traceback would keep it, and the caller's buffer could not be resized.
                try:
                    with view[taken : taken + _READ] as part:
                        taken += self.session.write(part)
                except ssl.SSLWantReadError:
                    break  # in the middle of a renegotiation that the peer must go on with
        self.flush()
        if data and not taken:
            raise BlockingIOError
        return taken

    @property
    def unsent(self) -> int:
        """Bytes of ciphertext that are left."""
        return len(self._left) + self._outgoing.pending

    def flush(self) -> bool:
        """Send ciphertext that is left; whether all is gone."""
        try:
            while self._left or self._outgoing.pending:
                if not self._left:
                    self._left = memoryview(self._outgoing.read())
                self._left = self._left[self.sock.send(self._left) :]
        except (BlockingIOError, InterruptedError):
            return False
        return True

    def shutdown(self, how: int) -> None:
        """Send TLS's own end. Reading goes on (``how`` is ``SHUT_WR``)."""
        # What came before must be decrypted first: after its own end the session rejects it.
        with contextlib.suppress(ssl.SSLError):
            while part := self.session.read(_READ):
                self._ahead = self._joined(self._ahead, part)
        with contextlib.suppress(ssl.SSLError):
            self.session.unwrap()
        self.flush()

    def fileno(self) -> int:
        return self.sock.fileno()

    def getsockname(self) -> object:
        return self.sock.getsockname()

    def getpeername(self) -> object:
        return self.sock.getpeername()

    def setsockopt(self, level: int, option: int, value: int | bytes) -> None:
        self.sock.setsockopt(level, option, value)

    def close(self) -> None:
        """Close the connection without TLS's end."""
        self.sock.close()


Carrier = socket.socket | TlsLayer
"""The TCP connection of a stream, plain or inside TLS: connected and non-blocking."""


class TlsPipe(TcpPipe):
    """The pipe of a stream whose payload goes through TLS over TCP."""

    def __init__(self, layer: TlsLayer, *, late_proposal: bool = False) -> None:
        super().__init__(layer, late_proposal=late_proposal)
        self._layer = layer
        self._draining = False
        self._timer: Handle | None = None
        self._unsent_before = 0
        self._dropped = self._hurries = False
        self._parts = False  # without the end of TLS, when all is sent
        self._takes_nothing = False  # the peer, which has ended in order
        self._looks = _LOOKS if self._tickets_may_come() else 0
        #: Called once, when a pipe that was closed is done: with None, or with why something was lost.
        self.on_ended: Callable[[Exception | None], None] | None = None

    def try_send(self, data: Buffer, start: int = 0) -> int:
        """As in :class:`TcpPipe`; ciphertext that is left goes out by itself."""
        sent = super().try_send(data, start)
        self._send_left_later()  # a failure shows at the next call: the bytes are accepted, as by the kernel
        # Callbacks would come in the middle of the caller's work, and who has one reads anyway.
        if self._looks and self.on_readable is None and self.on_writable is None:
            self._take_tickets()
        return sent

    def _take_tickets(self) -> None:
        """Of a program that only sends. Left unread in the kernel, they make a reset of its end, however it
        ends, and a reset destroys what was sent. asyncio reads them as they come.
        """
        self._looks -= 1
        self.look()

    def _fail_sending(self, exc: OSError | MemoryError) -> None:
        super()._fail_sending(exc)
        self._takes_nothing = self._error is None

    def sent_all(self) -> bool:
        """As in :class:`TcpPipe`: whether the kernel has taken all ciphertext, or none will go any more."""
        return self._closed or self._error is not None or not self._layer.unsent

    def _send_left_later(self) -> None:
        try:
            gone = self._layer.flush()
        except (OSError, MemoryError) as exc:
            self._fail_sending(exc)
            return
        if not gone and not self._watching_writable:
            self._watch_writable()

    def _nothing(self) -> bytes | None:
        # The end of TLS is not the end of TCP: no readiness of the socket announces it.
        if self._layer.at_end or self._layer.failure is not None:
            self._read(1)
        return super()._nothing()

    def _writable_again(self) -> None:
        if self._draining:
            self._go_on()
            return
        try:
            gone = self._layer.flush()
        except (OSError, MemoryError) as exc:
            gone = True
            self._fail_sending(exc)
        if gone:
            super()._writable_again()

    def send_eof(self) -> None:
        """As in :class:`TcpPipe`, with TLS's own end. Many programs answer it by closing the connection."""
        super().send_eof()
        if not self._closed and self._error is None:
            self._send_left_later()

    # -- the end. Behind TLS's own end, that of the peer is waited for before TCP is closed, as asyncio does.
    # Some programs drop what they have not read yet when TCP ends first (uvloop's TLS). And to a closed
    # socket whatever the peer still sends, if only a session ticket, would cause a reset, which destroys what
    # the peer has not read.

    def close(self) -> None:
        """Close the connection in order, in the background: see ``on_ended``. What arrives is dropped."""
        if self._closed:
            return
        self.on_readable = self._on_writable = None
        self._closed = self._draining = True
        _draining.add(self._waker, self)
        if self._error is None:
            if self._takes_nothing:
                self._end(None)
                return
            try:
                if not self._eof_sent:
                    self._layer.shutdown(socket.SHUT_WR)
            except (OSError, MemoryError) as exc:
                self._error = exc
        if self._error is not None:
            self._end(self._error)
            return
        self._watch()
        self._go_on()

    def part(self) -> None:
        """The event loop ends, and this was not closed: what was accepted is sent, and then TCP ends, as
        that of a process that has ended. Without an end of TLS: the program may be amid something.
        """
        if self._closed:
            return
        self.on_readable = self._on_writable = None
        self._closed = self._draining = self._parts = True
        _draining.add(self._waker, self)

    def _go_on(self) -> None:
        """A closed pipe: send what is left, drop what has come, and end when both ends are done."""
        if not self._draining:
            return
        try:
            gone = self._layer.flush()
            ended = self._peer_has_ended()
        except (OSError, MemoryError) as exc:
            if self._layer.unsent:
                self._reset_on_close()
            self._end(exc)
            return
        if gone and ended:
            self._end(None)
            return
        if ended:
            self.on_readable = None  # a level-triggered end would call endlessly
        if self._watching_writable == gone:
            self._watching_writable = not gone
            if gone:
                self._waker.unwatch_writable(self._fileno)
                self._wait_on()  # from now on for the peer
            else:
                self._waker.watch_writable(self._fileno, self._writable_again)
        if self._timer is None:
            self._wait_on()
        if gone and self._dropped and not self._hurries:
            self._hurries = True
            self._wait_on(_DROP_S)

    @property
    def _fileno(self) -> int:
        return self._layer.fileno()

    def _readable_now(self) -> None:
        if self._draining:
            self._go_on()
        else:
            super()._readable_now()

    def _peer_has_ended(self) -> bool:
        try:
            for _ in range(_DROP_MOST):
                if not self._layer.recv(_READ):
                    return True
                self._dropped = True
            self._waker.call_soon(self._go_on)  # the session may hold more, of which no readiness tells
        except BlockingIOError:
            pass
        except ssl.SSLEOFError:
            return True  # TCP has ended, which will do here: this end wants nothing any more
        return False

    def _wait_on(self, seconds: float | None = None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._unsent_before = self._layer.unsent
        until = self._waker.now() + (seconds or self._layer.shutdown_seconds)
        self._timer = self._waker.call_at(until, self._time_is_up)

    def _time_is_up(self) -> None:
        unsent = self._layer.unsent
        if unsent and unsent < self._unsent_before:
            self._wait_on()
            return
        if unsent:
            self._reset_on_close()  # the peer must not take it for whole
        self._end(TimeoutError(f"TLS was not shut down in time: {unsent} bytes left, and no answer"))

    def _push(self) -> bool:
        """The event loop ends: send what is left, and drop what would cause a reset if it stayed unread."""
        try:
            gone = self._layer.flush()
            if gone and self._parts:
                self._parts = False
                self._layer.sock.shutdown(socket.SHUT_WR)
            return gone and (self._peer_has_ended() or not self._tickets_may_come())
        except (OSError, MemoryError):
            return True

    def _tickets_may_come(self) -> bool:
        # A TLS 1.3 server sends session tickets unasked, before any payload.
        session = self._layer.session
        return not session.server_side and not self._received and session.version() == "TLSv1.3"

    def _end_with_loop(self) -> None:
        if self._layer.unsent:
            self._reset_on_close()
        self._end(None)

    def _end(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._draining = self._closed = False
        _draining.discard(self._waker, self)
        super().close()
        ended, self.on_ended = self.on_ended, None
        if ended is not None:
            ended(exc)

    def close_tcp(self) -> None:
        """Close at once, without TLS's own end; the kernel still delivers what was sent. Idempotent."""
        if self._draining or not self._closed:
            self._end(None)

    def abort(self) -> None:
        """As in :class:`TcpPipe`, also while it is being closed in order."""
        if self._draining or not self._closed:
            self._reset_on_close()
            self._end(None)


_draining = Draining[TlsPipe](TlsPipe._end_with_loop, TlsPipe._push)

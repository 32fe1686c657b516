# cython: annotation_typing=False
"""The pipe of a stream without RDMA: the contract of the ring pipe on a plain TCP connection.

Reading. The socket is watched persistently, and what arrives for somebody who waits is read in the callback,
so a round trip costs one ``recv`` and no ``EAGAIN``. While data keeps filling the whole request ("flowing")
it is read directly in ``try_receive`` instead, without a turn of the loop per piece. What arrives
before it is asked for stays in the kernel, which knows then what was not read: the watch is removed, and the
kernel's window stops the sender. Writing goes straight from the caller's bytes into the kernel; nothing is
ever queued here.

Compiled as well (``tcp.pxd``), on the rules of ``proto/cursor.py``. Where nothing compiled fits, this file
itself runs.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import select
import socket
import struct
from typing import TYPE_CHECKING, NamedTuple

from anyio import BrokenResourceError, ClosedResourceError

from .. import wake
from ..errors import Code
from ..plain import check_plain
from ..proto import clc
from ..wake.escaping import call

if TYPE_CHECKING:
    from collections.abc import Callable

    from .contracts import Buffer, TcpSocket

_log = logging.getLogger("aiordma.clc")

#: Bytes asked of the kernel at once: at first, and at most when the peer keeps filling that.
_READ_FIRST = 64 * 1024
_READ_MOST = 256 * 1024
#: Without memory for more.
_READ_LEAST = 2048
#: Of the largest size, when nothing can be sent any more.
_READS_AT_END = 32

#: Seconds for which the beginning of a Proposal that came late waits for its rest.
_HOLD_S = 0.5

_ABORT = struct.pack("ii", 1, 0)  # struct linger: on, 0 seconds, so close() sends RST


def _text(error: BaseException | None) -> str:
    return str(error) or type(error).__name__  # MemoryError says nothing


class TcpStatistics(NamedTuple):
    """Counters of a stream on TCP."""

    #: payload bytes handed to the kernel
    bytes_sent: int
    #: payload bytes taken from the kernel
    bytes_received: int
    #: calls of try_send() that the kernel could not take whole
    short_sends: int
    #: times that reading was suspended because the data was not taken
    read_pauses: int


class TcpPipe:
    """A connected TCP socket as a pipe. Takes the socket over and closes it.

    :param sock: connected and non-blocking.
    :param late_proposal: the peer had not sent anything when it was taken for a plain client. If its first
        bytes are a CLC Proposal after all, it is answered with a Decline and kept from the stream.
    """

    path = "tcp"

    def __init__(self, sock: TcpSocket, *, late_proposal: bool = False) -> None:
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock
        self._fd = sock.fileno()
        self._waker = wake.current()
        self._chunk = b""  # read from the kernel; up to _offset also taken by the user
        self._held_back: bytes | None = b"" if late_proposal else None
        self._offset = 0
        self._read_size = _READ_FIRST
        self._flowing = True
        self._watching = False
        self._wanted = False  # who asked last has found nothing
        self._watching_writable = False
        self._on_readable: Callable[[], None] | None = None
        self._on_writable: Callable[[], None] | None = None
        self._eof = self._eof_sent = self._closed = False
        self._error: Exception | None = None
        self.pushes = False  # the kernel wakes the loop in any case
        self.reads_ahead = 0  # the kernel knows what was taken from it
        self._sent = self._received = self._short_sends = self._pauses = 0

    # -- sending

    def try_send(self, data: Buffer, start: int = 0) -> int:
        """Hand as much of ``data[start:]`` to the kernel as it takes; return the number of bytes."""
        if self._closed or self._eof_sent or self._error is not None:
            self._refuse_sending()
        check_plain(data)
        if not start:
            return self._hand_over(data)
        with memoryview(data) as whole, whole[start:] as rest:
            return self._hand_over(rest)

    def _hand_over(self, data: Buffer) -> int:
        try:
            sent = self._sock.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except (OSError, MemoryError) as exc:
            self._fail_sending(exc)
            raise BrokenResourceError(f"the TCP connection is lost: {_text(exc)}") from exc
        self._sent += sent
        if sent < len(data):
            self._short_sends += 1
            if self._on_writable is not None and not self._watching_writable:
                self._watch_writable()
        return sent

    def _refuse_sending(self) -> None:
        if self._closed or self._eof_sent:
            raise ClosedResourceError("this end was closed, or has finished sending")
        raise BrokenResourceError(f"the TCP connection is lost: {_text(self._error)}") from self._error

    def _fail_sending(self, exc: OSError | MemoryError) -> None:
        """The peer takes nothing more. What it has sent before is received first, and its end, if that was in
        order. (No more than a kernel keeps: a session may fail while its peer goes on sending.)"""
        ended = self._eof
        # They are called when it is here: by what fails while it is read, they would take it for lost.
        on_readable, on_writable = self._on_readable, self._on_writable
        self._on_readable = self._on_writable = None
        try:
            parts = [self._chunk[self._offset :]]
            while len(parts) <= _READS_AT_END and (data := self._read(_READ_MOST)):
                parts.append(data)
            self._chunk = b"".join(parts)
        except MemoryError as no_memory:  # nothing may be read behind the gap, neither an end
            exc = no_memory
        finally:
            self._on_readable, self._on_writable = on_readable, on_writable
        if isinstance(exc, MemoryError):
            self._fail(exc)
            return
        self._offset = 0
        if exc.errno != errno.EPIPE and isinstance(self._sock, socket.socket):
            # The kernel reports a reset, or a host that is silent or out of reach, once, and then an end. (A
            # reset behind an end is EPIPE. TLS has its own.)
            self._eof = ended
        if not self._eof:
            self._fail(exc)
        elif self._on_readable is not None:
            call(self._on_readable)  # the kernel will announce nothing of what was read here

    def sent_all(self) -> bool:
        """Whether the kernel has all that :meth:`try_send` took. If not, it is worth asking again when
        ``on_writable`` is called."""
        return True

    def _watch_writable(self) -> None:
        self._watching_writable = True
        self._waker.watch_writable(self._fd, self._writable_again)

    def _writable_again(self) -> None:
        self._watching_writable = False
        self._waker.unwatch_writable(self._fd)
        if self._on_writable is not None:
            self._on_writable()

    def send_eof(self) -> None:
        """Half-close: the peer reads EOF behind what was sent. Idempotent."""
        if not self._eof_sent and not self._closed and self._error is None:
            self._eof_sent = True
            try:
                self._sock.shutdown(socket.SHUT_WR)
            except (OSError, MemoryError) as exc:
                self._fail(exc)

    # -- receiving

    def try_receive(self, max_bytes: int) -> bytes | None:
        """What is there, at most ``max_bytes``; None when nothing is; ``b""`` at the end."""
        if self._held_back is not None:
            self._fill()
        chunk = self._chunk
        if chunk:
            offset = self._offset
            if not offset and len(chunk) <= max_bytes:
                self._chunk = b""
                return chunk
            data = chunk[offset : offset + max_bytes]
            self._advance(len(data))
            return data
        if self._flowing:
            fresh = self._read(max_bytes)
            if fresh:
                return fresh
        return self._nothing()

    def poll_send(self, data: Buffer, start: int = 0) -> int:
        """try_send(): there is nothing to poll here."""
        return self.try_send(data, start)

    def poll_receive(self, max_bytes: int) -> bytes | None:
        """try_receive(): there is nothing to poll here."""
        return self.try_receive(max_bytes)

    def try_receive_into(self, buf: bytearray | memoryview) -> int:
        """Fill ``buf`` with what is there; -1 when nothing is, 0 at the end."""
        check_plain(buf)
        with memoryview(buf) as given, given.cast("B") as view:
            return self._take_into(view)

    def _take_into(self, view: memoryview) -> int:
        if self._held_back is not None:
            self._fill()
        if self._chunk:
            part = memoryview(self._chunk)[self._offset : self._offset + len(view)]
            view[: len(part)] = part
            self._advance(len(part))
            return len(part)
        if self._flowing and not self._eof and not self._closed and self._error is None:
            count = -1
            try:
                count = self._sock.recv_into(view)
            except (BlockingIOError, InterruptedError):
                pass
            except (OSError, MemoryError) as exc:
                self._fail(exc)
            else:
                self._eof = not count
            self._flowing = count == len(view)
            if count > 0:
                self._received += count
                return count
        return 0 if self._nothing() is not None else -1

    def view(self) -> memoryview:
        """The received bytes that can be lent without a copy; may be empty."""
        if not self._chunk and (self._flowing or self._held_back is not None):
            self._fill()
        if not self._chunk:
            self._nothing()
        return memoryview(self._chunk)[self._offset :]

    def consume(self, n: int) -> None:
        """The first ``n`` bytes of :meth:`view` are taken."""
        if not 0 <= n <= self.readable:
            raise ValueError(f"cannot consume {n} bytes of {self.readable} readable ones")
        self._advance(n)

    def _advance(self, n: int) -> None:
        self._offset += n
        if self._offset >= len(self._chunk):
            self._chunk = b""
            self._offset = 0

    def _nothing(self) -> bytes | None:
        """What try_receive() returns when no data is there; makes sure that the callback will come."""
        if self._closed:
            raise ClosedResourceError("this end was closed, or has finished sending")
        if self._error is not None:
            raise BrokenResourceError(f"the TCP connection is lost: {_text(self._error)}") from self._error
        if self._eof:
            return b""
        self._wanted = True
        if self._on_readable is not None and not self._watching:
            self._watch()
        return None

    def _read(self, size: int) -> bytes:
        if self._eof or self._closed or self._error is not None:
            return b""
        try:
            try:
                data = self._sock.recv(size)
            except MemoryError:  # the heap may still have a little
                data = self._sock.recv(min(size, _READ_LEAST))
        except (BlockingIOError, InterruptedError):
            self._flowing = False
            return b""
        except (OSError, MemoryError) as exc:
            self._fail(exc)
            return b""
        self._flowing = len(data) == size
        if not data:
            self._eof = True
        if self._held_back is not None:
            try:
                data = self._sift(data)
            except MemoryError as exc:
                self._fail(exc)
                return b""
        self._received += len(data)
        return data

    def _sift(self, data: bytes) -> bytes:
        """What of the connection's first bytes belongs to the stream; nothing while that is not known."""
        head = (self._held_back or b"") + data
        if not self._eof and clc.looks_like_clc(head) is not False:
            length = int.from_bytes(head[5:7]) if len(head) > 7 else len(head) + 1
            if len(head) < length:
                if not self._held_back:
                    self._waker.call_at(self._waker.now() + _HOLD_S, self._release_held)
                self._held_back = head
                return b""
            version, head = clc.version_of(head), head[length:]
            _log.debug("a Proposal of %d bytes came late and is kept from the stream", length)
            if not self._sent:
                # Bytes that we sent have already shown the peer that this is a plain connection.
                with contextlib.suppress(OSError):
                    self._sock.send(clc.Decline(diagnosis=Code.PLAIN_TCP_PEER, version=version).encode())
        self._held_back = None
        return head

    def _release_held(self) -> None:
        """What looked like the beginning of a Proposal was none: the rest would be here."""
        held = self._held_back
        if held and not self._closed:
            self._held_back = None
            self._chunk = held
            self._received += len(held)
            if self._on_readable is not None:
                self._on_readable()

    def _fill(self) -> None:
        """Read ahead, if the chunk is empty."""
        if self._chunk:
            return
        size = self._read_size
        self._chunk = data = self._read(size)
        if data:
            self._wanted = False
        if len(data) == size:
            self._read_size = min(2 * size, _READ_MOST)
        elif len(data) < size // 4:
            self._read_size = _READ_FIRST

    def _watch(self) -> None:
        self._watching = True
        self._waker.watch_fd(self._fd, self._readable_now)

    def _unwatch(self) -> None:
        if self._watching:
            self._watching = False
            self._waker.unwatch_fd(self._fd)

    def _readable_now(self) -> None:
        if self._chunk or (not self._wanted and self._has_more()):
            # It was not asked for: leave it to the kernel, which slows the sender down.
            self._pauses += 1
            self._flowing = True
            self._unwatch()
            return
        self._fill()
        if self._eof or self._error is not None:
            self._unwatch()  # a level-triggered end would call endlessly
        if self._on_readable is not None:
            self._on_readable()

    def _has_more(self) -> bool:
        """Whether data is there, and not only an end or an error, of which callbacks learn at once."""
        try:
            return bool(self._sock.recv(1, socket.MSG_PEEK))
        except (BlockingIOError, InterruptedError):
            return False
        except (OSError, MemoryError) as exc:
            self._fail(exc)  # the kernel says it once
            return False

    # -- callbacks and state

    @property
    def on_readable(self) -> Callable[[], None] | None:
        """Called when data, EOF or an error has come."""
        return self._on_readable

    @on_readable.setter
    def on_readable(self, callback: Callable[[], None] | None) -> None:
        self._on_readable = callback
        if callback is None:
            self._unwatch()

    @property
    def on_writable(self) -> Callable[[], None] | None:
        """Called when there is room again after try_send() came short, or on an error."""
        return self._on_writable

    @on_writable.setter
    def on_writable(self, callback: Callable[[], None] | None) -> None:
        self._on_writable = callback
        if callback is None and self._watching_writable:
            self._watching_writable = False
            self._waker.unwatch_writable(self._fd)

    @property
    def readable(self) -> int:
        """Bytes that were read ahead."""
        return len(self._chunk) - self._offset

    @property
    def writable(self) -> int:
        """1 when the kernel takes some now, else 0: it does not report how much."""
        if self._closed or self._eof_sent or self._error is not None:
            return 0
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        return len(poll.poll(0))

    @property
    def at_eof(self) -> bool:
        """The peer has finished, and everything was taken."""
        return self._eof and not self._chunk

    @property
    def error(self) -> BaseException | None:
        """Why the connection is lost, None while it is not."""
        return self._error

    def spin_readable(self) -> bool:
        """One look into the kernel."""
        self._fill()
        return bool(self._chunk) or self._eof or self._error is not None

    def look(self) -> None:
        """Notice what the kernel has, whether or not the loop has had a turn since. A task that waits for it
        is woken: the kernel will not announce what was read here."""
        if self._chunk or self._closed:
            return
        if not self._wanted and self._has_more():
            self._flowing = True  # no task waits for it: who asks for it finds it
            return
        if self.spin_readable():
            if self._on_readable is not None:
                call(self._on_readable)
        elif self._on_readable is not None and not self._watching:
            self._watch()

    def spin_writable(self) -> bool:
        """TCP gains nothing from polling."""
        return False

    # -- the end

    def _fail(self, exc: Exception) -> None:
        self._error = exc
        for callback in (self._on_readable, self._on_writable):
            if callback is not None:
                call(callback)

    def close(self) -> None:
        """Close the connection; the kernel still delivers what was sent. Idempotent."""
        if not self._closed:
            self._closed = True
            self._chunk = b""
            self._offset = 0
            self.on_readable = None
            self.on_writable = None
            self._sock.close()

    def abort(self) -> None:
        """Reset the connection: the peer gets an error. Idempotent."""
        if not self._closed:
            self._reset_on_close()
            self.close()

    def _reset_on_close(self) -> None:
        if self._sock.family != socket.AF_UNIX:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)

    def statistics(self) -> TcpStatistics:
        """What happened so far."""
        return TcpStatistics(self._sent, self._received, self._short_sends, self._pauses)

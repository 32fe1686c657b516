"""A connection of aiordma as one of trio's sockets, for the streams of trio and of anyio.

trio's `SocketStream`, and anyio's on trio, do with a socket what a stream of aiordma can do. So programs keep
their own classes of streams, with a socket inside that sends and receives through aiordma.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from typing import TYPE_CHECKING, Any, Self

import anyio
import trio

from ..plain import check_plain
from ..streams.stream import RdmaStream
from ..wake.duplex import CLOSED, EOF_SENT, LOOP_ENDED, OutgoingMessage
from ..wake.interrupts import uninterrupted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from ..negotiation.dialogue import NegotiationResult


class _Stream(RdmaStream):
    """A stream that sockets can be made of: they close and shut down without waiting."""

    def close(self) -> None:
        """Close both directions; what was sent still reaches the peer."""
        if self._receive_guard is LOOP_ENDED:
            self.abort()
        elif self._receive_guard is not CLOSED:
            self._end_with(self._pipe.close)

    def shut_down(self) -> None:
        """Nothing is sent any more."""
        if self._send_guard not in (CLOSED, LOOP_ENDED, EOF_SENT):
            if self._pipe.error is None:
                self._end_sending()
            self._send_guard = EOF_SENT

    async def wait_writable(self) -> None:
        """Until there is room."""

        def look() -> bool:
            self._pipe.try_send(b"")  # raises, if nothing can be sent any more
            return self._pipe.writable > 0

        await self._send_when_room(OutgoingMessage(look, look), begun=False)

    @property
    def ended_in_order(self) -> bool:
        """The peer has closed, and no error is what ended the connection."""
        return self._pipe.error is None

    @property
    def readable(self) -> bool:
        """Whether a receive would not wait."""
        self._pipe.look()
        try:
            with self._pipe.view() as view:
                return len(view) > 0 or self._pipe.at_eof
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return True


@contextlib.contextmanager
def _errors(number: int) -> Iterator[None]:
    """Errors of streams as those of sockets. `number`: the error of a connection that is lost."""
    try:
        yield
    except anyio.BrokenResourceError as error:
        raise OSError(number, f"{os.strerror(number)}: {error.__cause__ or error}") from error
    except anyio.ClosedResourceError as error:
        raise trio.ClosedResourceError(str(error)) from error
    except anyio.BusyResourceError as error:
        raise trio.BusyResourceError(str(error)) from error


def _refuse_flags(flags: int) -> None:
    if flags:
        raise OSError(errno.EOPNOTSUPP, "a connection of aiordma has no flags for send() and recv()")


@uninterrupted
class StreamSocket(trio.socket.SocketType):
    """One of trio's sockets, connected, whose bytes a stream of aiordma carries.

    Options, addresses and the descriptor are those of its TCP connection. What only the kernel's sockets can
    (`recvmsg`, `MSG_PEEK`, `dup`, ...) is refused.
    """

    def __init__(self, stream: _Stream, tcp: socket.socket) -> None:
        self._stream = stream
        #: A descriptor of its own: the stream closes the other one when the connection is lost, but for trio
        #: a socket without descriptor is one that the program has closed. anyio shows it as the raw socket.
        self._sock = tcp.dup()
        self._shut_down = False
        self._met_end = False
        self._names = tcp.getsockname(), tcp.getpeername()

    @property
    def stream(self) -> RdmaStream:
        """The stream: its path, its statistics."""
        return self._stream

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._stream!r}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # ---- of the TCP connection

    @property
    def family(self) -> socket.AddressFamily:
        """See `socket`, as for all that follows."""
        return self._sock.family

    @property
    def type(self) -> socket.SocketKind:
        """Of bytes."""
        return socket.SOCK_STREAM

    @property
    def proto(self) -> int:
        """TCP."""
        return socket.IPPROTO_TCP

    def fileno(self) -> int:
        """The descriptor of the TCP connection, which carries no payload on RDMA; -1 when it is closed."""
        return self._sock.fileno()

    def getsockname(self) -> Any:
        """Of this end."""
        return self._names[0]

    def getpeername(self) -> Any:
        """Of the other end."""
        return self._names[1]

    def getsockopt(self, *arguments: Any) -> Any:
        """Of the TCP connection."""
        return self._sock.getsockopt(*arguments)

    def setsockopt(self, *arguments: Any) -> None:
        """Of the TCP connection."""
        self._sock.setsockopt(*arguments)

    def get_inheritable(self) -> bool:
        """No child can use it."""
        return self._sock.get_inheritable()

    # ---- the end

    def close(self) -> None:
        """Close it; what was sent still arrives."""
        self._stream.close()
        self._sock.close()

    def shutdown(self, flag: int) -> None:
        """`SHUT_WR`: nothing more is sent. `SHUT_RD` has no effect, as with TCP for the peer."""
        if self._stream.closed:
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        if flag != socket.SHUT_RD:
            self._stream.shut_down()
            self._shut_down = True

    @property
    def did_shutdown_SHUT_WR(self) -> bool:
        """Whether this end has finished sending."""
        return self._shut_down

    # ---- data

    def is_readable(self) -> bool:
        """Whether :meth:`recv` would not wait."""
        return self._stream.readable

    async def wait_writable(self) -> None:
        """Until there is room for a byte."""
        with _errors(errno.EPIPE):
            await self._stream.wait_writable()

    async def recv(self, buflen: int, flags: int = 0, /) -> bytes:
        """Up to `buflen` bytes; ``b""`` at the end, or where none are asked for."""
        _refuse_flags(flags)
        if buflen < 0:
            raise ValueError("negative buffersize in recv")
        if not buflen:
            await trio.lowlevel.checkpoint()
            return b""
        with _errors(errno.ECONNRESET):
            try:
                return await self._stream.receive(buflen)
            except anyio.EndOfStream:
                return b""

    async def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """The same into `buffer`; 0 at the end, or where it has no room."""
        _refuse_flags(flags)
        check_plain(buffer)
        if nbytes < 0:
            raise ValueError("negative buffersize in recv_into")
        with (
            memoryview(buffer) as whole,
            whole.cast("B") as view,
            view[: nbytes or len(view)] as wanted,
            _errors(errno.ECONNRESET),
        ):
            if nbytes > len(view):
                raise ValueError("buffer too small for requested bytes")
            if not len(wanted):
                await trio.lowlevel.checkpoint()
                return 0
            try:
                return await self._stream.receive_into(wanted)
            except anyio.EndOfStream:
                return 0

    async def send(self, data: Any, flags: int = 0, /) -> int:
        """Send all of `data`. Cancelled, some of it may have been sent."""
        _refuse_flags(flags)
        if self._shut_down:
            raise OSError(errno.EPIPE, "this end has finished sending")
        with _errors(errno.EPIPE):
            try:
                await self._stream.send(data)
            except anyio.BrokenResourceError:
                # On TCP the send that meets the peer's end succeeds, and what the peer sent before is read.
                if self._met_end or not self._stream.ended_in_order:
                    raise
                self._met_end = True
                await trio.lowlevel.checkpoint()
        return len(data) if isinstance(data, bytes) else memoryview(data).nbytes


def socket_of(result: NegotiationResult) -> trio.socket.SocketType:
    """The socket of a connection whose path is agreed on. It owns the connection.

    On TCP it is trio's own, unless the client may still send a Proposal, which must not reach the program.
    """
    if result.pipe is None and not result.silent:
        return trio.socket.from_stdlib_socket(result.sock)
    stream = _Stream(
        result.pipe if result.pipe is not None else result.tcp_pipe(),
        local_address=result.local_address,
        remote_address=result.remote_address,
        fallback_reason=result.fallback,
    )
    return StreamSocket(stream, result.sock)

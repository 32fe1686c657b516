"""asyncio's StreamReader and StreamWriter on a ring pipe.

They are asyncio's own classes for every caller; only the path of the bytes is shorter. On a socket
transport each chunk is pushed through data_received() into the reader's buffer in one iteration of the
event loop, and the waiting task goes on in the next. Here the reader pulls: a read looks into the ring,
polls as long as the engine's policy allows, and only then parks. What it finds goes from the ring into the
result with one copy; the reader's own buffer is used only where asyncio's algorithms need it (searching for
separators) and by libraries that look into it, for whom it holds whatever has arrived.

All this replaces private parts of asyncio's classes. Where these are not as expected, or private interfaces
are switched off (`aiordma.borrowed`), asyncio's own reader and writer serve, as on any other transport.

A task that always finds data would never let the loop run, so operations that complete at once use up a
share of it (see `aiordma.wake.base`) and give the loop a turn when it is gone.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import anyio

from .. import wake
from ..borrowed import ENABLED, shapes
from .contracts import PullProtocol
from .fallback import TransportView, with_info
from .transport import RingTransport
from .upgrade import start_tls

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Awaitable, Callable, Mapping

    from ..pipes.contracts import Pipe
    from .contracts import PulledTransport

    ClientConnected = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None] | None]

_CHUNK_BYTES = 64 * 1024
#: more than any ring has
_ALL = 1 << 31
#: a large read is allocated in blocks of this size, so that a length that a peer only claims costs nothing
_BLOCK_BYTES = 16 * 1024 * 1024
#: most bytes read ahead of the program, while it waits for room to write
_READ_AHEAD_BYTES = 4 * 1024 * 1024

#: Whether asyncio's classes are what ours replace.
_AS_EXPECTED = ENABLED and not shapes.streams()


class RingStreamReader(asyncio.StreamReader):
    """`asyncio.StreamReader` that takes its data from the ring when it is asked for it."""

    _limit: int  # asyncio's own fields, which typeshed does not have
    _eof: bool
    _paused: bool
    _waiter: asyncio.Future[None] | None
    _exception: BaseException | None
    _wakeup_waiter: Callable[[], None]
    _maybe_resume_transport: Callable[[], None]

    def __init__(self, limit: int, loop: asyncio.AbstractEventLoop) -> None:
        self._pipe: Pipe | None = None  # None: not now (paused), not any more, or never
        self._ring: PulledTransport | None = None
        self._waker = wake.current()
        self._reads_ahead = False
        self._sleeper: Any = None
        self._in_place = False
        super().__init__(limit=limit, loop=loop)

    # ---- what asyncio and others see as the buffer -------------------------------------------------------

    @property
    def _buffer(self) -> bytearray:
        pipe = self._pipe
        if pipe is not None and pipe.readable:
            room = 2 * self._limit - len(self._data)
            if room > 0:
                self._move(pipe, room)
        return self._data

    @_buffer.setter
    def _buffer(self, value: bytearray) -> None:
        self._data = value

    def _move(self, pipe: Pipe, room: int) -> None:
        try:
            self._data += pipe.try_receive(room) or b""
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as exc:
            self._failed(exc)

    # ---- what the transport calls ------------------------------------------------------------------------

    def ring_attached(self, transport: PulledTransport, pipe: Pipe | None) -> None:
        """See `aiordma.compat.contracts.PullReader`. What arrived before a pause stays readable."""
        before = self._pipe
        if pipe is None:
            self._take_all()
        self._ring = transport
        self._pipe = pipe
        if pipe is None and before is not None:
            transport.ring_empty()

    def ring_detached(self) -> None:
        """See `aiordma.compat.contracts.PullReader`."""
        self._ring = self._pipe = None

    def ring_closing(self) -> None:
        """See `aiordma.compat.contracts.PullReader`. What has arrived stays readable, as on a socket."""
        self._take_all()
        self.ring_detached()

    def _take_all(self) -> None:
        pipe = self._pipe
        self._pipe = None
        if pipe is not None and (n := pipe.readable):
            self._data += pipe.try_receive(n) or b""

    def ring_news(self) -> None:
        """See `aiordma.compat.contracts.PullReader`."""
        if self._waiter is not None:
            self._wakeup_waiter()
        elif self._reads_ahead:
            self.read_ahead(True)

    def takes_ahead(self) -> int:
        """See `aiordma.compat.contracts.PullReader`. asyncio's reader pauses its transport when it has more
        than two limits, and takes what one read of the socket returns in any case."""
        return min(max(2 * self._limit, _CHUNK_BYTES), _ALL)

    def is_full(self) -> bool:
        """See `aiordma.compat.contracts.PullReader`."""
        pipe = self._pipe
        return pipe is not None and len(self._data) + pipe.readable > 2 * self._limit

    def read_ahead(self, on: bool) -> None:
        """The program writes and the peer's ring is full: take what arrives off the ring meanwhile.

        Two programs that each write a few MiB before they read get along on TCP, whose buffers in the kernel
        grow to that size. On rings, which do not grow, both would wait for the other for ever.
        """
        self._reads_ahead = on
        pipe = self._pipe
        if on and pipe is not None and pipe.readable:
            room = _READ_AHEAD_BYTES - len(self._data)
            if room > 0:
                self._move(pipe, room)

    def _failed(self, exc: BaseException) -> None:
        """The ring is broken: connection_lost() follows, and it sets the exception that reads raise."""
        if self._ring is not None:
            self._ring.ring_failed(exc)

    def _advance(self) -> bool:
        """Take what has arrived into the buffer; whether there was anything, EOF included."""
        pipe = self._pipe
        if pipe is None:
            return False
        if pipe.readable:
            size = len(self._data)
            self._move(pipe, max(2 * self._limit - size, _CHUNK_BYTES))
            return len(self._data) > size
        if self._ring is not None:
            self._ring.ring_empty()
        return self._eof

    def at_eof(self) -> bool:
        """Everything is read, and nothing more will come."""
        if not self._eof and self._pipe is not None and self._pipe.at_eof:
            self._advance()
        return self._eof and not self._data

    # ---- reading -----------------------------------------------------------------------------------------

    async def _wait_for_data(self, func_name: str) -> None:
        """Return when the buffer has grown or EOF is reached (for asyncio's methods, which look at it)."""
        size = len(self._data)
        while not self._advance():
            if not await self._wait_for_ring(func_name) and (len(self._data) != size or self._eof):
                return

    def _poll(self, pipe: Pipe) -> bool:
        """Poll for as long as the policy allows. Polling takes time as well: the share may be over."""
        if not pipe.spin_readable():
            return False
        if self._waker.share_overdue():
            self._waker.share = 0
        return True

    async def _wait_for_ring(self, func_name: str) -> bool:
        """Poll, then park. False: it was not the ring that ended the waiting, or the ring is not ours now."""
        pipe, ring, waker = self._pipe, self._ring, self._waker
        if pipe is not None and ring is not None and self._waiter is None:
            if self._poll(pipe):
                return True
            ring.park_reading()
            # What came in by this was not announced, so look again.
            if pipe.readable or pipe.at_eof:
                return True
        sleeper = self._sleeper
        if sleeper is None:
            sleeper = self._sleeper = waker.new_waiter()
            self._in_place = bool(asyncio.isfuture(sleeper))
        if self._in_place and self._waiter is None and not self._paused:
            sleeper.clear()
            self._waiter = sleeper  # in the place of a future, again and again
            try:
                await sleeper.wait()
            finally:
                self._waiter = None
        else:
            await super()._wait_for_data(func_name)  # type: ignore[misc]
        waker.renew_share()
        return self._pipe is not None and bool(self._pipe.readable)

    async def read(self, n: int = -1) -> bytes:
        """See asyncio."""
        waker = self._waker
        waker.share -= 1
        if waker.share < 0:
            await waker.checkpoint()
        try:
            while (
                (pipe := self._pipe) is not None
                and n > 0
                and not self._data
                and self._waiter is None
                and self._exception is None
            ):
                data = pipe.try_receive(n)
                if data:
                    waker.share -= len(data) >> 12
                    return data
                if data is not None:
                    break
                await self._wait_for_ring("read")
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as exc:
            self._failed(exc)
        return await super().read(n)

    async def readexactly(self, n: int) -> bytes:
        """See asyncio."""
        waker = self._waker
        waker.share -= 1
        if waker.share < 0:
            await waker.checkpoint()
        try:
            while (
                (pipe := self._pipe) is not None
                and n > 0
                and not self._data
                and self._waiter is None
                and self._exception is None
            ):
                readable = pipe.readable
                if readable >= n:
                    waker.share -= n >> 12
                    return pipe.try_receive(n) or b""
                if readable or pipe.at_eof or pipe.error is not None:
                    break
                await self._wait_for_ring("readexactly")
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as exc:
            self._failed(exc)
        if n > self._limit and self._pipe is not None and self._waiter is None and self._exception is None:
            return await self._readexactly_large(n)
        return await super().readexactly(n)

    async def _readexactly_large(self, n: int) -> bytes:
        """Copy straight from the ring into the result. What cannot be finished goes back into the buffer."""
        from ..datapath._fill import unfilled  # compiled, as everything that rings need

        waker = self._waker
        blocks: list[bytes] = []
        missing = n
        block, view = unfilled(min(missing, _BLOCK_BYTES))
        at = 0
        try:
            while True:
                if self._data:  # from before, or other code looked into the buffer, which pulls
                    count = min(len(self._data), len(view) - at)
                    view[at : at + count] = self._data[:count]
                    del self._data[:count]
                elif self._pipe is None:
                    break
                else:
                    count = self._pipe.try_receive_into(view[at:])
                if not count:
                    break
                if count < 0:
                    await self._wait_for_ring("readexactly")
                    continue
                at += count
                if at == len(view):
                    blocks.append(block)
                    missing -= at
                    if not missing:
                        return block if len(blocks) == 1 else b"".join(blocks)
                    block, view = unfilled(min(missing, _BLOCK_BYTES))
                    at = 0
                waker.share -= 1 + (count >> 12)
                if waker.share < 0:
                    await waker.checkpoint()
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as exc:
            self._failed(exc)
        except BaseException:
            self._data[:0] = b"".join([*blocks, view[:at]])
            raise
        self._data[:0] = b"".join([*blocks, view[:at]])
        return await super().readexactly(n)

    async def readuntil(self, separator: Any = b"\n") -> bytes:
        """See asyncio."""
        waker = self._waker
        waker.share -= 1
        if waker.share < 0:
            await waker.checkpoint()
        if type(separator) is bytes and separator and self._waiter is None and self._exception is None:
            data = self._data
            if not data and (pipe := self._pipe) is not None:
                try:
                    chunk = pipe.try_receive(_CHUNK_BYTES)
                    if chunk is None and self._poll(pipe):
                        chunk = pipe.try_receive(_CHUNK_BYTES)
                except (anyio.BrokenResourceError, anyio.ClosedResourceError) as exc:
                    self._failed(exc)
                else:
                    if chunk:
                        at = chunk.find(separator)
                        if 0 <= at <= self._limit and at + len(separator) == len(chunk):
                            return chunk
                        data += chunk
            at = data.find(separator)
            if 0 <= at <= self._limit:
                end = at + len(separator)
                line = bytes(memoryview(data)[:end])
                del data[:end]
                self._maybe_resume_transport()
                return line
        return await super().readuntil(separator)


class RingStreamReaderProtocol(PullProtocol, asyncio.StreamReaderProtocol):
    """`asyncio.StreamReaderProtocol` whose reader pulls and whose drain() polls before it parks."""

    _transport: asyncio.Transport | None
    _paused: bool

    def __init__(
        self,
        reader: RingStreamReader,
        client_connected_cb: ClientConnected | None,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(reader, client_connected_cb, loop=loop)
        self._waker = reader._waker

    def pull_reader(self) -> RingStreamReader | None:
        """See `PullProtocol`."""
        reader: RingStreamReader | None = self._stream_reader  # type: ignore[attr-defined]
        return reader

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the handler of a server's connection with writers of our own class."""
        connection_made(self, transport, super().connection_made, {})

    def pause_writing(self) -> None:
        """See asyncio."""
        super().pause_writing()
        if (reader := self.pull_reader()) is not None:
            reader.read_ahead(True)

    def resume_writing(self) -> None:
        """See asyncio."""
        super().resume_writing()
        if (reader := self.pull_reader()) is not None:
            reader.read_ahead(False)

    async def _drain_helper(self) -> None:
        transport = self._transport
        if self._paused and isinstance(transport, RingTransport):
            waker = self._waker
            waker.share -= transport.get_write_buffer_size() >> 12
            if waker.share < 0:
                await waker.checkpoint()
            transport.spin_flush()
            if waker.share_overdue():
                waker.share = 0
            if self._paused:
                transport.park_writing()
        await super()._drain_helper()  # type: ignore[misc]


class TcpStreamReaderProtocol(asyncio.StreamReaderProtocol):
    """`asyncio.StreamReaderProtocol` of a server's connection on TCP: its writer reports the path."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        client_connected_cb: ClientConnected,
        loop: asyncio.AbstractEventLoop,
        info: Mapping[str, Any],
    ) -> None:
        super().__init__(reader, client_connected_cb, loop=loop)
        self._info = info

    def connection_made(self, transport: Any) -> None:
        """Start the handler of a server's connection with writers of our own class."""
        if isinstance(transport, TransportView):
            transport = transport.wrapped  # start_tls() of uvloop takes nothing else
        connection_made(self, transport, super().connection_made, self._info)


class AheadStreamReaderProtocol(asyncio.StreamReaderProtocol):
    """`asyncio.StreamReaderProtocol`, by public methods only, that reads ahead while its program writes."""

    _ahead_of: RingTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        self._ahead_of = transport if isinstance(transport, RingTransport) else None
        super().connection_made(transport)

    def pause_writing(self) -> None:
        """See asyncio. Why it reads then: `RingStreamReader.read_ahead()`."""
        super().pause_writing()
        self._read_ahead(True)

    def resume_writing(self) -> None:
        """See asyncio."""
        super().resume_writing()
        self._read_ahead(False)

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        super().data_received(data)
        if (transport := self._own_ring()) is not None:
            transport.read_ahead_of(len(data))

    def eof_received(self) -> bool:
        """See asyncio, which would close a transport whose payload is outside TLS. It ends as on TCP."""
        transport = self._own_ring()
        keep_open = super().eof_received()
        return bool(keep_open) or (transport is not None and transport.can_write_eof())

    def _read_ahead(self, on: bool) -> None:
        transport = self._own_ring()
        if transport is not None:
            transport.read_ahead(on)

    def _own_ring(self) -> RingTransport | None:
        """None: it is not on RDMA, or start_tls() has put TLS in between."""
        transport = self._ahead_of
        return transport if transport is not None and transport.get_protocol() is self else None


def ring_streams(
    pipe: Pipe, limit: int, extra: Mapping[str, Any] | None = None, sock: socket.socket | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Reader and writer on a connected ring pipe. `sock`: as for the transport."""
    loop = asyncio.get_running_loop()
    reader, protocol = _ring_reader(limit, None, loop)
    transport = RingTransport(loop, pipe, protocol, extra=extra, at_once=True, sock=sock)
    return reader, stream_writer(transport, protocol, reader, loop, {})


def _ring_reader(
    limit: int, callback: ClientConnected | None, loop: asyncio.AbstractEventLoop
) -> tuple[asyncio.StreamReader, asyncio.StreamReaderProtocol]:
    if _AS_EXPECTED:
        pulling = RingStreamReader(limit, loop)
        return pulling, RingStreamReaderProtocol(pulling, callback, loop)
    reader = asyncio.StreamReader(limit=limit, loop=loop)
    return reader, AheadStreamReaderProtocol(reader, callback, loop=loop)


def server_on_ring(
    limit: int, callback: ClientConnected, loop: asyncio.AbstractEventLoop
) -> asyncio.StreamReaderProtocol:
    """The protocol of a server's connection by RDMA."""
    return _ring_reader(limit, callback, loop)[1]


def server_on_tcp(
    limit: int, callback: ClientConnected, loop: asyncio.AbstractEventLoop, info: Mapping[str, Any]
) -> asyncio.StreamReaderProtocol:
    """The protocol of a server's connection on TCP."""
    reader = asyncio.StreamReader(limit=limit, loop=loop)
    if _AS_EXPECTED:
        return TcpStreamReaderProtocol(reader, callback, loop, info)
    return asyncio.StreamReaderProtocol(reader, callback, loop=loop)


def stream_writer(
    transport: asyncio.Transport,
    protocol: asyncio.StreamReaderProtocol,
    reader: asyncio.StreamReader,
    loop: asyncio.AbstractEventLoop,
    info: Mapping[str, Any],
) -> asyncio.StreamWriter:
    """The writer of a client's connection. `info`: extra info that the transport itself cannot give."""
    if _AS_EXPECTED:
        return AioRdmaStreamWriter(transport, protocol, reader, loop, info)
    return asyncio.StreamWriter(with_info(transport, info) if info else transport, protocol, reader, loop)


def connection_made(
    protocol: Any,
    transport: asyncio.BaseTransport,
    base: Callable[[asyncio.BaseTransport], None],
    info: Mapping[str, Any],
) -> None:
    """connection_made() of asyncio's stream protocol, which would make asyncio's own StreamWriter.

    A handler that fails closes its connection, and the error is reported, as in Python 3.12 and later; that
    of a plain function, too, as since 3.14.8. Nothing here keeps the writer once the handler has dropped it.
    """
    callback = protocol._client_connected_cb
    protocol._client_connected_cb = None
    try:
        base(transport)
    finally:
        protocol._client_connected_cb = callback
    if protocol._over_ssl and cast("asyncio.WriteTransport", transport).can_write_eof():
        # The payload is outside TLS: its end is one of two, as on TCP. asyncio would close the transport.
        protocol._over_ssl = False
    if callback is None or protocol._reject_connection:
        return
    loop = protocol._loop
    reader = protocol._stream_reader
    writer = AioRdmaStreamWriter(transport, protocol, reader, loop, info)
    if hasattr(protocol, "_replace_writer"):
        protocol._stream_writer = writer  # since Python 3.13, writers tell when they are dropped unclosed

    def failed(exc: BaseException) -> None:
        context = {
            "message": "Unhandled exception in client_connected_cb",
            "exception": exc,
            "transport": transport,
        }
        loop.call_exception_handler(context)

    def close() -> None:
        (protocol._transport or transport).close()  # start_tls() may have put another in its place

    def done(task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            close()
        elif (exc := task.exception()) is not None:
            failed(exc)
            close()

    try:
        result = callback(reader, writer)
    except Exception as exc:
        failed(exc)
        close()
    else:
        if asyncio.iscoroutine(result):
            protocol._task = loop.create_task(result)
            protocol._task.add_done_callback(done)
    protocol._strong_reader = None


class AioRdmaStreamWriter(asyncio.StreamWriter):
    """`asyncio.StreamWriter` that reports the connection's path on every event loop."""

    def __init__(
        self,
        transport: asyncio.BaseTransport,
        protocol: Any,
        reader: asyncio.StreamReader | None,
        loop: asyncio.AbstractEventLoop,
        info: Mapping[str, Any],
    ) -> None:
        """`info`: extra info that the transport itself cannot give (uvloop's)."""
        super().__init__(transport, protocol, reader, loop)  # type: ignore[arg-type]
        self._info = info
        self._view: asyncio.Transport | None = None
        self._bind()

    def __repr__(self) -> str:
        """By asyncio's name: programs filter the warning of a writer that is dropped unclosed by it."""
        return super().__repr__().replace(type(self).__name__, "StreamWriter", 1)

    def _bind(self) -> None:
        # One call less on the path of every message.
        self._view = None
        self.write = self._transport.write  # type: ignore[method-assign]

    async def start_tls(self, sslcontext: ssl.SSLContext, **options: Any) -> None:
        """See asyncio; on uvloop, too, and over RDMA."""
        protocol: Any = self._protocol  # type: ignore[attr-defined]
        await self.drain()
        # asyncio's own method would call the loop's start_tls(), and uvloop's knows uvloop's transports only.
        before: asyncio.Transport = self._transport
        self._transport: Any = await start_tls(
            before,
            protocol,
            sslcontext,
            server_side=protocol._client_connected_cb is not None,
            **options,
        )
        if hasattr(protocol, "_replace_writer"):  # before Python 3.13
            protocol._replace_writer(self)
        else:
            protocol._replace_transport(self._transport)
        self._bind()
        self._replace_readers_transport(before)

    def _replace_readers_transport(self, before: asyncio.Transport) -> None:
        """Since Python 3.14 the reader changes its transport, too. Bytes right behind the handshake may have
        made it pause the old one, which nothing else would resume.
        """
        reader: Any = self._reader  # type: ignore[attr-defined]
        if reader is None:
            return
        if reader._transport is before and hasattr(reader, "_replace_transport"):
            reader._replace_transport(self._transport)
        if reader._paused and reader._transport is not before:
            before.resume_reading()
            reader._transport.pause_reading()

    @property
    def transport(self) -> asyncio.Transport:
        """See asyncio."""
        if self._view is None:
            transport: asyncio.Transport = self._transport
            self._view = with_info(transport, self._info) if self._info else transport
        return self._view

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """See asyncio; beside its names "aiordma.path" and its relatives, see `aiordma.open_connection`."""
        if name in self._info:
            return self._info[name]
        return self._transport.get_extra_info(name, default)

    async def drain(self) -> None:
        """See asyncio. Costs no iteration of the loop while the connection is open and not paused."""
        protocol: Any = self._protocol  # type: ignore[attr-defined]
        reader = self._reader  # type: ignore[attr-defined]
        if (
            protocol._paused
            or protocol._connection_lost
            or (reader is not None and reader._exception is not None)
            or self._transport.is_closing()
        ):
            await super().drain()

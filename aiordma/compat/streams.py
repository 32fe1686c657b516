"""asyncio's StreamReader and StreamWriter on a ring pipe.

They are asyncio's own classes for every caller; only the path of the bytes is shorter. On a socket
transport each chunk is pushed through data_received() into the reader's buffer in one iteration of the
event loop, and the waiting task goes on in the next. Here the reader pulls (`stream_reader`).

All this replaces private parts of asyncio's classes. Where these are not as expected, or private interfaces
are switched off (`aiordma.borrowed`), asyncio's own reader and writer serve, as on any other transport.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from ..borrowed import ENABLED, shapes
from .contracts import PullProtocol
from .fallback import TransportView, with_info
from .stream_reader import RingStreamReader
from .stream_writer import AioRdmaStreamWriter, connection_made
from .transport import RingTransport

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

    from ..pipes.contracts import Pipe
    from .stream_writer import ClientConnected

#: Whether asyncio's classes are what ours replace.
_AS_EXPECTED = ENABLED and not shapes.streams()


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

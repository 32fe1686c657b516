"""`asyncio.StreamWriter` that reports the connection's path, and how a server's protocol gets one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from .fallback import with_info
from .upgrade import start_tls

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Mapping

    ClientConnected = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None] | None]


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

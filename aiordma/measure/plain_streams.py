"""asyncio's own streams, in the shape of aiordma's: what they are measured against.

The server's run on event loops of their own in threads, one of asyncio and one of uvloop: a comparison needs
the same loop at both ends, and those that do not work cost the others nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import anyio
from anyio import EndOfStream, to_thread
from anyio.from_thread import start_blocking_portal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable


class PlainStream(anyio.abc.AsyncResource):
    """A stream of asyncio. What it raises is an ``OSError``, or :class:`anyio.EndOfStream`."""

    fallback_reason = None

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> None:
        self._read, self._write, self._drain = reader.read, writer.write, writer.drain
        self._writer = writer
        self.path = path
        """``tcp`` or ``unix``."""

    async def send(self, data: bytes) -> None:
        self._write(data)
        await self._drain()

    async def receive(self, most: int = 65536) -> bytes:
        """:raises anyio.EndOfStream:"""
        data = await self._read(most)
        if not data:
            raise EndOfStream
        return data

    async def send_eof(self) -> None:
        self._writer.write_eof()
        await self._drain()

    async def aclose(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


async def connect_plain(host: str, port: int, path: str = "") -> PlainStream:
    """Connect by TCP, or by a Unix socket if there is a path. :raises OSError:"""
    if path:
        return PlainStream(*await asyncio.open_unix_connection(path), "unix")
    return PlainStream(*await asyncio.open_connection(host, port), "tcp")


@contextlib.asynccontextmanager
async def serve_plain(
    make: Callable[[], tuple[Callable[[Any], Awaitable[None]], Callable[[], Awaitable[None]]]],
    host: str,
    port: int,
    *,
    unix: str = "",
    use_uvloop: bool = False,
) -> AsyncIterator[int]:
    """Serve in a thread, with the given loop; yields the port.

    :param make: called in that loop: what answers a connection, and what watches over all of them.
    :param unix: path of a Unix socket that is served, too.
    :raises OSError: the address cannot be listened on.
    """
    opened = start_blocking_portal("asyncio", {"use_uvloop": use_uvloop}, name="aiordma plain streams")
    portal = await to_thread.run_sync(opened.__enter__)
    try:
        future, actual = await to_thread.run_sync(portal.start_task, _serve, make, host, port, unix)
        yield int(actual)
    finally:
        with anyio.CancelScope(shield=True):
            # The portal's own end would wait for its tasks.
            with contextlib.suppress(RuntimeError):
                await to_thread.run_sync(portal.call, portal.stop, True)
            await to_thread.run_sync(opened.__exit__, None, None, None)
    with contextlib.suppress(Exception, asyncio.CancelledError):
        future.result(0)


async def _serve(
    make: Callable[[], Any], host: str, port: int, unix: str, *, task_status: anyio.abc.TaskStatus[int]
) -> None:
    answer, watch = make()

    async def over_tcp(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _answered(answer, PlainStream(reader, writer, "tcp"))

    async def over_unix(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _answered(answer, PlainStream(reader, writer, "unix"))

    servers = [await asyncio.start_server(over_tcp, host, port, backlog=128)]
    try:
        if unix:
            servers.append(await asyncio.start_unix_server(over_unix, unix, backlog=128))
        task_status.started(servers[0].sockets[0].getsockname()[1])
        await watch()
    finally:
        for server in servers:
            server.close()


async def _answered(answer: Callable[[PlainStream], Awaitable[None]], stream: PlainStream) -> None:
    with contextlib.suppress(OSError):  # the client is gone
        await answer(stream)

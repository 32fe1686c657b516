"""An RdmaStream as a trio stream, so that trio's own checker can judge it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import anyio
import trio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiordma.streams.stream import RdmaStream

T = TypeVar("T")


async def _translated(call: Callable[[], Awaitable[T]]) -> T:
    try:
        return await call()
    except anyio.ClosedResourceError as exc:
        raise trio.ClosedResourceError(*exc.args) from exc
    except anyio.BrokenResourceError as exc:
        raise trio.BrokenResourceError(*exc.args) from exc
    except anyio.BusyResourceError as exc:
        raise trio.BusyResourceError(*exc.args) from exc


class TrioStream(trio.abc.HalfCloseableStream):
    def __init__(self, stream: RdmaStream) -> None:
        self.stream = stream

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await _translated(lambda: self.stream.send(data))

    async def wait_send_all_might_not_block(self) -> None:
        await _translated(lambda: self.stream.send(b""))

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        try:
            return await _translated(lambda: self.stream.receive(65536 if max_bytes is None else max_bytes))
        except anyio.EndOfStream:
            return b""

    async def send_eof(self) -> None:
        await _translated(self.stream.send_eof)

    async def aclose(self) -> None:
        await _translated(self.stream.aclose)

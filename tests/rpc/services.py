"""The service that the tests of calls use, and what its handlers have seen."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

from aiordma import rpc


class Seen:
    """What happened in the handlers of one test."""

    def __init__(self) -> None:
        self.started = 0
        self.running = 0
        self.most_running = 0
        self.cancelled = 0
        self.finished = 0
        self.contexts: list[rpc.Context] = []
        self.taken = 0
        self.go = anyio.Event()


class Handlers:
    def __init__(self) -> None:
        self.seen = Seen()

    @rpc.method
    def echo(self, data: bytes) -> bytes:
        return data

    @rpc.method
    async def echo_async(self, data: bytes) -> bytes:
        return data

    @rpc.method
    async def echo_late(self, data: bytes) -> bytes:
        await checkpoint()
        return data

    @rpc.method
    def add(self, a: int, b: int = 1) -> int:
        return a + b

    @rpc.method
    def view(self, data: memoryview) -> memoryview:
        return data

    @rpc.method
    async def wait(self) -> str:
        """Until the test says so, or the call is cancelled."""
        seen = self.seen
        seen.started += 1
        seen.running += 1
        seen.most_running = max(seen.most_running, seen.running)
        try:
            await seen.go.wait()
            seen.finished += 1
            return "gone"
        except BaseException:
            seen.cancelled += 1
            raise
        finally:
            seen.running -= 1

    @rpc.method
    async def stubborn(self) -> str:
        """Takes no notice of being cancelled until the test says so."""
        self.seen.running += 1
        while not self.seen.go.is_set():
            try:
                with anyio.CancelScope(shield=True):
                    await self.seen.go.wait()
            except anyio.get_cancelled_exc_class():
                pass  # asyncio's own cancellation knows no shields
        self.seen.running -= 1
        self.seen.finished += 1
        return "done all the same"

    @rpc.method
    def fail(self, kind: str) -> None:
        if kind == "rpc":
            raise rpc.RpcError(rpc.Code.NOT_FOUND, "no such key", b"details", {"where": "here"})
        raise ZeroDivisionError("secret")

    @rpc.method
    async def fail_async(self, kind: str) -> None:
        await checkpoint()
        self.fail(kind)

    @rpc.method
    def context(self, x: int, context: rpc.Context) -> dict[str, Any]:
        self.seen.contexts.append(context)
        context.set_metadata({"initial": "i"})
        context.set_trailing_metadata({"trailing": b"t"})
        return {"x": x, "metadata": context.metadata, "time_left": context.time_left, "peer": context.peer}

    @rpc.method
    def unsendable(self) -> Any:
        return object()

    @rpc.method
    def big(self, size: int) -> bytes:
        return bytes(size)

    @rpc.method
    async def big_late(self, size: int) -> bytes:
        self.seen.running += 1
        await self.seen.go.wait()
        self.seen.running -= 1
        return bytes(size)

    @rpc.method
    def count(self, n: int) -> Iterator[int]:
        yield from range(n)

    @rpc.method
    async def count_async(self, n: int, context: rpc.Context) -> AsyncIterator[int]:
        seen = self.seen
        context.set_metadata({"n": str(n)})
        seen.running += 1
        try:
            for i in range(n):
                if i % 3 == 0:
                    await checkpoint()
                seen.taken = i + 1
                yield i
            context.set_trailing_metadata({"sum": str(n * (n - 1) // 2)})
            seen.finished += 1
        except BaseException:
            seen.cancelled += 1
            raise
        finally:
            seen.running -= 1

    @rpc.method
    async def blobs(self, n: int, size: int) -> AsyncIterator[bytes]:
        for i in range(n):
            self.seen.taken = i + 1
            yield bytes([i % 256]) * size

    @rpc.method
    async def fail_in_stream(self, n: int) -> AsyncIterator[int]:
        for i in range(n):
            yield i
        raise rpc.RpcError(rpc.Code.ABORTED, "enough")

    @rpc.method
    async def total(self, start: int, items: AsyncIterator[int]) -> int:
        async for item in items:
            start += item
        return start

    @rpc.method
    async def first(self, items: AsyncIterator[bytes]) -> bytes:
        """Takes one item, and leaves the others."""
        async for item in items:
            return item
        raise rpc.RpcError(rpc.Code.INVALID_ARGUMENT, "nothing came")

    @rpc.method
    async def hold(self, items: AsyncIterator[bytes]) -> int:
        """Takes nothing until the test says so."""
        await self.seen.go.wait()
        size = 0
        async for item in items:
            size += len(item)
        return size

    @rpc.method
    async def double(self, items: AsyncIterator[int]) -> AsyncIterator[int]:
        async for item in items:
            yield 2 * item


def service() -> tuple[rpc.Service, Seen]:
    handlers = Handlers()
    return rpc.Service("t", handlers), handlers.seen

"""What user code raises that is no ``Exception``: it fails its own call, whatever else the loop is doing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
import trio
from anyio.lowlevel import checkpoint

import aiordma
from aiordma import rpc
from aiordma.config import Config
from aiordma.testing.rpc import rpc_pair
from tests.health import until
from tests.world import DEVICE

pytestmark = pytest.mark.anyio

CONFIG = Config(device=DEVICE)


class Odd(BaseException):
    """A program's own."""


KINDS = {
    "cancelled": asyncio.CancelledError,
    "closed": GeneratorExit,
    "odd": Odd,
    "exit": SystemExit,
    "interrupt": KeyboardInterrupt,
}
HARMLESS = ["cancelled", "closed", "odd"]


class Raising:
    """Every kind of handler, and in each of them every place that may raise."""

    @rpc.method
    def plain(self, kind: str) -> None:
        raise KINDS[kind]

    @rpc.method
    async def at_once(self, kind: str) -> None:
        raise KINDS[kind]

    @rpc.method
    async def late(self, kind: str) -> None:
        await checkpoint()
        raise KINDS[kind]

    @rpc.method
    def items(self, kind: str) -> Iterator[int]:
        yield 1
        raise KINDS[kind]

    @rpc.method
    async def items_late(self, kind: str) -> AsyncIterator[int]:
        yield 1
        await checkpoint()
        raise KINDS[kind]

    @rpc.method
    async def taking(self, kind: str, stream: AsyncIterator[int]) -> None:
        async for _ in stream:
            raise KINDS[kind]

    @rpc.method
    async def ok(self, x: int) -> int:
        return x


class Around(rpc.ServerInterceptor):
    async def unary(self, call: rpc.ServerCall, proceed: Any) -> Any:
        if call.method.name == "t.ok" and call.context.metadata:
            raise KINDS[str(call.context.metadata["kind"])]
        return await proceed(call)

    def stream(self, call: rpc.ServerCall, proceed: Any) -> Any:
        return proceed(call)


@asynccontextmanager
async def served(path: str, **server: Any) -> AsyncIterator[rpc.Client]:
    service = rpc.Service("t", of=Raising())
    if path == "memory":
        async with rpc_pair(service, **server) as pair:
            yield pair.client
        return
    async with (
        rpc.serve(service, "127.0.0.1", config=CONFIG, drain_timeout=0.0, **server) as answering,
        rpc.connect("127.0.0.1", answering.port, config=CONFIG, mode=path) as client,  # type: ignore[arg-type]
    ):
        yield client


async def take_all(client: rpc.Client, method: str, kind: str) -> None:
    async with client.stream(method, kind) as stream:
        if method == "t.taking":
            await stream.send(1)
            await stream.result()
        async for _ in stream:
            pass


@pytest.mark.parametrize("path", ["memory", "rdma", "tcp"])
@pytest.mark.parametrize("kind", HARMLESS)
async def test_it_fails_its_own_call(path: str, kind: str) -> None:
    async with served(path) as client:
        beside = 0

        async def go_on() -> None:
            nonlocal beside
            async with client.stream("t.items_late", "odd") as other:
                assert await other.receive() == 1
                beside += 1

        with anyio.fail_after(30):
            for _ in range(3):
                for method in ("t.plain", "t.at_once", "t.late"):
                    with pytest.raises(rpc.RpcError):
                        await client.call(method, kind)
                for method in ("t.items", "t.items_late", "t.taking"):
                    with pytest.raises(rpc.RpcError):
                        await take_all(client, method, kind)
                await go_on()
                assert await client.call("t.ok", 7) == 7
        assert beside == 3
        # The server's answer to the end of the last stream may be on its way.
        await until(lambda: client.connection.calls == 0)
        assert client.usable


@pytest.mark.parametrize("kind", HARMLESS)
async def test_around_the_handlers(kind: str) -> None:
    async with served("memory", interceptors=[Around()]) as client:
        for _ in range(3):
            with pytest.raises(rpc.RpcError):
                await client.call("t.ok", 7, metadata={"kind": kind})
            for method in ("t.plain", "t.at_once", "t.late"):
                with pytest.raises(rpc.RpcError):
                    await client.call(method, kind)
            assert await client.call("t.ok", 7) == 7
        assert client.usable


async def test_the_call_says_that_the_handler_failed(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody has cancelled it: it is not the server that ends."""
    async with served("memory") as client:
        for method in ("t.plain", "t.at_once", "t.late"):
            with pytest.raises(rpc.RpcError, match="the handler failed") as caught:
                await client.call(method, "odd")
            assert caught.value.code is rpc.Code.UNKNOWN
            assert f"handler of {method} failed" in caplog.text
            caplog.clear()


@pytest.mark.parametrize("kind", HARMLESS)
@pytest.mark.parametrize("path", ["rdma", "tcp"])
async def test_callbacks_at_the_end(path: Any, kind: str) -> None:
    """Each is called, whatever those before it have raised."""
    called: list[object] = []

    def failing(_: object) -> None:
        called.append("failing")
        raise KINDS[kind]

    async with served(path) as client:
        client.add_close_callback(failing)
        client.add_close_callback(called.append)
        client.abort()
        with anyio.fail_after(30):
            while len(called) < 2:
                await checkpoint()
    assert called == ["failing", client]


@pytest.mark.parametrize("kind", HARMLESS)
@pytest.mark.parametrize("path", ["rdma", "tcp"])
async def test_a_callback_of_a_channel(path: Any, kind: str) -> None:
    """It breaks its channel and nothing else of the loop."""

    def failing(_: object) -> None:
        raise KINDS[kind]

    async with (
        await aiordma.listen("127.0.0.1", config=CONFIG) as streams,
        await aiordma.connect("127.0.0.1", streams.port, mode=path, config=CONFIG) as one,
        await streams.accept() as other,
        served(path) as client,
    ):
        client.connection.channel.on_message = failing
        with pytest.raises(rpc.RpcError, match="UNAVAILABLE"):
            await client.call("t.late", "odd")
        await one.send(b"as ever")
        assert await other.receive() == b"as ever"


def run_in(backend: str, path: str, method: str, kind: str, seen: list[object]) -> None:
    async def main() -> None:
        async with served(path) as client:
            try:
                await client.call(method, kind)
            except rpc.RpcError as error:
                seen.append(error.code)
            await anyio.sleep_forever()

    options = {"use_uvloop": True} if backend == "uvloop" else {}
    anyio.run(main, backend="trio" if backend == "trio" else "asyncio", backend_options=options)


@pytest.mark.parametrize("method", ["t.plain", "t.at_once", "t.late"])
@pytest.mark.parametrize("path", ["memory", "rdma", "tcp"])
@pytest.mark.parametrize("kind", ["exit", "interrupt"])
@pytest.mark.parametrize("backend", ["asyncio", "uvloop", "trio"])
def test_what_ends_a_program_ends_it(backend: str, kind: str, path: str, method: str) -> None:
    """As from any callback or task of asyncio, and as each Ctrl-C on trio."""
    expected: Any = KINDS[kind]
    if backend == "trio":
        expected = (KeyboardInterrupt, BaseExceptionGroup) if kind == "interrupt" else trio.TrioInternalError
    with pytest.raises(expected) as caught:
        run_in(backend, path, method, kind, [])
    found: Any = caught.value
    while found is not None and not isinstance(found, KINDS[kind]):
        found = found.exceptions[0] if isinstance(found, BaseExceptionGroup) else found.__cause__
    assert found is not None

"""Methods that do not wait, called from another thread: refused in debug mode, as asyncio's own are."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any
from unittest import mock

import anyio
import pytest
import uvloop

import aiordma
from aiordma import rpc
from aiordma.channels import channel as channels
from aiordma.proto.clc import Kind

# Loops of the tests' own, in debug mode: asyncio and uvloop.
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


def run(main: Any, loop: str, debug: bool) -> None:
    with asyncio.Runner(loop_factory=LOOPS[loop], debug=debug) as runner:
        runner.run(main)


async def in_thread(function: Callable[[], object]) -> BaseException | None:
    """Call it in a thread where no loop runs; what it raised."""
    raised: list[BaseException] = []

    def call() -> None:
        try:
            function()
        except BaseException as exc:
            raised.append(exc)

    await asyncio.to_thread(call)
    return raised[0] if raised else None


@contextlib.asynccontextmanager
async def streams(mode: Any) -> AsyncIterator[Any]:
    async with await aiordma.listen("127.0.0.1", mode=mode) as listener:
        one = await aiordma.connect("127.0.0.1", listener.addresses[0][1], mode=mode)
        async with one, await listener.accept():
            yield one


@contextlib.asynccontextmanager
async def datagrams(mode: Any) -> AsyncIterator[Any]:
    async with await aiordma.listen_datagram("127.0.0.1", mode=mode) as listener:
        one = await aiordma.connect_datagram("127.0.0.1", listener.addresses[0][1], mode=mode)
        async with one, await listener.accept():
            yield one


@contextlib.asynccontextmanager
async def channel(mode: Any) -> AsyncIterator[Any]:
    async with await channels.listen("127.0.0.1", mode=mode) as listener:
        kind = Kind.CALLS
        one = await channels.connect("127.0.0.1", listener.addresses[0][1], kind=kind, mode=mode)
        async with one, await listener.accept():
            yield one


@contextlib.asynccontextmanager
async def endpoint(mode: Any) -> AsyncIterator[Any]:
    async with await aiordma.open_datagram_endpoint(("127.0.0.1", 0), mode=mode) as one:
        yield one


@contextlib.asynccontextmanager
async def client(mode: Any) -> AsyncIterator[Any]:
    service = rpc.Service("t")
    service.add(echo)
    async with rpc.serve(service, "127.0.0.1", mode=mode) as server:
        async with rpc.connect("127.0.0.1", server.port, mode=mode) as one:
            yield one


def echo(data: bytes) -> bytes:
    return data


@contextlib.asynccontextmanager
async def stream_of_client(mode: Any) -> AsyncIterator[Any]:
    async with client(mode) as one:
        yield one.stream("t.echo", b"")


SURFACES: dict[str, tuple[Any, dict[str, tuple[Any, ...]]]] = {
    "stream": (streams, {"send_nowait": (b"x",), "send_soon": (b"x",), "receive_nowait": (), "abort": ()}),
    "datagrams": (
        datagrams,
        {"send_nowait": (b"x",), "send_soon": (b"x",), "receive_nowait": (), "abort": ()},
    ),
    "channel": (channel, {"send_soon": (b"x",), "abort": ()}),
    "endpoint": (endpoint, {"send_nowait": ((b"x", ("127.0.0.1", 9)),), "close": ()}),
    "client": (client, {"stream": ("t.echo", b""), "abort": ()}),
    "stream of a client": (stream_of_client, {"close": ()}),
}


@pytest.mark.parametrize("mode", ["rdma", "tcp"])
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("surface", SURFACES)
def test_another_thread_is_refused_in_debug_mode(surface: str, loop: str, mode: str) -> None:
    opened, methods = SURFACES[surface]

    async def main() -> None:
        async with opened(mode) as one:
            for name, args in methods.items():
                call = getattr(one, name)
                error = await in_thread(functools.partial(call, *args))
                assert isinstance(error, RuntimeError), name
                assert "call_soon_threadsafe" in str(error)
            assert repr(one).startswith(f"<{type(one).__name__}") or surface in ("channel", "client")
            # From the loop's own thread, also when a thread asks for it, they work.
            name, args = next(iter(methods.items()))
            done = asyncio.Event()

            def call_it() -> None:
                with contextlib.suppress(anyio.WouldBlock):
                    getattr(one, name)(*args)
                done.set()

            asked = asyncio.get_running_loop()
            thread = threading.Thread(target=asked.call_soon_threadsafe, args=(call_it,))
            thread.start()
            await done.wait()
            thread.join()

    run(main(), loop, debug=True)


@pytest.mark.parametrize("surface", SURFACES)
def test_methods_can_be_replaced_in_debug_mode(surface: str) -> None:
    """As tests of programs do for a while; ``unittest``'s own run their loops in debug mode."""
    opened, methods = SURFACES[surface]

    async def main() -> None:
        async with opened("tcp") as one:
            kind = type(one).__mro__[1]
            for name, args in methods.items():
                with mock.patch.object(kind, name) as other:
                    assert getattr(one, name)(*args) is other.return_value, name
                other.assert_called_once_with(*args)

    run(main(), "asyncio", debug=True)


@pytest.mark.parametrize("loop", LOOPS)
def test_nothing_is_looked_at_without_debug_mode(loop: str) -> None:
    """Objects are of their own classes: no call costs more."""

    async def main() -> None:
        async with streams("tcp") as one:
            assert type(one) is aiordma.RdmaStream

    run(main(), loop, debug=False)

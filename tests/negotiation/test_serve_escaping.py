"""What handlers raise that is no ``Exception``: it ends ``serve()`` as it ends that of anyio's own listeners,
and nothing beside it; where the loop ends by it, when it runs again.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import uvloop

import aiordma
from aiordma.channels import channel
from tests.health import until
from tests.roles import LOCAL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

KINDS = ["streams", "datagrams", "channels"]
MODES = ["rdma", "tcp"]
LISTEN: dict[str, Any] = {
    "streams": aiordma.listen,
    "datagrams": aiordma.listen_datagram,
    "channels": channel.listen,
    "anyio": lambda host: anyio.create_tcp_listener(local_host=host),
}
CONNECT: dict[str, Any] = {
    "streams": aiordma.connect,
    "datagrams": aiordma.connect_datagram,
    "channels": channel.connect,
}
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


class Odd(BaseException):
    """A program's own."""


def leaves(error: BaseException) -> list[type[BaseException]]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for each in error.exceptions for leaf in leaves(each)]
    return [type(error)]


async def connect(kind: str, mode: str, listener: Any) -> Any:
    if kind == "anyio":
        return await anyio.connect_tcp(LOCAL, listener.extra(anyio.abc.SocketAttribute.local_port))
    return await CONNECT[kind](LOCAL, listener.port, mode=mode)


async def see_the_end(kind: str, client: Any) -> None:
    if kind == "channels":
        ended: list[object] = []
        client.channel.on_closed = ended.append
        client.channel.on_message = lambda _: None
        await until(lambda: ended or client.channel.spin())
    else:
        with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
            await client.receive()


@contextlib.asynccontextmanager
async def streams(mode: Any) -> AsyncIterator[tuple[Any, Any]]:
    async with (
        await aiordma.listen(LOCAL) as listener,
        await aiordma.connect(LOCAL, listener.port, mode=mode) as one,
        await listener.accept() as other,
    ):
        yield one, other


async def play(kind: str, mode: str, error: type[BaseException]) -> list[type[BaseException]]:
    """What comes out of serve(), whose second client's handler raises. The first one's waits."""
    first = True
    waits = anyio.Event()
    ended: list[BaseException | None] = []

    async def handle(connection: Any) -> None:
        nonlocal first
        # anyio leaves it to its handlers to close a connection.
        async with connection if kind == "anyio" else contextlib.nullcontext():
            if first:
                first = False
                waits.set()
                await anyio.sleep_forever()
            raise error

    async def serve(listener: Any) -> None:
        try:
            await listener.serve(handle)
        except BaseException as exc:
            ended.append(exc)
        else:
            ended.append(None)

    async with contextlib.AsyncExitStack() as stack, anyio.create_task_group() as tasks:
        one, other = await stack.enter_async_context(streams("tcp" if mode == "tcp" else "rdma"))
        listener = await stack.enter_async_context(await LISTEN[kind](LOCAL))
        tasks.start_soon(serve, listener)
        clients = []
        for _ in "ab":
            clients.append(await stack.enter_async_context(await connect(kind, mode, listener)))
            await waits.wait()
        for client in clients:
            await see_the_end(kind, client)
        await until(lambda: ended)
        await one.send(b"as ever")
        assert await other.receive() == b"as ever"
    return [] if ended[0] is None else leaves(ended[0])


@pytest.mark.anyio
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", MODES)
async def test_it_ends_serve(kind: str, mode: str) -> None:
    for error in (GeneratorExit, Odd):
        assert await play(kind, mode, error) == await play("anyio", "tcp", error)


async def nothing_cancels_this() -> None:
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("on_error", ["log", "raise"])
def test_a_cancelled_future_is_an_error_of_its_handler(
    loop: str, kind: str, mode: str, on_error: Any, handler_failures: list[str]
) -> None:
    """anyio's own listeners end without a word then: what they run is cancelled, as far as they can see."""

    async def play() -> None:
        started = 0

        async def handle(_: object) -> None:
            nonlocal started
            started += 1
            if started == 1:
                await nothing_cancels_this()
            await anyio.sleep_forever()

        async with contextlib.AsyncExitStack() as stack:
            listener = await stack.enter_async_context(await LISTEN[kind](LOCAL))
            serving = asyncio.ensure_future(listener.serve(handle, on_error=on_error))
            client = await stack.enter_async_context(await CONNECT[kind](LOCAL, listener.port, mode=mode))
            await see_the_end(kind, client)
            if on_error == "raise":
                with pytest.raises(ExceptionGroup) as caught:
                    await serving
                (error,) = caught.value.exceptions
                assert isinstance(error, RuntimeError)
                assert isinstance(error.__cause__, asyncio.CancelledError)
            else:
                await stack.enter_async_context(await CONNECT[kind](LOCAL, listener.port, mode=mode))
                await until(lambda: started == 2)
                assert listener.statistics().handlers_failed == 1
                assert "has awaited what somebody else has cancelled" in handler_failures.pop()
                serving.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await serving

    with contextlib.closing(LOOPS[loop]()) as running:
        running.run_until_complete(play())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("loop", LOOPS)
def test_it_ends_the_loop_which_may_be_run_again(loop: str, kind: str, mode: str) -> None:
    def seen(kind: str, error: type[BaseException]) -> list[Any]:
        running = LOOPS[loop]()
        playing = running.create_task(play(kind, mode, error))
        ended = []
        while not playing.done():
            try:
                running.run_until_complete(playing)
            except error as exc:
                ended.append(type(exc))
        running.close()
        return [ended, playing.result()]

    for error in (KeyboardInterrupt, SystemExit):
        assert seen(kind, error) == seen("anyio", error) == [[error], [error]]

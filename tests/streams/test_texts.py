"""What careless users do is refused with words: use after the end, in another loop, a wrong mode."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import trio

import aiordma
from aiordma.channels import channel
from tests.health import until
from tests.processes import FULL_PATIENCE
from tests.world import DEVICE

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

LOCAL = "127.0.0.1"
CONFIG = aiordma.Config(device=DEVICE)
BOTH_PATHS = pytest.mark.parametrize("mode", ["rdma", "tcp"])
WAYS: dict[str, tuple[Any, Any]] = {
    "streams": (aiordma.listen, aiordma.connect),
    "datagrams": (aiordma.listen_datagram, aiordma.connect_datagram),
}


@pytest.mark.anyio
@BOTH_PATHS
@pytest.mark.parametrize("kind", WAYS)
async def test_every_end_has_a_text(kind: str, mode: str) -> None:
    listen, connect = WAYS[kind]
    async with await listen(LOCAL, 0, config=CONFIG) as listener:
        client = await connect(LOCAL, listener.port, mode=mode, config=CONFIG)
        server = await listener.accept()
        await client.send_eof()
        with pytest.raises(anyio.ClosedResourceError, match=r"send_eof\(\) was called on this"):
            await client.send(b"x")
        with pytest.raises(anyio.EndOfStream, match="the peer has finished sending"):
            await server.receive()
        await anyio.aclose_forcefully(server)
        for call in (client.receive, client.receive_many if kind == "datagrams" else client.borrow):
            with pytest.raises(anyio.BrokenResourceError, match=r"connection is lost: ."):
                await call()
        await client.aclose()
        await client.aclose()
        for call in (lambda: client.send(b"x"), client.receive, client.send_eof, client.borrow):
            with pytest.raises(anyio.ClosedResourceError, match=r"this \w+ is closed"):
                await call()
        for pipe_call in (lambda: client._pipe.try_send(b"x"), client.receive_nowait):
            with pytest.raises(anyio.ClosedResourceError, match=r"closed"):
                pipe_call()


@pytest.mark.anyio
@BOTH_PATHS
async def test_the_end_of_a_channel_has_a_text(mode: Any) -> None:
    async with await channel.listen(LOCAL, 0, config=CONFIG) as listener:
        client = await channel.connect(LOCAL, listener.port, mode=mode, config=CONFIG)
        server = await listener.accept()
        await server.aclose()
        client.channel.on_message = lambda _: None

        def refusal() -> Exception | None:
            try:
                client.channel.spin()
                client.channel.try_send(b"x")
            except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
                return error
            return None

        await until(lambda: refusal() is not None)
        assert "the peer has closed the connection" in str(refusal())
        await client.aclose()
        await client.aclose()
        assert "this end was closed" in str(refusal())


@pytest.mark.anyio
@pytest.mark.parametrize("function", [aiordma.connect, aiordma.connect_datagram, channel.connect])
async def test_a_mode_that_there_is_not(function: Any) -> None:
    with pytest.raises(ValueError, match=r"mode='RDMA'.*auto.*rdma.*tcp"):
        await function(LOCAL, 1, mode="RDMA")


def in_thread(runner: Callable[..., Any], function: Callable[[], Coroutine[Any, Any, object]]) -> Exception:
    """What ``function`` raises in a loop of another thread."""
    errors: list[Exception] = []

    def main() -> None:
        try:
            runner(function)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=main)
    thread.start()
    thread.join(FULL_PATIENCE)
    return errors[0]


def run_asyncio(function: Callable[[], Coroutine[Any, Any, object]]) -> None:
    asyncio.run(function())


@pytest.mark.anyio
@BOTH_PATHS
@pytest.mark.parametrize("kind", WAYS)
@pytest.mark.parametrize("runner", [run_asyncio, trio.run], ids=["asyncio", "trio"])
async def test_another_threads_loop(kind: str, mode: str, runner: Callable[..., Any]) -> None:
    listen, connect = WAYS[kind]
    async with await listen(LOCAL, 0, config=CONFIG) as listener:
        async with await connect(LOCAL, listener.port, mode=mode, config=CONFIG) as client:
            async with await listener.accept() as server:
                for call in (lambda: client.send(b"x"), client.receive, client.aclose):
                    error = await anyio.to_thread.run_sync(in_thread, runner, call)
                    assert isinstance(error, RuntimeError)
                    assert "belongs to another event loop" in str(error)
                # Nothing has happened to it.
                await client.send(b"mine")
                assert await server.receive() == b"mine"


@pytest.mark.parametrize("debug", [False, True])
def test_another_threads_loop_while_a_task_of_its_own_runs(debug: bool) -> None:
    """The running task of the stream's own loop does not hide the other loop from the fast path."""

    async def main() -> None:
        async with await aiordma.listen(LOCAL, 0, config=CONFIG) as listener:
            async with await aiordma.connect(LOCAL, listener.port, mode="rdma", config=CONFIG) as client:
                async with await listener.accept():
                    for _ in range(10):
                        # Blocks this loop, in a task.
                        error = in_thread(run_asyncio, lambda: client.send(b"x"))
                        assert "belongs to another event loop" in str(error)

    asyncio.run(main(), debug=debug)

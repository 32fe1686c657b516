"""The end of a client without waiting: abort(), closed, and callbacks on close."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import anyio
import pytest
from anyio.lowlevel import checkpoint

from aiordma import rpc, wake
from aiordma.channels import channel as channels
from aiordma.config import Config
from aiordma.testing.rpc import rpc_pair
from tests.health import settle
from tests.world import DEVICE

from .services import service

pytestmark = pytest.mark.anyio


async def test_abort_fails_the_calls_in_flight() -> None:
    async with rpc_pair(service()[0]) as pair:
        client = pair.client
        states = [client.closed]
        called: list[rpc.Client] = []
        removed: list[rpc.Client] = []
        client.add_close_callback(called.append)
        client.add_close_callback(removed.append)
        assert client.remove_close_callback(removed.append) == 1
        codes: list[rpc.Code] = []

        async def call() -> None:
            try:
                await client.call("t.wait")
            except rpc.RpcError as error:
                codes.append(error.code)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await settle()
            wake.current().call_soon(client.abort)
        await settle()
        assert codes == [rpc.Code.UNAVAILABLE]
        states.append(client.closed)
        assert states == [False, True]
        client.abort()
        client.add_close_callback(called.append)  # it is closed: soon
        await settle()
        assert called == [client, client]
        assert not removed
        assert pair.server.statistics().connections == 0


@pytest.mark.parametrize("mode", ["rdma", "tcp"])
async def test_a_callback_learns_that_the_server_has_closed(mode: str) -> None:
    config = Config(device=DEVICE)
    told = anyio.Event()
    async with rpc.serve(service()[0], "127.0.0.1", config=config, mode=mode) as server:  # type: ignore[arg-type]
        context = rpc.connect("127.0.0.1", server.port, config=config, mode=mode)  # type: ignore[arg-type]
        client = await context.__aenter__()
        client.add_close_callback(lambda client: told.set())
        assert await client.call("t.echo", b"x") == b"x"
        assert not told.is_set()
    with anyio.fail_after(10):
        await told.wait()
    assert client.closed
    await context.__aexit__(None, None, None)


@pytest.mark.parametrize("mode", ["rdma", "tcp"])
async def test_what_came_before_the_server_s_end_is_read_after_calls_in_vain(mode: str) -> None:
    config = Config(device=DEVICE)
    given, made = anyio.Event(), rpc.Service("e")

    @made.method
    async def items() -> AsyncIterator[int]:
        for item in range(5):
            yield item
        given.set()
        await anyio.sleep_forever()

    async with contextlib.AsyncExitStack() as stack:
        serving = rpc.serve(made, "127.0.0.1", config=config, mode=mode, drain_timeout=0.0)  # type: ignore[arg-type]
        async with serving as server:
            connecting = rpc.connect("127.0.0.1", server.port, config=config, mode=mode)  # type: ignore[arg-type]
            client = await stack.enter_async_context(connecting)
            stream = await stack.enter_async_context(client.stream("e.items", returns=int))
            assert await stream.receive() == 0
            await given.wait()
        for _ in range(3):
            with pytest.raises(rpc.RpcError) as caught:
                await client.call("e.in_vain")
            assert caught.value.code is rpc.Code.UNAVAILABLE
        assert [await stream.receive() for _ in range(4)] == [1, 2, 3, 4]
        with pytest.raises(rpc.RpcError):
            await stream.receive()


@pytest.mark.parametrize("mode", ["rdma", "tcp"])
async def test_a_channel_is_aborted(mode: str) -> None:
    config = Config(device=DEVICE)
    ended: list[BaseException | None] = []
    async with await channels.listen("127.0.0.1", config=config, mode=mode) as listener:  # type: ignore[arg-type]
        one = await channels.connect("127.0.0.1", listener.port, config=config, mode=mode)  # type: ignore[arg-type]
        other = await listener.accept()
        other.channel.on_closed = ended.append
        other.channel.on_message = lambda message: None
        one.abort()
        one.abort()
        with anyio.fail_after(10):
            while not ended:
                await checkpoint()
        assert ended[0] is not None
        await other.aclose()

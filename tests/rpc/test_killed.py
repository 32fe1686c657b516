"""kill -9 of a server and of a client in the middle of calls: the other end learns of it, and goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest
from anyio.lowlevel import checkpoint

from aiordma import rpc
from tests.processes import PATIENCE, process

from .roles import CONFIG, LOCAL
from .services import service

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiordma.config import Mode

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("path", ["rdma", "tcp"])]


async def receive_all(stream: rpc.ClientStream) -> None:
    while True:
        await stream.receive()


async def test_server(path: Mode) -> None:
    errors: list[rpc.RpcError] = []
    with process("tests.rpc.roles:server") as bystander, process("tests.rpc.roles:server") as victim:
        ports = [await bystander.heard(), await victim.heard()]
        async with (
            rpc.connect(LOCAL, ports[0], config=CONFIG, mode=path) as other,
            rpc.connect(LOCAL, ports[1], config=CONFIG, mode=path) as client,
        ):
            assert client.path == path

            async def fails(kind: str) -> None:
                kinds: dict[str, Callable[[], Awaitable[object]]] = {
                    "call": lambda: client.call("t.wait"),
                    "items": lambda: receive_all(client.stream("t.count_async", 1_000_000_000)),
                    "result": lambda: client.stream("t.hold").result(),
                }
                with pytest.raises(rpc.RpcError) as caught:
                    await kinds[kind]()
                errors.append(caught.value)

            with anyio.fail_after(PATIENCE):
                async with anyio.create_task_group() as tasks:
                    for kind in ("call", "call", "items", "result"):
                        tasks.start_soon(fails, kind)
                    while True:
                        victim.say("how many")
                        if await victim.heard() >= 3:
                            break
                    victim.kill()
                assert [error.code for error in errors] == [rpc.Code.UNAVAILABLE] * 4
                assert all(error.__cause__ is not None and not error.not_started for error in errors)
                assert await client.wait_closed() is not None
                with pytest.raises(rpc.RpcError) as caught:
                    await client.call("t.echo", b"")
                assert caught.value.not_started
                assert await other.call("t.echo", b"as ever") == b"as ever"


async def test_client(path: Mode) -> None:
    made, seen = service()
    async with rpc.serve(made, LOCAL, config=CONFIG) as server:
        async with rpc.connect(LOCAL, server.port, config=CONFIG, mode=path) as other:
            with anyio.fail_after(PATIENCE):
                with process("tests.rpc.roles:client", port=server.port, path=path) as victim:
                    assert await victim.heard() == "waiting"
                    while seen.running < 2:
                        await checkpoint()
                    victim.kill()
                    while server.statistics().connections > 1 or seen.running:
                        await anyio.wait_all_tasks_blocked()
                assert seen.finished == 0
                assert await other.call("t.echo", b"as ever") == b"as ever"

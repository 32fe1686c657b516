"""What a handler leaves with its task, or in context variables, the next call does not find."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from aiordma import rpc
from aiordma.config import Config
from aiordma.testing.rpc import rpc_pair
from tests.health import until
from tests.world import DEVICE

if TYPE_CHECKING:
    from aiordma.config import Mode

pytestmark = pytest.mark.anyio

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("of_call", default="")


class Noting:
    """Each method keeps what belongs to its call, as a program would: with the task, and in a variable."""

    def __init__(self) -> None:
        self.by_task: dict[Any, str] = {}
        self.names: list[str] = []
        self.ended = 0

    def note(self, who: str) -> str:
        found = VARIABLE.get()
        VARIABLE.set(who)
        try:
            task: Any = asyncio.current_task()
        except RuntimeError:  # trio
            return found
        if task is not None:
            found += self.by_task.get(task, "") + getattr(task, "of_call", "")
            if task.get_name().startswith("call of"):
                found += task.get_name()
            self.by_task[task] = task.of_call = who
            task.set_name(f"call of {who}")
            task.add_done_callback(self._on_end)
        return found

    def _on_end(self, _: object) -> None:
        self.ended += 1

    @rpc.method
    def plain(self, who: str) -> str:
        return self.note(who)

    @rpc.method
    async def at_once(self, who: str) -> str:
        return self.note(who)

    @rpc.method
    async def late(self, who: str) -> str:
        found = self.note(who)
        await checkpoint()
        return found

    @rpc.method
    def items(self, who: str) -> Iterator[str]:
        yield self.note(who)

    @rpc.method
    async def items_async(self, who: str) -> AsyncIterator[str]:
        yield self.note(who)

    @rpc.method
    async def taking(self, who: str, items: AsyncIterator[int]) -> str:
        async for _ in items:
            pass
        return self.note(who)


class Around(rpc.ServerInterceptor):
    others_pass = True

    async def unary(self, call: rpc.ServerCall, proceed: Any) -> Any:
        return await proceed(call)


METHODS = ["plain", "at_once", "late", "items", "items_async", "taking"]


async def call_often(client: rpc.Client, method: str, noting: Noting, tasks: int) -> None:
    """Twenty calls, each of which finds nothing of the one before.

    :param tasks: how many tasks of their own asyncio's handlers have had then.
    """
    VARIABLE.set("the client's")
    for i in range(20):
        if method in ("items", "items_async", "taking"):
            async with client.stream(f"t.{method}", f"client {i}") as stream:
                found = await stream.result() if method == "taking" else await stream.receive()
                with pytest.raises(anyio.EndOfStream):
                    await stream.receive()
        else:
            found = await client.call(f"t.{method}", f"client {i}")
        assert found == ""
    assert VARIABLE.get() == "the client's"
    await until(lambda: noting.ended == len(noting.by_task))
    assert asyncio_task() not in noting.by_task
    if asyncio_task() is not None:
        assert len(noting.by_task) == tasks


@pytest.mark.parametrize("around", [False, True], ids=["direct", "intercepted"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("spin", [False, True])
async def test_calls_are_strangers(method: str, around: bool, spin: bool) -> None:
    noting = Noting()
    interceptors = [Around()] if around else []
    async with rpc_pair(
        rpc.Service("t", of=noting), interceptors=interceptors, channel={"spin": spin}
    ) as pair:
        tasks = 20 if method != "plain" or around else 0
        await call_often(pair.client, method, noting, tasks)


@pytest.mark.parametrize("around", [False, True], ids=["direct", "intercepted"])
@pytest.mark.parametrize("path", ["rdma", "tcp"])
async def test_calls_between_two_ends_are_strangers(path: Mode, around: bool) -> None:
    noting, config = Noting(), Config(device=DEVICE)
    interceptors = [Around()] if around else []
    async with (
        rpc.serve(
            rpc.Service("t", of=noting), "127.0.0.1", config=config, interceptors=interceptors
        ) as server,
        rpc.connect("127.0.0.1", server.port, config=config, mode=path) as client,
    ):
        assert client.path == path
        tasks = 0
        for method in METHODS:
            if method != "plain" or around:
                tasks += 20
            await call_often(client, method, noting, tasks)


def asyncio_task() -> object:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None

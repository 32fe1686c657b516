"""Operations of two tasks on one stream that begin together."""

from __future__ import annotations

from collections.abc import AsyncIterator  # the methods' types are looked up
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from aiordma import rpc, wake
from aiordma.testing.rpc import rpc_pair
from tests.health import settle
from tests.processes import PATIENCE

from .services import service

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

pytestmark = pytest.mark.anyio


def end_share() -> None:
    """Let the next operation give others a turn first: on trio, and with asyncio's debug mode, each does."""
    waker = wake.current()
    if waker.name != "trio":
        waker.share = 0


async def together(operation: Callable[[], Coroutine[Any, Any, object]]) -> list[str]:
    """Two tasks that begin ``operation`` in the same turn, where it never ends: the errors they get."""
    errors: list[str] = []

    async def attempt() -> None:
        end_share()
        try:
            await operation()
        except anyio.BusyResourceError as error:
            errors.append(str(error))

    with anyio.move_on_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(attempt)
            tasks.start_soon(attempt)
            await settle()
            tasks.cancel_scope.cancel()
    return errors


async def test_two_tasks_receive_in_one_turn() -> None:
    made, _ = service()
    async with rpc_pair(made) as pair, pair.client.stream("t.hold") as stream:
        (error,) = await together(stream.receive)
        assert "receiving from" in error


@pytest.mark.parametrize("without", ["credit", "room"])
async def test_two_tasks_send_in_one_turn(without: str) -> None:
    made, _ = service()
    channel = {"receive_bytes": 1000} if without == "room" else {}
    window = 100 if without == "credit" else 1 << 20
    async with rpc_pair(made, window=window, channel=channel) as pair, pair.client.stream("t.hold") as stream:
        if without == "credit":
            await stream.send(bytes(100))
        else:
            pair.server_end._schedule = lambda step: None  # nothing arrives at the server any more
            await stream.send(bytes(900))
        (error,) = await together(lambda: stream.send(bytes(900)))
        assert "sending to" in error


async def test_two_tasks_take_the_items_of_a_handler() -> None:
    errors: list[list[str]] = []

    @rpc.method
    async def two(items: AsyncIterator[bytes]) -> None:
        errors.append(await together(items.__anext__))  # type: ignore[arg-type]

    made = rpc.Service("k")
    made.add(two)
    async with rpc_pair(made) as pair, pair.client.stream("k.two") as stream:
        await stream.start()
        with anyio.fail_after(PATIENCE):
            while not errors:
                await checkpoint()
    ((error,),) = errors
    assert "receiving from" in error

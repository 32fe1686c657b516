"""Operations of two tasks on one stream that begin together, the first ones and its end among them."""

from __future__ import annotations

from collections.abc import AsyncIterator  # the methods' types are looked up
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from aiordma import rpc, wake
from aiordma.testing.rpc import RpcPair, rpc_pair
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

    with anyio.fail_after(PATIENCE):
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


async def busy(pair: RpcPair, tasks: Any, running: Callable[[], int]) -> None:
    """Take the one place that there is."""
    tasks.start_soon(pair.client.call, "t.wait")
    while not running():
        await checkpoint()


async def test_the_first_operations_of_two_tasks() -> None:
    made, seen = service()
    async with rpc_pair(made, calls=1) as pair, anyio.create_task_group() as tasks:
        await busy(pair, tasks, lambda: seen.running)
        stream = pair.client.stream("t.double", returns=int)
        received: list[int] = []

        async def receive() -> None:
            received.append(await stream.receive())

        async def send() -> None:
            await stream.send(21)

        for first in (receive, send, stream.start):
            tasks.start_soon(first)
            await settle()
        seen.go.set()
        with anyio.fail_after(PATIENCE):
            while not received:
                await checkpoint()
        await stream.aclose()
    assert received == [42]


async def test_both_learn_that_the_call_cannot_be_made() -> None:
    made, seen = service()
    codes: list[rpc.Code] = []
    async with rpc_pair(made, calls=1) as pair, anyio.create_task_group() as tasks:
        stream = pair.client.stream("t.double")

        async def receive() -> None:
            with pytest.raises(rpc.RpcError) as caught:
                await stream.receive()
            codes.append(caught.value.code)

        tasks.start_soon(pair.client.call, "t.wait")
        while not seen.running:
            await checkpoint()
        for _ in range(2):
            tasks.start_soon(receive)
            await settle()
        pair.server.drain()
        with anyio.fail_after(PATIENCE):
            while len(codes) < 2:
                await checkpoint()
        seen.go.set()
    assert codes == [rpc.Code.UNAVAILABLE] * 2


async def test_one_that_is_cancelled_before_the_call_is_made_leaves_it_to_the_other() -> None:
    made, seen = service()
    async with rpc_pair(made, calls=1) as pair, anyio.create_task_group() as tasks:
        await busy(pair, tasks, lambda: seen.running)
        stream = pair.client.stream("t.total", 1, returns=int)
        scope = anyio.CancelScope()

        async def receive() -> None:
            with scope:
                await stream.receive()

        async def send() -> None:
            await stream.send(2)
            assert await stream.result() == 3
            sent.set()

        sent = anyio.Event()
        tasks.start_soon(receive)
        await settle()
        tasks.start_soon(send)
        await settle()
        scope.cancel()
        seen.go.set()
        with anyio.fail_after(PATIENCE):
            await sent.wait()


@pytest.mark.parametrize("how", ["close", "aclose", "leave"])
async def test_closed_while_the_call_waits_for_its_place(how: str) -> None:
    made, seen = service()
    refused = 0
    async with rpc_pair(made, calls=1) as pair, anyio.create_task_group() as tasks:
        await busy(pair, tasks, lambda: seen.running)
        stream = pair.client.stream("t.hold")

        async def begin(operation: Callable[[], Coroutine[Any, Any, object]]) -> None:
            nonlocal refused
            with pytest.raises(anyio.ClosedResourceError):
                await operation()
            refused += 1

        for operation in (stream.start, stream.receive):
            tasks.start_soon(begin, operation)
            await settle()
        if how == "close":
            stream.close()
        elif how == "aclose":
            await stream.aclose()
        else:
            await stream.__aexit__(None, None, None)
        with anyio.fail_after(PATIENCE):
            while refused < 2:
                await checkpoint()
        assert pair.client.connection.in_flight.waiting == 0
        seen.go.set()
        with anyio.fail_after(PATIENCE):
            while pair.client.connection.calls:
                await checkpoint()
        # No call was made, with which "t.hold" would have begun.
        assert pair.client.connection.machine.counts() == [("t.wait", 1, 0, 0)]
        assert pair.client.in_flight.available == 1


@pytest.mark.parametrize("others", [False, True])
async def test_closed_while_the_call_waits_for_room(others: bool) -> None:
    """Behind others that wait it is given up at once; else it is cancelled as soon as it has left."""
    steps: list[Any] = []
    made, seen = service()
    async with rpc_pair(made, channel={"receive_bytes": 2000}) as pair, anyio.create_task_group() as tasks:
        connection = pair.client.connection
        schedule, pair.server_end._schedule = pair.server_end._schedule, steps.append
        for _ in range(1 + others):
            tasks.start_soon(pair.client.call, "t.echo", bytes(1900))
        while not steps or connection.unsent < others:
            await checkpoint()
        stream = pair.client.stream("t.count_async", 1000)
        closed = anyio.Event()

        async def begin() -> None:
            with pytest.raises(anyio.ClosedResourceError):
                await stream.start()
            closed.set()

        tasks.start_soon(begin)
        while connection.unsent < 1 + others:
            await checkpoint()
        await stream.aclose()
        await settle()
        assert closed.is_set() == others
        assert connection.unsent == 1
        pair.server_end._schedule = schedule
        for step in steps:
            step()
        with anyio.fail_after(PATIENCE):
            await closed.wait()
            while connection.calls:
                await checkpoint()
    assert (seen.taken, seen.running, seen.finished) == (0, 0, 0)

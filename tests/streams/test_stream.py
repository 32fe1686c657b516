"""What holds for every stream: on each kind of pipe and each event loop."""

from __future__ import annotations

import errno
from random import Random
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import SocketAttribute

from aiordma.attributes import RdmaAttribute
from aiordma.errors import LinkError
from tests.streams.pairs import Pair, on_memory, on_tcp

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiordma.streams.stream import RdmaStream

pytestmark = pytest.mark.anyio


async def receive_all(stream: RdmaStream) -> bytes:
    return b"".join([part async for part in stream])


async def turns(n: int = 10) -> None:
    for _ in range(n):
        await anyio.lowlevel.checkpoint()


async def fill(stream: RdmaStream) -> int:
    """Send until nothing more goes in; the number of bytes."""
    sent = 0
    quiet = 0
    while quiet < 5:
        try:
            sent += stream.send_nowait(b"f" * 65536)
            quiet = 0
        except anyio.WouldBlock:
            quiet += 1
            await turns()
    return sent


async def send_on_and_on(stream: RdmaStream) -> None:
    """Wait to send, whatever room fill() left: on TCP, the kernel may make its buffers larger at any time."""
    while True:
        await stream.send(b"x" * 100_000)


async def test_bytes_arrive_whole_and_in_order_both_ways(pair: Pair) -> None:
    data = Random(1).randbytes(300_001)
    random = Random(2)

    async def write(stream: RdmaStream) -> None:
        at = 0
        while at < len(data):
            size = random.choice((0, 1, 7, 100, 5000, 70_000))
            await stream.send(data[at : at + size])
            at += size
        await stream.send_eof()

    async def read(stream: RdmaStream) -> None:
        got = bytearray()
        while True:
            try:
                got += await stream.receive(random.choice((1, 50, 3000, 65536)))
            except anyio.EndOfStream:
                break
        assert got == data

    async with anyio.create_task_group() as tg:
        for stream in pair:
            tg.start_soon(write, stream)
            tg.start_soon(read, stream)


async def test_receive_into_fills_the_callers_buffer(pair: Pair) -> None:
    one, other = pair
    data = Random(3).randbytes(50_000)
    got = bytearray(len(data))
    async with anyio.create_task_group() as tg:
        tg.start_soon(one.send, data)
        with memoryview(got) as view:
            at = 0
            while at < len(data):
                at += await other.receive_into(view[at : at + 6000])
    assert got == data
    await one.aclose()
    with pytest.raises(anyio.EndOfStream):
        await other.receive_into(bytearray(1))
    with pytest.raises(ValueError, match="at least 1 byte"):
        await other.receive_into(bytearray())


async def test_borrow_lends_without_loss(pair: Pair) -> None:
    one, other = pair
    data = Random(4).randbytes(20_000)
    got = b""
    async with anyio.create_task_group() as tg:
        tg.start_soon(one.send, data)
        while len(got) < len(data):
            with await other.borrow(700) as view:
                assert 1 <= len(view) <= 700
                assert view.readonly
                with pytest.raises(anyio.BusyResourceError):
                    await other.receive()
                with pytest.raises(anyio.BusyResourceError):
                    other.receive_nowait()
                got += view
            with pytest.raises(ValueError, match="released"):
                view[0]
    assert got == data
    await one.send_eof()
    with pytest.raises(anyio.EndOfStream):
        await other.borrow()


async def test_borrowed_view_ends_with_the_stream(pair: Pair) -> None:
    one, other = pair
    await one.send(b"abc")
    with await other.borrow() as view:
        assert bytes(view) == b"abc"
        await other.aclose()
    with pytest.raises(anyio.ClosedResourceError):
        await other.receive()


async def test_every_bytes_like_item_can_be_sent(pair: Pair) -> None:
    one, other = pair
    await one.send(bytearray(b"ab"))
    await one.send(memoryview(b"cd"))
    await one.send(memoryview(b"efghijkl").cast("I"))
    await one.send(memoryview(bytearray(b"mn")).toreadonly())
    await one.send(b"")
    await one.send_eof()
    assert await receive_all(other) == b"abcdefghijklmn"
    with pytest.raises(TypeError):
        await one.send("text")  # type: ignore[arg-type]


async def test_half_close_and_end(pair: Pair) -> None:
    one, other = pair
    await one.send(b"question")
    await one.send_eof()
    await one.send_eof()  # idempotent
    with pytest.raises(anyio.ClosedResourceError):
        await one.send(b"more")
    with pytest.raises(anyio.ClosedResourceError):
        one.send_nowait(b"more")
    assert await receive_all(other) == b"question"
    for _ in range(2):
        with pytest.raises(anyio.EndOfStream):
            await other.receive()
        with pytest.raises(anyio.EndOfStream):
            other.receive_nowait()
    await other.send(b"answer")
    assert await one.receive() == b"answer"
    await other.aclose()
    with pytest.raises(anyio.EndOfStream):
        await one.receive()


async def test_after_close(pair: Pair) -> None:
    one, other = pair
    await one.aclose()
    await one.aclose()
    for call in (lambda: one.send(b"x"), lambda: one.send(b""), one.receive, one.send_eof, one.borrow):
        with pytest.raises(anyio.ClosedResourceError):
            await call()
    with pytest.raises(anyio.ClosedResourceError):
        one.send_nowait(b"x")
    with pytest.raises(anyio.ClosedResourceError):
        one.receive_nowait()
    with pytest.raises(anyio.EndOfStream):
        await other.receive()
    assert one.path == other.path
    assert one.statistics()


async def test_what_was_sent_before_close_arrives(pair: Pair) -> None:
    one, other = pair
    await one.send(b"x" * 900)
    await one.aclose()
    assert await receive_all(other) == b"x" * 900


async def test_closing_wakes_both_waiting_directions(pair: Pair) -> None:
    one, _ = pair
    await fill(one)
    ended = 0

    async def expect_closed(call: Callable[[], Awaitable[object]]) -> None:
        nonlocal ended
        with pytest.raises(anyio.ClosedResourceError):
            await call()
        ended += 1

    async with anyio.create_task_group() as tg:
        tg.start_soon(expect_closed, one.receive)
        tg.start_soon(expect_closed, lambda: send_on_and_on(one))
        await turns()
        assert ended == 0
        await one.aclose()
    assert ended == 2


async def test_second_task_in_one_direction_is_refused(pair: Pair) -> None:
    one, _ = pair
    await fill(one)

    async with anyio.create_task_group() as tg:
        tg.start_soon(one.receive)
        tg.start_soon(send_on_and_on, one)
        await anyio.wait_all_tasks_blocked()
        calls: list[Callable[[], Awaitable[object]]] = [
            one.receive,
            lambda: one.receive_into(bytearray(1)),
            one.borrow,
            lambda: one.send(b"x"),
            lambda: one.send(b""),
            one.send_eof,
        ]
        for call in calls:
            with pytest.raises(anyio.BusyResourceError):
                await call()
        with pytest.raises(anyio.BusyResourceError):
            one.receive_nowait()
        with pytest.raises(anyio.BusyResourceError):
            one.send_nowait(b"x")
        tg.cancel_scope.cancel()


async def test_nowait(pair: Pair) -> None:
    one, other = pair
    with pytest.raises(anyio.WouldBlock):
        other.receive_nowait()
    sent = await fill(one)
    assert sent
    got = len(await other.receive())
    while got < sent:
        got += len(await other.receive())
    with pytest.raises(anyio.WouldBlock):
        other.receive_nowait()
    assert one.send_nowait(b"") == 0
    with pytest.raises(ValueError, match="at least 1"):
        other.receive_nowait(0)


async def test_receive_nowait_sees_what_the_loop_has_not_looked_at() -> None:
    one, other = on_tcp()
    async with one, other:
        await one.send(b"first")
        assert await other.receive() == b"first"
        with anyio.move_on_after(0):
            await other.receive()  # the socket is watched from now on
        await one.send(b"second")
        assert other.receive_nowait() == b"second"


@pytest.mark.parametrize("bad", [0, -1, 1.5, "1", None])
async def test_bad_sizes(bad: object) -> None:
    one, other = on_memory()
    async with one, other:
        await one.send(b"x")
        with pytest.raises((ValueError, TypeError)):
            await other.receive(bad)  # type: ignore[arg-type]
        assert await other.receive() == b"x"


async def test_cancelled_receive_consumes_nothing(pair: Pair) -> None:
    one, other = pair
    await one.send(b"kept")
    for call in (other.receive, lambda: other.receive_into(bytearray(9)), other.borrow):
        with anyio.CancelScope() as scope:
            scope.cancel()
            await call()
        assert scope.cancelled_caught
    assert await other.receive(4) == b"kept"


async def test_cancelled_while_waiting(pair: Pair) -> None:
    """In every order of arrival and cancellation within a turn, the byte is received exactly once."""
    one, other = pair
    for order in range(4):
        got: list[bytes] = []

        async def read(scope: anyio.CancelScope, got: list[bytes]) -> None:
            with scope:
                got.append(await other.receive())

        async with anyio.create_task_group() as tg:
            scope = anyio.CancelScope()
            tg.start_soon(read, scope, got)
            await turns()
            if order == 0:
                await one.send(b"x")
                scope.cancel()
            elif order == 1:
                scope.cancel()
                await one.send(b"x")
            else:
                await one.send(b"x")
                await turns(order)
                scope.cancel()
        if not got:
            got.append(await other.receive())
        assert got == [b"x"]


async def test_cancelled_send_keeps_its_prefix_and_the_stream(pair: Pair) -> None:
    one, other = pair
    data = Random(5).randbytes(8_000_000)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await one.send(b"never")
    whole: list[bool] = []

    async def send() -> None:
        await one.send(data)
        whole.append(True)  # what the kernel takes of a stream that leaves RDMA may be all of it

    async with anyio.create_task_group() as tg:
        tg.start_soon(send)
        await turns(30)
        tg.cancel_scope.cancel()
    async with anyio.create_task_group() as tg:

        async def finish() -> None:
            await one.send(b"END")
            await one.send_eof()

        tg.start_soon(finish)
        got = await receive_all(other)
    assert got.endswith(b"END")
    assert 0 < len(got) - 3 < len(data) or whole
    assert data.startswith(got[:-3])


async def test_close_when_cancelled_aborts(pair: Pair) -> None:
    one, other = pair
    await anyio.aclose_forcefully(one)
    with pytest.raises((anyio.BrokenResourceError, anyio.EndOfStream)):
        await other.receive()

    async def send_for_ever() -> None:
        while True:
            await other.send(b"x" * 1000)

    with pytest.raises(anyio.BrokenResourceError) as caught:
        await send_for_ever()
    assert isinstance(caught.value.__cause__, OSError | LinkError)


async def test_peer_gone_while_waiting_to_send(pair: Pair) -> None:
    one, other = pair
    await fill(one)

    async def expect_broken() -> None:
        with pytest.raises(anyio.BrokenResourceError):
            await send_on_and_on(one)

    async with anyio.create_task_group() as tg:
        tg.start_soon(expect_broken)
        await turns()
        await anyio.aclose_forcefully(other)


async def test_backpressure_stops_the_sender(pair: Pair) -> None:
    one, other = pair
    total = 0
    for _ in range(100):
        total += await fill(one)
        with anyio.move_on_after(0.05) as scope:
            await one.send(b"x")
            total += 1
        if scope.cancelled_caught:
            break
        # What was quiet was not full: a stream that leaves RDMA takes nothing until both ends have agreed.
    assert scope.cancelled_caught
    got = 0
    while got < total:
        got += len(await other.receive())
    await one.send(b"y")
    assert await other.receive() == b"y"


async def test_lost_connection_carries_its_cause() -> None:
    from aiordma.testing.memory import memory_pipe_pair
    from tests.streams.pairs import over

    pipes = memory_pipe_pair(4096)
    one, other = over(*pipes)
    cause = OSError(errno.EIO, "the device caught fire")
    await one.send(b"last words")
    await turns()

    async def expect_broken() -> None:
        with pytest.raises(anyio.BrokenResourceError) as caught:
            await one.receive()
        assert caught.value.__cause__ is cause

    async with anyio.create_task_group() as tg:
        tg.start_soon(expect_broken)
        await turns()
        pipes[0].break_with(cause)
    assert await other.receive() == b"last words"
    for call in (other.receive, lambda: other.send(b"x"), other.send_eof):
        with pytest.raises(anyio.BrokenResourceError) as caught:
            await call()
        assert caught.value.__cause__ is cause
    await one.aclose()
    await other.aclose()


async def test_busy_stream_starves_nobody(pair: Pair) -> None:
    """A task that never really waits still gives the others their turns."""
    one, other = pair
    ticks = 0
    running = True

    async def ticker() -> None:
        nonlocal ticks
        while running:
            await anyio.lowlevel.checkpoint()
            ticks += 1

    async with anyio.create_task_group() as tg:
        tg.start_soon(ticker)
        await turns()
        before = ticks
        for _ in range(2000):
            await one.send(b"ping")
            await other.receive()
        during = ticks - before
        before = ticks
        for _ in range(200):
            await one.send(bytearray(b"x" * 900))
            left = 900
            while left:
                left -= await other.receive_into(bytearray(left))
        running = False
    assert during >= 8
    assert ticks - before >= 1


async def test_hot_loop_notices_its_deadline(pair: Pair) -> None:
    one, other = pair
    with anyio.fail_after(10), anyio.move_on_after(0.05) as scope:
        while True:
            await one.send(b"ping")
            await other.receive()
    assert scope.cancelled_caught


async def test_attributes_outlive_the_connection(pair: Pair) -> None:
    one, other = pair
    for _ in range(2):
        assert one.extra(SocketAttribute.local_address) == other.extra(SocketAttribute.remote_address)
        assert one.extra(SocketAttribute.local_port) == one.extra(SocketAttribute.local_address)[1]
        assert one.extra(SocketAttribute.remote_port) == other.extra(SocketAttribute.local_port)
        assert one.extra(SocketAttribute.family).name == "AF_INET"
        assert one.extra(RdmaAttribute.path) == one.path
        assert one.extra(RdmaAttribute.fallback_reason, None) == one.fallback_reason
        assert one.extra(SocketAttribute.raw_socket, None) is None
        await one.aclose()
    assert "closed" in repr(one)


async def test_statistics_count(pair: Pair) -> None:
    one, other = pair
    await one.send(b"x" * 500)
    got = 0
    while got < 500:
        got += len(await other.receive())
    assert one.statistics().bytes_sent == 500
    assert other.statistics().bytes_received == 500


async def test_credit_tells_what_can_be_sent(pair: Pair) -> None:
    one, other = pair
    while not one.credit.available:  # it is just being taken to TCP
        await anyio.lowlevel.checkpoint()
    assert one.credit.limit >= 0
    sent = await fill(one)
    while one.credit.available:  # on TCP, the kernel has moved what was in its buffers
        sent += await fill(one)
    while sent:
        sent -= len(await other.receive())
    await one.send(b"x")
    assert await other.receive() == b"x"
    await turns()
    assert one.credit.available > 0
    await one.aclose()
    assert one.credit.available == 0

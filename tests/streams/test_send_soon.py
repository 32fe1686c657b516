"""send_soon() and flush(): accepted without waiting, in order, and never lost."""

from __future__ import annotations

from random import Random

import anyio
import anyio.lowlevel
import pytest

from aiordma.errors import Code
from tests.streams.pairs import Pair, on_memory, rdma_pair
from tests.streams.test_end import receive_until_lost
from tests.streams.test_stream import fill, receive_all, turns

pytestmark = pytest.mark.anyio


async def test_everything_arrives_in_order_with_send_between(pair: Pair) -> None:
    one, other = pair
    random = Random(1)
    data = random.randbytes(700_000)
    got: list[bytes] = []

    async def read() -> None:
        got.append(await receive_all(other))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        at = 0
        while at < len(data):
            sizes = [random.choice((0, 1, 30, 5000, 40_000)) for _ in range(random.randrange(1, 9))]
            parts = []
            for size in sizes:
                parts.append(memoryview(data)[at : at + size])
                at += size
            one.send_soon(parts)
            what = random.randrange(3)
            if what == 0:
                await one.send(data[at : at + 100])
                at += 100
            elif what == 1:
                await one.flush()
            else:
                await anyio.lowlevel.checkpoint()
        await one.send_eof()  # behind what waits
    assert got == [data]


async def test_it_never_waits_and_goes_out_by_itself(pair: Pair) -> None:
    one, other = pair
    data = Random(2).randbytes(9_000_000)
    one.send_soon(memoryview(data))  # one buffer alone, larger than rings and sockets
    assert one._outbox is not None
    assert one._outbox.nbytes
    with pytest.raises(anyio.WouldBlock):
        one.send_nowait(b"x")
    got = bytearray()
    while len(got) < len(data):  # no task flushes
        got += await other.receive(1 << 20)
    assert got == data
    await one.flush()
    assert one.send_nowait(b"x") == 1
    assert await other.receive() == b"x"


async def test_a_cancelled_flush_loses_nothing(pair: Pair) -> None:
    one, other = pair
    data = Random(3).randbytes(9_000_000)
    one.send_soon([data])
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:

            async def cancel() -> None:
                await turns()
                scope.cancel()

            tasks.start_soon(cancel)
            await one.flush()
    assert scope.cancelled_caught
    one.send_soon([b"and", b" on"])
    got = bytearray()
    while len(got) < len(data) + 6:
        got += await other.receive(1 << 20)
    assert got == data + b"and on"


async def test_several_tasks_flush(pair: Pair) -> None:
    one, other = pair
    data = bytes(5_000_000)
    one.send_soon([data])
    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(one.flush)
        received = 0
        while received < len(data):
            received += len(await other.receive(1 << 20))


async def test_the_limit_is_an_error_and_accepts_nothing(pair: Pair) -> None:
    one, other = pair
    one.send_soon_limit = 1000
    filled = await fill(one)
    big = b"y" * 6_000_000
    one.send_soon([big])  # the length of one call is not limited
    with pytest.raises(anyio.WouldBlock, match="the limit is 1000: await flush"):
        one.send_soon([b"refused"])
    one.send_soon([])
    received = 0
    while received < filled + len(big):
        received += len(await other.receive(1 << 20))
    await one.flush()
    one.send_soon([b"accepted"])
    assert await other.receive() == b"accepted"


async def test_aclose_delivers_what_was_accepted(pair: Pair) -> None:
    one, other = pair
    data = Random(4).randbytes(7_000_000)
    got: list[bytes] = []

    async def read() -> None:
        got.append(await receive_all(other))

    async with anyio.create_task_group() as tasks:
        one.send_soon([data])
        tasks.start_soon(one.aclose)
        await turns()
        with pytest.raises(anyio.ClosedResourceError):
            one.send_soon([b"x"])
        with pytest.raises(anyio.ClosedResourceError):
            await one.flush()
        tasks.start_soon(read)
    assert got == [data]


async def test_two_ends_that_close_with_much_to_send_do_not_wait_for_each_other(pair: Pair) -> None:
    one, other = pair
    for stream in pair:
        stream.send_soon([bytes(7_000_000)])
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one.aclose)
            tasks.start_soon(other.aclose)


@pytest.mark.parametrize("how", ["abort", "cancel"])
async def test_an_aclose_that_waits_can_be_ended(pair: Pair, how: str) -> None:
    one, other = pair
    one.send_soon([bytes(9_000_000)])
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one.aclose)
            await turns()
            if how == "abort":
                one.abort()
            else:
                tasks.cancel_scope.cancel()
    await receive_until_lost(other)


async def test_a_loss_ends_flush_and_what_waits(pair: Pair) -> None:
    one, other = pair
    one.send_soon([bytes(9_000_000)])
    other.abort()
    with pytest.raises(anyio.BrokenResourceError):
        await one.flush()
    with pytest.raises(anyio.BrokenResourceError):
        one.send_soon([b"x"])
    assert one._outbox is not None
    assert not one._outbox.nbytes  # and no buffer is kept


async def test_mistakes(pair: Pair) -> None:
    """Nothing of what has one is sent."""
    one, other = pair
    for before in ([], [b"x"], [bytes(70_000)]):
        with pytest.raises(TypeError):
            one.send_soon([*before, "text"])  # type: ignore[list-item]
        with pytest.raises(BufferError, match="contiguous"):
            one.send_soon([*before, memoryview(bytes(100))[::2]])
    await one.flush()  # nothing waits
    await one.send_eof()
    with pytest.raises(anyio.EndOfStream):
        await other.receive()
    with pytest.raises(anyio.ClosedResourceError):
        one.send_soon([b"x"])
    await one.flush()


async def test_a_sending_task_is_not_mixed_up_with_it() -> None:
    one, other = on_memory(1000)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.send, bytes(5000))
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(anyio.BusyResourceError):
            one.send_soon([b"x"])
        received = 0
        while received < 5000:
            received += len(await other.receive())
    await one.aclose()
    await other.aclose()


async def test_what_waits_goes_on_over_tcp() -> None:
    one, other = await rdma_pair()
    data = Random(5).randbytes(3_000_000)
    one.send_soon([data, b"end"])
    got = bytearray(await other.receive(100_000))
    assert one._pipe.leave(Code.SWITCHED)  # type: ignore[attr-defined]
    while len(got) < len(data) + 3:
        got += await other.receive(100_000)
    assert got == data + b"end"
    assert one.path == "tcp"
    await one.flush()
    await one.aclose()
    await other.aclose()

"""receive_exactly() and receive_exactly_into()."""

from __future__ import annotations

import asyncio
import pickle
from array import array
from random import Random
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest

import aiordma
from tests.streams.test_stream import receive_all, turns

if TYPE_CHECKING:
    from tests.streams.pairs import Pair

pytestmark = pytest.mark.anyio

SIZES = (1, 7, 64, 4000, 32768, 32769, 70_000, 1_500_000)


async def test_exactly_what_was_asked_for(pair: Pair) -> None:
    one, other = pair
    random = Random(1)
    sizes = [random.choice(SIZES) for _ in range(12)]
    data = random.randbytes(sum(sizes))
    at = 0
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.send, data)
        for turn, size in enumerate(sizes):
            if turn % 2:
                buffer = bytearray(size)
                await other.receive_exactly_into(buffer)
                assert buffer == data[at : at + size]
            else:
                part = await other.receive_exactly(size)
                assert type(part) is bytes
                assert part == data[at : at + size]
            at += size


async def test_any_writable_contiguous_buffer(pair: Pair) -> None:
    one, other = pair
    numbers = array("d", [0.0] * 10_000)
    expected = array("d", range(10_000))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.send, expected.tobytes() + b"rest")
        await other.receive_exactly_into(numbers)
    assert numbers == expected
    with pytest.raises(BufferError, match="writable"):
        await other.receive_exactly_into(bytes(4))
    with pytest.raises(BufferError, match="contiguous"):
        await other.receive_exactly_into(memoryview(bytearray(8))[::2])
    with pytest.raises(ValueError, match="negative"):
        await other.receive_exactly(-1)
    assert await other.receive_exactly(0) == b""
    await other.receive_exactly_into(bytearray())
    assert await other.receive_exactly(4) == b"rest"


async def test_the_end_in_the_middle_says_what_came(pair: Pair) -> None:
    one, other = pair
    await one.send(b"abcde")
    await one.send_eof()
    with pytest.raises(aiordma.IncompleteRead, match="after 5 of 8 expected bytes") as caught:
        await other.receive_exactly(8)
    assert caught.value.partial == b"abcde"
    assert caught.value.expected == 8
    assert isinstance(caught.value, anyio.IncompleteRead)
    assert isinstance(caught.value, EOFError)
    assert vars(asyncio.IncompleteReadError(b"abcde", 8)).keys() <= vars(caught.value).keys()
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.partial, again.expected) == (b"abcde", 8)
    with pytest.raises(aiordma.IncompleteRead) as caught:
        await other.receive_exactly(1)
    assert caught.value.partial == b""
    with pytest.raises(anyio.EndOfStream):
        await other.receive()


async def test_the_end_in_the_middle_of_a_buffer(pair: Pair) -> None:
    one, other = pair
    data = Random(2).randbytes(100_000)
    buffer = bytearray(len(data) + 1)
    async with anyio.create_task_group() as tasks:

        async def send() -> None:
            await one.send(data)
            await one.send_eof()

        tasks.start_soon(send)
        with pytest.raises(aiordma.IncompleteRead) as caught:
            await other.receive_exactly_into(buffer)
    assert caught.value.partial == data
    assert isinstance(caught.value.partial, memoryview)
    assert buffer[:-1] == data


@pytest.mark.parametrize("into", [False, True])
async def test_cancelled_it_has_consumed_nothing(pair: Pair, into: bool) -> None:
    one, other = pair
    data = Random(3).randbytes(500_000)
    await one.send(data[:700])

    async def receive() -> None:
        if into:
            await other.receive_exactly_into(bytearray(len(data)))
        else:
            await other.receive_exactly(len(data))

    async with anyio.create_task_group() as tasks:
        for turn in range(3):
            async with anyio.create_task_group() as inner:
                inner.start_soon(receive)
                if turn == 1:
                    tasks.start_soon(one.send, data[700:499_000])
                await turns()
                inner.cancel_scope.cancel()
        assert not other.at_eof
        # Every way to receive begins with what had come.
        with await other.borrow(100) as view:
            assert view == data[:100]
        assert await other.receive(100) == data[100:200]
        assert other.receive_nowait(100) == data[200:300]
        buffer = bytearray(100)
        assert await other.receive_into(buffer) == 100
        assert buffer == data[300:400]
        got = bytearray(data[:400])
        while len(got) < 499_000:
            got += await other.receive(10_000)
    await one.send(data[499_000:499_900])
    await one.send_eof()
    got += await receive_all(other)
    data = data[:499_900]
    assert got == data


async def test_after_a_loss_what_came_is_received_first(pair: Pair) -> None:
    one, other = pair
    await one.send(b"abc")
    await turns()
    async with anyio.create_task_group() as tasks:

        async def receive() -> None:
            with pytest.raises(anyio.BrokenResourceError):
                await other.receive_exactly(100_000)

        tasks.start_soon(receive)
        await anyio.wait_all_tasks_blocked()
        one.abort()
    # On TCP the kernel drops what was not read when the reset came; here the task had read it.
    assert await other.receive() == b"abc"
    with pytest.raises(anyio.BrokenResourceError):
        await other.receive()


async def test_a_second_receiver_is_refused(pair: Pair) -> None:
    _, other = pair
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other.receive_exactly, 50_000)
        await anyio.wait_all_tasks_blocked()
        for size in (1, 99_999):
            with pytest.raises(anyio.BusyResourceError):
                await other.receive_exactly(size)
        with pytest.raises(anyio.BusyResourceError):
            await other.receive()
        tasks.cancel_scope.cancel()


async def test_closing_ends_it(pair: Pair) -> None:
    _, other = pair
    async with anyio.create_task_group() as tasks:

        async def receive() -> None:
            with pytest.raises(anyio.ClosedResourceError):
                await other.receive_exactly(50_000)

        tasks.start_soon(receive)
        await anyio.wait_all_tasks_blocked()
        await other.aclose()
    with pytest.raises(anyio.ClosedResourceError):
        await other.receive_exactly(50_000)

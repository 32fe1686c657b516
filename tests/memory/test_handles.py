"""Operations that are started and awaited later, many at once."""

from __future__ import annotations

import gc
import logging
import random
from typing import TYPE_CHECKING

import anyio
import pytest

from aiordma import faults, memory
from aiordma.memory import Rights
from aiordma.memory.peer import CREDIT
from tests.health import nothing_left, until

from .pairs import PATHS, config_of, pair

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

pytestmark = pytest.mark.anyio
BLOCK = 65_536


@pytest.mark.parametrize("path", PATHS)
async def test_more_than_the_credit_at_once(path: str) -> None:
    """They are started without waiting; as many as there is credit for are under way, the others follow."""
    count = 3 * CREDIT
    config = config_of(path)
    data = random.Random(3).randbytes(count * BLOCK)
    async with pair(path) as (client, _), await memory.alloc(count * BLOCK, config=config) as region:
        remote = await client.open(region.descriptor())
        view = memoryview(data)
        writes = [
            remote[at : at + BLOCK].start_write(view[at : at + BLOCK]) for at in range(0, len(data), BLOCK)
        ]
        await memory.gather(*writes)
        assert all(write.done for write in writes)
        assert region[:].view == data
        buffers = [bytearray(BLOCK) for _ in range(count)]
        reads = [remote[n * BLOCK : (n + 1) * BLOCK].start_read(buffer) for n, buffer in enumerate(buffers)]
        for read in reversed(reads):
            await read
            assert read.result() is None
            await read  # again
        assert b"".join(buffers) == data
        statistics = client.credit.statistics()
        assert statistics.available == CREDIT
        assert statistics.peak_in_use <= CREDIT


async def test_what_waits_for_credit_is_posted_when_it_comes() -> None:
    async with (
        pair("rdma") as (client, _),
        await memory.alloc(CREDIT * BLOCK) as region,
        await memory.alloc(CREDIT * BLOCK) as whole,
    ):
        remote = await client.open(region.descriptor())
        one = b"1" * 64
        with faults.injected("delay op=write ms=30"):
            first = remote.start_write(whole)
            second = remote[:64].start_write(one)
            assert client.credit.waiting == 1
            assert [first.done, second.done] == [False, False]
            with pytest.raises(RuntimeError, match="await it"):
                second.result()
            await second
            assert [first.done, second.done] == [True, True]  # in order
        assert region[:64].view == one


@pytest.mark.parametrize("path", PATHS)
async def test_atomic_operations_at_once(path: str) -> None:
    async with pair(path) as (client, _), await memory.alloc(2, "int64", config=config_of(path)) as region:
        remote = await client.open(region.descriptor(Rights(7)))
        found = await memory.gather(*(remote.start_fetch_and_add(1) for _ in range(200)))
        assert sorted(found) == list(range(200))
        swaps = [remote.start_compare_and_swap(0, n + 1, 8) for n in range(10)]
        assert sorted(await memory.gather(*swaps))[0] == 0
        assert memoryview(region)[0] == 200
        assert 1 <= memoryview(region)[1] <= 10


@pytest.mark.parametrize("path", PATHS)
async def test_giving_up(path: str) -> None:
    """Under way, and in the queue: the others are not affected, and credit and memory come back."""
    config = config_of(path)
    async with (
        nothing_left(),
        pair(path) as (client, _),
        await memory.alloc(CREDIT * BLOCK, config=config) as region,
    ):
        remote = await client.open(region.descriptor())
        big, small, last = bytearray(CREDIT * BLOCK), bytearray(64), bytearray(64)
        with faults.injected("delay op=read ms=20"):
            under_way = remote.start_read(big)
            queued = remote[:64].start_read(small)
            behind = remote[:64].start_read(last)
            for each in (queued, under_way):
                each.cancel()
                each.cancel()
                with pytest.raises(anyio.BrokenResourceError, match="given up"):
                    await each
            await behind
        await until(lambda: client.credit.available == CREDIT)
        assert not any(big)
        assert not any(small)
        del under_way, queued, behind, each
        gc.collect()
        for buffer in (big, small, last):
            buffer.append(0)


@pytest.mark.parametrize("path", PATHS)
async def test_a_cancelled_gather_gives_all_up(path: str) -> None:
    config = config_of(path)
    async with pair(path) as (client, _), await memory.alloc(BLOCK, config=config) as region:
        remote = await client.open(region.descriptor())
        writes: list[memory.Operation[None]] = []
        async with anyio.create_task_group() as tasks:

            async def run() -> None:
                writes.extend(remote.start_write(bytes(BLOCK)) for _ in range(2 * CREDIT))
                await memory.gather(*writes)

            with faults.injected("delay op=write ms=50"):
                tasks.start_soon(run)
                await until(lambda: client.credit.waiting > 0)
                tasks.cancel_scope.cancel()
        await until(lambda: client.credit.available == CREDIT)
        assert client.credit.waiting == 0
        assert writes[-1].done


@pytest.mark.parametrize("path", PATHS)
async def test_errors_come_with_the_result(path: str, caplog: pytest.LogCaptureFixture) -> None:
    async with pair(path) as (client, server), memory.register(bytearray(1000)) as region:
        remote = await client.open(region.descriptor(Rights.READ))
        with pytest.raises(memory.MemoryAccessError, match="does not allow"):
            remote.start_write(bytes(1000))  # at once
        with pytest.raises(ValueError, match="slice it"):
            remote.start_read(bytearray(1))
        with pytest.raises(BufferError):
            remote.start_read(bytes(1000))
        assert client.credit.available == CREDIT
        with faults.injected("error op=read"):
            lost = [remote.start_read(bytearray(1000)) for _ in range(3)]
            if path == "tcp":
                server._channel.abort()  # before it has answered
            for each in lost[:2]:
                with pytest.raises(anyio.BrokenResourceError):
                    await each
            await client.wait_closed()
        assert all(each.done for each in lost)
        with caplog.at_level(logging.WARNING, "aiordma.memory"):
            lost.clear()
            del each
            gc.collect()
        assert "never awaited" in caplog.text


@pytest.mark.parametrize("path", PATHS)
async def test_two_tasks_wait_for_one_operation(path: str) -> None:
    config = config_of(path)
    async with pair(path) as (client, _), await memory.alloc(BLOCK, config=config) as region:
        remote = await client.open(region.descriptor())
        with faults.injected("delay op=write ms=20"):
            write = remote.start_write(b"2" * BLOCK)
            ended = 0

            async def wait() -> None:
                nonlocal ended
                await write
                ended += 1

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait)
                tasks.start_soon(wait)
        assert ended == 2


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "operation",
    [
        lambda remote, ours: remote[:64].write(bytes(64)),
        lambda remote, ours: remote[:64].read(bytearray(64)),
        lambda remote, ours: remote.read(ours),
        lambda remote, ours: remote.blocks(8, [3, 1]).write(bytes(16)),
        lambda remote, ours: remote.fetch_and_add(1),
    ],
    ids=["write", "read", "region", "pieces", "atomic"],
)
async def test_others_have_their_turns(
    path: str, operation: Callable[[memory.RemoteMemory, memory.Region], Awaitable[object]]
) -> None:
    """A task whose operations all complete at once does not keep the loop for itself."""
    config = config_of(path)
    async with (
        pair(path) as (client, _),
        await memory.alloc(4096, config=config) as theirs,
        await memory.alloc(4096, config=config) as ours,
    ):
        remote = await client.open(theirs.descriptor(Rights(7)))
        turns, ended = 0, False

        async def other() -> None:
            nonlocal turns
            while not ended:
                turns += 1
                await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(other)
            for _ in range(1000):
                await operation(remote, ours)
            ended = True
        assert turns >= 5


async def test_a_cancelled_task_begins_nothing() -> None:
    async with pair("rdma") as (client, _), memory.register(bytearray(64)) as region:
        remote = await client.open(region.descriptor())
        with anyio.CancelScope() as scope:
            scope.cancel()
            await remote.write(b"x" * 64)
        assert not any(region[:].view)

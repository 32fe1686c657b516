"""READ, WRITE, flush, atomic operations and notifications, on every path."""

from __future__ import annotations

import array
import random

import anyio
import pytest

from aiordma import memory
from aiordma.memory import Rights
from aiordma.memory.peer import CREDIT
from tests.health import nothing_left

from .pairs import PATHS, config_of, pair

pytestmark = pytest.mark.anyio
ALL = Rights.READ | Rights.WRITE | Rights.ATOMIC
SIZES = [1, 64, 4096, 65_536, 65_537, 3_000_001]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("allocated", [True, False])
async def test_every_length(path: str, allocated: bool) -> None:
    rng = random.Random(1)
    config = config_of(path)
    async with pair(path) as (client, _):
        whole = await memory.alloc(SIZES[-1] + 20, config=config) if allocated else None
        async with whole or memory.register(bytearray(SIZES[-1] + 20)) as region:
            remote = await client.open(region.descriptor())
            for size in SIZES:
                data = rng.randbytes(size)
                region[:].view[:] = bytes(len(region))
                await remote[10 : 10 + size].write(data)
                assert region[10 : 10 + size].view == data
                assert not any(region[:10].view)
                assert not any(region[10 + size :].view)
                back = bytearray(size)
                await remote[10 : 10 + size].read(back)
                assert back == data


@pytest.mark.parametrize("path", PATHS)
async def test_regions_at_both_ends(path: str) -> None:
    config = config_of(path)
    data = random.Random(2).randbytes(1 << 20)
    async with (
        pair(path) as (client, _),
        await memory.alloc(1 << 18, "float32", config=config) as theirs,
        await memory.alloc(1 << 20, config=config) as ours,
        memory.register(bytearray(1 << 20)) as registered,
    ):
        remote = await client.open(theirs.descriptor())
        ours[:].view[:] = data
        await remote.write(ours)
        assert theirs[:].view == data
        await remote[4096:8192].read(ours[:4096])
        assert ours[:4096].view == data[4096:8192]
        await remote.read(registered)
        assert registered[:].view == data
        await remote[:16].write(array.array("d", [1.0, 2.0]))
        assert array.array("d", bytes(theirs[:16].view)).tolist() == [1.0, 2.0]


@pytest.mark.parametrize("path", PATHS)
async def test_the_server_uses_the_client(path: str) -> None:
    async with pair(path) as (_, server), memory.register(bytearray(b"of the client")) as region:
        remote = await server.open(region.descriptor(Rights.READ))
        got = bytearray(13)
        await remote.read(got)
        assert got == b"of the client"


@pytest.mark.parametrize("path", PATHS)
async def test_many_at_once_share_the_credit(path: str) -> None:
    block = 1 << 20
    config = config_of(path)
    async with pair(path) as (client, _), await memory.alloc(8 * block, config=config) as region:
        remote = await client.open(region.descriptor())

        async def write(number: int) -> None:
            await remote[number * block : (number + 1) * block].write(bytes([number]) * block)

        async with anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(write, number)
        for number in range(8):
            assert bytes(region[number * block : (number + 1) * block].view) == bytes([number]) * block
        statistics = client.credit.statistics()
        assert statistics.available == CREDIT
        assert 16 <= statistics.peak_in_use <= CREDIT
        await remote.flush()


@pytest.mark.parametrize("path", PATHS)
async def test_wrong_lengths_and_buffers(path: str) -> None:
    async with pair(path) as (client, _), memory.register(bytearray(100)) as region:
        remote = await client.open(region.descriptor())
        for wrong in (99, 101, 0):
            with pytest.raises(ValueError, match=f"has {wrong} bytes"):
                await remote.write(bytes(wrong))
            with pytest.raises(ValueError, match=f"has {wrong} bytes"):
                await remote.read(bytearray(wrong))
        with pytest.raises(BufferError, match="writable"):
            await remote.read(bytes(100))
        await remote[5:5].write(b"")
        await remote[50:1000].write(b"x" * 50)  # a slice ends where the memory ends
        assert bytes(region[:].view) == bytes(50) + b"x" * 50


@pytest.mark.parametrize("path", PATHS)
async def test_rights(path: str) -> None:
    async with pair(path) as (client, _), memory.register(bytearray(16)) as region:
        reader = await client.open(region.descriptor(Rights.READ))
        writer = await client.open(region.descriptor(Rights.WRITE))
        await reader.read(bytearray(16))
        await writer.write(b"y" * 16)
        await writer.flush()
        for use in (
            reader.write(bytes(16)),
            writer.read(bytearray(16)),
            reader.fetch_and_add(1),
            writer.compare_and_swap(0, 1),
        ):
            with pytest.raises(memory.MemoryAccessError, match="does not allow"):
                await use
        assert bytes(region[:].view) == b"y" * 16


@pytest.mark.parametrize("path", PATHS)
async def test_atomic_operations(path: str) -> None:
    async with pair(path) as (client, _), await memory.alloc(4, "int64", config=config_of(path)) as region:
        words = memoryview(region)
        remote = await client.open(region.descriptor(ALL))

        async def count() -> None:
            for _ in range(50):
                await remote[8:].fetch_and_add(1)

        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(count)
        assert words.tolist() == [0, 200, 0, 0]
        assert await remote.fetch_and_add(-201, 8) == 200
        assert words[1] == -1
        assert await remote.compare_and_swap(5, 7, 8) == (1 << 64) - 1
        assert words[1] == -1
        assert await remote.compare_and_swap(-1, 7, 8) == (1 << 64) - 1
        assert words.tolist() == [0, 7, 0, 0]
        for offset in (-8, 25, 32):
            with pytest.raises(memory.MemoryAccessError, match="a word at"):
                await remote.fetch_and_add(1, offset)
        with pytest.raises(memory.MemoryAccessError, match="aligned"):
            await remote.fetch_and_add(1, 4)
        assert words.tolist() == [0, 7, 0, 0]


@pytest.mark.parametrize("path", PATHS)
async def test_notifications_come_after_the_data(path: str) -> None:
    total = 200  # more than may be on their way
    async with (
        pair(path) as (client, server),
        await memory.alloc(total * 8, config=config_of(path)) as region,
    ):
        remote = await client.open(region.descriptor())

        async def produce() -> None:
            for number in range(total):
                note = number.to_bytes(8, "big")
                await remote[number * 8 : number * 8 + 8].write(note, notify=note)
            await client.notify(b"end")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(produce)
            seen = 0
            async for note in server.notifications():
                if note == b"end":
                    break
                assert note == seen.to_bytes(8, "big")
                assert bytes(region[seen * 8 : seen * 8 + 8].view) == note
                seen += 1
        assert seen == total
        with pytest.raises(ValueError, match="at most 4096"):
            await client.notify(bytes(4097))
        with pytest.raises(ValueError, match="at most 4096"):
            await remote[:1].write(b"x", notify=bytes(4097))


@pytest.mark.parametrize("path", PATHS)
async def test_notifications_end_with_the_peer(path: str) -> None:
    async with pair(path) as (client, server):
        await client.notify(b"last")
        got = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.aclose)
            async for note in server.notifications():
                got.append(note)  # noqa: PERF401
        assert got == [b"last"]


async def test_nothing_is_left() -> None:
    async with nothing_left(), pair("rdma") as (client, _):
        async with await memory.alloc(1 << 20) as region, await memory.alloc(1 << 20) as ours:
            for _ in range(3):
                async with await client.open(region.descriptor()) as remote:
                    await remote.write(bytes(1 << 20))
                    await remote.read(ours)
                    await remote.read(bytearray(1 << 20))
                    async with anyio.create_task_group() as tasks:
                        for size in (1, 64, 4096, 4096, 4097):
                            tasks.start_soon(remote[:size].read, bytearray(size))

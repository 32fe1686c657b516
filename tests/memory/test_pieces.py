"""Many pieces as one operation: scatter and gather, blocks, rows, and arrays with steps."""

from __future__ import annotations

import array
import random

import anyio
import pytest

from aiordma import faults, memory
from aiordma.control import statistics
from aiordma.memory import Fault, Rights
from aiordma.memory.peer import CREDIT
from tests.health import nothing_left
from tests.tuned import tuned
from tests.world import DEVICE

from .pairs import PATHS, config_of, pair

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("size", [24, 1000, 65_536, 100_001])
async def test_blocks_in_any_order(path: str, size: int) -> None:
    rng = random.Random(size)
    config, count = config_of(path), 40
    theirs_order, ours_order = list(range(count)), list(range(count))
    rng.shuffle(theirs_order)
    rng.shuffle(ours_order)
    data = rng.randbytes(count * size)
    async with (
        pair(path) as (client, _),
        await memory.alloc(count * size, config=config) as theirs,
        await memory.alloc(count * size, config=config) as ours,
    ):
        remote = await client.open(theirs.descriptor())
        ours[:].view[:] = data
        await remote.blocks(size, theirs_order).write(ours.blocks(size, ours_order))
        for there, here in zip(theirs_order, ours_order, strict=True):
            block = theirs[there * size : (there + 1) * size]
            assert block.view == data[here * size : (here + 1) * size]
        back = bytearray(count * size)
        await remote.blocks(size, theirs_order).read(back)  # one after the other
        assert back == b"".join(data[here * size : (here + 1) * size] for here in ours_order)
        ours[:].view[:] = bytes(count * size)
        await remote.blocks(size, theirs_order).read(ours.blocks(size, ours_order))
        assert ours[:].view == data
        assert client.credit.available == CREDIT


@pytest.mark.parametrize("path", PATHS)
async def test_pieces_that_fit_nowhere_together(path: str) -> None:
    """Other lengths at both ends: every cut is made."""
    rng = random.Random(11)
    config, total = config_of(path), 300_000
    async with pair(path) as (client, _), await memory.alloc(total, config=config) as theirs:
        remote = await client.open(theirs.descriptor())
        for _ in range(10):
            cuts = sorted(rng.sample(range(total), 30))
            places = [(start, stop) for start, stop in zip(cuts[::2], cuts[1::2], strict=True)]
            rng.shuffle(places)
            nbytes = sum(stop - start for start, stop in places)
            data = rng.randbytes(nbytes)
            at = sorted(rng.sample(range(nbytes), 7))
            pieces = [data[a:b] for a, b in zip([0, *at], [*at, nbytes], strict=True)]
            theirs[:].view[:] = bytes(total)
            await remote.pieces(places).write(pieces)
            assert b"".join(theirs[start:stop].view for start, stop in places) == data
            into = [bytearray(len(piece)) for piece in pieces]
            await remote.pieces(places).read(into)
            assert into == pieces
            assert sum(theirs[:].view) == sum(data)  # nothing else was touched


@pytest.mark.parametrize("path", PATHS)
async def test_columns_of_an_array(path: str) -> None:
    """A part of the columns there, and an array with steps here."""
    rows, row, first, part = 50, 4000, 1000, 1200
    config = config_of(path)
    async with (
        pair(path) as (client, _),
        await memory.alloc((rows, row), config=config) as theirs,
        await memory.alloc((rows, row), config=config) as ours,
    ):
        data = random.Random(4).randbytes(rows * row)
        theirs[:].view[:] = data
        columns = (await client.open(theirs.descriptor())).rows(first, part, row, rows)
        got = bytearray(rows * part)
        await columns.read(got)
        assert got == b"".join(data[r * row + first :][:part] for r in range(rows))
        await columns.read(ours.rows(0, part, row, rows))
        assert b"".join(ours[r * row : r * row + part].view for r in range(rows)) == got
        numbers = memoryview(array.array("H", range(rows * part)))
        await columns.write(numbers[::2])  # single items: copied together
        await columns.read(got)
        assert array.array("H", bytes(got)).tolist() == list(range(0, rows * part, 2))
        await columns.write(bytes(rows * part))
        assert sum(theirs[:].view) == sum(
            byte for at, byte in enumerate(data) if not first <= at % row < first + part
        )


@pytest.mark.parametrize("path", PATHS)
async def test_lists_of_buffers_and_pieces(path: str) -> None:
    config = config_of(path)
    async with (
        pair(path) as (client, _),
        await memory.alloc(1000, config=config) as theirs,
        await memory.alloc(1000, config=config) as ours,
    ):
        remote = await client.open(theirs.descriptor())
        ours[:].view[:] = random.Random(1).randbytes(1000)
        await remote.write([ours[900:], bytearray(b"x" * 500), ours[:400]])
        assert bytes(theirs[:].view) == bytes(ours[900:].view) + b"x" * 500 + bytes(ours[:400].view)
        await remote.write((ours[500:], ours[:500]))
        first, second = bytearray(600), array.array("I", bytes(400))
        await remote.read([first, second])
        assert bytes(first) + second.tobytes() == bytes(ours[500:].view) + bytes(ours[:500].view)
        for wrong in ([], [bytes(999)], [bytes(500), bytes(501)]):
            with pytest.raises(ValueError, match="bytes, this remote memory 1000"):
                await remote.write(wrong)
        with pytest.raises(BufferError, match="writable"):
            await remote.read([bytearray(500), bytes(500)])
        with pytest.raises(TypeError):
            await remote.write([object()])  # type: ignore[list-item]
        with pytest.raises(ValueError, match="not inside"):
            remote.blocks(100, [10])
        with pytest.raises(ValueError, match="not inside"):
            remote[100:200].pieces([(0, 101)])
        with pytest.raises(ValueError, match="not inside"):
            ours.rows(0, 100, 100, 11)


@pytest.mark.parametrize("path", PATHS)
async def test_rights_hold_for_pieces(path: str) -> None:
    async with pair(path) as (client, _), memory.register(bytearray(100)) as region:
        reader = (await client.open(region.descriptor(Rights.READ))).blocks(10, [1, 3])
        writer = (await client.open(region.descriptor(Rights.WRITE))).blocks(10, [1, 3])
        with pytest.raises(memory.MemoryAccessError, match="does not allow"):
            await reader.write(bytes(20))
        with pytest.raises(memory.MemoryAccessError, match="does not allow"):
            await writer.read(bytearray(20))
        await region.revoke()
        for use in (reader.read(bytearray(20)), writer.write(bytes(20))):
            with pytest.raises(memory.MemoryAccessError) as caught:
                await use
            assert caught.value.fault == Fault.REVOKED
        assert not any(region[:].view)


def completions() -> int:
    counters = statistics()
    assert counters is not None
    return counters["completions"]


async def test_one_completion_for_many_pieces() -> None:
    """A chain of requests has one completion: so does an operation of 30 pieces, where the device takes them
    all."""
    async with (
        pair("rdma") as (client, _),
        await memory.alloc(30 * 1024) as theirs,
        await memory.alloc(30 * 1024) as ours,
    ):
        remote = await client.open(theirs.descriptor())
        order = list(range(29, -1, -1))
        there, here = remote.blocks(1024, order), ours.blocks(1024, range(30))
        await there.write(here)
        before = completions()
        for _ in range(10):
            await there.write(here)
        assert completions() - before <= 20


async def test_a_notification_comes_after_all_pieces() -> None:
    async with pair("rdma") as (client, server), await memory.alloc(64 * 1024) as region:
        remote = await client.open(region.descriptor())
        await remote.blocks(1024, range(63, -1, -1)).write(b"n" * 65536, notify=b"written")
        assert await anext(server.notifications()) == b"written"
        assert bytes(region[:].view) == b"n" * 65536


async def test_small_limits_of_the_device() -> None:
    """One request at a time: the rest of the pieces waits, and goes on."""
    config = tuned(device=DEVICE, max_outstanding_wrs=1, fragment_bytes=4096)
    async with (
        memory.serve("127.0.0.1", config=config) as server,
        await memory.connect("127.0.0.1", server.port, config=config) as client,
        await memory.alloc(200_000, config=config) as theirs,
        await memory.alloc(200_000, config=config) as ours,
    ):
        remote = await client.open(theirs.descriptor())
        data = random.Random(2).randbytes(200_000)
        ours[:].view[:] = data
        await remote.blocks(1000, range(199, -1, -1)).write(ours.blocks(1000, range(200)))
        back = bytearray(200_000)
        await remote.blocks(1000, range(199, -1, -1)).read(back)
        assert back == data


async def test_a_cancelled_read_of_pieces_leaves_buffers_alone() -> None:
    async with nothing_left(), pair("rdma") as (client, _), memory.register(b"d" * 40_000) as theirs:
        remote = await client.open(theirs.descriptor(Rights.READ))
        buffers = [bytearray(10_000) for _ in range(4)]
        with faults.injected("delay op=read ms=50"):
            read = remote.blocks(10_000, [3, 2, 1, 0]).start_read(buffers)
            read.cancel()
            for buffer in buffers:
                buffer.append(0)  # nothing holds it
            with pytest.raises(anyio.BrokenResourceError, match="given up"):
                await read
        assert client.credit.available == CREDIT
        assert buffers == [bytearray(10_001)] * 4

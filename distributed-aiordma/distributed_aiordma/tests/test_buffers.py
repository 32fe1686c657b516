"""Memory that is used again."""

from __future__ import annotations

import gc
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from distributed.protocol import deserialize, serialize
from distributed.protocol.utils import merge_memoryviews

from distributed_aiordma import buffers
from distributed_aiordma.buffers import BufferPool

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 1 << 20


def unpickled(buffer: memoryview) -> Any:
    """As distributed's pickles with buffers beside them."""
    return pickle.loads(
        pickle.dumps(np.zeros(1000, np.uint8), 5, buffer_callback=lambda _: False), buffers=[buffer[:1000]]
    )


def deserialized(buffer: memoryview) -> Any:
    """As distributed's own serialisation of arrays."""
    header, _ = serialize(np.zeros(1000, np.uint8))
    return deserialize(header, [buffer[:1000]])


KEEPERS: dict[str, Callable[[memoryview], Any]] = {
    "the memoryview": lambda buffer: buffer[1:],
    "frombuffer()": lambda buffer: np.frombuffer(buffer, np.uint8),
    "a view of a view": lambda buffer: np.frombuffer(buffer, np.uint8)[100:].reshape(-1)[1000:2000],
    "ndarray(buffer=)": lambda buffer: np.ndarray(1000, np.uint8, buffer),
    "a view of that": lambda buffer: np.ndarray(1000, np.uint8, buffer)[10:].reshape(10, 99).T[5:],
    "ndarray(buffer=ndarray)": lambda buffer: np.ndarray(1000, np.uint8, np.asarray(buffer)),
    "asarray()": np.asarray,
    "an object": lambda buffer: np.asarray(buffer).view(np.recarray),
    "a pickle": unpickled,
    "distributed's serialisation": deserialized,
    "joined shards": lambda buffer: merge_memoryviews([buffer[:500], buffer[500:1000]]),
    "its object": lambda buffer: buffer.obj,
}


def address(buffer: memoryview) -> int:
    return int(np.frombuffer(buffer, np.uint8).__array_interface__["data"][0])


def test_a_dropped_buffer_is_used_again() -> None:
    pool = BufferPool(64 * MIB)
    first = pool.take(5 * MIB)
    where = address(first)
    del first
    gc.collect()
    assert pool.free_bytes == 6 * MIB  # in huge pages
    again = pool.take(5 * MIB - 100)
    assert (address(again), pool.reused, pool.free_bytes, pool.lent) == (where, 1, 0, 1)
    assert not again.readonly


@pytest.mark.parametrize("keeper", KEEPERS)
def test_not_while_anything_of_it_is_in_use(keeper: str) -> None:
    pool = BufferPool(64 * MIB)
    buffer = pool.take(4 * MIB)
    buffer[:] = b"\7" * len(buffer)
    kept = KEEPERS[keeper](buffer)
    del buffer
    gc.collect()
    assert (pool.free_bytes, pool.lent) == (0, 1)
    other = pool.take(4 * MIB)
    other[:] = bytes(4 * MIB)
    assert np.asarray(kept).min() == 7
    del kept
    gc.collect()
    assert (pool.free_bytes, pool.lent) == (4 * MIB, 1)


def test_small_buffers_and_none_at_all_come_from_the_allocator() -> None:
    pool = BufferPool(64 * MIB)
    small = pool.take(MIB - 1)
    assert (len(small), pool.lent) == (MIB - 1, 0)
    none = BufferPool(0)
    assert len(none.take(2 * MIB)) == 2 * MIB
    assert none.lent == 0


def test_no_block_that_is_much_too_large() -> None:
    pool = BufferPool(64 * MIB)
    pool.take(32 * MIB)
    gc.collect()
    assert pool.free_bytes == 32 * MIB
    buffer = pool.take(8 * MIB)
    assert len(buffer) == 8 * MIB
    assert pool.reused == 0


def test_the_oldest_is_given_back_above_the_limit() -> None:
    pool = BufferPool(10 * MIB)
    for nbytes, free in ((4 * MIB, 4 * MIB), (6 * MIB, 10 * MIB), (8 * MIB, 8 * MIB)):
        buffer = pool.take(nbytes)
        del buffer
        gc.collect()
        assert pool.free_bytes == free
    pool.take(11 * MIB)
    gc.collect()
    assert pool.free_bytes == 8 * MIB


def test_what_is_idle_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = BufferPool(64 * MIB)
    pool.take(4 * MIB)
    gc.collect()
    pool.trim()
    assert pool.free_bytes == 4 * MIB
    monkeypatch.setattr(buffers, "_IDLE_SECONDS", 0.0)
    pool.trim()
    assert pool.free_bytes == 0


@pytest.mark.asyncio
async def test_the_loop_trims_until_there_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from .pairs import until

    monkeypatch.setattr(buffers, "_IDLE_SECONDS", 0.01)
    pool = BufferPool(64 * MIB)
    buffer = pool.take(4 * MIB)
    pool.keep_trimmed()
    del buffer
    gc.collect()
    await until(lambda: pool.free_bytes == 0 and pool._trimmed_by is None)

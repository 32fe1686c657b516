"""Arrays of other libraries: regions as theirs, and theirs as regions or in operations, without copies."""

from __future__ import annotations

import gc
import sys
from typing import Any

import pytest

from aiordma import memory
from aiordma.verbs import _dlpack
from tests.arrays import numpy as np

from .pairs import PATHS, config_of, pair

pytestmark = pytest.mark.anyio


class Tensor:
    """An array that is no buffer, as torch's tensors are: numpy's memory, shown by DLPack only."""

    def __init__(self, array: np.ndarray, device: tuple[int, int] = (1, 0), old: bool = False) -> None:
        self._array, self._device, self._old = array, device, old

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device

    def __dlpack__(self, **keywords: Any) -> Any:
        if self._old:
            if keywords:
                raise TypeError("unexpected keyword argument 'max_version'")
            return self._array.__dlpack__()
        return self._array.__dlpack__(**keywords)


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint16", "int32", "uint64", "float16", "float32", "float64"]
)
async def test_regions_are_arrays(dtype: str) -> None:
    async with await memory.alloc((3, 5), dtype, config=config_of("tcp")) as region:
        for array in (
            np.asarray(region),
            np.from_dlpack(region),
            np.array(Interface(region.__array_interface__), copy=False),
        ):
            assert (array.shape, array.dtype.name) == ((3, 5), dtype)
            assert array.ctypes.data == region.address
            array[1, 2] = 1
            assert np.asarray(region)[1, 2] == 1
            array[1, 2] = 0
        assert region.__dlpack_device__() == (1, 0)


class Interface:
    def __init__(self, interface: dict[str, object]) -> None:
        self.__array_interface__ = interface


async def test_an_array_keeps_the_memory() -> None:
    region = await memory.alloc(100, "int32", config=config_of("tcp"))
    array = np.from_dlpack(region)
    await region.aclose()
    del region
    gc.collect()
    array[:] = range(100)
    assert array.sum() == 4950


async def test_capsules_that_nobody_takes_are_freed() -> None:
    data = bytearray(64)
    async with memory.register(data) as region:
        before = sys.getrefcount(region)
        for version in (None, (1, 0), (2, 1)):
            capsule = region.__dlpack__(max_version=version)
            assert sys.getrefcount(region) == before + 1
            del capsule
        assert sys.getrefcount(region) == before
        asked: dict[str, Any]
        for asked in ({"stream": 1}, {"copy": True}, {"dl_device": (2, 0)}):
            with pytest.raises(BufferError, match="not copied"):
                region.__dlpack__(**asked)
    del region
    gc.collect()  # tracebacks
    data.append(0)


async def test_read_only_memory_stays_so() -> None:
    async with memory.register(b"12345678") as region:
        assert not np.from_dlpack(region).flags.writeable
        assert not np.asarray(region).flags.writeable
        assert region.__array_interface__["data"][1]
        with pytest.raises(BufferError, match="read-only"):
            region.__dlpack__()  # DLPack before 1.0 has no such memory


@pytest.mark.parametrize("old", [False, True])
async def test_tensors_are_regions(old: bool) -> None:
    array = np.arange(10, dtype=np.int64)
    region = memory.register(Tensor(array, old=old))
    assert (region.nbytes, region.address) == (80, array.ctypes.data)
    references = sys.getrefcount(array)
    region[:8].view[:] = (77).to_bytes(8, sys.byteorder)
    assert array[0] == 77
    await region.aclose()
    del region
    gc.collect()
    assert sys.getrefcount(array) == references - 1  # the capsule is freed with the region
    array.flags.writeable = False
    if not old:
        async with memory.register(Tensor(array)) as region:
            assert region.readonly


async def test_tensors_that_are_no_regions() -> None:
    square = np.arange(16).reshape(4, 4)
    with pytest.raises(BufferError, match=r"on a device .*type 2.*dma-buf"):
        memory.register(Tensor(square, device=(2, 0)))
    with pytest.raises(BufferError, match="contiguous"):
        memory.register(Tensor(square.T))
    with pytest.raises(BufferError, match="contiguous"):
        memory.register(square[:, :2])
    with pytest.raises(ValueError, match="empty"):
        memory.register(Tensor(square[:0]))
    with pytest.raises(TypeError):
        memory.register(object())  # type: ignore[arg-type]
    assert memory.statistics()[:2] == (0, 0)


def test_items_that_buffers_have_no_name_for_are_bytes() -> None:
    window = _dlpack.imported(Tensor(np.arange(6, dtype=np.complex64).reshape(2, 3)))
    view = memoryview(window)
    assert (view.format, view.shape) == ("B", (2, 3, 8))


@pytest.mark.parametrize("path", PATHS)
async def test_operations_take_arrays_and_tensors(path: str) -> None:
    config = config_of(path)
    async with pair(path) as (client, _), await memory.alloc((6, 7), "float64", config=config) as region:
        theirs = np.asarray(region)
        remote = await client.open(region.descriptor())
        data = np.random.default_rng(1).random((6, 7))
        await remote.write(data)
        assert (theirs == data).all()
        await remote.write(Tensor(data * 2))
        assert (theirs == data * 2).all()
        await remote.write(np.asfortranarray(data))  # in the order of C, whatever its own
        assert (theirs == data).all()
        await remote.write(np.repeat(data, 2, axis=1)[::-1, ::2])
        assert (theirs == data[::-1]).all()
        into = np.zeros((7, 6)).T
        await remote.read(into)
        assert (into == data[::-1]).all()
        back = np.zeros((6, 7))
        await remote.read(Tensor(back))
        assert (back == data[::-1]).all()
        column = np.zeros((6, 3))
        await remote.rows(16, 24, 56, 6).read(column)
        assert (column == data[::-1, 2:5]).all()
        back.flags.writeable = False
        with pytest.raises(BufferError):
            await remote.read(back)

"""Regions: what can be one, what they hold, and their descriptors."""

from __future__ import annotations

import array
import errno
import gc
import mmap
import pickle

import anyio
import pytest

from aiordma import memory
from aiordma.config import Config
from aiordma.errors import VerbsError
from aiordma.memory import Fault, Rights, storage
from aiordma.memory.region import Registry
from aiordma.proto.memory import DESCRIPTOR_BYTES, Descriptor
from aiordma.verbs import backend
from aiordma.verbs.memory.budget import MemoryLimitError
from tests.health import until

from .pairs import PATHS, config_of, pair

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("path", PATHS)
async def test_allocated(path: str) -> None:
    async with await memory.alloc((3, 5), "float32", config=config_of(path)) as region:
        view = memoryview(region)
        assert (view.shape, view.format, view.nbytes, view.readonly) == ((3, 5), "f", 60, False)
        assert region[:].view.tolist() == [0] * 60
        view[1, 2] = 2  # floats of the region, as its format says
        assert array.array("f", bytes(region[28:32].view)).tolist() == [2.0]
        assert len(region) == len(region[:]) == 60
        assert memory.statistics()[:2] == (1, 60)
    assert region.closed
    assert memory.statistics()[:2] == (0, 0)
    view[0, 0] = 1  # a buffer keeps the memory


@pytest.mark.parametrize("path", PATHS)
async def test_memory_goes_with_its_last_buffer(path: str) -> None:
    region = await memory.alloc(4 << 20, config=config_of(path))
    view = memoryview(region)
    address = f"{region.address:x}-"
    await region.aclose()
    del region
    gc.collect()

    def mapped() -> bool:
        with open("/proc/self/maps") as maps:
            return any(line.startswith(address) for line in maps)

    assert mapped()
    view.release()
    del view
    gc.collect()
    assert not mapped()


def _drop(kept: list[memory.Region]) -> None:
    kept.clear()
    gc.collect()


@pytest.mark.parametrize("path", PATHS)
async def test_a_region_that_is_dropped_is_closed_with_a_warning(path: str) -> None:
    region = await memory.alloc(4096, config=config_of(path))
    assert memory.statistics()[:2] == (1, 4096)
    kept = [region]
    del region
    with pytest.warns(ResourceWarning, match="unclosed <Region of 4096 bytes, open>"):
        _drop(kept)
    await until(lambda: memory.statistics()[:2] == (0, 0))


async def test_registered_memory_that_is_dropped_is_given_back() -> None:
    data = bytearray(10)
    region = memory.register(data)
    assert region.nbytes == 10
    kept = [region]
    del region
    with pytest.warns(ResourceWarning, match="unclosed <Region"):
        _drop(kept)
    await until(lambda: memory.statistics().regions == 0)
    gc.collect()  # the warning knew it
    data.append(0)


@pytest.mark.parametrize("path", PATHS)
async def test_a_region_of_which_a_descriptor_is_left_stays_open(path: str) -> None:
    async with pair(path) as (_, peer):
        region = await memory.alloc(64, config=config_of(path))
        region[:3].view[:] = b"abc"
        descriptor = region.descriptor()
        del region
        gc.collect()
        assert memory.statistics().regions == 1
        async with await peer.open(descriptor) as remote:
            into = bytearray(3)
            await remote[:3].read(into)
            assert into == b"abc"
        (grant,) = Registry.current().grants.values()
        await grant.region.aclose()
        assert memory.statistics().regions == 0


async def test_registered() -> None:
    data = bytearray(b"0123456789")
    async with memory.register(data) as region:
        region[2:4].view[:] = b"xy"
        assert data == b"01xy456789"
        with pytest.raises(BufferError):
            data.append(0)
    del region
    gc.collect()
    data.append(0)


async def test_registered_items_of_any_kind() -> None:
    numbers = array.array("d", [1.0, 2.0])
    async with memory.register(numbers) as region, memory.register(mmap.mmap(-1, 4096)) as pages:
        assert (region.nbytes, pages.nbytes) == (16, 4096)
        region[:8].view[:] = bytes(8)
        assert numbers[0] == 0.0


async def test_what_cannot_be_a_region() -> None:
    with pytest.raises(BufferError, match="contiguous"):
        memory.register(memoryview(bytearray(10))[::2])
    with pytest.raises(ValueError, match="empty"):
        memory.register(b"")
    with pytest.raises(TypeError, match="dtype"):
        await memory.alloc(3, "complex")
    with pytest.raises(ValueError, match="at least one"):
        await memory.alloc((3, 0))
    assert memory.statistics().regions == 0


async def test_limit() -> None:
    config = Config(device="none", memory_limit_bytes=1 << 20)
    async with await memory.alloc(1 << 19, config=config):
        with pytest.raises(MemoryLimitError, match="524288 of 1048576"):
            await memory.alloc((1 << 19) + 1, config=config)
        with pytest.raises(MemoryLimitError):
            memory.register(bytearray((1 << 19) + 1), config=config)
    async with await memory.alloc(1 << 20, config=config):
        assert memory.statistics().bytes_high_water == 1 << 20


async def test_descriptors() -> None:
    async with memory.register(bytearray(100)) as region:
        whole, part = region.descriptor(), region[10:30].descriptor(Rights.READ)
        assert len(whole) == len(part) == DESCRIPTOR_BYTES
        assert Descriptor.decode(whole)[:3] == (Rights.READ | Rights.WRITE, 100, 0)
        assert Descriptor.decode(part)[:3] == (Rights.READ, 20, 0)
        assert region[10:30][5:].nbytes == 15
        assert Descriptor.decode(region[10:30][5:50].descriptor()).length == 15
        assert whole != region.descriptor()  # each is a secret of its own
        for wrong in (0.0, -1.0, float("nan")):
            with pytest.raises(ValueError, match="expires_in"):
                region.descriptor(expires_in=wrong)
        with pytest.raises(ValueError, match="bytes and rights"):
            region[5:5].descriptor()
        with pytest.raises(ValueError, match="bytes and rights"):
            region.descriptor(Rights(0))
        with pytest.raises(ValueError, match="contiguous"):
            region[::2]
    with pytest.raises(ValueError, match="closed"):
        region.descriptor()


async def test_read_only_memory() -> None:
    async with memory.register(b"constant") as region:
        assert region[:].view.readonly
        with pytest.raises(ValueError, match="read-only"):
            region.descriptor()
        assert region.descriptor(Rights.READ)


@pytest.mark.parametrize("path", PATHS)
async def test_revoked(path: str) -> None:
    async with pair(path) as (client, _), await memory.alloc(4096, config=config_of(path)) as region:
        one, other = region.descriptor(), region[:64].descriptor()
        remote, untouched = await client.open(one), await client.open(other)
        await region.revoke(one)
        for use in (remote.write(bytes(4096)), remote.read(bytearray(4096)), remote[:8].flush()):
            with pytest.raises(memory.MemoryAccessError) as caught:
                await use
            assert caught.value.fault == Fault.REVOKED
        with pytest.raises(memory.MemoryAccessError) as caught:
            await client.open(one)
        assert caught.value.fault == Fault.REVOKED
        await untouched.write(b"x" * 64)
        await region.revoke(one)  # again: nothing to do
        with pytest.raises(ValueError, match="not of this region"):
            await region.revoke(Descriptor.new(Rights.READ, 1, 0).encode())


@pytest.mark.parametrize("path", PATHS)
async def test_expired(path: str) -> None:
    async with pair(path) as (client, _), await memory.alloc(4096, config=config_of(path)) as region:
        opened, late = region.descriptor(expires_in=0.05), region.descriptor(expires_in=0.05)
        assert 0 < Descriptor.decode(late).expires_ms
        with anyio.fail_after(30):
            try:
                remote = await client.open(opened)
                while True:
                    await remote.write(bytes(4096))
                    await anyio.lowlevel.checkpoint()
            except memory.MemoryAccessError as error:
                assert error.fault == Fault.EXPIRED  # noqa: PT017
            await until(lambda: not Registry.current().grants)
        with pytest.raises(memory.MemoryAccessError) as caught:
            await client.open(late)
        assert caught.value.fault == Fault.EXPIRED


@pytest.mark.parametrize("path", PATHS)
async def test_close_takes_everything_back(path: str) -> None:
    async with pair(path) as (client, _):
        region = await memory.alloc(4096, config=config_of(path))
        descriptor = region.descriptor()
        remote = await client.open(descriptor)
        await remote.write(b"a" * 4096)
        await region.aclose()
        assert region.closed
        for use in (remote.read(bytearray(4096)), client.open(descriptor)):
            with pytest.raises(memory.MemoryAccessError):
                await use
        assert client.path == path  # and the connection goes on
        async with await memory.alloc(16, config=config_of(path)) as another:
            await (await client.open(another.descriptor())).write(b"b" * 16)
            assert bytes(another[:].view) == b"b" * 16


async def test_mistakes_have_a_text() -> None:
    async with pair("rdma") as (client, _), await memory.alloc(64) as region:
        remote = await client.open(region.descriptor())
        for indexed in (region, region[:8], remote):
            with pytest.raises(TypeError, match=r"sliced in bytes.*\[n:n \+ 1\]"):
                indexed[5]  # type: ignore[index]
        for pickled in (region, region[:8], region.blocks(8, [1]), remote, remote.blocks(8, [1])):
            with pytest.raises(TypeError, match="descriptor"):
                pickle.dumps(pickled)


def test_a_device_without_a_domain_for_regions_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each try opened it once more."""
    opened: list[str] = []

    class Refusing:
        def alloc_pd(self) -> None:
            raise VerbsError(errno.ENOMEM, "ibv_alloc_pd")

        def close(self) -> None:
            opened.remove("soft")

    def open_backend(name: str) -> Refusing:
        opened.append(name)
        return Refusing()

    monkeypatch.setattr(backend, "open_backend", open_backend)
    monkeypatch.setattr(storage, "_homes", {})
    with pytest.raises(VerbsError, match="ibv_alloc_pd"):
        storage._open_home()
    assert opened == []

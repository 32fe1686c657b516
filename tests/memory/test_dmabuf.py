"""Memory of devices: regions that are dma-bufs. No device here has them; a stand-in shows what is asked of
one. The software device takes what can be mapped for one, which its own tests show."""

from __future__ import annotations

import errno
import mmap
import os
from typing import TYPE_CHECKING, Any

import pytest

from aiordma import memory
from aiordma.errors import VerbsError
from aiordma.memory import Fault, Rights
from aiordma.verbs import own
from aiordma.verbs._window import address_of
from aiordma.verbs.backend import open_backend
from aiordma.verbs.device import register_dmabuf
from tests.world import DEVICE, PYVERBS

from .pairs import PATHS, config_of, pair

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.anyio
PAGE = 4096


@pytest.fixture
def buffer() -> Iterator[int]:
    fd = os.memfd_create("stand-in for a dma-buf")
    os.ftruncate(fd, 4 * PAGE)
    yield fd
    os.close(fd)


@pytest.fixture
def unmapped() -> Iterator[int]:
    """A descriptor that no device takes."""
    reading, writing = os.pipe()
    yield reading
    os.close(reading)
    os.close(writing)


async def test_a_device_that_refuses_one_says_so(unmapped: int) -> None:
    async with pair("rdma") as (client, _):
        with pytest.raises(VerbsError, match=r"ibv_reg_dmabuf_mr.*dma-buf on"):
            memory.register(unmapped, offset=PAGE, length=100)
        assert memory.statistics()[:2] == (0, 0)
        assert client.path == "rdma"


async def test_wrong_ones(buffer: int) -> None:
    wrong: Any
    for wrong in ({}, {"length": 0}, {"length": 5, "offset": -1}):
        with pytest.raises(ValueError, match="needs a length"):
            memory.register(buffer, **wrong)
    with pytest.raises(OSError, match="descriptor"):
        memory.register(1_000_000, length=5)
    with pytest.raises(TypeError, match="slice"):
        memory.register(bytearray(5), length=5)
    assert memory.statistics()[:2] == (0, 0)


async def test_on_tcp_nobody_reaches_it(buffer: int) -> None:
    config = config_of("tcp")
    async with (
        pair("tcp") as (client, _),
        memory.register(buffer, length=PAGE) as region,
        await memory.alloc(PAGE, config=config) as other,
    ):
        with pytest.raises(memory.MemoryAccessError, match="only RDMA reaches it") as caught:
            await client.open(region.descriptor())
        assert caught.value.fault == Fault.LIMIT
        remote = await client.open(other.descriptor())
        for use in (remote.write(region), remote.read(region[:]), remote.write([region[:100], region[100:]])):
            with pytest.raises(BufferError, match="only RDMA reaches it"):
                await use
        for look in (lambda: memoryview(region), lambda: region[:5].view, region.__dlpack__):
            with pytest.raises(BufferError, match="device"):
                look()


class StandIn:
    """What a device with dma-bufs does: registers the bytes, under their offsets as addresses."""

    def __init__(self, binding: Any) -> None:
        self.binding = binding
        self.asked: list[tuple[int, int, int, object]] = []

    def __call__(self, pd: Any, length: int, access: int, fd: int, *, offset: int = 0) -> Any:
        whole = mmap.mmap(fd, 0)
        mr = self.binding.MR(pd, length, access, address_of(whole) + offset, iova=offset)
        self.asked.append((offset, length, access, whole))
        return mr


async def test_where_the_device_has_them(buffer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes are registered by their offsets, with the rights of each opening, and need not be mapped
    here."""
    monkeypatch.setenv("AIORDMA_VERBS", "own")  # whose MR has addresses of one's own choice
    stand_in = StandIn(None)
    real = own.bind

    def bind(path: str | None) -> Any:
        stand_in.binding = real(path)
        return stand_in.binding._replace(DmaBufMR=stand_in)

    monkeypatch.setattr(own, "bind", bind)
    with mmap.mmap(buffer, 4 * PAGE) as device:
        async with (
            pair("rdma") as (client, _),
            memory.register(buffer, offset=PAGE, length=2 * PAGE) as region,
        ):
            assert stand_in.asked[0][:2] == (PAGE, 2 * PAGE)  # pinned for its lifetime
            remote = await client.open(region[100:1100].descriptor(Rights.READ | Rights.WRITE))
            assert stand_in.asked[1][:2] == (PAGE + 100, 1000)
            await remote.write(b"r" * 1000)
            assert device[: 4 * PAGE] == bytes(PAGE + 100) + b"r" * 1000 + bytes(3 * PAGE - 1100)
            back = bytearray(1000)
            await remote.read(back)
            assert back == b"r" * 1000
            async with await memory.alloc(PAGE) as other:
                into = await client.open(other.descriptor())
                await into[:1000].write(region[100:1100])  # from the device's memory
                assert bytes(other[:1000].view) == b"r" * 1000
                await into.rows(0, 1, 2, 100).write(region[100:200])  # never copied by this end's CPU
                assert bytes(other[:200].view) == b"r" * 200
            await remote.flush()
        assert memory.statistics()[:2] == (0, 0)


@pytest.mark.parametrize("name", ["pyverbs", "own"])
def test_both_bindings_report_the_refusal(name: str, unmapped: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "pyverbs" and not PYVERBS:
        pytest.skip("pyverbs is not installed, or not used")
    monkeypatch.setenv("AIORDMA_VERBS", name)
    backend = open_backend(DEVICE)
    try:
        assert backend.binding.name == name
        with pytest.raises(VerbsError, match="dma-buf") as caught:
            register_dmabuf(backend, backend.alloc_pd(), unmapped, 0, PAGE, 1)
        assert caught.value.errno in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENODEV, errno.EACCES)
    finally:
        backend.close()


@pytest.mark.parametrize("path", PATHS)
async def test_memory_of_the_cpu_is_not_affected(path: str) -> None:
    async with pair(path) as (client, _), memory.register(bytearray(10)) as region:
        assert not region.opaque
        await (await client.open(region.descriptor())).write(b"0123456789")
        assert bytes(region[:].view) == b"0123456789"

"""Atomic operations: by the device where it has them, else by the owner's loop, and never by both apart."""

from __future__ import annotations

import anyio
import pytest

from aiordma import memory
from aiordma.memory import Fault, Rights
from aiordma.memory.atomics import BY_LOOP, RegionAtomics, atomics_of
from aiordma.proto.memory import ATOMICS_BY_DEVICE, HEADER, Op, atomic_request, head, open_answer, span
from aiordma.verbs.abi import AtomicCap
from aiordma.verbs.backend import open_backend
from tests.processes import process
from tests.roles import LOCAL
from tests.world import DEVICE

from .pairs import PATHS, config_of, pair
from .test_hostile import answer, raw_client

pytestmark = pytest.mark.anyio
OWNER = "tests.memory.roles:owner"


@pytest.fixture(scope="module")
def of_device() -> AtomicCap:
    """What the device can do."""
    backend = open_backend(DEVICE)
    try:
        return backend.limits.atomics
    finally:
        backend.close()


async def test_who_carries_them_out(of_device: AtomicCap) -> None:
    by_device = of_device is not AtomicCap.NONE
    for path in PATHS:
        async with (
            pair(path) as (client, _),
            await memory.alloc(2, "int64", config=config_of(path)) as region,
        ):
            remote = await client.open(region.descriptor(Rights(7)))
            assert remote.atomics == ("device" if by_device and path == "rdma" else "loop")
            requests = client.requests._last
            assert await remote.fetch_and_add(7) == 0
            assert await remote.compare_and_swap(7, 9) == 7
            assert memoryview(region)[0] == 9
            assert (client.requests._last == requests) == (remote.atomics == "device")


async def test_only_the_named_bytes() -> None:
    """Words beside a piece, and those that are not aligned, are refused before the device sees them."""
    async with pair("rdma") as (client, _), await memory.alloc(8, "int64") as region:
        middle = await client.open(region[12:36].descriptor(Rights(7)))  # begins in the middle of a word
        assert await middle.fetch_and_add(1, 4) == 0
        for offset in (0, 3, 8, 17, -4):
            with pytest.raises(memory.MemoryAccessError) as caught:
                await middle.fetch_and_add(1, offset)
            assert caught.value.fault == Fault.RANGE
        assert memoryview(region).tolist() == [0, 0, 1, 0, 0, 0, 0, 0]
        reader = await client.open(region.descriptor(Rights.READ | Rights.WRITE))
        with pytest.raises(memory.MemoryAccessError) as caught:
            await reader.fetch_and_add(1)
        assert caught.value.fault == Fault.RIGHTS
        await middle.fetch_and_add(1, 4)  # the link has survived all that


async def test_the_device_and_the_loop_count_together(of_device: AtomicCap) -> None:
    """Two peers on RDMA and two on TCP: no addition is lost. (On a device whose operations are atomic with
    each other only, the peers on TCP are refused.)"""
    together = of_device is not AtomicCap.HCA
    with process(OWNER, nbytes=64) as owner:
        port, descriptor = await owner.heard()
        peers = [await memory.connect(LOCAL, port, mode=mode) for mode in ("rdma", "tcp", "rdma", "tcp")]
        found: list[int] = []
        counters = []
        for peer in peers:
            if peer.path == "rdma" or together:
                counters.append(await peer.open(bytes.fromhex(descriptor)))
                continue
            with pytest.raises(memory.MemoryAccessError) as caught:
                await peer.open(bytes.fromhex(descriptor))
            assert caught.value.fault == Fault.LIMIT

        async def count(remote: memory.RemoteMemory) -> None:
            found.extend([await remote.fetch_and_add(1) for _ in range(100)])

        async with anyio.create_task_group() as tasks:
            for remote in counters:
                tasks.start_soon(count, remote)
        assert sorted(found) == list(range(100 * len(counters)))
        for peer in peers:
            await peer.aclose()
        owner.hush()
        assert await owner.heard() == "closed"


def test_what_may_be_used_at_one_time() -> None:
    card, other = atomics_of("mlx5_0", AtomicCap.HCA), atomics_of("mlx5_1", AtomicCap.HCA)
    soft, none = atomics_of("soft0", AtomicCap.GLOB), atomics_of("siw0", AtomicCap.NONE)
    assert none == BY_LOOP
    region = RegionAtomics()
    # The CPU's: a card's peers use the loop meanwhile.
    assert region.join(soft) == soft
    assert region.join(BY_LOOP) == BY_LOOP
    assert region.join(card) == BY_LOOP
    for _ in range(3):
        region.leave()
    # A card's: its peers only.
    assert region.join(card) == card
    assert region.join(card) == card
    for another in (BY_LOOP, other, soft):
        with pytest.raises(memory.MemoryAccessError, match="device mlx5_0") as caught:
            region.join(another)
        assert caught.value.fault == Fault.LIMIT
    region.leave()
    with pytest.raises(memory.MemoryAccessError):
        region.join(BY_LOOP)
    region.leave()
    assert region.join(other) == other
    with pytest.raises(memory.MemoryAccessError, match="device mlx5_1"):
        other.check_by_loop()


@pytest.mark.parametrize("path", PATHS)
async def test_an_opening_that_failed_claims_nothing(path: str) -> None:
    async with raw_client(path) as (end, _, region):
        op, _, _ = await answer(end, head(Op.OPEN, 1) + region.descriptor(Rights(7)))
        assert op == Op.OPENED
        assert region.atomics._openings == 1
        region.atomics._domain = "a card"
        if path == "tcp":
            op, code, _ = await answer(end, head(Op.OPEN, 2) + region.descriptor(Rights(7)))
            assert (op, code) == (Op.REFUSED, Fault.LIMIT)
            assert region.atomics._openings == 1
        region.atomics._domain = ""
        await end.send(head(Op.RELEASE, 1))
        # A round trip later it was released.
        await answer(end, head(Op.READ, 5) + span(9, 0, 0))
        assert region.atomics._openings == 0


async def test_the_loop_does_what_older_peers_ask_for(of_device: AtomicCap) -> None:
    """A peer that does not know of the device's operations asks the loop."""
    async with raw_client("rdma") as (end, _, region):
        op, code, _ = await answer(end, head(Op.OPEN, 1) + region.descriptor(Rights(7)))
        assert (op, code) == (Op.OPENED, ATOMICS_BY_DEVICE if of_device is not AtomicCap.NONE else 0)
        op, _, word = await answer(end, head(Op.FETCH_ADD, 2) + span(1, 0) + atomic_request(5))
        if of_device is AtomicCap.HCA:
            assert op == Op.REFUSED
        else:
            assert (op, word) == (Op.DONE, bytes(8))
            assert memoryview(region[:8].view).cast("Q")[0] == 5
            region[:8].view[:] = bytes(8)


def test_the_answer_says_it_in_its_header() -> None:
    answered = open_answer(3, 4096, 8, 5, Rights.ATOMIC, atomics_by_device=True)
    assert HEADER.unpack(answered[:8]) == (Op.OPENED, ATOMICS_BY_DEVICE, 3)
    assert answered[8:] == open_answer(3, 4096, 8, 5, Rights.ATOMIC)[8:]

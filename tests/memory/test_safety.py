"""Operations that are cancelled, time out, or lose their peer: no memory is freed that a device may touch."""

from __future__ import annotations

import contextlib
import errno
import gc
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from aiordma import faults, memory
from aiordma.errors import VerbsError
from aiordma.links.link_memory import LinkMemory
from aiordma.memory.peer import CREDIT
from tests.cancelling import at_await
from tests.health import nothing_left, until
from tests.processes import process
from tests.roles import LOCAL
from tests.virtual import in_virtual_time

from .pairs import PATHS, config_of, pair

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

pytestmark = pytest.mark.anyio
OWNER = "tests.memory.roles:owner"


async def cancelled(client: memory.Peer, operation: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Begin it, and cancel it when the device has it."""
    ended = False

    async def run() -> None:
        nonlocal ended
        await operation()
        ended = True

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await until(lambda: client.credit.available < CREDIT)
        tasks.cancel_scope.cancel()
    assert not ended


async def test_a_cancelled_read_keeps_its_region() -> None:
    async with pair("rdma") as (client, _), memory.register(b"data" * 4096) as theirs:
        remote = await client.open(theirs.descriptor(memory.Rights.READ))
        ours = await memory.alloc(16384)
        with faults.injected("delay op=read ms=100"):
            await cancelled(client, lambda: remote.read(ours))
            assert client.credit.available < CREDIT
            ours.close()
            assert not ours.closed
            with pytest.raises(ValueError, match="closed"):
                await remote.read(ours)
            await ours.aclose()
        assert client.credit.available == CREDIT  # the device had let go before the region was closed
        assert bytes(ours[:].view) == b"data" * 4096


async def test_a_cancelled_read_leaves_a_buffer_alone() -> None:
    async with nothing_left(), pair("rdma") as (client, _), memory.register(b"data" * 4096) as theirs:
        remote = await client.open(theirs.descriptor(memory.Rights.READ))
        buffer = bytearray(16384)
        with faults.injected("delay op=read ms=300"):
            await cancelled(client, lambda: remote.read(buffer))
            await until(lambda: client.credit.available == CREDIT)
        assert buffer == bytes(16384)
        gc.collect()  # tracebacks
        buffer.append(0)  # and nothing holds it
        await remote.read(memoryview(buffer)[:-1])
        assert buffer[:-1] == b"data" * 4096


@in_virtual_time
async def test_a_timeout_ends_the_wait_only() -> None:
    async with pair("rdma") as (client, _), await memory.alloc(16384) as region:
        remote = await client.open(region.descriptor())
        with faults.injected("delay op=write ms=100"):
            with pytest.raises(TimeoutError), anyio.fail_after(0.01):
                await remote.write(b"x" * 16384)
            assert client.credit.available < CREDIT
            await region.aclose()  # waits for it
        assert client.credit.available == CREDIT


async def test_revoking_waits_for_what_was_begun() -> None:
    async with pair("rdma") as (client, _), await memory.alloc(16384) as region:
        descriptor = region.descriptor()
        remote = await client.open(descriptor)
        with faults.injected("delay op=write ms=50"):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(remote.write, b"y" * 16384)
                await until(lambda: client.credit.available < CREDIT)
                await region.revoke(descriptor)
                assert client.credit.available == CREDIT
        assert bytes(region[:].view) == b"y" * 16384


@pytest.mark.parametrize("path", PATHS)
async def test_what_waits_when_memory_is_taken_back_is_told_so(path: str) -> None:
    size = 6 << 20  # more than the credit
    async with pair(path) as (client, _), await memory.alloc(size, config=config_of(path)) as region:
        remote = await client.open(region.descriptor(memory.Rights(7)))
        ours = bytearray(size)
        with faults.injected("delay op=write ms=50"):
            begun = [remote[: 4 << 20].start_write(memoryview(ours)[: 4 << 20])]
            waiting: list[memory.Operation[Any]] = [
                remote.start_write(ours),
                remote.start_read(ours),
                remote.blocks(64, [3, 1]).start_read(bytearray(128)),
                remote[:64].start_read(bytearray(64)),
                remote.start_fetch_and_add(1),
            ]
            await region.revoke()
        for operation in waiting:
            with pytest.raises(memory.MemoryAccessError) as refused:
                await operation
            assert refused.value.fault is memory.Fault.REVOKED
        with contextlib.suppress(memory.MemoryAccessError):
            await begun[0]
        async with await memory.alloc(64, config=config_of(path)) as other:
            await (await client.open(other.descriptor())).write(b"w" * 64)  # the link goes on


@pytest.mark.parametrize("path", PATHS)
async def test_cancelled_at_every_await(path: str) -> None:
    config = config_of(path)
    size = 5 << 20  # more than the credit: there is something to wait for
    async with (
        pair(path) as (client, _),
        await memory.alloc(size, config=config) as theirs,
        await memory.alloc(size, config=config) as ours,
    ):
        remote = await client.open(theirs.descriptor(memory.Rights(7)))
        operations: list[Callable[[], Coroutine[Any, Any, Any]]] = [
            lambda: remote.write(bytes(size), notify=b"n"),
            lambda: remote.read(ours),
            lambda: remote.read(bytearray(size)),
            lambda: remote.fetch_and_add(1),
            lambda: client.open(theirs.descriptor()),
        ]
        for operation in operations:
            for n in range(1, 10_000):
                done, _ = await at_await(n, operation)
                if done:
                    break
            else:
                pytest.fail("it never completed")
        await until(lambda: client.credit.available == CREDIT)
        theirs[:].view[:] = b"z" * size
        await remote.read(ours)
        assert bytes(ours[:].view) == b"z" * size


async def test_a_failed_link_ends_operations_and_releases_memory() -> None:
    buffer = bytearray(b"w" * 100_000)
    async with pair("rdma") as (client, server):
        theirs, ours = await memory.alloc(100_000), await memory.alloc(100_000)
        remote = await client.open(theirs.descriptor())
        await remote[:8].read(bytearray(8))
        with faults.injected("error op=write"), pytest.raises(anyio.BrokenResourceError):
            await remote.write(buffer)
        for use in (remote.write(buffer), remote.read(ours), remote.flush()):
            with pytest.raises(anyio.BrokenResourceError):
                await use
        with pytest.raises(anyio.BrokenResourceError):
            await client.open(theirs.descriptor())
        await server.wait_closed()
        with anyio.fail_after(30):
            await theirs.aclose()
            await ours.aclose()

    def held() -> bool:
        gc.collect()
        try:
            buffer.append(0)
        except BufferError:
            return True
        return False

    await until(lambda: not held())


@pytest.mark.parametrize("mode", PATHS)
async def test_killed_owner(mode: str) -> None:
    with process(OWNER, nbytes=1 << 20) as owner:
        port, descriptor = await owner.heard()
        client = await memory.connect(LOCAL, port, mode=mode)  # type: ignore[arg-type]
        assert client.path == mode
        remote = await client.open(bytes.fromhex(descriptor))
        ours = await memory.alloc(1 << 20)
        begun = 0

        async def use(operation: Callable[[], Coroutine[Any, Any, None]]) -> None:
            nonlocal begun
            with contextlib.suppress(anyio.BrokenResourceError):
                while True:
                    await operation()
                    begun += 1
                    await anyio.lowlevel.checkpoint()

        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(use, lambda: remote.write(b"a" * (1 << 20)))
                tasks.start_soon(use, lambda: remote.read(ours))
                tasks.start_soon(use, lambda: remote[:64].read(bytearray(64)))
                await until(lambda: begun > 20)
                owner.kill()
            await client.aclose()
            await ours.aclose()
        owner.forgive()


@pytest.mark.parametrize("mode", PATHS)
async def test_another_process(mode: str) -> None:
    with process(OWNER, nbytes=300_000) as owner:
        port, descriptor = await owner.heard()
        async with await memory.connect(LOCAL, port, mode=mode) as client:  # type: ignore[arg-type]
            remote = await client.open(bytes.fromhex(descriptor))
            await remote[100_000:].write(b"\1" * 200_000)
            owner.say("sum")
            assert await owner.heard() == 200_000
            back = bytearray(200_000)
            await remote[50_000:250_000].read(back)
            assert back == bytes(50_000) + b"\1" * 150_000
            assert await remote.fetch_and_add(255) == 0
            owner.say("sum")
            assert await owner.heard() == 200_255
        owner.hush()
        assert await owner.heard() == "closed"


async def test_closing_waits_for_what_was_begun() -> None:
    async with nothing_left(), pair("rdma") as (client, server), await memory.alloc(16384) as region:
        remote = await client.open(region.descriptor())
        with faults.injected("delay op=write ms=50"):
            await cancelled(client, lambda: remote.write(b"c" * 16384))
            await client.aclose()
            assert client.credit.available == CREDIT
        assert bytes(region[:].view) == b"c" * 16384
        await server.wait_closed()
        assert server.peer_closed
        for use in (remote.write(bytes(16384)), client.open(region.descriptor()), client.notify(b"")):
            with pytest.raises(anyio.ClosedResourceError):
                await use


@in_virtual_time
async def test_an_opening_that_fails_for_want_of_memory_keeps_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The connection is lost, and its owner does not wait for it for ever."""

    def registered(*_: object, **__: object) -> None:
        raise MemoryError

    async with pair("rdma") as (client, server), await memory.alloc(4096) as region:
        with monkeypatch.context() as patch:
            patch.setattr(memory.Region, "registered", registered)
            with pytest.raises(anyio.BrokenResourceError):
                await client.open(region.descriptor())
        with anyio.fail_after(60):
            await server.wait_closed()
        assert not any(grant.openings for grant in region._grants)


@contextlib.contextmanager
def one_that_is_kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """The device refuses to give up one registration, of which it tells."""
    real = LinkMemory.take_back
    failed: list[object] = []

    def take_back(self: LinkMemory, mr: object, *rest: Any) -> None:
        real(self, mr, *rest)
        if not failed:
            failed.append(mr)
            raise VerbsError(errno.EBUSY, "ibv_dereg_mr")

    with monkeypatch.context() as patch:
        patch.setattr(LinkMemory, "take_back", take_back)
        yield failed


@in_virtual_time
async def test_a_device_that_keeps_one_registration_gives_up_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """When the connection ends, that is all of it."""
    async with pair("rdma") as (client, server), await memory.alloc(4096) as region:
        for _ in range(3):
            await client.open(region.descriptor())
        with one_that_is_kept(monkeypatch) as kept:
            client.close()
            with anyio.fail_after(60):
                await server.wait_closed()
                assert kept
                assert not server._owner._openings
                await region.revoke()


@in_virtual_time
async def test_a_region_that_the_device_keeps_is_closed_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for that goes on, and its bytes do not count any more."""
    async with pair("rdma") as (client, _), await memory.alloc(4096) as theirs:
        remote = await client.open(theirs.descriptor())
        ours = await memory.alloc(4096)
        before = memory.statistics().bytes
        with faults.injected("delay op=read ms=100"), one_that_is_kept(monkeypatch) as kept:
            operation = remote.start_read(ours)
            with anyio.fail_after(60):
                await ours.aclose()
                await operation
            assert kept
        assert before - memory.statistics().bytes == 4096

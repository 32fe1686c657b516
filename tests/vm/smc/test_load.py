"""Many connections with a kernel's SMC-R, and many bytes through small rings."""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import aiordma
from aiordma.links import engine as links_engine
from aiordma.links.smcr.group import KernelGroup
from tests.health import until
from tests.tuned import tuned

from . import pattern
from .ends import (
    HERE,
    OUR_PORT,
    THERE,
    check_echo,
    connected,
    done,
    echo,
    kernel_program,
    kernel_server,
    links,
    set_in_kernel,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiordma.config import Config
    from aiordma.streams.stream import RdmaStream

pytestmark = pytest.mark.anyio
on_asyncio = pytest.mark.parametrize("anyio_backend", [pytest.param("asyncio", id="asyncio")])

#: More than Linux puts on one link group, which is 255.
MANY = 300
#: Tasks that open and close connections.
TASKS = 5
OPENED_AND_CLOSED = int(os.environ.get("AIORDMA_VM_SMC_CONNECTIONS", "1000"))
SMALL_RING = 16 << 10
#: The wrap counter of 16 bits turns over within these.
BYTES = int(os.environ.get("AIORDMA_VM_SMC_BYTES", str(2 << 30)))
#: Seconds that all of them may take on a busy machine, whose emulated one moves a megabyte in each.
LONG = 3000


async def test_both_roles_on_every_loop(config: Config) -> None:
    async with kernel_server() as server, await connected(config) as stream:
        await check_echo(stream, 100_000)
        assert await server.line() == "end"
    async with await aiordma.listen(HERE, OUR_PORT, config=config) as listener:
        async with kernel_program("client", THERE, HERE, str(OUR_PORT), "100000") as client:
            stream = await listener.accept()
            assert stream.path == "rdma"
            assert stream.smc_peer is not None
            await echo(stream)
            await stream.aclose()
            assert [await client.line() for _ in range(2)] == ["mode SMC-R", "closed"]


def kernel_groups() -> list[KernelGroup]:
    engine = links_engine.running()
    assert engine is not None
    return [group for group in engine.all_groups if isinstance(group, KernelGroup)]


async def once(stream: RdmaStream, number: int) -> None:
    data = pattern.part(number, 1000)
    await stream.send(data)
    assert await stream.receive_exactly(len(data)) == data


@on_asyncio
async def test_three_hundred_connections_to_a_kernel(config: Config) -> None:
    async with kernel_server():
        made = [await connected(config) for _ in range(MANY)]
        assert sorted(link["connections"] for link in links()) == [MANY - 255, 255]
        async with anyio.create_task_group() as tasks:
            for number, stream in enumerate(made):
                tasks.start_soon(once, stream, number)
        for stream in made:
            await stream.aclose()
        await until(lambda: not any(group.members for group in kernel_groups()))


@on_asyncio
async def test_three_hundred_connections_of_a_kernel(config: Config) -> None:
    served = []

    async def serve(stream: RdmaStream) -> None:
        served.append(stream.path)
        await echo(stream)
        await stream.aclose()

    async with await aiordma.listen(HERE, OUR_PORT, config=config) as listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, serve)
            async with kernel_program("clients", THERE, HERE, str(OUR_PORT), str(MANY)) as clients:
                assert await clients.line() == "mode SMC-R"
                assert await clients.line() == "exchanged"
                assert sorted(link["connections"] for link in links()) == [MANY - 255, 255]
                await clients.say("close")
                assert await clients.line() == "closed"
                assert await clients.process.wait() == 0
            await until(lambda: not any(group.members for group in kernel_groups()))
            tasks.cancel_scope.cancel()
    assert served == ["rdma"] * MANY


async def kernels_objects() -> dict[str, int]:
    """Queue pairs, regions and other objects of all RDMA devices, whoever has them."""
    counts: dict[str, int] = {}
    for device in json.loads(await done("rdma", "-j", "resource", "show")):
        for name, value in device.items():
            if isinstance(value, int) and name != "ifindex":
                counts[name] = counts.get(name, 0) + value
    return counts


@on_asyncio
async def test_a_thousand_opened_and_closed(config: Config) -> None:
    """Nothing grows at either end beyond what some that are open at a time take."""

    async def some(count: int) -> None:
        for number in range(count):
            async with await connected(config) as stream:
                await once(stream, number)

    def held() -> dict[str, Any]:
        (group,) = kernel_groups()
        agreed = group.agreed
        assert agreed is not None
        return {
            "memory": group.engine.pool.statistics().used_bytes,
            "places": group.places._made,
            "lost": group.places.lost,
            "refused": agreed.link.refused,
        }

    async with kernel_server():
        at_a_time = [await connected(config) for _ in range(4 * TASKS)]
        for number, stream in enumerate(at_a_time):
            await once(stream, number)
        for stream in at_a_time:
            await stream.aclose()
        await until(lambda: not any(group.members for group in kernel_groups()))
        before, objects = held(), await kernels_objects()
        async with anyio.create_task_group() as tasks:
            for _ in range(TASKS):
                tasks.start_soon(some, OPENED_AND_CLOSED // TASKS)
        await until(lambda: not any(group.members for group in kernel_groups()))
        assert held() == before
        assert await kernels_objects() == objects
        (group,) = kernel_groups()
        assert group.agreed is not None
        assert len(group.agreed.link.keys) <= 4 * TASKS
        assert before["lost"] == before["refused"] == 0


@pytest.fixture
def small_rings() -> Iterator[None]:
    before = {name: set_in_kernel(name, SMALL_RING) for name in ("rmem", "wmem")}
    yield
    for name, value in before.items():
        set_in_kernel(name, value)


@on_asyncio
@pytest.mark.timeout(LONG)
@pytest.mark.usefixtures("small_rings")
async def test_two_gigabytes_through_small_rings(config: Config) -> None:
    """The producer's wrap counter, of 16 bits, passes 65,535 at the end that sends."""
    async with kernel_server("drain") as server:
        stream = await connected(tuned(config, ring_bytes=SMALL_RING))
        sent = 0
        while sent < BYTES:
            data = pattern.part(sent, BYTES - sent)
            await stream.send(data)
            sent += len(data)
        await stream.send_eof()
        assert await server.line() == str(BYTES)
        await stream.aclose()


@on_asyncio
@pytest.mark.timeout(LONG)
@pytest.mark.usefixtures("small_rings")
async def test_a_gigabyte_comes_back_through_small_rings(config: Config) -> None:
    """The same of the kernel's counter, and of what each end says that it has read."""
    size = BYTES // 2 + (16 << 20)
    async with kernel_server() as server:
        stream = await connected(tuned(config, ring_bytes=SMALL_RING))

        async def send() -> None:
            sent = 0
            while sent < size:
                data = pattern.part(sent, size - sent)
                await stream.send(data)
                sent += len(data)
            await stream.send_eof()

        checked = pattern.Checked()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send)
            with contextlib.suppress(anyio.EndOfStream):
                while True:
                    checked.take(await stream.receive())
        assert checked.count == size
        assert await server.line() == "end"
        await stream.aclose()

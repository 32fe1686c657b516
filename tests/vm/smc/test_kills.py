"""kill -9 of each end at random instants while data flows: the other learns of it, and the next is served."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from typing import TYPE_CHECKING

import anyio
import pytest

import aiordma
from tests.processes import PATIENCE, process

from . import pattern
from .ends import (
    HERE,
    OUR_PORT,
    PORT,
    THERE,
    check_echo,
    connected,
    kernel_program,
    kernel_server,
    set_in_kernel,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiordma.config import Config
    from aiordma.streams.stream import RdmaStream

    from .ends import KernelProgram

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("anyio_backend", [pytest.param("asyncio", id="asyncio")]),
    pytest.mark.usefixtures("asks_each_second"),
    pytest.mark.timeout(1800),
]

#: Of each end in each role: four times as many in all.
KILLS = int(os.environ.get("AIORDMA_VM_SMC_KILLS", "50"))
#: Seconds of traffic at most before a process is killed.
TRAFFIC = 0.3
#: Clients of a server, of which one must get a connection.
ATTEMPTS = 5


@pytest.fixture
def asks_each_second() -> Iterator[None]:
    """The kernel's Test Link, which finds a peer that has gone while nothing was under way."""
    before = set_in_kernel("smcr_testlink_time", 1)
    yield
    set_in_kernel("smcr_testlink_time", before)


async def pump(stream: RdmaStream) -> str:
    """Bytes both ways, compared, until the other end is gone; how that shows."""
    ended = ""

    async def send(scope: anyio.CancelScope) -> None:
        sent = 0
        with scope, contextlib.suppress(anyio.BrokenResourceError):
            while True:
                data = pattern.part(sent, 3000)
                await stream.send(data)
                sent += len(data)

    checked = pattern.Checked()
    sending = anyio.CancelScope()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(send, sending)
        try:
            while True:
                checked.take(await stream.receive())
        except anyio.EndOfStream:
            ended = "end"
        except anyio.BrokenResourceError:
            ended = "error"
        sending.cancel()
    stream.abort()
    return ended


async def killed(pid: int) -> None:
    await anyio.sleep(random.uniform(0, TRAFFIC))  # the instant is the point
    os.kill(pid, signal.SIGKILL)


async def begun(clients: KernelProgram) -> int:
    """The process of a client that has a connection. The kernel gives up one that gets no Accept within six
    seconds, as a busy machine may have it: the server must take the next."""
    said = []
    for _ in range(ATTEMPTS):
        await clients.say("one")
        with anyio.fail_after(PATIENCE):
            said.append(await clients.line())
        if not said[-1].startswith("end"):
            return int(said[-1])
        print("a client:", said[-1])
    raise AssertionError(f"the server took none of them: {said}")


async def test_a_kernels_server(config: Config) -> None:
    async with kernel_server("forks") as server:
        for _ in range(KILLS):
            stream = await connected(config)
            pid = int(await server.line())
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(killed, pid)
                with anyio.fail_after(PATIENCE):
                    assert await pump(stream) in ("end", "error")
        async with await connected(config) as stream:
            await server.line()
            await check_echo(stream, 100_000)


async def test_a_kernels_client(config: Config) -> None:
    async with (
        await aiordma.listen(HERE, OUR_PORT, config=config) as listener,
        kernel_program("pumps", THERE, HERE, str(OUR_PORT)) as clients,
    ):
        assert await clients.line() == "ready"
        for _ in range(KILLS):
            pid = await begun(clients)
            stream = await listener.accept()
            assert stream.path == "rdma"
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(killed, pid)
                with anyio.fail_after(PATIENCE):
                    with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                        while True:
                            await stream.send(await stream.receive())
            stream.abort()
        async with kernel_program("client", THERE, HERE, str(OUR_PORT), "100000") as client:
            with anyio.fail_after(PATIENCE):
                stream = await listener.accept()
            with contextlib.suppress(anyio.EndOfStream):
                while True:
                    await stream.send(await stream.receive())
            await stream.aclose()
            assert [await client.line() for _ in range(2)] == ["mode SMC-R", "closed"]


@pytest.mark.usefixtures("syn_options")
async def test_a_client_of_this_end(config: Config) -> None:
    async with kernel_server("forks") as server:
        for _ in range(KILLS):
            with process("tests.vm.smc.roles:client", here=HERE, host=THERE, port=PORT) as client:
                path, peer = await client.heard()
                assert path == "rdma"
                assert peer.startswith("SMC-R")
                int(await server.line())
                await client.heard()
                await anyio.sleep(random.uniform(0, TRAFFIC))  # the instant is the point
                client.kill()
            with anyio.fail_after(PATIENCE):
                assert (await server.line()).startswith("end")
        async with await connected(config) as stream:
            await server.line()
            await check_echo(stream, 100_000)


@pytest.mark.usefixtures("syn_options")
async def test_a_server_of_this_end(config: Config) -> None:
    async with kernel_program("pumps", THERE, HERE, str(OUR_PORT)) as clients:
        assert await clients.line() == "ready"
        for _ in range(KILLS):
            with process("tests.vm.smc.roles:server", host=HERE, port=OUR_PORT) as server:
                assert await server.heard() == "ready"
                await begun(clients)
                path, peer = await server.heard()
                assert path == "rdma"
                assert peer.startswith("SMC-R")
                await anyio.sleep(random.uniform(0, TRAFFIC))  # the instant is the point
                server.kill()
            with anyio.fail_after(PATIENCE):
                assert (await clients.line()).startswith("end")
    async with kernel_server(), await connected(config) as stream:
        await check_echo(stream, 100_000)

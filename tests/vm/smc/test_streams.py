"""connect() and listen() with the sockets of a kernel's SMC-R, in both roles."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import random
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import aiordma
from aiordma.config import Config
from aiordma.errors import Code
from benchmarks import smc_socket
from tests.health import until

from .test_kernel import (
    HERE,
    OUR_PORT,
    PORT,
    THERE,
    THERE_COMMAND,
    kernel_program,
    kernel_server,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiordma.negotiation.sockops import SynOptions
    from aiordma.streams.stream import RdmaStream

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("anyio_backend", [pytest.param("asyncio", id="asyncio")]),
]

MIB = 1 << 20


@pytest.fixture
def config(syn_options: SynOptions) -> Config:
    return Config.from_env(smcr=f"fd:{syn_options.map_fd}", smcr_eids="AIORDMA-TEST-EID", soft_wire="auto")


async def connected(config: Config) -> RdmaStream:
    stream = await aiordma.connect(THERE, PORT, config=config, local_host=HERE)
    assert (stream.path, stream.fallback_reason) == ("rdma", None)
    assert stream.smc_peer is not None
    assert stream.smc_peer.startswith("SMC-R v2.1")
    return stream


async def check_echo(stream: RdmaStream, size: int) -> None:
    """To the end in both directions."""
    part = random.Random(size).randbytes(min(size, MIB))
    sent = hashlib.sha256()

    async def send() -> None:
        left = size
        while left:
            some = part[:left]
            sent.update(some)
            await stream.send(some)
            left -= len(some)
        await stream.send_eof()

    sending = asyncio.ensure_future(send())
    seen = hashlib.sha256()
    with contextlib.suppress(anyio.EndOfStream):
        while True:
            seen.update(await stream.receive())
    await sending
    assert seen.digest() == sent.digest()


async def echo(stream: RdmaStream) -> None:
    with contextlib.suppress(anyio.EndOfStream):
        while True:
            await stream.send(await stream.receive())
    await stream.send_eof()


def links() -> list[Any]:
    found = aiordma.statistics()
    assert found is not None
    return [link for link in found["links"] if link["state"] == "active"]


async def test_a_hundred_megabytes_of_a_kernels_echo(config: Config) -> None:
    async with kernel_server() as program, await connected(config) as stream:
        assert THERE_COMMAND or smc_socket.modes(PORT) == {"SMC-R"}
        await check_echo(stream, 50 * MIB)
        assert await program.line() == "end"


async def test_many_connections_share_a_link(config: Config) -> None:
    async with kernel_server():
        for _ in range(2):
            made = [await connected(config) for _ in range(10)]
            assert [link["connections"] for link in links()] == [10]
            await asyncio.gather(*(check_echo(stream, 200_000 + i) for i, stream in enumerate(made)))
            for stream in made:
                await stream.aclose()
            await until(lambda: [link["connections"] for link in links()] == [0])


async def test_a_kernels_clients_of_a_listener(config: Config) -> None:
    async with aiordma.listen(HERE, OUR_PORT, config=config) as listener:
        for _ in range(2):
            async with kernel_program("client", THERE, HERE, str(OUR_PORT), str(MIB)) as program:
                stream = await listener.accept()
                assert stream.path == "rdma"
                assert stream.smc_peer is not None
                await echo(stream)
                await stream.aclose()
                assert await program.line() == "mode SMC-R"
                assert await program.line() == "closed"
                assert await program.process.wait() == 0
        assert listener.statistics().rdma == 2


async def test_asyncio_streams(config: Config) -> None:
    async with kernel_server():
        reader, writer = await aiordma.open_connection(THERE, PORT, config=config, local_addr=(HERE, 0))
        assert writer.get_extra_info("aiordma.path") == "rdma"
        data = random.Random(5).randbytes(MIB)
        writer.write(data)
        writer.write_eof()
        assert await reader.read() == data
        writer.close()
        await writer.wait_closed()


async def test_an_abort_is_the_end_for_a_kernels_program(config: Config) -> None:
    async with kernel_server() as program:
        stream = await connected(config)
        await stream.send(b"hello")
        assert await stream.receive_exactly(5) == b"hello"
        stream.abort()
        assert await program.line() == "end"
        async with await connected(config) as other:
            await check_echo(other, 1000)


async def test_a_kernels_program_that_is_killed(config: Config) -> None:
    async with kernel_server() as program:
        stream = await connected(config)
        await stream.send(b"hello")
        assert await stream.receive_exactly(5) == b"hello"
        program.process.kill()
        with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
            await stream.receive()
        stream.abort()
    async with kernel_server(), await connected(config) as stream:
        await check_echo(stream, 1000)


@pytest.fixture
def asks_each_second() -> Iterator[None]:
    """The kernel's Test Link, on links that are made from now on."""
    set_test_link(1)
    yield
    set_test_link(30)


def set_test_link(seconds: int) -> None:
    command = [*THERE_COMMAND, "sh", "-c", f"echo {seconds} > /proc/sys/net/smc/smcr_testlink_time"]
    subprocess.run(command, check=True)


def block(seconds: float) -> None:
    time.sleep(seconds)


@pytest.mark.usefixtures("asks_each_second")
async def test_a_loop_that_is_blocked_for_ten_seconds(config: Config, blockbuster: Any) -> None:
    """The kernel asks on the link, wants its answers within two seconds, and sends meanwhile."""
    for function in blockbuster.functions.values():
        function.can_block_in("tests/vm/smc/test_streams.py", "block")
    data = random.Random(7).randbytes(20_000)
    async with kernel_server(), await connected(config) as stream:
        await stream.send(data[:100])
        assert await stream.receive_exactly(100) == data[:100]
        sent = 100
        with contextlib.suppress(anyio.WouldBlock):
            while sent < len(data):
                sent += stream.send_nowait(data[sent : sent + 100])
        block(10)
        assert await stream.receive_exactly(sent - 100) == data[100:sent]
        (link,) = links()
        assert link["connections"] == 1
        await check_echo(stream, 100_000)


async def test_a_process_of_this_end_that_is_killed(config: Config) -> None:
    """It knows nothing of aiordma, and the host is set up. The kernel serves the next one."""
    code = (
        "import asyncio, os, signal\n"
        "async def main():\n"
        f"    ends = await asyncio.open_connection({THERE!r}, {PORT}, local_addr=({HERE!r}, 0))\n"
        "    ends[1].write(b'hello'); await ends[0].readexactly(5)\n"
        "    info = ends[1].get_extra_info\n"
        "    print(info('aiordma.path'), info('aiordma.fallback_reason'), flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())"
    )
    # On its own host it takes a server that has not announced itself for a plain one, unless a rule names it.
    rule = [] if THERE_COMMAND else ["--allow", f"out:{THERE}:{PORT}"]
    more = {"AIORDMA_SMCR_EIDS": config.smcr_eids, "SOFTDEV_WIRE": "auto"}
    async with kernel_server():
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "aiordma", "run", *rule, "-c", code),
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, **more},
        )
        out, _ = await process.communicate()
        assert out == b"rdma None\n"
        async with await connected(config) as stream:
            await check_echo(stream, 100_000)


async def test_without_a_common_id_it_is_tcp(config: Config) -> None:
    other = Config.from_env(smcr=config.smcr, smcr_eids="ANOTHER-EID", soft_wire="auto")
    async with kernel_server():
        async with await aiordma.connect(THERE, PORT, config=other, local_host=HERE) as stream:
            assert stream.path == "tcp"
            assert stream.fallback_reason is not None
            assert stream.fallback_reason.peer in (Code.NO_COMMON_EID, Code.NO_DEVICE)
            await check_echo(stream, 100_000)


async def test_a_plain_server_beside(config: Config) -> None:
    if THERE_COMMAND:
        pytest.skip("the plain server is of this namespace")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(5))
        writer.close()

    server = await asyncio.start_server(serve, THERE, 7779, family=socket.AF_INET)
    async with server, await aiordma.connect(THERE, 7779, config=config) as stream:
        assert stream.path == "tcp"
        await stream.send(b"hello")
        assert await stream.receive_exactly(5) == b"hello"

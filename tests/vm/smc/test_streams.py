"""connect() and listen() with the sockets of a kernel's SMC-R, in both roles."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
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
from tests.tuned import tuned

from .ends import (
    HERE,
    MIB,
    OUR_PORT,
    PORT,
    THERE,
    THERE_COMMAND,
    check_echo,
    connected,
    echo,
    kernel_program,
    kernel_server,
    links,
    set_in_kernel,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("anyio_backend", [pytest.param("asyncio", id="asyncio")]),
]


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


async def test_an_urgent_byte_is_a_byte(config: Config) -> None:
    async with await aiordma.listen(HERE, OUR_PORT, config=config) as listener:
        async with kernel_program("urgent", THERE, HERE, str(OUR_PORT)) as client:
            stream = await listener.accept()
            assert stream.path == "rdma"
            got = b""
            with contextlib.suppress(anyio.EndOfStream):
                while True:
                    got += await stream.receive()
            assert got == b"before!behind"
            await stream.aclose()
            assert await client.line() == "closed"


@pytest.fixture(params=[16 << 10, 512 << 10, 4 << 20], ids=["16 KiB", "512 KiB", "4 MiB"])
def ring_bytes(request: pytest.FixtureRequest) -> Iterator[int]:
    """Of the kernel's rings."""
    before = {name: set_in_kernel(name, request.param) for name in ("rmem", "wmem")}
    yield request.param
    for name, value in before.items():
        set_in_kernel(name, value)


async def test_rings_of_other_sizes(config: Config, ring_bytes: int) -> None:
    """Ours is as large, or as large as it may be."""
    async with kernel_server() as server:
        async with await connected(tuned(config, ring_bytes=ring_bytes)) as stream:
            await check_echo(stream, 3 * ring_bytes + 1000)
            assert await server.line() == "end"


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
    before = set_in_kernel("smcr_testlink_time", 1)
    yield
    set_in_kernel("smcr_testlink_time", before)


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

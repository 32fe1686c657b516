"""A cable that loses packets, or all of them, and a kernel that loses its device."""

from __future__ import annotations

import contextlib
import json
import subprocess
from typing import TYPE_CHECKING

import anyio
import pytest

import aiordma
from tests.processes import PATIENCE
from tests.tuned import tuned

from .ends import (
    HERE,
    MIB,
    NETDEV,
    OUR_PORT,
    PORT,
    THERE,
    THERE_COMMAND,
    check_echo,
    connected,
    done,
    echo,
    kernel_program,
    kernel_server,
    set_in_kernel,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aiordma.config import Config
    from aiordma.streams.stream import RdmaStream

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("anyio_backend", [pytest.param("asyncio", id="asyncio")]),
]

#: The other end of the cable, and what has it.
OTHER = "veth0" if NETDEV == "veth1" else "veth1"


def tc(*words: str) -> list[str]:
    """The same at both ends: what each prints."""
    return [
        subprocess.run(
            [*prefix, "tc", *words, "dev", device], check=True, capture_output=True, text=True
        ).stdout
        for prefix, device in (([], NETDEV), (THERE_COMMAND, OTHER))
    ]


def dropped() -> int:
    return sum(qdisc["drops"] for text in tc("-s", "-j", "qdisc", "show") for qdisc in json.loads(text))


@pytest.fixture
def lossy() -> Iterator[Callable[[], int]]:
    """One packet in a hundred is lost, in both directions."""
    for prefix, device in (([], NETDEV), (THERE_COMMAND, OTHER)):
        subprocess.run([*prefix, *_qdisc("add", device), "netem", "loss", "1%"], check=True)
    yield dropped
    for prefix, device in (([], NETDEV), (THERE_COMMAND, OTHER)):
        subprocess.run([*prefix, *_qdisc("del", device)], check=True)


def _qdisc(action: str, device: str) -> list[str]:
    return ["tc", "qdisc", action, "dev", device, "root"]


async def test_every_byte_arrives_over_a_lossy_cable(config: Config, lossy: Callable[[], int]) -> None:
    async with kernel_server() as server, await connected(config) as stream:
        await check_echo(stream, 4 * MIB)
        assert await server.line() == "end"
    async with await aiordma.listen(HERE, OUR_PORT, config=config) as listener:
        async with kernel_program("client", THERE, HERE, str(OUR_PORT), str(MIB)) as client:
            stream = await listener.accept()
            assert stream.path == "rdma"
            await echo(stream)
            await stream.aclose()
            assert [await client.line() for _ in range(2)] == ["mode SMC-R", "closed"]
    assert await anyio.to_thread.run_sync(lossy) > 20


@pytest.fixture
def asks_each_second() -> Iterator[None]:
    before = set_in_kernel("smcr_testlink_time", 1)
    yield
    set_in_kernel("smcr_testlink_time", before)


@pytest.fixture
def cable() -> Iterator[Cable]:
    made = Cable()
    yield made
    made.mend()


class Cable:
    is_cut = False

    def cut(self) -> None:
        """Every packet is lost, without a word."""
        self.is_cut = True
        for prefix, device in (([], NETDEV), (THERE_COMMAND, OTHER)):
            subprocess.run([*prefix, *_qdisc("add", device), "netem", "loss", "100%"], check=True)

    def mend(self) -> None:
        if self.is_cut:
            self.is_cut = False
            for prefix, device in (([], NETDEV), (THERE_COMMAND, OTHER)):
                subprocess.run([*prefix, *_qdisc("del", device)], check=True)


async def read_to_the_end(stream: RdmaStream) -> None:
    with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError):
        while True:
            await stream.receive()


@pytest.mark.usefixtures("asks_each_second")
async def test_a_cable_that_is_cut(config: Config, cable: Cable) -> None:
    """Both ends learn of it, the idle one too, and the next connection is on RDMA again."""
    quick = tuned(config, keepalive_ms=500, keepalive_timeout_ms=500)
    async with kernel_server() as server:
        async with await connected(quick) as busy, await connected(quick) as idle:
            await idle.send(b"hello")
            assert await idle.receive_exactly(5) == b"hello"
            with contextlib.suppress(anyio.WouldBlock):
                while True:
                    busy.send_nowait(bytes(1000))
            await anyio.to_thread.run_sync(cable.cut)
            with anyio.fail_after(PATIENCE):
                for stream in busy, idle:
                    await read_to_the_end(stream)
                assert [await server.line() for _ in range(2)] == ["end", "end"]
            await anyio.to_thread.run_sync(cable.mend)
            for stream in busy, idle:
                stream.abort()
        async with await connected(quick) as stream:
            await check_echo(stream, 100_000)


@pytest.fixture
def kernels_device() -> Iterator[str]:
    """Its name. It is there again when the test is over."""
    name = "rxe0" if THERE_COMMAND else "rxe1"
    yield name
    command = [*THERE_COMMAND, "rdma", "link", "show", f"{name}/1"]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        subprocess.run([*THERE_COMMAND, *_added(name)], check=True)


def _added(device: str) -> list[str]:
    return ["rdma", "link", "add", device, "type", "rxe", "netdev", OTHER]


async def test_the_kernels_device_goes_away(config: Config, kernels_device: str) -> None:
    """The kernel gives up its link group. Behind that it is TCP, and RDMA again when the device is back."""
    async with kernel_server() as server:
        async with await connected(config) as stream:
            await stream.send(b"hello")
            assert await stream.receive_exactly(5) == b"hello"
            await done("rdma", "link", "del", kernels_device)
            with anyio.fail_after(PATIENCE):
                with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                    await stream.receive()
                assert await server.line() == "end"
        async with await aiordma.connect(THERE, PORT, config=config, local_host=HERE) as stream:
            assert stream.path == "tcp"
            await check_echo(stream, 100_000)
        await done(*_added(kernels_device))
        async with await connected(config) as stream:
            await check_echo(stream, 100_000)

"""The set-up of the host: taken back while programs run, without a set-up, in a container, and misused."""

from __future__ import annotations

import configparser
import os
import shlex
import socket
import sys
from typing import TYPE_CHECKING

import anyio
import pytest

import aiordma
from aiordma.cli.smcr import setup
from aiordma.config import Config
from aiordma.negotiation.smc_map import PINNED_AT
from aiordma.negotiation.sockops import SynOptions, open_pinned
from aiordma.proto import smcr

from .ends import (
    EID,
    HERE,
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
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aiordma.proto.clc import Proposal

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("anyio_backend", [pytest.param("asyncio", id="asyncio")]),
]

#: Of what may block, as a program's own set-up may.
in_thread = anyio.to_thread.run_sync


class SetUp:
    """Of this module's own, which tests take back."""

    def __init__(self, cgroup: Path) -> None:
        self._cgroup = cgroup
        self.fds: list[int] = []

    async def enable(self) -> Config:
        await in_thread(setup.enable, self._cgroup, "nogroup")
        return self.opened()

    def opened(self) -> Config:
        self.fds.append(open_pinned(PINNED_AT))
        return Config.from_env(smcr=f"fd:{self.fds[-1]}", smcr_eids=EID, soft_wire="auto")

    def close(self) -> None:
        setup.disable()
        for fd in self.fds:
            os.close(fd)


@pytest.fixture
def host(cgroup: Path) -> Iterator[SetUp]:
    made = SetUp(cgroup)
    yield made
    made.close()


async def test_it_is_taken_back_while_streams_are_open(host: SetUp) -> None:
    """They go on. What begins now is TCP, in both roles, and RDMA again behind the next set-up."""
    config = await host.enable()
    async with await aiordma.listen(HERE, OUR_PORT, config=config) as listener, kernel_server() as server:
        async with await connected(config) as stream:
            await stream.send(b"hello")
            assert await stream.receive_exactly(5) == b"hello"
            await in_thread(setup.disable)
            await check_echo(stream, 300_000)
            assert await server.line() == "end"
        async with await aiordma.connect(THERE, PORT, config=config, local_host=HERE) as stream:
            assert stream.path == "tcp"
            await check_echo(stream, 100_000)
        async with kernel_program("client", THERE, HERE, str(OUR_PORT), "100000") as client:
            stream = await listener.accept()
            assert stream.path == "tcp"
            await echo(stream)
            await stream.aclose()
            assert [await client.line() for _ in range(2)] == ["mode TCP", "closed"]
        async with await connected(await host.enable()) as stream:
            await check_echo(stream, 100_000)


@pytest.mark.parametrize("role", ["client", "server"])
async def test_release_0_of_version_2(host: SetUp, monkeypatch: pytest.MonkeyPatch, role: str) -> None:
    """As with Linux 6.1: this kernel does what its peer can."""
    config = await host.enable()
    newest = smcr.Port.proposal

    def oldest(port: smcr.Port) -> Proposal:
        return newest(port).changed(release=0)

    if role == "client":
        monkeypatch.setattr(smcr.Port, "proposal", oldest)
        async with kernel_server(), await connected(config) as stream:
            assert stream.smc_peer is not None
            assert stream.smc_peer.startswith("SMC-R v2.0")
            await check_echo(stream, 100_000)
            async with await connected(config) as second:
                await check_echo(second, 100_000)
        return
    monkeypatch.setattr(smcr, "_NEWEST_RELEASE", 0)
    async with await aiordma.listen(HERE, OUR_PORT, config=config) as listener:
        for _ in range(2):
            async with kernel_program("client", THERE, HERE, str(OUR_PORT), "100000") as client:
                stream = await listener.accept()
                assert stream.path == "rdma"
                assert stream.smc_peer is not None
                assert stream.smc_peer.startswith("SMC-R v2.0")
                await echo(stream)
                await stream.aclose()
                assert [await client.line() for _ in range(2)] == ["mode SMC-R", "closed"]


REQUEST = b"GET / HTTP/1.0\r\n\r\n"
CONTAINED = f"""
import asyncio, os, sys
async def main():
    reader, writer = await asyncio.open_connection({THERE!r}, {PORT}, local_addr=({HERE!r}, 0))
    writer.write(b"hello"); assert await reader.readexactly(5) == b"hello"
    print(os.getuid(), os.getpid(), writer.get_extra_info("aiordma.path"))
    writer.close()
asyncio.run(main())
"""


async def test_what_the_unit_of_systemd_runs(host: SetUp) -> None:
    printed = configparser.ConfigParser()
    printed.read_string(
        await done(sys.executable, "-m", "aiordma", "smcr", "unit", "--group", "nogroup", there=False)
    )
    service = printed["Service"]
    await done(*shlex.split(service["ExecStart"]), there=False)
    async with kernel_server(), await connected(host.opened()) as stream:
        await check_echo(stream, 1000)
    await done(*shlex.split(service["ExecStop"]), there=False)
    assert "not set up" in await in_thread(setup.problem)


async def test_in_a_container(host: SetUp) -> None:
    """Mounts and processes of its own, a user without any capability, and of the host only the map."""
    await host.enable()
    rule = [] if THERE_COMMAND else ["--allow", f"out:{THERE}:{PORT}"]
    # As a container's runtime does: a device is given by its file.
    inside = 'chmod -f a+rw /dev/infiniband/*; mount -t tmpfs none /home && exec "$@"'
    command = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--uts", "--ipc"]
    command += ["sh", "-c", inside, "sh"]
    without = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    without += ["--bounding-set=-all", "--no-new-privs"]
    environment = {"AIORDMA_SMCR_EIDS": EID, "SOFTDEV_WIRE": "auto", "HOME": "/home", "TMPDIR": "/dev/shm"}
    aiordma_here = [*command, *without, sys.executable, "-m", "aiordma"]
    status = await done(*aiordma_here, "smcr", "status", there=False, env=environment)
    assert status == "SMC's TCP option: programs of this user can use it\n"
    async with kernel_server():
        run = [*aiordma_here, "run", *rule, "-c", CONTAINED]
        assert (await done(*run, there=False, env=environment)).split() == ["65534", "1", "rdma"]


async def test_what_a_writer_of_the_map_can_do(host: SetUp) -> None:
    """The option in the SYN of somebody else's connection: a plain server takes no notice, and a kernel's
    SMC-R server refuses bytes that are no Proposal. No byte is taken for another one."""
    config = await host.enable()
    options = SynOptions(host.fds[-1])

    async def marked(port: int) -> bytes:
        with socket.socket() as sock:
            sock.settimeout(30)
            sock.bind((HERE, 0))
            options.want(sock)
            await in_thread(sock.connect, (THERE, port))
            await in_thread(sock.sendall, REQUEST)
            try:
                return await in_thread(sock.recv, 100)
            except ConnectionError:
                return b""

    async with kernel_server():
        assert await marked(PORT) == b""
        async with await connected(config) as stream:
            await check_echo(stream, 100_000)
    if THERE_COMMAND:
        return  # a plain server of this namespace it is that follows
    with socket.create_server((THERE, 7780)) as plain:

        async def serve() -> None:
            connection, _ = await in_thread(plain.accept)
            with connection:
                await in_thread(connection.sendall, await in_thread(connection.recv, 100))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve)
            assert await marked(7780) == REQUEST

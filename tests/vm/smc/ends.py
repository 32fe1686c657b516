"""Both ends: where they are, programs of the kernel's sockets there, and streams of aiordma here."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import anyio
from anyio.streams.buffered import BufferedByteReceiveStream

import aiordma

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from anyio.abc import Process

    from aiordma.config import Config
    from aiordma.streams.stream import RdmaStream

#: Here, there, and the interface of here: see tests/vm/net.
HERE, THERE, NETDEV = os.environ.get("AIORDMA_VM_SMC_ENDS", "10.99.1.1 10.99.1.2 veth0").split()
#: What starts a program where the kernel has rxe, if that is not here.
THERE_COMMAND = os.environ.get("AIORDMA_VM_SMC_THERE", "").split()
PORT, OUR_PORT = 7777, 7778
MIB = 1 << 20
EID = "AIORDMA-TEST-EID"
#: The kernel's version.
KERNEL = tuple(int(number) for number in os.uname().release.split(".")[:2])


class KernelProgram:
    """A process that says something, line by line."""

    def __init__(self, process: Process) -> None:
        self.process = process
        assert process.stdout is not None
        self._lines = BufferedByteReceiveStream(process.stdout)

    async def line(self) -> str:
        """Its next line. :raises anyio.IncompleteRead: it has ended."""
        return (await self._lines.receive_until(b"\n", 65536)).decode().strip()

    async def rest(self) -> str:
        """Everything that it still says, up to its end."""
        said = b""
        with contextlib.suppress(anyio.EndOfStream):
            while True:
                said += await self._lines.receive()
        return said.decode()

    async def say(self, line: str) -> None:
        assert self.process.stdin is not None
        await self.process.stdin.send(line.encode() + b"\n")


@contextlib.asynccontextmanager
async def program(
    *command: str, there: bool = True, env: Mapping[str, str] | None = None, cwd: str | None = None
) -> AsyncIterator[KernelProgram]:
    """A process, ended with the block.

    :param there: it runs where the kernel has rxe.
    :param env: what its environment has beside this one's.
    """
    process = await anyio.open_process(
        [*(THERE_COMMAND if there else []), *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None,
        cwd=cwd,
        env={name: value for name, value in os.environ.items() if name != "LD_PRELOAD"} | dict(env or {}),
    )
    try:
        yield KernelProgram(process)
    finally:
        with anyio.CancelScope(shield=True):
            if process.returncode is None:
                process.kill()
            await process.aclose()


async def done(
    *command: str, there: bool = True, env: Mapping[str, str] | None = None, cwd: str | None = None
) -> str:
    """What a program says that ends well. :raises AssertionError: it does not."""
    async with program(*command, there=there, env=env, cwd=cwd) as running:
        said = await running.rest()
        assert await running.process.wait() == 0, said
        return said


def kernel_program(*arguments: str) -> contextlib.AbstractAsyncContextManager[KernelProgram]:
    """A process of ``kernel_side``."""
    return program(sys.executable, "-m", "tests.vm.smc.kernel_side", *arguments)


@contextlib.asynccontextmanager
async def kernel_server(mode: str = "serve") -> AsyncIterator[KernelProgram]:
    async with kernel_program(mode, THERE, str(PORT)) as running:
        assert await running.line() == "ready"
        yield running


def set_in_kernel(name: str, value: int) -> int:
    """A setting of the kernel's SMC, where it has rxe: what it was. For fixtures: it blocks."""
    place = f"/proc/sys/net/smc/{name}"
    command = [*THERE_COMMAND, "sh", "-c", f"cat {place}; echo {value} > {place}"]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


async def connected(config: Config, port: int = PORT) -> RdmaStream:
    stream = await aiordma.connect(THERE, port, config=config, local_host=HERE)
    assert stream.path == "rdma", str(stream.fallback_reason)  # pytest shows no values of this module
    assert stream.smc_peer is not None
    assert stream.smc_peer.startswith("SMC-R v2.")
    return stream


async def check_echo(stream: RdmaStream, size: int) -> None:
    """To the end in both directions."""
    part = random.Random(size).randbytes(min(size, MIB))
    sent, seen = hashlib.sha256(), hashlib.sha256()

    async def send() -> None:
        left = size
        while left:
            some = part[:left]
            sent.update(some)
            await stream.send(some)
            left -= len(some)
        await stream.send_eof()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(send)
        with contextlib.suppress(anyio.EndOfStream):
            while True:
                seen.update(await stream.receive())
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

"""Real conditions under which RDMA cannot be had: the reason names each, and what to do.

The server is a process of its own, where nothing is missing. Each client lacks something, and prints its path
and the reason; what is logged goes to its standard error.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.world import DEVICE, FULL_PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(DEVICE != "soft", reason="each condition is one of the software device")

SERVER = """
import asyncio, aiordma
async def handle(stream):
    async with stream:
        await stream.receive()
        await stream.send(str(stream.fallback_reason).encode())
async def main():
    async with aiordma.listen("127.0.0.1") as listener:
        print(listener.port, flush=True)
        await listener.serve(handle)
asyncio.run(main())
"""
CLIENT = """
import asyncio, os, resource
import aiordma, aiordma.negotiation.connect, aiordma.streams.connector
from aiordma.verbs.backend import open_backend
{before}
async def main():
    for _ in range(2):
        async with aiordma.connect("127.0.0.1", {port}, mode={mode!r}) as stream:
            await stream.send(b"x")
            there = (await stream.receive()).decode()
            print(stream.path, stream.fallback_reason, "| server:", there, flush=True)
try:
    asyncio.run(main())
except OSError as error:
    print("error:", error)
except aiordma.NegotiationError as error:
    print("error:", error)
"""
#: All but so many of the descriptors that may be open are in use.
FEW_LEFT = """
highest = max(map(int, os.listdir("/proc/self/fd")))
held = [os.dup(0) for _ in range(highest)]
resource.setrlimit(resource.RLIMIT_NOFILE, (max(held) + 1 + {left}, max(held) + 100))
"""
#: Once the modules are loaded: files of the first user may be out of the other's reach.
AS_NOBODY = """
import aiordma.links.contact, aiordma.links.engine
open_backend("soft").close()
os.setgid(65534)
os.setuid(65534)
"""
WARNING = "RDMA cannot be used, so connections run on TCP: "
WITHOUT_PROC = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh")
ENVIRONMENT = {**os.environ, "AIORDMA_DEVICE": "soft"}


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
    )
    assert process.stdout is not None
    with process:
        yield int(process.stdout.readline())
        process.kill()


def start(
    port: int, *around: str, mode: str = "auto", before: str = "", **environment: str
) -> subprocess.Popen[str]:
    program = CLIENT.format(port=port, mode=mode, before=before)
    return subprocess.Popen(
        [*around, sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**ENVIRONMENT, **environment},
    )


def ended(process: subprocess.Popen[str]) -> tuple[str, str]:
    with process:
        return process.communicate(timeout=3 * FULL_PATIENCE)


def may_mount() -> bool:
    if not (shutil.which("unshare") and shutil.which("mount")):
        return False
    return subprocess.run([*WITHOUT_PROC, "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("binding", ["auto", pytest.param("own", marks=pytest.mark.slow)])
def test_too_few_open_files(port: int, binding: str) -> None:
    """From too few descriptors to enough: RDMA, or TCP, or an error, but never without the reason."""
    numbers = (4, 12, 20, 60)  # the event loop takes three
    processes = []
    for number in numbers:
        # A link for which descriptors lack does not come.
        times = {} if number == numbers[-1] else {"AIORDMA_NEGOTIATE_TIMEOUT_MS": "10000"}
        before = FEW_LEFT.format(left=number)
        processes.append(start(port, before=before, AIORDMA_VERBS=binding, **times))
    paths = set()
    for number, (out, err) in zip(numbers, map(ended, processes), strict=True):
        first = out.partition(" ")[0]
        paths.add(first)
        assert first in ("rdma", "tcp", "error:"), (number, out, err)
        if first == "rdma":
            assert WARNING not in err
        else:
            words = out.partition("| server:")[0]
            assert "this process has no file descriptors left" in words, (number, out, err)
            assert "raise it with ulimit -n" in words
        if first == "tcp":
            assert err.count(WARNING) == 1, (number, out, err)
            assert "raise it with ulimit -n" in err
    assert paths >= {"rdma", "tcp"}


def test_two_ends_of_different_users(port: int) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    out, err = ended(start(port, before=AS_NOBODY, AIORDMA_ADMIN="off"))
    assert out.count("different users of one host") == 4, (out, err)  # at both ends, twice
    assert out.count("run both as the same user") == 4
    assert WARNING not in err  # the installation is as it should be
    out, _ = ended(start(port, mode="rdma", before=AS_NOBODY, AIORDMA_ADMIN="off"))
    assert out.startswith("error: ")
    assert "run both as the same user" in out


@pytest.mark.skipif(not may_mount(), reason="this user cannot make a mount namespace")
def test_no_proc(port: int) -> None:
    out, err = ended(start(port, *WITHOUT_PROC))
    assert err.count(WARNING) == 1, err
    assert "/proc/sys/kernel/random/boot_id cannot be read" in err
    assert "mount -t proc proc /proc" in err
    assert out.count("tcp TCP 0x03000000: ") == 2
    out, err = ended(start(port, *WITHOUT_PROC, mode="rdma"))
    assert out.startswith("error: ")
    assert "mount -t proc proc /proc" in out

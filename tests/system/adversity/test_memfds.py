"""Shared memory is the user's alone, also where the kernel shows it to others: under /proc. And no page of it
is missing where the kernel may have none later."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile

import pytest

import aiordma
from tests.forking import fork
from tests.health import until
from tests.processes import FULL_PATIENCE
from tests.roles import LOCAL

_NOBODY = 65534


def memfds() -> list[str]:
    folder = f"/proc/{os.getpid()}/fd"
    paths = [f"{folder}/{name}" for name in os.listdir(folder)]
    return [path for path in paths if os.path.islink(path) and os.readlink(path).startswith("/memfd:softdev")]


def opened_by_nobody(paths: list[str]) -> int:
    """How many of them another user can open."""
    child = fork()
    if not child:
        opened = 0
        try:
            os.setgroups([])
            os.setgid(_NOBODY)
            os.setuid(_NOBODY)
            for path in paths:
                try:
                    os.open(path, os.O_RDONLY)
                except OSError:
                    continue
                opened += 1
        finally:
            os._exit(min(opened, 200))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.anyio
async def test_nobody_else_opens_a_segment() -> None:
    async with await aiordma.listen(LOCAL, 0, mode="rdma") as listener:
        async with await aiordma.connect(LOCAL, listener.port, mode="rdma") as one:
            async with await listener.accept() as other:
                await one.send(b"secret")
                assert await other.receive() == b"secret"
                await until(lambda: bool(memfds()))
                found = memfds()
                assert {os.stat(path).st_mode & 0o777 for path in found} == {0o600}
                if os.getuid() == 0:
                    assert opened_by_nobody(found) == 0


#: A stream that is closed, whose ring is emptied, and another one. Prints for each memfd how many bytes of
#: it have no page.
STREAMS = """
import asyncio, os, stat
import aiordma
from tests.system.adversity.test_memfds import memfds

async def main():
    async with await aiordma.listen("127.0.0.1", mode="rdma") as listener:
        for _ in range(2):
            async with await aiordma.connect("127.0.0.1", listener.port, mode="rdma") as one:
                async with await listener.accept() as other:
                    for _ in range(16):
                        await one.send(bytes(65536))
                        await other.receive_exactly(65536)
        found = [os.stat(path) for path in memfds()]
        print(len(found), [status.st_size - 512 * status.st_blocks for status in found])

asyncio.run(main())
"""


@pytest.mark.slow
def test_memory_that_the_kernel_counts_is_had_at_once() -> None:
    """With ``vm.overcommit_memory=2``: a file says so here. A page that was missing then was a SIGBUS."""
    unshare = shutil.which("unshare") or pytest.skip("there is no unshare")
    mount = 'echo 2 >"$1" && mount --bind "$1" /proc/sys/vm/overcommit_memory || exit 77; shift; exec "$@"'
    with tempfile.NamedTemporaryFile() as file:
        command = [unshare, "-m", "sh", "-c", mount, "sh", file.name, sys.executable, "-c", STREAMS]
        done = subprocess.run(command, capture_output=True, text=True, timeout=FULL_PATIENCE, check=False)
    if done.returncode in (1, 77) and not done.stdout and "Traceback" not in done.stderr:
        pytest.skip(f"this user cannot mount: {done.stderr}")
    assert done.returncode == 0, done.stderr
    count, missing = done.stdout.split(" ", 1)
    assert int(count) > 2
    assert set(json.loads(missing)) == {0}

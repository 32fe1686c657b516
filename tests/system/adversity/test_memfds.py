"""Shared memory is the user's alone, also where the kernel shows it to others: under /proc."""

from __future__ import annotations

import os

import pytest

import aiordma
from tests.health import until
from tests.roles import LOCAL

pytestmark = pytest.mark.anyio

_NOBODY = 65534


def memfds() -> list[str]:
    folder = f"/proc/{os.getpid()}/fd"
    paths = [f"{folder}/{name}" for name in os.listdir(folder)]
    return [path for path in paths if os.path.islink(path) and os.readlink(path).startswith("/memfd:aiordma")]


def opened_by_nobody(paths: list[str]) -> int:
    """How many of them another user can open."""
    child = os.fork()
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

"""Rings of 512 MiB, the largest that there are: every byte in order, sums within limits, and what lack of
memory does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

import aiordma
from aiordma import Config
from aiordma.links.engine import current
from tests.health import ROUNDS, check_echo, nothing_left
from tests.processes import FULL_PATIENCE, PATIENCE, process
from tests.roles import LOCAL, echo
from tests.streams.pairs import negotiated_pair
from tests.world import DEVICE

MIB = 1 << 20
LARGE = 512 * MIB
#: So much that a first ring may be as large.
AMPLE = 16 << 30
#: Bytes that go one way: several times around, with AIORDMA_TEST_ROUNDS beyond 32 bits.
TOTALS = {"the client": (1 << 32 if ROUNDS > 1 else 2 * LARGE) + 100 * MIB, "the server": LARGE + 100 * MIB}


def _available() -> int:
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.timeout(4 * FULL_PATIENCE),
    pytest.mark.skipif(DEVICE != "soft", reason="a device of the kernel would lock this memory"),
    pytest.mark.skipif(_available() < 4 << 30, reason="this machine has not enough memory"),
    # One at a time.
    pytest.mark.xdist_group("large rings"),
]

on_asyncio = pytest.mark.parametrize("anyio_backend", [("asyncio", {})])


@on_asyncio
@pytest.mark.parametrize("sends", TOTALS)
async def test_every_byte(sends: str, anyio_backend: object) -> None:
    """A ring is filled to its last byte, and begins again."""
    config = Config(device=DEVICE, ring_bytes=LARGE, max_ring_bytes=LARGE, memory_limit_bytes=AMPLE)
    client, server = await negotiated_pair(config=config, mode="rdma")
    one, other = (client, server) if sends == "the client" else (server, client)
    block = memoryview(os.urandom(8 * MIB - 4093))
    sent, got, total = 0, 0, TOTALS[sends]
    async with one, other:
        counts: Any = other.statistics()
        assert counts.ring_bytes == LARGE
        while sent < LARGE:
            sent += one.send_nowait(block[sent % len(block) :])
        with pytest.raises(anyio.WouldBlock):
            one.send_nowait(b"no room")
        assert sent == LARGE

        async def send() -> None:
            at = sent
            while at < total:
                part = block[at % len(block) :][: total - at]
                await one.send(part)
                at += len(part)
            await one.send_eof()

        room = bytearray(len(block))
        with anyio.fail_after(4 * PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send)
                while got < total:
                    expected = block[got % len(block) :][: total - got]
                    part = memoryview(room)[: len(expected)]
                    await other.receive_exactly_into(part)
                    assert part == expected, got
                    got += len(part)
            with pytest.raises(anyio.EndOfStream):
                await other.receive()
    assert one.path == other.path == "rdma"


@pytest.mark.parametrize("whose", ["the client's", "the server's"])
async def test_only_one_end_has_large_ones(whose: str) -> None:
    """The other end writes into them, and has small ones."""
    large = {"ring_bytes": LARGE, "max_ring_bytes": LARGE, "memory_limit_bytes": AMPLE}
    own: dict[str, Any]
    its: dict[str, Any]
    own, its = (large, {}) if whose == "the client's" else ({}, large)
    data = os.urandom(12 * MIB)
    with process("tests.roles:echo_server", **its) as server:
        port = await server.heard()
        config = Config(device=DEVICE, **own)
        async with await aiordma.connect(LOCAL, port, mode="rdma", config=config) as stream:
            counts: Any = stream.statistics()
            assert (counts.ring_bytes == LARGE) == bool(own)
            assert (counts.peer_ring_bytes == LARGE) == bool(its)
            with anyio.fail_after(PATIENCE):
                await check_echo(stream, data)
            assert stream.path == "rdma"


@on_asyncio
async def test_their_sum_is_bounded(anyio_backend: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten that want 512 MiB each have 1 GiB together, and all go on."""
    monkeypatch.setenv("AIORDMA_MEMORY_LIMIT_BYTES", str(2 * LARGE))
    config = Config.from_env(device=DEVICE, ring_bytes=LARGE, max_ring_bytes=LARGE)
    data = os.urandom(MIB)
    async with nothing_left() as engine:
        assert engine.pool.limit_bytes == 2 * LARGE
        pairs = [await negotiated_pair(config=config) for _ in range(10)]

        async def pump(one: aiordma.RdmaStream, other: aiordma.RdmaStream) -> None:
            async def send() -> None:
                for _ in range(100):
                    await one.send(data)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send)
                room = bytearray(MIB)
                for _ in range(100):
                    await other.receive_exactly_into(room)
                    assert room == data

        with anyio.fail_after(4 * PATIENCE):
            async with anyio.create_task_group() as tasks:
                for pair in pairs:
                    tasks.start_soon(pump, *pair)
        memory = (await current()).statistics()["memory"]
        assert memory["registered_high_water"] <= 2 * LARGE, memory
        for pair in pairs:
            for stream in pair:
                await stream.aclose()


CLIENT = """
import json, re, sys
import anyio, aiordma
from tests.health import check_echo

async def main(port):
    async with await aiordma.connect("127.0.0.1", port) as stream:
        space = int(re.search(r"VmSize:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) << 10
        await check_echo(stream, bytes(range(256)) * 40_000)
        counts = stream.statistics()
        print(json.dumps([stream.path, getattr(counts, "ring_bytes", 0), space]))

anyio.run(main, int(sys.argv[1]))
"""
#: So much less than with large rings: too little for one, and enough for a program with half of it.
LESS = 64 << 20
WAYS = {
    "room": [],
    "no files above 256 MiB": ["prlimit", "--fsize=268435456"],
    "little address space": ["prlimit", "--as={}"],
    "no memory to lock": ["prlimit", "--memlock=0"],
}


@on_asyncio
@pytest.mark.parametrize("way", WAYS)
async def test_no_memory_for_one(way: str, anyio_backend: object) -> None:
    """The stream has a smaller ring, or goes over TCP."""
    assert shutil.which("prlimit")
    sizes = {
        "AIORDMA_RING_BYTES": LARGE,
        "AIORDMA_MAX_RING_BYTES": LARGE,
        "AIORDMA_MEMORY_LIMIT_BYTES": AMPLE,
    }
    # glibc's arenas, 64 MiB each, are reserved only where there is space.
    environ = {**os.environ, "MALLOC_ARENA_MAX": "1", **{name: str(value) for name, value in sizes.items()}}
    async with await aiordma.listen(LOCAL) as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, echo)

        async def run_client(way: str, space: int = 0) -> tuple[str, int, int]:
            before = [word.format(space - LESS) for word in WAYS[way]]
            command = [*before, sys.executable, "-c", CLIENT, str(listener.port)]
            with anyio.fail_after(FULL_PATIENCE):
                done = await anyio.run_process(command, stderr=subprocess.PIPE, check=False, env=environ)
            assert done.returncode == 0, done.stderr.decode()
            path, ring, space = json.loads(done.stdout)
            return path, ring, space

        path, ring, space = await run_client("room")
        if way != "room":
            path, ring, _ = await run_client(way, space)
        assert ((path, ring) == ("rdma", LARGE)) == (way in ("room", "no memory to lock")), (path, ring)
        assert path in ("rdma", "tcp")
        async with await aiordma.connect(LOCAL, listener.port, mode="rdma") as stream:
            await check_echo(stream)
        tasks.cancel_scope.cancel()

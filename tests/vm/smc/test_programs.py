"""Programs as distributions have them, on the kernel's SMC sockets, with aiordma at the other end."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import aiordma
from benchmarks import smc_socket
from tests.health import until
from tests.tools import listening

from . import pattern
from .ends import EID, HERE, KERNEL, OUR_PORT, THERE, THERE_COMMAND, connected, done, echo, program

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from aiordma.config import Config
    from aiordma.streams.stream import RdmaStream

    from .ends import KernelProgram

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("anyio_backend", [pytest.param("asyncio", id="asyncio")]),
]

#: What programs/build has made.
MADE = Path(os.environ.get("AIORDMA_VM_SMC_PROGRAMS", "build/vm-smc")).absolute()
SIZES = (64, 65_536, 1_000_000, 100_000_000)


def made(name: str) -> str:
    if not (MADE / name).exists():
        pytest.skip(f"{name} was not made: tests/vm/smc/programs/build had no compiler for it")
    return str(MADE / name)


def need(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


@pytest.fixture
def smc_run() -> dict[str, str]:
    """The environment of a program whose TCP sockets are SMC sockets."""
    return {"LD_PRELOAD": made("smc_run.so")}


@contextlib.asynccontextmanager
async def server(*command: str, port: int, env: dict[str, str], cwd: Path) -> AsyncIterator[KernelProgram]:
    """A server there that says nothing when it listens."""
    async with program(*command, env=env, cwd=str(cwd)) as running:
        await until(lambda: listening(running.process.pid, port), lambda: running.process.returncode)
        yield running


def is_smc_r(port: int) -> bool:
    """What the kernel says of its sockets, if they are in this namespace."""
    return bool(THERE_COMMAND) or smc_socket.modes(port) == {"SMC-R"}


@contextlib.asynccontextmanager
async def serving(config: Config, handle: Callable[[RdmaStream], Any]) -> AsyncIterator[list[str]]:
    """A listener of aiordma for the kernel's clients: the paths of its connections."""
    paths: list[str] = []

    async def one(stream: RdmaStream) -> None:
        paths.append(stream.path if stream.smc_peer else "not a kernel")
        with contextlib.suppress(anyio.BrokenResourceError):
            await handle(stream)
        await stream.aclose()

    async with (
        await aiordma.listen(HERE, OUR_PORT, config=config) as listener,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(listener.serve, one)
        yield paths
        tasks.cancel_scope.cancel()


# ---- Redis

REDIS = """
import asyncio, sys, redis.asyncio
async def main(host, port):
    client = redis.asyncio.Redis(host=host, port=port)
    value = bytes(range(256)) * 1200
    await client.set("key", value)
    assert await client.get("key") == value
    async with client.pipeline(transaction=False) as many:
        for _ in range(200):
            many.incr("number")
        assert await many.execute() == list(range(1, 201))
    await client.aclose()
asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


@pytest.mark.usefixtures("syn_options")
async def test_redis_server_and_redis_py(smc_run: dict[str, str], tmp_path: Path) -> None:
    """The client is a program that knows nothing of aiordma."""
    (tmp_path / "client.py").write_text(REDIS)
    command = need("redis-server"), "--bind", THERE, "--port", "6400", "--save", "", "--protected-mode", "no"
    # On its own host it takes a server that has not announced itself for a plain one, unless a rule names it.
    rule = [] if THERE_COMMAND else ["--allow", f"out:{THERE}:6400"]
    async with server(*command, port=6400, env=smc_run, cwd=tmp_path):
        process = await anyio.open_process(
            [sys.executable, "-m", "aiordma", "run", "--report", *rule, "client.py", THERE, "6400"],
            cwd=str(tmp_path),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=os.environ | {"AIORDMA_SMCR_EIDS": EID, "SOFTDEV_WIRE": "auto", "HOME": str(tmp_path)},
        )
        said = b""
        assert process.stdout is not None
        with contextlib.suppress(anyio.EndOfStream):
            while True:
                said += await process.stdout.receive()
        assert await process.wait() == 0, said.decode()
        await process.aclose()
    assert re.findall(r"(?m)^  (rdma|tcp) +(\d+) ", said.decode()) == [("rdma", "1")], said.decode()


async def resp(stream: RdmaStream) -> None:
    """As much of Redis as redis-benchmark needs."""
    values: dict[bytes, bytes] = {}
    waiting = b""
    with contextlib.suppress(anyio.EndOfStream):
        while True:
            waiting += await stream.receive()
            answers = []
            while (taken := command_in(waiting)) is not None:
                words, waiting = taken
                name = words[0].upper()
                if name == b"SET":
                    values[words[1]] = words[2]
                    answers.append(b"+OK\r\n")
                elif name == b"GET":
                    value = values.get(words[1], b"")
                    answers.append(b"$%d\r\n%s\r\n" % (len(value), value))
                else:
                    answers.append(b"*0\r\n" if name == b"CONFIG" else b"+PONG\r\n")
            await stream.send(b"".join(answers))


def command_in(data: bytes) -> tuple[list[bytes], bytes] | None:
    """The first command of some bytes of RESP, and what is behind it; None: it is not whole."""
    lines = data.split(b"\r\n", 1)
    if len(lines) < 2:
        return None
    count, rest = int(lines[0][1:]), lines[1]
    words: list[bytes] = []
    for _ in range(count):
        head, separator, rest = rest.partition(b"\r\n")
        size = int(head[1:]) if separator else 0
        if not separator or len(rest) < size + 2:
            return None
        words.append(rest[:size])
        rest = rest[size + 2 :]
    return words, rest


async def test_redis_benchmark(config: Config, smc_run: dict[str, str]) -> None:
    command = need("redis-benchmark"), "-h", HERE, "-p", str(OUR_PORT), "-n", "1000", "-c", "10", "-d", "3000"
    async with serving(config, resp) as paths:
        said = await done(*command, "-t", "set,get", "--csv", env=smc_run)
    assert re.findall(r'^"(SET|GET)"', said, re.MULTILINE) == ["SET", "GET"], said
    assert len(paths) >= 20
    assert set(paths) == {"rdma"}


# ---- HTTP

NGINX = """
daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ }}
http {{
    access_log off; root {folder};
    client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
    uwsgi_temp_path {folder}; scgi_temp_path {folder};
    server {{ listen {host}:8000; }}
}}
"""


def write(path: Path, size: int) -> None:
    with path.open("wb") as file:
        at = 0
        while at < size:
            at += file.write(pattern.part(at, size - at))


async def test_nginx(config: Config, smc_run: dict[str, str], tmp_path: Path) -> None:
    nginx = need("nginx")
    (tmp_path / "nginx.conf").write_text(NGINX.format(folder=tmp_path, host=THERE))
    for size in SIZES:
        write(tmp_path / str(size), size)
    command = (
        nginx,
        "-c",
        str(tmp_path / "nginx.conf"),
        "-p",
        str(tmp_path),
        "-e",
        str(tmp_path / "error.log"),
    )
    async with server(*command, port=8000, env=smc_run, cwd=tmp_path):
        for size in SIZES:
            async with await connected(config, 8000) as stream:
                assert is_smc_r(8000)
                await stream.send(b"GET /%d HTTP/1.0\r\n\r\n" % size)
                head = b""
                while b"\r\n\r\n" not in head:
                    head += await stream.receive()
                head, _, body = head.partition(b"\r\n\r\n")
                assert b" 200 OK" in head
                checked = pattern.Checked()
                checked.take(body)
                with contextlib.suppress(anyio.EndOfStream):
                    while True:
                        checked.take(await stream.receive())
                assert checked.count == size


async def http(stream: RdmaStream) -> None:
    """One request: as many bytes as its path says."""
    request = b""
    while b"\r\n\r\n" not in request:
        request += await stream.receive()
    size = int(request.split()[1][1:])
    await stream.send(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
    at = 0
    while at < size:
        some = pattern.part(at, size - at)
        await stream.send(some)
        at += len(some)
    await stream.send_eof()


async def test_curl(config: Config, smc_run: dict[str, str], tmp_path: Path) -> None:
    curl = need("curl"), "-sS", "-4", "--interface", THERE, "-o", str(tmp_path / "got")
    async with serving(config, http) as paths:
        for size in SIZES:
            await done(*curl, f"http://{HERE}:{OUR_PORT}/{size}", env=smc_run)
            write(tmp_path / "expected", size)
            await done("cmp", str(tmp_path / "got"), str(tmp_path / "expected"), there=False)
    assert paths == ["rdma"] * len(SIZES)


# ---- Java, iperf3, and programs without a library to preload


@pytest.fixture
def java() -> tuple[str, ...]:
    """The command. Without preferIPv4Stack its sockets are of IPv6, for which Linux has no SMC-R."""
    made("Echo.class")
    return need("java"), "-Xint", "-Djava.net.preferIPv4Stack=true", "-cp", str(MADE), "Echo"


async def exchange(stream: RdmaStream, size: int) -> None:
    """With an echo, to the end in both directions."""

    async def send() -> None:
        at = 0
        while at < size:
            some = pattern.part(at, size - at)
            await stream.send(some)
            at += len(some)
        await stream.send_eof()

    checked = pattern.Checked()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(send)
        with contextlib.suppress(anyio.EndOfStream):
            while True:
                checked.take(await stream.receive())
    assert checked.count == size


async def test_a_server_in_java(config: Config, smc_run: dict[str, str], java: tuple[str, ...]) -> None:
    async with program(*java, "serve", THERE, "9000", env=smc_run) as running:
        assert await running.line() == "ready"
        async with await connected(config, 9000) as stream:
            assert is_smc_r(9000)
            await exchange(stream, 3_000_000)
            assert await running.line() == "end"


async def test_a_client_in_java(config: Config, smc_run: dict[str, str], java: tuple[str, ...]) -> None:
    async with serving(config, echo) as paths:
        said = await done(*java, "client", THERE, HERE, str(OUR_PORT), "3000000", env=smc_run)
    assert said == "closed\n"
    assert paths == ["rdma"]


@pytest.mark.parametrize("direction", [[], ["-R"]], ids=["to the server", "to the client"])
async def test_iperf3(config: Config, smc_run: dict[str, str], direction: list[str]) -> None:
    """Client and server are the kernel's, and what passes bytes on between them is aiordma in both roles."""
    iperf3 = need("iperf3")

    async def relay(stream: RdmaStream) -> None:
        async with await connected(config, 5202) as other:

            async def one_way(source: RdmaStream, sink: RdmaStream) -> None:
                with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                    while True:
                        await sink.send(await source.receive())
                with contextlib.suppress(anyio.BrokenResourceError):
                    await sink.send_eof()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(one_way, stream, other)
                tasks.start_soon(one_way, other, stream)

    async with program(iperf3, "-s", "-1", "-B", THERE, "-p", "5202", env=smc_run) as running:
        await until(lambda: listening(running.process.pid, 5202), lambda: running.process.returncode)
        async with serving(config, relay) as paths:
            command = iperf3, "-c", HERE, "-p", str(OUR_PORT), "-B", THERE, "-n", "20M", "-J", *direction
            said = json.loads(await done(*command, env=smc_run))
    assert "error" not in said
    assert said["end"]["sum_sent"]["bytes"] >= 20 << 20
    # The word of the end, on a connection of its own, may overtake the last of the data.
    assert said["end"]["sum_received"]["bytes"] > 10 << 20
    assert paths == ["rdma", "rdma"]  # its control connection, and that of the data


@pytest.mark.skipif(KERNEL < (6, 11), reason="IPPROTO_SMC is of Linux 6.11")
@pytest.mark.parametrize("language", ["c", "go"])
async def test_a_static_program(config: Config, language: str) -> None:
    """No library can be preloaded to it."""
    async with serving(config, echo) as paths:
        assert await done(made(f"static-{language}"), THERE, HERE, str(OUR_PORT), "200000") == "closed\n"
    assert paths == ["rdma"]

"""`aiordma run --report` says which way connections went, however the program ends; or why it cannot."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import urllib.request
import venv
from typing import TYPE_CHECKING

import pytest

from tests.processes import FULL_PATIENCE
from tests.world import DEVICE

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("aiordma._cq", reason="the compiled modules are not built")

COMMAND = [sys.executable, "-m", "aiordma", "run", "--report"]
#: Connects to itself. Then comes its end.
PROGRAM = """
import asyncio, os, signal, subprocess, sys, time

async def echo(reader, writer):
    writer.write(await reader.read(5))
    writer.close()

async def main():
    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"hello")
        assert await reader.read() == b"hello"
        writer.close()
"""
RAISED = """
    signal.raise_signal(signal.SIGTERM)
asyncio.run(main())
"""
OF_TRIO = """
import functools, trio

async def answer(stream):
    await stream.send_all(await stream.receive_some(5))

async def other():
    async with trio.open_nursery() as tasks:
        (listener,) = await tasks.start(functools.partial(trio.serve_tcp, answer, 0, host="127.0.0.1"))
        async with await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1]) as stream:
            await stream.send_all(b"hello")
            assert await stream.receive_some(5) == b"hello"
        tasks.cancel_scope.cancel()

trio.run(other)
"""
ENDS = {
    "of trio, a signal to itself": (f"{OF_TRIO}os.kill(os.getpid(), signal.SIGTERM)", -15),
    "by itself": ("asyncio.run(main())", 0),
    "a signal of another process": (
        "asyncio.run(main())\nsubprocess.run(['kill', str(os.getpid())])\ntime.sleep(600)",
        -15,
    ),
    "a signal to itself": ("asyncio.run(main())\nos.kill(os.getpid(), signal.SIGTERM)", -15),
    "a signal in the loop, as uvicorn": (RAISED, -15),
    "another signal, without a handler": (
        "signal.signal(signal.SIGTERM, signal.SIG_DFL)\n"
        "asyncio.run(main())\nsignal.raise_signal(signal.SIGUSR1)",  # nohup would ignore SIGHUP
        -10,
    ),
    "os._exit()": ("asyncio.run(main())\nos._exit(4)", 4),
    "os._exit() of a forked child": (
        "if not os.fork():\n    asyncio.run(main())\n    os._exit(4)\nassert os.wait()[1] == 4 << 8",
        0,
    ),
    "a handler of its own": (
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n"
        "asyncio.run(main())\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(600)",
        5,
    ),
}


def run(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "AIORDMA_DEVICE": DEVICE, "XDG_CACHE_HOME": str(place / "cache")}
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True, text=True, timeout=120, check=False, cwd=place, env=environment,
    )  # fmt: skip


@pytest.mark.parametrize("end", ENDS)
def test_however_it_ends(tmp_path: Path, end: str) -> None:
    """Its status is its own, and there is one report."""
    code, status = ENDS[end]
    (tmp_path / "program.py").write_text(f"{PROGRAM}{code}\n")
    done = run(tmp_path, "program.py")
    assert done.returncode == status, done.stderr
    assert done.stderr.count("connections of process") == 1, done.stderr
    assert done.stderr.count("rdma  1") == 2, done.stderr  # with the client and with the server


#: After a connection its standard error is a full pipe. Then comes its end.
FULL = """
asyncio.run(main())
os.set_blocking(2, False)
for size in (1 << 16, 1):
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(2, bytes(size))
os.set_blocking(2, True)
print("full", flush=True)
"""
ENDS_OF_FULL = {
    "a signal": ("time.sleep(600)", -15),
    "a signal in the middle of a write": ("sys.stderr.write('more')", -15),
    "a signal to itself": ("os.kill(os.getpid(), signal.SIGTERM)", -15),
    "os._exit()": ("os._exit(4)", 4),
}


@pytest.mark.parametrize("end", ENDS_OF_FULL)
def test_it_ends_where_nobody_reads_what_it_writes(tmp_path: Path, end: str) -> None:
    """Then there is no report."""
    code, status = ENDS_OF_FULL[end]
    (tmp_path / "program.py").write_text(f"import contextlib\n{PROGRAM}{FULL}{code}\n")
    environment = {**os.environ, "AIORDMA_DEVICE": DEVICE, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with subprocess.Popen(
        [*COMMAND, "program.py"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path, env=environment,
    ) as started:  # fmt: skip
        assert started.stdout is not None
        try:
            assert started.stdout.readline() == b"full\n"
            if "signal" in end:
                started.terminate()
            assert started.wait(FULL_PATIENCE) == status
        finally:
            started.kill()


@pytest.mark.parametrize(
    ("stream", "told"),
    [("None", False), ("io.StringIO()", False), ("open(2, 'w', closefd=False)", True)],
    ids=["none", "memory", "a descriptor"],
)
def test_a_program_with_a_standard_error_of_its_own(tmp_path: Path, stream: str, told: bool) -> None:
    code = f"import io\nasyncio.run(main())\nsys.stderr = {stream}\nos._exit(4)\n"
    (tmp_path / "program.py").write_text(PROGRAM + code)
    done = run(tmp_path, "program.py")
    assert (done.returncode, "connections of process" in done.stderr) == (4, told)


@pytest.fixture(scope="module")
def other_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One of another environment, as that of pipx."""
    place = tmp_path_factory.mktemp("other")
    venv.create(place, with_pip=False, symlinks=True)
    return str(place / "bin" / "python")


def test_a_program_of_another_environment(tmp_path: Path, other_python: str) -> None:
    (tmp_path / "tool").write_text(f"#!{other_python}\n{PROGRAM}asyncio.run(main())\n")
    (tmp_path / "tool").chmod(0o755)
    done = run(tmp_path, "./tool")
    assert done.returncode == 0, done.stderr
    assert f"{other_python}, has no aiordma" in done.stderr
    assert done.stderr.count("stay on TCP") == 1


@pytest.mark.parametrize("options", ["-I", "-sE", "-S"])
def test_a_python_that_looks_at_no_environment(tmp_path: Path, options: str) -> None:
    (tmp_path / "tool").write_text(f"#!{sys.executable} {options}\nprint(1)\n")
    (tmp_path / "tool").chmod(0o755)
    done = run(tmp_path, "./tool")
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert f"by a Python with {options}, " in done.stderr
    assert "stay on TCP" in done.stderr


APPLICATION = """
async def app(scope, receive, send):
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
        await send({"type": "http.response.body", "body": b"hello"})
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_uvicorn_with_a_descriptor_that_it_is_given(tmp_path: Path, workers: int) -> None:
    """Its connections are looked at (so the report has the reason), and SIGTERM ends it."""
    pytest.importorskip("uvicorn")
    (tmp_path / "app.py").write_text(APPLICATION)
    environment = {**os.environ, "AIORDMA_DEVICE": DEVICE, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with socket.create_server(("127.0.0.1", 0)) as listening:
        number = listening.fileno()
        uvicorn = ["-m", "uvicorn", "app:app", "--fd", str(number), "--lifespan", "off"]
        server = subprocess.Popen(
            [*COMMAND, *uvicorn, "--workers", str(workers)],
            stderr=subprocess.PIPE, text=True, pass_fds=[number], cwd=tmp_path, env=environment,
        )  # fmt: skip
        with server:
            try:
                port = listening.getsockname()[1]
                answer = urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=120)
                assert answer.read() == b"hello"
            finally:
                server.terminate()
                said = server.communicate(timeout=120)[1]
    assert "tcp  1  client 127.0.0.1  the peer did not offer RDMA" in said, said

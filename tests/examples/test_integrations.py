"""The examples of other libraries on aiordma, as a user runs them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from aiordma.negotiation.announcement import is_announced
from tests import patient
from tests.processes import FULL_PATIENCE
from tests.roles import LOCAL, free_port
from tests.world import DEVICE

from .conftest import EXAMPLES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FOLDER = EXAMPLES / "integrations"


def command(name: str, *arguments: object) -> list[str]:
    return [sys.executable, str(FOLDER / f"{name}.py"), *map(str, arguments)]


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(os.environ, "AIORDMA_DEVICE", DEVICE)
    monkeypatch.setitem(os.environ, "XDG_CACHE_HOME", str(tmp_path))


def output(name: str, *arguments: object, mode: str = "rdma") -> str:
    """What a client prints. In mode "rdma" it fails, if it cannot have it."""
    environ = {**os.environ, "AIORDMA_MODE": mode}
    done = subprocess.run(
        command(name, *arguments), capture_output=True, text=True, timeout=60, check=False, env=environ
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def running(program: list[str], ready: str) -> Iterator[None]:
    """A server, until it has printed that it is ready; ended as by Ctrl-C."""
    process = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    try:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if ready in line:
                break
        else:
            pytest.fail("".join(lines))
        yield
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=FULL_PATIENCE)
        assert "Traceback" not in rest
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("server", ["uvicorn", "hypercorn"])
def test_pages(server: str) -> None:
    pytest.importorskip(server, reason=f"the extra aiordma[{server}] is not installed")
    port = free_port()
    where = [LOCAL, port] if server == "uvicorn" else [f"{LOCAL}:{port}"]
    with running(command(f"{server}_server", *where), "unning on "):
        assert is_announced(port)
        url = f"http://{LOCAL}:{port}/"
        assert output("httpx_client", url) == "hello rdma\n"
        assert output("httpcore_client", url) == "hello rdma\n"
        assert output("aiohttp_client", url, mode="auto") == "hello\n"
        assert output("httpx_client", url, mode="tcp") == "hello tcp\n"
        curl = shutil.which("curl")
        if curl is not None:
            page = subprocess.run([curl, "-s", url], capture_output=True, timeout=60, check=True).stdout
            assert page == b"hello"


def test_websockets() -> None:
    assert output("websockets_echo", free_port()) == "hello rdma\n"


def test_grpclib() -> None:
    assert output("grpclib_hello", free_port()) == "hello, RDMA\nrdma\n"


def test_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    patient.as_for_users(monkeypatch)  # redis-py's own time for a connection is short
    redis_server = shutil.which("redis-server")
    if redis_server is None:
        pytest.skip("redis-server is not installed")
    port = free_port()
    with running([redis_server, "--port", str(port), "--bind", LOCAL, "--save", ""], "Ready to accept"):
        assert output("redis_client", f"rdma://{LOCAL}:{port}", mode="auto") == "hello\n"


@pytest.mark.parametrize("mode", ["auto", "rdma"])
def test_nats(mode: str) -> None:
    """The broker is this little program, as nats-server is not everywhere, nor by RDMA."""
    pytest.importorskip("nats", reason="the extra aiordma[nats] is not installed")
    broker = """
import asyncio, sys, aiordma
from tests.integrations.test_nats import speak
async def main():
    server = await (aiordma if sys.argv[1] == "rdma" else asyncio).start_server(speak, "127.0.0.1", 0)
    print("port", server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"""
    process = subprocess.Popen(
        [sys.executable, "-c", broker, mode], stdout=subprocess.PIPE, text=True, cwd=EXAMPLES.parent
    )
    try:
        assert process.stdout is not None
        port = process.stdout.readline().split()[1]
        assert output("nats_client", f"nats://{LOCAL}:{port}", mode=mode) == "hello\n"
    finally:
        process.kill()
        process.communicate()

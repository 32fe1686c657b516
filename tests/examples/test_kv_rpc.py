"""The RPC example, as a user runs it: a server, and clients that make one call each."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from demolib.processes import Program

from tests.processes import FULL_PATIENCE

from .conftest import EXAMPLES, MODES

pytestmark = pytest.mark.slow

KV = str(EXAMPLES / "kv_rpc.py")
Run = Callable[..., "subprocess.CompletedProcess[str]"]


class Server(Program):
    def __init__(self) -> None:
        super().__init__(sys.executable, KV, "server", "--listen", "127.0.0.1:0", ready="listening on ")
        self.address = self.first_line.removeprefix("listening on ")


def client(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, KV, "client", *arguments]
    return subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=FULL_PATIENCE, check=False
    )


@pytest.fixture(params=MODES)
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setitem(os.environ, "AIORDMA_MODE", request.param)
    running = Server()
    try:
        yield running
    finally:
        running.stop()
    assert "Traceback" not in running.output, running.output


def out(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_values_are_stored_found_and_forgotten(server: Server) -> None:
    at = server.address
    assert out(client(at, "put", "apple", "red")) == "version 1\n"
    assert out(client(at, "put", "apple", "green", "--if-version", "1")) == "version 2\n"
    assert out(client(at, "get", "apple")) == "apple = green  (version 2)\n"
    late = client(at, "put", "apple", "blue", "--if-version", "1")
    assert (late.returncode, late.stderr) == (1, "kv_rpc.py: ABORTED: 'apple' has version 2, not 1\n")
    assert out(client(at, "delete", "apple")) == "deleted\n"
    gone = client(at, "get", "apple")
    assert (gone.returncode, gone.stderr) == (1, "kv_rpc.py: NOT_FOUND: no key 'apple'\n")
    bad = client(at, "get", "")
    assert bad.returncode == 1
    assert bad.stderr.startswith("kv_rpc.py: INVALID_ARGUMENT: kv.get: argument 'key'")


def test_streams_both_ways_and_a_scan_that_is_left(server: Server) -> None:
    at = server.address
    lines = "".join(f"key{n:04}=value {n}\n" for n in range(1000))
    assert out(client(at, "load", "-", stdin=lines)) == "1000 stored\n"
    found = out(client(at, "scan", "key09")).splitlines()
    assert len(found) == 100
    assert found[0] == "key0900 = value 900  (version 901)"
    assert len(out(client(at, "scan", "key", "--limit", "3")).splitlines()) == 3
    server.wait_for("scan of 'key'")


def test_deadlines_and_the_wait_that_ends(server: Server) -> None:
    at = server.address
    late = client(at, "--timeout", "0.2", "wait", "pear")
    assert late.returncode == 1
    assert late.stderr.startswith("kv_rpc.py: DEADLINE_EXCEEDED")
    server.wait_for("no caller waits for 'pear' any more")
    with subprocess.Popen(
        [sys.executable, KV, "client", at, "wait", "pear"], stdout=subprocess.PIPE, text=True
    ) as waiting:
        try:
            assert out(client(at, "put", "pear", "ripe")) == "version 1\n"
            assert waiting.communicate(timeout=FULL_PATIENCE)[0] == "pear = ripe  (version 1)\n"
        finally:
            waiting.kill()


def test_what_is_served_is_listed(server: Server) -> None:
    text = out(client(server.address, "methods"))
    assert "  kv.get(key: str) -> Entry  (idempotent)\n" in text
    assert "  kv.load(stream of Pair) -> int\n" in text
    assert "rpc.health\n" in text


def test_the_first_server_that_works(server: Server) -> None:
    assert out(client(f"127.0.0.1:1,{server.address}", "put", "a", "b")) == "version 1\n"


def test_a_server_that_is_stopped_lets_calls_end(server: Server) -> None:
    with subprocess.Popen(
        [sys.executable, KV, "client", server.address, "wait", "pear"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as waiting:
        try:
            out(client(server.address, "put", "x", "y"))
            server.stop(signal.SIGTERM)
            assert "UNAVAILABLE" in waiting.communicate(timeout=FULL_PATIENCE)[1]
        finally:
            waiting.kill()


def test_help_teaches() -> None:
    for arguments in (["--help"], ["client", "--help"], ["server", "--help"]):
        done = subprocess.run(
            [sys.executable, KV, *arguments],
            capture_output=True,
            text=True,
            timeout=FULL_PATIENCE,
            check=True,
        )
        assert "HOST:PORT" in done.stdout
    assert client("nonsense", "get", "x").returncode == 2

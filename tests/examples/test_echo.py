"""The echo example, as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from demolib.processes import Program

from tests.processes import FULL_PATIENCE

from .conftest import EXAMPLES, MODES


@pytest.mark.parametrize("mode", MODES)
def test_the_client_gets_its_words_back(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "AIORDMA_MODE", mode)
    server = Program(
        sys.executable, str(EXAMPLES / "echo_server.py"), "127.0.0.1", "0", ready="listening on "
    )
    try:
        port = server.first_line.rpartition(":")[2]
        client = [sys.executable, str(EXAMPLES / "echo_client.py"), "127.0.0.1", port]
        for _ in range(2):
            out = subprocess.run(
                client, capture_output=True, text=True, timeout=FULL_PATIENCE, check=True
            ).stdout
            assert out == f"b'hello, RDMA' by {mode}\n"
    finally:
        server.stop()
    assert "Traceback" not in server.output


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_help(name: str) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: ")

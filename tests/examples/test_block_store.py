"""The store of blocks in one process's memory, as a user runs it."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from demolib.processes import Program

from .conftest import EXAMPLES, MODES

pytestmark = pytest.mark.slow

STORE = str(EXAMPLES / "block_store.py")


class Owner(Program):
    def __init__(self) -> None:
        arguments = ["owner", "--listen", "127.0.0.1:0", "--blocks", "8"]
        super().__init__(sys.executable, STORE, *arguments, ready="listening on ")
        self.address = self.first_line.removeprefix("listening on ")


@pytest.fixture(params=MODES)
def owner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Owner]:
    monkeypatch.setitem(os.environ, "AIORDMA_MODE", request.param)
    running = Owner()
    try:
        yield running
    finally:
        running.stop()
    assert "Traceback" not in running.output, running.output


def client(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, STORE, *arguments]
    return subprocess.run(command, capture_output=True, timeout=60, check=False)


def test_values_are_stored_and_fetched(owner: Owner, tmp_path: Path) -> None:
    value, file = random.Random(5).randbytes(300_001), tmp_path / "value"
    file.write_bytes(value)
    stored = client("put", owner.address, "weights", str(file))
    assert stored.returncode == 0, stored.stderr
    got = client("get", owner.address, "weights")
    assert got.stdout == value
    assert got.stderr == f"over {os.environ['AIORDMA_MODE']}\n".encode()
    assert client("list", owner.address).stdout == b"weights\n"
    assert client("get", owner.address, "other").stderr == b"there is no 'other'\n"
    full = client("put", owner.address, "more", str(file))  # 5 blocks of 8 are taken
    assert full.stderr == b"the store has 8 blocks, and 5 are taken\n"
    file.write_bytes(b"small")
    assert client("put", owner.address, "small", str(file)).returncode == 0
    assert client("get", owner.address, "small").stdout == b"small"
    assert client("get", owner.address, "small", "weights", "small").stdout == b"small" + value + b"small"


def test_blocks_are_free_again(owner: Owner, tmp_path: Path) -> None:
    value, file = random.Random(6).randbytes(5 * 65_536), tmp_path / "value"
    for name in ("first", "second", "second"):  # the second time it is replaced, by the blocks that are left
        file.write_bytes(b"small" if name == "first" else value[: 3 * 65_536])
        assert client("put", owner.address, name, str(file)).returncode == 0
    assert client("drop", owner.address, "first").returncode == 0
    assert client("drop", owner.address, "first").stderr == b"there is no 'first'\n"
    file.write_bytes(value)
    assert (
        client("put", owner.address, "pages", str(file)).returncode == 0
    )  # not one after the other any more
    assert client("get", owner.address, "pages", "second").stdout == value + value[: 3 * 65_536]
    assert client("list", owner.address).stdout == b"pages\nsecond\n"

"""`aiordma perf` against `aiordma serve-diagnostics`."""

from __future__ import annotations

import json
import re
import socket
from typing import TYPE_CHECKING, Any

import anyio
import jsonschema
import msgspec
import pytest
from click.testing import CliRunner, Result

import aiordma
from aiordma.cli import diagnostics
from aiordma.cli.perf import perf
from aiordma.cli.performing import Perf, sizes_of
from tests.world import DEVICE

from .terminal import terminal

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip("aiordma._cq", reason="the compiled modules are not built")

CONFIG = aiordma.Config(device=DEVICE)
SHORT = ("--seconds", "0.02")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with terminal("serve-diagnostics", "--port", "0", AIORDMA_DEVICE=DEVICE) as screen:
        yield screen.until(r"listening on (127.0.0.1:\d+)\n")[1]
        screen.type("\x03")
        assert screen.end() == 0


def run(*arguments: str) -> Result:
    return CliRunner().invoke(
        perf, [*SHORT, *arguments], env={"AIORDMA_DEVICE": DEVICE}, catch_exceptions=False
    )


def points(*arguments: str) -> list[dict[str, Any]]:
    done = run("--json", *arguments)
    assert (done.exit_code, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    jsonschema.validate(found, msgspec.json.schema(Perf))
    assert (found["schema"], found["seconds"]) == ("aiordma-perf/1", 0.02)
    return list(found["points"])


def test_both_modes_and_paths(server: str) -> None:
    found = points(server, "-s", "64,100k", "--rounds", "2")
    assert [(each["mode"], each["size_bytes"], each["path"]) for each in found] == [
        (mode, size, path)
        for mode in ("stream", "round-trip")
        for size in (64, 102_400)
        for path in ("rdma", "tcp")
    ]
    for each in found:
        assert len(each["rounds"]) == 2
        assert each["messages_per_s"] == max(each["rounds"]) > 0
        assert each["bytes_per_s"] == pytest.approx(each["messages_per_s"] * each["size_bytes"], rel=0.01)
        assert each["mean_us"] == pytest.approx(1e6 / each["messages_per_s"], rel=0.01)


def test_one_mode_on_one_path(server: str) -> None:
    (only,) = points(server, "--mode", "stream", "-s", "4k", "--rounds", "1", "--no-tcp", "--rdma")
    assert (only["mode"], only["path"], only["reason"]) == ("stream", "rdma", "RDMA")


def test_as_a_table_on_a_terminal(server: str) -> None:
    with terminal("perf", server, "-s", "64", "--rounds", "2", *SHORT, AIORDMA_DEVICE=DEVICE) as screen:
        assert screen.end() == 0
    assert "stream, 64 bytes, auto, round 1 of 2" in screen.seen
    assert f"{server}: the best of 2 rounds" in screen.seen
    assert re.search(r"^stream +64 +RDMA +\d+ +\S+ +\S+us +\d+\.\d\d$", screen.seen, re.MULTILINE)
    assert re.search(r"^round-trip +64 +TCP +\d+ +\S+ +\S+us$", screen.seen, re.MULTILINE)


def test_nobody_listens() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        done = run(f"127.0.0.1:{unused.getsockname()[1]}")
    assert (done.exit_code, "Connection refused" in done.stderr) == (1, True)


@pytest.mark.asyncio
async def test_another_server() -> None:
    async def other(stream: aiordma.RdmaStream) -> None:
        await stream.receive()

    async with (
        await aiordma.listen("127.0.0.1", config=CONFIG) as listener,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(listener.serve, other)
        done = await anyio.to_thread.run_sync(run, f"127.0.0.1:{listener.port}")
        tasks.cancel_scope.cancel()
    assert (done.exit_code, "this is not aiordma serve-diagnostics" in done.stderr) == (1, True)


@pytest.mark.asyncio
async def test_a_server_on_tcp() -> None:
    server = diagnostics.Server()
    async with (
        await aiordma.listen("127.0.0.1", config=CONFIG, mode="tcp") as listener,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(listener.serve, server.answer)
        address = f"127.0.0.1:{listener.port}"
        arguments = (address, "-s", "64", "--rounds", "1", "--mode", "stream")
        done = await anyio.to_thread.run_sync(run, *arguments)
        refused = await anyio.to_thread.run_sync(run, *arguments, "--rdma")
        tasks.cancel_scope.cancel()
    assert done.exit_code == 0
    assert done.stdout.splitlines()[-1].startswith("TCP 0x05000000/0x0a1d0001: the peer declined: ")
    assert (refused.exit_code, "switched off" in refused.stderr) == (1, True)


def test_sizes() -> None:
    assert sizes_of("64, 4k,1M") == [64, 4096, 1 << 20]
    for wrong in ("", "x", "0", "17m", "64,,4k"):
        done = run("127.0.0.1:1", "-s", wrong)
        assert (done.exit_code, "--sizes" in done.stderr) == (2, True)

"""Private interfaces of others have the shape that the table expects, with each Python and library."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from aiordma import borrowed
from aiordma.borrowed import shapes, table
from aiordma.borrowed.table import TABLE, Interface

ROOT = Path(__file__).parents[2]


def name_of(row: Interface) -> str:
    return f"{row.owner} {row.names[0]}"


@pytest.mark.parametrize("row", TABLE, ids=name_of)
def test_the_shape_is_as_expected(row: Interface) -> None:
    if table.installed(row.owner) is None:
        pytest.skip(f"{row.owner} is not installed")
    assert row.shape() == ""


#: What a new version could do to a row: an attribute goes.
GONE = [
    ("asyncio.streams.StreamReader._wait_for_data", shapes.streams),
    ("asyncio.streams.FlowControlMixin._drain_helper", shapes.streams),
    ("asyncio.transports._FlowControlMixin", shapes.flow_control),
    ("asyncio.transports._FlowControlMixin._maybe_pause_protocol", shapes.flow_control),
    ("asyncio.sslproto._SSLProtocolTransport", shapes.start_tls),
    ("asyncio.constants._SendfileMode", shapes.sendfile),
    ("asyncio.BaseEventLoop._sendfile_fallback", shapes.sendfile),
    ("asyncio.selector_events.BaseSelectorEventLoop._add_reader", shapes.descriptors),
    ("asyncio.tasks._enter_task", shapes.switch_of_tasks),
    ("runpy._run_module_as_main", shapes.main_programs),
    ("anyio._backends._asyncio._task_states", shapes.anyio_scopes),
    ("trio._socket._socket_factory", shapes.trio_sockets),
    ("aiohttp.TCPConnector._wrap_create_connection", shapes.aiohttp),
    ("redis.asyncio.Connection._connection_arguments", shapes.redis),
    ("valkey.asyncio.Connection._connection_arguments", shapes.valkey),
]


@pytest.mark.parametrize(("gone", "check"), GONE, ids=[gone for gone, _ in GONE])
def test_a_difference_is_told(gone: str, check: object, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(gone.split(".")[0])
    name = gone.rpartition(".")[2]
    monkeypatch.delattr(gone)
    assert callable(check)
    assert re.search(rf"{name}|is gone", check())


def test_anyio_without_trio_is_as_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `pip install aiordma` leaves it: `aiordma doctor` names no loss where trio is missing."""
    monkeypatch.delitem(sys.modules, "anyio._backends._trio", raising=False)
    monkeypatch.setitem(sys.modules, "trio", None)
    assert shapes.anyio_on_trio() == ""


@pytest.mark.parametrize(
    ("found", "tried"), [("3.11.2", True), ("3.11", True), ("3.1.2", False), ("4.0.0", False)]
)
def test_a_version_was_tried_or_not(found: str, tried: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(table.TRIED, table.CPYTHON, ("3.11",))
    assert table.was_tried(table.CPYTHON, found) is tried


# ---- without any of them

PROGRAM = """
import asyncio, sys, aiordma
from aiordma.compat import flow, streams
from aiordma.compat.connection import open_connection, start_server

async def serve(reader, writer):
    while data := await reader.read(70000):
        writer.write(data)
        await writer.drain()
    writer.close()

async def main():
    asyncio.get_running_loop().slow_callback_duration = 60  # a busy machine is no finding
    server = await start_server(serve, "127.0.0.1", 0)
    for mode in ("rdma", "tcp"):
        port = server.sockets[0].getsockname()[1]
        reader, writer = await open_connection("127.0.0.1", port, mode=mode)
        writer.write(bytes(300_000))
        await writer.drain()
        assert await reader.readexactly(300_000) == bytes(300_000)
        writer.write(b"one\\ntwo")
        assert await reader.readline() == b"one\\n"
        writer.write_eof()
        assert await reader.read() == b"two"
        print(mode, writer.get_extra_info("aiordma.path"), type(reader).__module__.split(".")[0],
              type(writer).__module__.split(".")[0], flow.FlowControl.__module__.split(".")[0])
        writer.close()
        await writer.wait_closed()
    server.close()

if sys.argv[1] == "uvloop":
    import uvloop
    asyncio.Runner(loop_factory=uvloop.new_event_loop).run(main())
else:
    asyncio.run(main())
"""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("value", ["auto", "off"])
def test_streams_of_asyncio(loop: str, value: str) -> None:
    """With it asyncio's classes are replaced, without it they serve themselves."""
    pytest.importorskip("aiordma._cq")
    pytest.importorskip(loop)
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", PROGRAM, loop],
        cwd=ROOT,
        env={**os.environ, borrowed.VARIABLE: value},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    streams, base = ("asyncio", "aiordma") if value == "off" else ("aiordma", "asyncio")
    assert done.stdout.splitlines() == [
        f"rdma rdma {streams} {streams} {base}",
        f"tcp tcp asyncio {streams} {base}",
    ]

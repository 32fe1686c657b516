"""`aiordma ping` against `aiordma serve-diagnostics`, each in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
from typing import TYPE_CHECKING, Any

import anyio
import click
import jsonschema
import msgspec
import pytest
from click.testing import CliRunner, Result

import aiordma
from aiordma.admin import asking
from aiordma.admin.messages import Connections
from aiordma.admin.requests import Show
from aiordma.cli.perf.command import perf
from aiordma.cli.ping.command import ping
from aiordma.measure import diagnostics
from aiordma.measure.ping import Ping
from tests.admin.looking import loops_of, rows
from tests.health import until
from tests.world import DEVICE

from ..terminal import terminal

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip("aiordma._cq", reason="the compiled modules are not built")

CONFIG = aiordma.Config(device=DEVICE)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with terminal("serve-diagnostics", "--port", "0", "--no-against", AIORDMA_DEVICE=DEVICE) as screen:
        yield screen.until(r"listening on (127.0.0.1:\d+)\n")[1]
        screen.type("\x03")
        assert screen.end() == 0
        assert "Traceback" not in screen.seen


def run(*arguments: str) -> Result:
    return invoke(ping, *arguments)


def invoke(command: click.Command, *arguments: str) -> Result:
    return CliRunner().invoke(command, arguments, env={"AIORDMA_DEVICE": DEVICE}, catch_exceptions=False)


def report(done: Result) -> dict[str, Any]:
    found = json.loads(done.stdout)
    jsonschema.validate(found, msgspec.json.schema(Ping))
    assert found["schema"] == "aiordma-ping/2"
    return dict(found)


def test_both_paths_beside_each_other(server: str) -> None:
    done = run(server, "--tcp", "-n", "200", "--json")
    assert (done.exit_code, done.stderr) == (0, "")
    rdma, tcp = report(done)["runs"]
    assert (rdma["kind"], rdma["path"], rdma["mode"]) == ("stream", "rdma", "RDMA")
    assert (tcp["kind"], tcp["path"]) == ("tcp", "tcp")
    for each in (rdma, tcp):
        assert_whole(each, 200)


def assert_whole(run: dict[str, Any], count: int) -> None:
    assert (run["count"], run["lost"], run["error"]) == (count, 0, "")
    assert 0 < run["min_us"] <= run["median_us"] <= run["p99_us"] <= run["p999_us"] <= run["max_us"]
    assert run["min_us"] <= run["mean_us"] <= run["max_us"]


def test_one_sided_operations_and_calls_beside_the_stream(server: str) -> None:
    done = run(server, "--rdma", "--channel", "-n", "100", "-s", "4096", "--json")
    assert (done.exit_code, done.stderr) == (0, "")
    runs = report(done)["runs"]
    assert [(each["kind"], each["path"]) for each in runs] == [
        (kind, "rdma") for kind in ("stream", "write", "read", "call")
    ]
    for each in runs:
        assert_whole(each, 100)
    assert [each["stages"] is None for each in runs] == [True, True, True, False]
    stages = runs[3]["stages"]
    assert list(stages["each_us"]) == ["queued", "out", "waited", "handler", "answered", "back", "wake"]
    assert min(stages["client_us"], stages["wire_us"], stages["server_us"]) > 0
    # Medians of sums are not sums of medians, but each part is one of the whole.
    assert max(stages["client_us"], stages["wire_us"], stages["server_us"]) < runs[3]["max_us"]


def test_where_the_time_goes_as_a_table(server: str) -> None:
    with terminal(
        "ping", server, "--rdma", "--channel", "--tcp", "-n", "20", AIORDMA_DEVICE=DEVICE
    ) as screen:
        assert screen.end() == 0
    for kind, path in (
        ("stream", "RDMA"),
        ("WRITE", "RDMA"),
        ("READ", "RDMA"),
        ("call", "RDMA"),
        ("stream", "TCP"),
    ):
        assert re.search(rf"^{kind} +{path} +[\d.]+ms +20 +0 ", screen.seen, re.MULTILINE)
    assert re.search(
        r"^of a call: this event loop [\d.]+, wire [\d.]+, the server's event loop [\d.]+",
        screen.seen,
        re.MULTILINE,
    )


def test_a_server_has_memory_for_few_clients(server: str) -> None:
    """One that asks for more is told so, and those that have some go on."""
    host, port = server.split(":")

    async def main() -> list[str]:
        said = []
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(9):
                stream = await stack.enter_async_context(
                    await aiordma.connect(host, int(port), config=CONFIG, mode="tcp")
                )
                try:
                    said.append(f"{len(await diagnostics.borrow_memory(stream, 64))} bytes")
                except ConnectionError as error:
                    said.append(str(error))
        return said

    assert anyio.run(main) == ["56 bytes"] * 8 + ["the server has no memory left for one-sided operations"]


def test_the_schema_is_that_of_the_report() -> None:
    assert json.loads(run("--schema").stdout) == msgspec.json.schema(Ping)


@pytest.mark.parametrize(
    "arguments", [[], ["127.0.0.1:1", "--html", "x"], ["127.0.0.1:1", "--mesh", os.devnull]]
)
def test_arguments_that_do_not_fit_together(arguments: list[str]) -> None:
    done = run(*arguments)
    assert (done.exit_code, "Usage: " in done.stderr) == (2, True)


def test_large_messages_arrive_whole(server: str) -> None:
    (only,) = report(run(server, "-n", "5", "-s", "3000001", "--warm-up", "0", "--json"))["runs"]
    assert (only["count"], only["lost"], only["error"]) == (5, 0, "")


def _is_measuring(pid: int) -> bool:
    """Whether it has warmed up, which takes 100 round trips."""
    found = [
        row for loop in asking.ask(Show(("connections",)), loops_of(pid)) for row in rows(loop, Connections)
    ]
    return any(row.bytes_received > 110 * 64 for row in found)


def test_on_a_terminal_until_ctrl_c(server: str) -> None:
    with terminal("ping", server, "-i", "0.01", "-n", "1000000", AIORDMA_DEVICE=DEVICE) as screen:
        anyio.run(until, lambda: _is_measuring(screen.process.pid))
        screen.type("\x03")
        assert screen.end() == 0
    assert f"{server}: round trips of 64 bytes, in microseconds" in screen.seen
    titles = "KIND PATH CONNECT TRIPS LOST MIN MEAN MEDIAN P99 P99.9 MAX"
    assert re.search(titles.replace(" ", " +").replace(".", r"\."), screen.seen)
    assert re.search(r"RDMA +[\d.]+ms +\d+ +0 ", screen.seen)


def test_on_a_terminal_there_are_live_lines(server: str) -> None:
    with terminal("ping", server, "-i", "0.2", "-n", "3", AIORDMA_DEVICE=DEVICE) as screen:
        assert screen.end() == 0
    assert re.findall(r"stream RDMA: trip (\d), [\d.]+ us\n", screen.seen) == ["1", "2", "3"]
    # Of three round trips no percentile but the median is known.
    assert re.search(r"RDMA +[\d.]+ms +3 +0( +[\d.]+){3} +- +- +[\d.]+\n", screen.seen)
    with terminal("ping", server, "-n", "10000000", AIORDMA_DEVICE=DEVICE) as screen:
        screen.until(
            r"stream RDMA: \d+ of 10000000 trips; of the last \d+, median [\d.]+ us, max [\d.]+ us\n"
        )
        screen.type("\x03")
        assert screen.end() == 0


def test_no_server() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        done = run(f"127.0.0.1:{unused.getsockname()[1]}", "--json")
    (only,) = report(done)["runs"]
    assert (done.exit_code, only["path"], only["count"]) == (1, "", 0)
    assert "Connection refused" in only["error"]


@pytest.mark.asyncio
async def test_the_reason_for_tcp_is_shown() -> None:
    async with await aiordma.listen("127.0.0.1", config=CONFIG, mode="tcp") as listener:
        async with anyio.create_task_group() as tasks:

            async def serve() -> None:
                await listener.serve(diagnostics.DiagnosticsServer().answer)

            tasks.start_soon(serve)
            address = f"127.0.0.1:{listener.port}"
            done = await anyio.to_thread.run_sync(run, address, "-n", "10")
            refused = await anyio.to_thread.run_sync(run, address, "--require-rdma", "-n", "10")
            tasks.cancel_scope.cancel()
    assert (done.exit_code, done.stderr) == (0, "")
    assert re.search(r"^stream +TCP +[\d.]+ms +10 +0 ", done.stdout, re.MULTILINE)
    assert re.search(r"^TCP 0x05000000/0x0a1d0001: the peer declined: ", done.stdout, re.MULTILINE)
    assert refused.exit_code == 1
    assert "stream: RDMA is switched off by configuration" in refused.stderr


@pytest.mark.asyncio
@pytest.mark.parametrize("of", ["ping", "perf"])
@pytest.mark.parametrize(
    ("host", "says", "shown"),
    [
        ("server7", "this host is busy (load 13 on 2 CPUs)", True),
        ("server7", "", False),
        ("server7", "\x1b[2Jthis host is busy", False),
        (socket.gethostname(), "this host is busy (load 13 on 2 CPUs)", False),  # it says so itself
    ],
)
async def test_a_busy_server_is_named(
    of: str, host: str, says: str, shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnostics, "busy", lambda: says)
    services = diagnostics.Services("1", host, "asyncio")
    async with await aiordma.listen("127.0.0.1", config=CONFIG) as listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, diagnostics.DiagnosticsServer(services).answer)
            address = f"127.0.0.1:{listener.port}"
            if of == "ping":
                done = await anyio.to_thread.run_sync(run, address, "-n", "10")
            else:
                short = (
                    "--mode",
                    "stream",
                    "-s",
                    "64",
                    "--rounds",
                    "1",
                    "--seconds",
                    "0.05",
                    "--against",
                    "none",
                )
                done = await anyio.to_thread.run_sync(invoke, perf, address, *short)
            tasks.cancel_scope.cancel()
    assert done.exit_code == 0, done.stderr
    assert ("\nthe server's host is busy (load 13 on 2 CPUs)\n" in done.stdout) == shown
    assert "\x1b" not in done.stdout


@pytest.mark.asyncio
@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
async def test_another_server(answer: bytes) -> None:
    async def other(stream: aiordma.RdmaStream) -> None:
        await stream.receive()
        if answer:
            await stream.send(answer)

    async with await aiordma.listen("127.0.0.1", config=CONFIG) as listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, other)
            done = await anyio.to_thread.run_sync(run, f"127.0.0.1:{listener.port}", "--json")
            tasks.cancel_scope.cancel()
    (only,) = report(done)["runs"]
    assert (done.exit_code, only["count"]) == (1, 0)
    assert "aiordma serve-diagnostics" in only["error"]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "head", [b"GET / HTTP/1.1\r\n", diagnostics.greeting(0), diagnostics.greeting((16 << 20) + 1)]
)
async def test_the_server_ends_what_it_does_not_know(head: bytes) -> None:
    server = diagnostics.DiagnosticsServer()
    async with await aiordma.listen("127.0.0.1", config=CONFIG) as listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, server.answer)
            async with await aiordma.connect("127.0.0.1", listener.port, config=CONFIG) as stream:
                await stream.send(head)
                with pytest.raises(anyio.EndOfStream):
                    await stream.receive()
            tasks.cancel_scope.cancel()


@pytest.mark.anyio
async def test_a_silent_client_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnostics, "_IDLE_S", 0.05)
    server = diagnostics.DiagnosticsServer()
    async with await aiordma.listen("127.0.0.1", config=CONFIG) as listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, server.answer)
            tasks.start_soon(server.watch)
            async with await aiordma.connect("127.0.0.1", listener.port, config=CONFIG) as stream:
                await stream.send(diagnostics.greeting(8))
                assert await stream.receive(16) == diagnostics.greeting(8)
                with pytest.raises(anyio.EndOfStream):
                    await stream.receive()
            tasks.cancel_scope.cancel()

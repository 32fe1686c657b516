"""`aiordma perf` against `aiordma serve-diagnostics`."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import anyio
import jsonschema
import msgspec
import pytest
from click.testing import CliRunner, Result

import aiordma
from aiordma.cli.perf import command
from aiordma.cli.perf.command import perf
from aiordma.measure import perf as measuring
from aiordma.measure import turns, workloads
from aiordma.measure.perf import Perf, sizes_of
from tests.world import DEVICE

from ..terminal import terminal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytest.importorskip("aiordma._cq", reason="the compiled modules are not built")

CONFIG = aiordma.Config(device=DEVICE)
SHORT = ("--seconds", "0.02", "--warm-up", "0.01")


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
    assert (found["schema"], found["seconds"], found["interrupted"]) == ("aiordma-perf/2", 0.02, False)
    assert found["server"]["version"] == aiordma.__version__
    return list(found["points"])


def keys(found: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(each["mode"], each["size_bytes"], each["subject"], each["path"], each["loop"]) for each in found]


def test_streams_and_round_trips_beside_asyncios(server: str) -> None:
    found = points(server, "-s", "64,100k", "--rounds", "2", "--against", "tcp,uvloop,unix")
    subjects = [
        ("aiordma", "rdma", "asyncio"),
        ("tcp", "tcp", "asyncio"),
        ("uvloop", "tcp", "uvloop"),
        ("unix", "unix", "asyncio"),
    ]
    assert keys(found) == [
        (mode, size, *subject)
        for mode in ("stream", "round-trip")
        for size in (64, 102_400)
        for subject in subjects
    ]
    for each in found:
        assert len(each["rounds"]) == 2
        assert each["messages_per_s"] == max(each["rounds"]) > 0
        assert each["bytes_per_s"] == pytest.approx(each["messages_per_s"] * each["size_bytes"], rel=0.01)
        assert (each["max_us"] > 0) == (each["mode"] == "round-trip") == bool(each["curve"])


@pytest.mark.parametrize("mode", ["round-trip", "datagram", "call", "read", "write", "connect"])
def test_a_mode_on_rdma_and_on_tcp(server: str, mode: str) -> None:
    several = ("--in-flight", "4", "-c", "2", "--rounds", "1", "--against", "fallback")
    found = points(server, "--mode", mode, "-s", "1000", *several)
    size = 0 if mode == "connect" else 1000
    assert keys(found) == [
        (mode, size, "aiordma", "rdma", "asyncio"),
        (mode, size, "fallback", "tcp", "asyncio"),
    ]
    assert found[0]["reason"] == "RDMA"
    assert found[1]["reason"].startswith("TCP 0x")
    for each in found:
        assert (each["connections"], each["lost"]) == (2, 0)
        assert each["in_flight"] == (1 if mode in ("datagram", "connect") else 4)
        times = [each[f"{name}_us"] for name in ("min", "median", "p99", "p999", "max")]
        assert times == sorted(times)
        assert (times[0] > 0) == (mode != "datagram")
        shares = [share for _, share in each["curve"]]
        assert shares == sorted(shares)
        assert [time for time, _ in each["curve"]] == sorted(time for time, _ in each["curve"])


def test_both_ways_at_once_beside_asyncio(server: str) -> None:
    found = points(
        server, "-s", "64,100k", "--rounds", "1", "--mode", "both-ways", "--against", "tcp,fallback"
    )
    assert [(each["size_bytes"], each["subject"], each["in_flight"]) for each in found] == [
        (size, subject, in_flight)
        for size, in_flight in ((64, 64), (102_400, 2))
        for subject in ("aiordma", "tcp", "fallback")
    ]
    assert all(each["messages_per_s"] > 0 for each in found)


@pytest.mark.parametrize("mode", ["stream", "datagram", "call"])
def test_a_message_takes_time_of_processors(server: str, mode: str) -> None:
    (point,) = points(server, "-s", "64", "--rounds", "1", "--mode", mode, "--against", "none", "-c", "2")
    assert 0 < point["cpu_us"] < 1e6
    assert re.search(r" MAX +CPU\n", run(server, "-s", "64", "--rounds", "1", "--against", "none").stdout)


def test_a_server_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:

        async def services(*_: object) -> None:
            raise TimeoutError("there was no connection within 15 s")

        monkeypatch.setattr(measuring, "_services", services)
        port = silent.getsockname()[1]
        done = run(f"127.0.0.1:{port}")
    assert (done.exit_code, done.stderr) == (1, f"127.0.0.1:{port}: there was no connection within 15 s\n")


def test_uvloop_and_events_are_those_of_this_end(server: str) -> None:
    done = run(server, "--json", "--uvloop", "--events", "--against", "none", "--rounds", "1", "-s", "64")
    found = json.loads(done.stdout)
    assert (found["busy_poll_us"], found["server"]["loop"]) == (0, "asyncio")
    assert {each["loop"] for each in found["points"]} == {"uvloop"}


def test_what_cannot_be_compared_is_named(server: str) -> None:
    done = run(server, "--mode", "call,round-trip", "-s", "64", "--rounds", "1", "--against", "tcp,unix")
    assert done.exit_code == 0
    assert "call against tcp, unix: asyncio has no such thing" in done.stdout
    assert re.search(r"^round-trip +64 +unix +UNIX ", done.stdout, re.MULTILINE)


def test_as_a_table_on_a_terminal(server: str) -> None:
    with terminal("perf", server, "-s", "64", "--rounds", "2", *SHORT, AIORDMA_DEVICE=DEVICE) as screen:
        assert screen.end() == 0
    assert "stream, 64 bytes, aiordma, round 1 of 2" in screen.seen
    assert f"{server}: the best of 2 rounds" in screen.seen
    assert re.search(r"^stream +64 +aiordma +RDMA +\d+ +[\d.]+[KMG]? +[\d.]+$", screen.seen, re.MULTILINE)
    times = r"( +[\d.]+){2}( +[\d.]+| +-){2} +[\d.]+"
    found = rf"^round-trip +64 +tcp +TCP +\d+ +\S+{times} +[\d.]+ +[\d.]+x$"
    assert re.search(found, screen.seen, re.MULTILINE)


def test_ctrl_c_leaves_what_is_complete(server: str) -> None:
    arguments = ("--mode", "round-trip", "-s", "64,128", "--rounds", "1", "--against", "none")
    with terminal("perf", server, *arguments, "--seconds", "3600", AIORDMA_DEVICE=DEVICE) as screen:
        screen.until("round-trip, 64 bytes")
        screen.type("\x03")
        assert screen.end() == 130, screen.seen
    assert "interrupted before the first size was complete" in screen.seen
    assert "Traceback" not in screen.seen


def test_ctrl_c_between_two_turns_ends_the_next_one(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not raised where it comes: in a finalizer it would be printed, and lost."""
    begun: list[turns.Turn] = []
    take_turn, title = workloads.take_turn, measuring._title

    async def noted(turn: turns.Turn) -> turns.Outcome:
        begun.append(turn)
        return await take_turn(turn)

    def in_a_finalizer(turn: turns.Turn, number: int, rounds: int) -> str:
        if len(begun) == 2:
            with contextlib.suppress(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        return title(turn, number, rounds)

    monkeypatch.setattr(measuring, "take_turn", noted)
    monkeypatch.setattr(measuring, "_title", in_a_finalizer)
    handler = signal.getsignal(signal.SIGINT)
    done = run(server, "--mode", "round-trip", "-s", "64,128", "--rounds", "1", "--json")
    found = json.loads(done.stdout)
    assert (done.exit_code, found["interrupted"], len(begun)) == (130, True, 2)
    assert keys(found["points"]) == [
        ("round-trip", 64, "aiordma", "rdma", "asyncio"),
        ("round-trip", 64, "tcp", "tcp", "asyncio"),
    ]
    assert signal.getsignal(signal.SIGINT) is handler


def test_what_is_complete_is_kept_when_it_is_interrupted(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns_taken: list[turns.Turn] = []
    take_turn = workloads.take_turn

    async def until_the_third(turn: turns.Turn) -> turns.Outcome:
        turns_taken.append(turn)
        if len(turns_taken) == 3:
            raise KeyboardInterrupt
        return await take_turn(turn)

    monkeypatch.setattr("aiordma.measure.perf.take_turn", until_the_third)
    done = run(server, "--mode", "round-trip", "-s", "64,128", "--rounds", "1", "--json")
    found = json.loads(done.stdout)
    assert (done.exit_code, found["interrupted"]) == (130, True)
    assert keys(found["points"]) == [
        ("round-trip", 64, "aiordma", "rdma", "asyncio"),
        ("round-trip", 64, "tcp", "tcp", "asyncio"),
    ]


def test_pictures(server: str, tmp_path: Path) -> None:
    picture = tmp_path / "out.svg"
    done = run(server, "-s", "64,4k", "--rounds", "1", "--plot", str(picture))
    assert (done.exit_code, done.stderr) == (0, "")
    drawing = ElementTree.parse(picture).getroot()
    assert drawing.tag.endswith("svg")
    titles = {each.text for each in drawing.iter("{http://www.w3.org/2000/svg}text")}
    assert {f"{mode}: throughput over size" for mode in ("stream", "round-trip")} <= titles
    assert "round-trip of 64 B: share that took longer" in titles
    assert drawing.findall(".//{http://www.w3.org/2000/svg}polyline")


def test_a_picture_of_another_kind() -> None:
    done = run("127.0.0.1:1", "--plot", "out.pdf")
    assert (done.exit_code, "does not end in .svg" in done.stderr) == (2, True)


def test_the_schema_is_that_of_the_report() -> None:
    assert json.loads(run("--schema").stdout) == msgspec.json.schema(Perf)


def test_names_are_those_of_the_measurement() -> None:
    assert (command._MODES, command._AGAINST) == (turns.MODES, turns.AGAINST)
    assert command._parse_list(turns.MODES, "all")(None, None, "all") == turns.MODES
    for wrong in ("nonsense", "", "read,nonsense"):
        assert run("127.0.0.1:1", "--mode", wrong).exit_code == 2


def test_no_server() -> None:
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


def test_a_server_on_tcp() -> None:
    with terminal("serve-diagnostics", "--port", "0", AIORDMA_DEVICE="none") as screen:
        address = screen.until(r"listening on (127.0.0.1:\d+)\n")[1]
        arguments = (address, "-s", "64", "--rounds", "1", "--mode", "stream")
        done, refused = run(*arguments), run(*arguments, "--require-rdma")
    assert done.exit_code == 0
    assert done.stdout.splitlines()[-1].startswith("TCP 0x")
    assert (refused.exit_code, "the peer" in refused.stderr) == (1, True)


def test_sizes() -> None:
    assert sizes_of("64, 4k,1M") == [64, 4096, 1 << 20]
    for wrong in ("", "x", "0", "17m", "64,,4k"):
        done = run("127.0.0.1:1", "-s", wrong)
        assert (done.exit_code, "--sizes" in done.stderr) == (2, True)

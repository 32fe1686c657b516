"""`aiordma stat`: what people and scripts see of running processes."""

from __future__ import annotations

import asyncio
import json
import os
import re
from typing import TYPE_CHECKING, Any

import anyio
import jsonschema
import pytest
from click.testing import CliRunner, Result

import aiordma
from aiordma import wake
from aiordma.admin import asking, report
from aiordma.admin.asked import Loop
from aiordma.admin.messages import Connection
from aiordma.admin.requests import Show
from aiordma.cli import tables
from aiordma.cli.ping.command import ping
from aiordma.cli.stat.command import stat
from aiordma.observe import listeners
from tests.health import until
from tests.processes import process
from tests.world import DEVICE

from ..terminal import terminal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.processes import Process

pytest.importorskip("aiordma._cq", reason="the compiled modules are not built")

ROLE = "tests.admin.roles:connected"
SCHEMA = report.schema()


@pytest.fixture(scope="module")
def busy() -> Iterator[Process]:
    """Three streams, of them one on TCP."""
    with process(ROLE, device=DEVICE, streams=3, plain=1) as other:
        other.port = other.hear()  # type: ignore[attr-defined]
        yield other


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(stat, arguments, catch_exceptions=False)


def found(*arguments: str) -> dict[str, Any]:
    done = run("--json", *arguments)
    parsed = json.loads(done.stdout)
    jsonschema.validate(parsed, SCHEMA)
    assert parsed["schema"] == "aiordma-stat/1"
    (only,) = parsed["processes"]
    return dict(only)


def test_connections_as_a_table(busy: Process) -> None:
    done = run("--pid", str(busy.pid))
    lines = done.stdout.splitlines()
    assert done.exit_code == 0
    assert lines[0].split() == ("PROGRAM NO KIND SIDE STATE LOCAL REMOTE MODE SENT RECEIVED AGE IDLE".split())
    rows = [line.split() for line in lines[1:7]]
    assert {row[0] for row in rows} == {f"program.py[{busy.pid}]"}
    assert [row[7] for row in rows].count("RDMA") == 4
    codes = {row[3]: row[8] for row in rows if row[7] == "TCP"}
    assert f"TCP {codes['client']}: RDMA is switched off" in done.stdout
    assert f"TCP {codes['server']}: " in done.stdout
    # What was sent by TCP counts when it is acknowledged, which may take a moment.
    sums = r"6 connections, 4 on RDMA, 2 on TCP; (25|30) bytes sent, 30 received"
    assert re.fullmatch(sums, lines[-1])
    detailed = run("--pid", str(busy.pid), "-d").stdout.splitlines()
    assert detailed[0].startswith(lines[0])
    assert "0000:00000005" in detailed[3]


@pytest.mark.parametrize(
    ("filters", "count"),
    [
        (["--mode", "tcp"], 2),
        (["--mode", "rdma"], 4),
        (["--mode", "TCP 0x"], 2),
        (["--state", "active"], 6),
        (["--state", "broken"], 0),
        (["--kind", "stream"], 6),
        (["--kind", "calls"], 0),
        (["--address", "127.0.0.1"], 6),
        (["--address", "127.0.0.2"], 0),
        (["--address", ":{port}"], 6),
        (["--address", "::ffff:127.0.0.1"], 6),
        (["--address", "[::ffff:127.0.0.1]:{port}", "--mode", "tcp"], 2),
        (["--address", "[::ffff:127.0.0.1]:1"], 0),
        (["--address", "127.0.0.1:{port}", "--mode", "tcp"], 2),
        (["--program", "program.py"], 6),
    ],
)
def test_filters(busy: Process, filters: list[str], count: int) -> None:
    port = busy.port  # type: ignore[attr-defined]
    filled = [each.format(port=port) for each in filters]
    assert len(found("--pid", str(busy.pid), *filled)["connections"]) == count


def test_all_views_agree_with_the_schema(busy: Process) -> None:
    whole = found("--pid", str(busy.pid))
    assert (whole["pid"], whole["state"], whole["open_connections"]) == (busy.pid, "answered", 6)
    for view in SCHEMA_VIEWS:
        assert whole[view] is not None
        alone = found("--pid", str(busy.pid), f"--{view}")
        assert [name for name in SCHEMA_VIEWS if alone[name] is not None] == [view]
    assert [row["connections"] for row in whole["fallbacks"]] == [1, 1]
    modes = {row["mode"] for row in whole["fallbacks"]}
    assert {row["mode"] for row in whole["connections"]} == {"RDMA", *modes}
    assert json.loads(run("--schema").stdout) == SCHEMA


SCHEMA_VIEWS = (
    "connections",
    "listeners",
    "links",
    "devices",
    "memory",
    "rpc",
    "fallbacks",
    "events",
    "leaks",
    "totals",
)


def test_other_views_as_tables(busy: Process) -> None:
    shown = run("--pid", str(busy.pid), "--all").stdout
    titles = re.findall(r"^[A-Z]+$", shown, re.MULTILINE)
    assert titles == [view.upper() for view in SCHEMA_VIEWS]
    assert re.search(r"soft0|rxe0", shown)
    assert f"program.py[{busy.pid}]: 6 connections open, 2 links; since it began:" in shown
    assert "2 began on TCP" in shown
    assert re.search(r"began +TCP 0x\w+( +[-\d]*:[:\d]+){2} +RDMA is switched off", shown)


def test_listeners_are_shown(busy: Process) -> None:
    (row,) = found("--pid", str(busy.pid), "--listeners")["listeners"]
    port = busy.port  # type: ignore[attr-defined]
    assert (row["kind"], row["addresses"], row["waiting"]) == ("stream", [f"127.0.0.1:{port}"], 0)
    assert (row["accepted"], row["rdma"], row["tcp"], row["failed"]) == (3, 2, 1, 0)
    shown = run("--pid", str(busy.pid), "--listeners").stdout
    assert re.search(rf"stream +127\.0\.0\.1:{port} +3 +2 +1 +0 +0 +0 ", shown)


def test_servers_of_asyncio_are_listeners() -> None:
    async def main() -> None:
        server = await aiordma.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        writer.close()
        ((listening, _),) = listeners.of_loop(wake.current())
        assert (list(listening.addresses), listening.accepted) == ([("127.0.0.1", port)], 1)
        server.close()
        assert listeners.of_loop(wake.current()) == []

    asyncio.run(main())


def test_fallbacks_and_links_have_their_times(busy: Process) -> None:
    whole = json.loads(run("--json", "--pid", str(busy.pid), "--fallbacks", "--events", "--links").stdout)
    (rows,), now = whole["processes"], whole["taken_at"]
    for row in (*rows["fallbacks"], *rows["events"]):
        assert now - 3600 < row["first_at"] <= row["last_at"] <= now
    kinds = [row["kind"] for row in rows["events"]]
    assert sorted(kinds) == ["began on TCP", "began on TCP", "link up", "link up"]
    assert all(0 < row["age_s"] < 3600 for row in rows["links"])
    shown = run("--pid", str(busy.pid), "--events").stdout
    assert re.search(rf"program.py\[{busy.pid}\] +link up +127\.0\.0\.1:\d+ on (soft0|rxe0)\n", shown)


def test_programs_that_have_a_device_open_are_shown(busy: Process) -> None:
    done = run("--json", "--devices", "--pid", str(busy.pid))
    (row,) = json.loads(done.stdout)["programs"]
    assert (row["pid"], row["uses_aiordma"]) == (busy.pid, True)
    assert row["devices"]
    assert re.search(rf"\[{busy.pid}\] +\S.* yes\n", run("--devices", "--pid", str(busy.pid)).stdout)


def test_an_older_build_is_asked_for_what_it_knows(busy: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def ask(request: Show, whom: list[Loop]) -> list[Loop]:
        asked.append(request.views)
        answered = asking.ask(request, whom)
        if set(request.views) & {"listeners", "events"}:
            for each in answered:
                each.state = "refused"
        return answered

    monkeypatch.setattr(report, "ask", ask)
    rows = found("--pid", str(busy.pid))
    assert asked == [
        SCHEMA_VIEWS,
        tuple(view for view in SCHEMA_VIEWS if view not in ("listeners", "events")),
    ]
    assert (rows["state"], rows["listeners"], rows["events"]) == ("answered", None, None)
    assert len(rows["connections"]) == 6


def test_links_tell_how_long_they_try(busy: Process) -> None:
    rows = found("--pid", str(busy.pid), "--links")["links"]
    assert {(row["ack_timeout_ms"], row["retries"], row["rnr_retries"]) for row in rows} == {(67.1, 6, 6)}
    shown = run("--pid", str(busy.pid), "--links", "-d").stdout
    assert re.search(r" ACK-MS  RETRIES  RNR-RETRIES ", shown)
    assert re.search(r" 67\.1 +6 +6 ", shown)


def test_calls_by_method_and_holders_of_memory() -> None:
    """Of a server that has answered, and whose client is gone; then of one that is there."""
    with terminal("serve-diagnostics", "--port", "0", "--no-against", AIORDMA_DEVICE=DEVICE) as screen:
        address = screen.until(r"listening on (127.0.0.1:\d+)\n")[1]
        arguments = (address, "--channel", "--warm-up", "5", "-n", "20", "--json")
        environment = {"AIORDMA_DEVICE": DEVICE}
        assert CliRunner().invoke(ping, arguments, env=environment).exit_code == 0
        pid = ("--pid", str(screen.process.pid))
        methods = [row for row in found(*pid, "--rpc")["rpc"] if row["method"]]
        assert [(row["side"], row["method"], row["calls"], row["errors"]) for row in methods] == [
            ("server", "diagnostics.echo", 25, 0)
        ]
        assert methods[0]["traced"] > 0
        with terminal("ping", address, "-n", "1000000", "-i", "0.01", AIORDMA_DEVICE=DEVICE) as other:
            anyio.run(until, lambda: bool(found(*pid, "--mode", "rdma")["connections"]))
            held = found(*pid, "--memory")["holders"]
            other.type("\x03")
            assert other.end() == 0
    assert {"rings", "receives"} <= {row["kind"] for row in held}
    assert all(row["used_bytes"] <= row["registered_bytes"] for row in held)


def test_regions_hold_memory(busy: Process) -> None:
    with process("tests.admin.roles:region", device=DEVICE, size=12_345) as owner:
        assert owner.hear() == "ready"
        rows = found("--pid", str(owner.pid), "--memory")["holders"]
        (only,) = [row for row in rows if row["kind"] == "region"]
        assert (only["registered_bytes"], only["descriptors"], only["openings"]) == (12_345, 2, 0)
        shown = run("--pid", str(owner.pid), "--memory").stdout
    assert re.search(r"region +12\.1K +12\.1K +2 +0$", shown, re.MULTILINE)


def test_a_baseline_is_of_its_caller_only(busy: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    one = ("--pid", str(busy.pid))
    before = found(*one, "--totals")
    assert (before["since"], before["totals"]["fell_back"]) == (None, 2)
    assert run(*one, "--reset").stdout == "totals of 1 processes count from now on\n"
    after = found(*one, "--totals")
    assert after["since"] is not None
    assert after["totals"]["fell_back"] == 0
    assert set(after["totals"]["connections"].values()) == {0}
    assert "since the baseline" in run(*one, "--totals").stdout
    assert found(*one, "--totals", "--absolute")["totals"]["fell_back"] == 2
    monkeypatch.setenv("XDG_CACHE_HOME", os.environ["XDG_CACHE_HOME"] + "/of-another")
    assert found(*one, "--totals")["totals"]["fell_back"] == 2


def test_nobody_is_there() -> None:
    done = run("--pid", "1")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "no process uses aiordma" in done.stderr
    empty = json.loads(run("--pid", "1", "--json").stdout)
    jsonschema.validate(empty, SCHEMA)
    assert empty["processes"] == []


def test_a_process_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "_STUCK_S", 0.0)
    monkeypatch.setattr(asking, "PATIENCE_S", 0.5)
    with process(ROLE, device=DEVICE) as other:
        other.hear()
        other.say("sleep")
        assert other.hear() == "asleep"
        done = run("--pid", str(other.pid))
        assert done.exit_code == 3
        assert re.search(
            rf"program.py\[{other.pid}\]: STUCK: its event loop has not come by for \d+ s", done.stdout
        )
        stuck = found("--pid", str(other.pid))
        assert (stuck["state"], stuck["connections"]) == ("stuck", None)
        other.say("wake up")
        assert other.hear() == "awake"


def test_it_can_be_watched_on_a_terminal(busy: Process) -> None:
    with terminal("stat", "--pid", str(busy.pid), "--watch", "0.2") as screen:
        screen.until(r"(?s)\x1b\[H\x1b\[2J\d\d:\d\d:\d\d\nPROGRAM.*6 connections.*\x1b\[2J")
        busy.say("echo")
        assert busy.hear() == "echoed"
        # "again" five times both ways, in some interval.
        screen.until(r"(?s)OUT/S +IN/S.*RDMA +10 +10 .* [1-9]\d*(\.\d)?K? +[1-9]\d*")
        screen.type("\x03")
        assert screen.end() == 0
        assert "Traceback" not in screen.seen


def test_on_a_terminal_and_in_a_pipe_alike(busy: Process) -> None:
    with terminal("stat", "--pid", str(busy.pid), "--links") as screen:
        assert screen.end() == 0
    titles = screen.seen.splitlines()[0].split()
    # A column may be wider a moment later, when a connection is ten seconds old.
    assert titles == run("--pid", str(busy.pid), "--links").stdout.splitlines()[0].split()


def test_other_processes_cannot_control_the_terminal() -> None:
    row = Connection(1, "stream", "client", "active", "\x1b[2J", "r\n", "tcp", "TCP", "", 0.0, 0.0, 0, 0)
    column = [tables.Column("X", lambda each: each.local), tables.Column("Y", lambda each: each.remote)]
    assert tables.table(column, [row]) == ["X     Y", "?[2J  r?"]


def test_numbers_for_people() -> None:
    sizes = [tables.bytes_text(each) for each in (0, 999, 1000, 1024, 102_400, 1 << 20, 1 << 51, 1 << 62)]
    assert sizes == ["0", "999", "1.0K", "1.0K", "100K", "1.0M", "2.0P", "4096P"]
    times = [tables.seconds_text(each) for each in (0, 9.94, 59, 600, 7200, 86_400 * 3)]
    assert times == ["0.0s", "9.9s", "59s", "10m", "2.0h", "3d"]

"""`aiordma adm`: changes in running processes."""

from __future__ import annotations

import json
import os
import pwd
import re
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from click.testing import CliRunner, Result

from aiordma.admin import asking, page
from aiordma.admin.messages import Connections, Fallbacks, packed
from aiordma.admin.requests import Change, Close, ShowSettings, Switch
from aiordma.cli.adm.command import adm
from aiordma.cli.stat.command import stat
from tests.admin.looking import ask_one, connected_to, loops_of, rows
from tests.admin.returned import returned
from tests.health import until
from tests.loops import LOOPS
from tests.processes import process
from tests.world import DEVICE

from ..terminal import terminal

if TYPE_CHECKING:
    from tests.processes import Process

pytest.importorskip("aiordma._cq", reason="the compiled modules are not built")

ROLE = "tests.admin.roles:connected"
ME = f"asked by {pwd.getpwuid(os.getuid()).pw_name}, process {os.getpid()}"


def run(other: Process | None, *arguments: str) -> Result:
    whom = [] if other is None else ["--pid", str(other.pid)]
    return CliRunner().invoke(adm, [*whom, *arguments], catch_exceptions=False)


def answer(other: Process, *arguments: str) -> dict[str, Any]:
    (only,) = json.loads(run(other, "--json", *arguments).stdout)["processes"]
    return dict(only)


def log(other: Process) -> list[str]:
    other.say("log")
    return list(other.hear())


def numbers(other: Process, **wanted: str) -> list[int]:
    found = rows(ask_one(other.pid), Connections)
    return [row.number for row in found if all(getattr(row, name) == it for name, it in wanted.items())]


def test_settings() -> None:
    with process(ROLE, device=DEVICE) as other:
        other.hear()
        name = f"program.py[{other.pid}]"
        assert run(other, "get", "busy_poll_us").stdout == f"{name}: busy_poll_us=unset\n"
        done = run(other, "set", "busy_poll_us=7", "AIORDMA_KEEPALIVE_MS=1234")
        assert (done.exit_code, done.stderr) == (0, "")
        assert done.stdout == f"{name}: busy_poll_us: None -> 7, keepalive_ms: 10000 -> 1234\n"
        assert log(other) == [f"settings changed, {ME}: busy_poll_us: None -> 7, keepalive_ms: 10000 -> 1234"]
        shown = run(other, "get").stdout.splitlines()
        assert {f"{name}: busy_poll_us=7", f"{name}: keepalive_ms=1234"} <= set(shown)
        assert answer(other, "get")["settings"]["busy_poll_us"]["value"] == 7
        run(other, "set", "busy_poll_us=unset")
        assert answer(other, "get")["settings"]["busy_poll_us"]["value"] is None


def test_changes_are_undone_one_after_the_other() -> None:
    with process(ROLE, device=DEVICE) as other:
        other.hear()
        name = f"program.py[{other.pid}]"
        done = run(other, "set", "--undo")
        assert (done.exit_code, "no change of settings is left" in done.stderr) == (4, True)
        run(other, "set", "busy_poll_us=7", "keepalive_ms=1234")
        run(other, "set", "busy_poll_us=9")
        run(other, "trace", "start")
        assert "trace_sample: 1 -> 0" in run(other, "set", "--undo").stdout
        assert run(other, "set", "--undo").stdout == f"{name}: busy_poll_us: 9 -> 7\n"
        done = run(other, "set", "--undo")
        assert done.stdout == f"{name}: busy_poll_us: 7 -> None, keepalive_ms: 1234 -> 10000\n"
        assert run(other, "set", "--undo").exit_code == 4
        assert log(other)[-1].startswith(f"settings changed, {ME}: busy_poll_us: 7 -> None")


@pytest.mark.parametrize(
    "words",
    [
        ["set", "busy_poll_us=99999999999999999999999999"],
        ["set", "filter=\udcff"],
        ["drain", "--reason", "\udcff"],
        ["switch", "tcp", "--reason", "\udcff"],
        ["faults", "add", "\udcff"],
        ["faults", "remove", "9" * 30],
    ],
    ids=lambda words: words[0],
)
def test_what_no_request_can_have(shared: Process, words: list[str]) -> None:
    done = run(shared, *words)
    assert (done.exit_code, "cannot be sent" in done.stderr) == (2, True)


def test_set_needs_a_change_or_undo(shared: Process) -> None:
    for arguments in ([], ["--undo", "busy_poll_us=1"]):
        done = run(shared, "set", *arguments)
        assert (done.exit_code, "either NAME=VALUE or --undo" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ("busy_poll_us=-1", 4, "it must be a whole number from 0 to 1000000, or unset"),
        ("busy_poll_us=fast", 4, "it must be a whole number from 0 to 1000000, or unset"),
        ("trace_sample=-1", 4, "it must be a whole number from 0 to 1000000"),
        ("filter=explode op=cdc", 4, "is not valid"),
        (
            "ring_bytes=65536",
            2,
            "needs a restart: set AIORDMA_RING_BYTES=65536 in its environment (now: 524288)",
        ),
        ("bsy_poll_us=1", 2, "unknown setting 'bsy_poll_us': known are mode, device,"),
        ("busy_poll_us", 2, "'busy_poll_us' is not NAME=VALUE"),
    ],
)
def test_bad_values_change_nothing(shared: Process, change: str, status: int, words: str) -> None:
    before = answer(shared, "get")["settings"]
    done = run(shared, "set", "keepalive_ms=99", change)
    assert done.exit_code == status
    assert words in done.stderr
    assert answer(shared, "get")["settings"] == before


@pytest.fixture(scope="module")
def shared() -> Any:
    with process(ROLE, device=DEVICE) as other:
        other.hear()
        yield other


def test_the_process_refuses_what_the_tool_would_not_ask(shared: Process) -> None:
    refused = ask_one(shared.pid, Change({"ring_bytes": 65536}))
    assert (refused.state, "is read when the engine starts" in refused.text) == ("refused", True)
    assert ask_one(shared.pid, Close((4711,))).text == "there is no connection 4711 (any more)"
    assert ask_one(shared.pid, Switch("tcp", (4711,))).state == "refused"
    assert log(shared) == []


@pytest.mark.parametrize("loop", LOOPS)
def test_streams_switch_to_tcp_and_back(loop: str) -> None:
    with process(ROLE, loop, device=DEVICE, streams=3) as other:
        other.hear()
        name = f"program.py[{other.pid}]"
        (one, *_) = numbers(other, side="client")
        done = run(other, "switch", "tcp", str(one), "--reason", "a drill")
        assert (done.exit_code, done.stdout) == (0, f"{name}: 1 connections switch to TCP\n")
        anyio.run(until, lambda: len(numbers(other, path="tcp")) == 2)
        assert any("a drill" in row.text for row in rows(ask_one(other.pid), Fallbacks) if row.when == "left")
        other.say("echo")
        assert other.hear() == "echoed"
        # It is there already.
        again = run(other, "switch", "tcp", str(one))
        assert (again.exit_code, "0 of 1 connections switch to tcp" in again.stderr) == (4, True)
        done = run(other, "switch", "rdma", str(one))
        assert (done.exit_code, done.stdout) == (0, f"{name}: 1 connections switch to RDMA\n")
        anyio.run(until, lambda: len(numbers(other, path="rdma")) == 6)
        # Both ends of each are here.
        assert answer(other, "switch", "tcp")["count"] == 6
        anyio.run(until, lambda: len(numbers(other, path="tcp")) == 6)
        assert run(other, "switch", "rdma").exit_code == 0
        anyio.run(until, lambda: len(numbers(other, path="rdma")) == 6)
        other.say("echo")
        assert other.hear() == "echoed"
        assert next(line for line in log(other) if ME in line) == f"1 connections switch to TCP, {ME}"


@pytest.mark.parametrize("plain", [0, 1])
@pytest.mark.parametrize("loop", LOOPS)
def test_a_connection_is_reset(loop: str, plain: int) -> None:
    with process(ROLE, loop, device=DEVICE, streams=1, plain=plain) as other:
        other.hear()
        (one,) = numbers(other, side="client")
        assert run(other, "close", str(one)).stdout == f"program.py[{other.pid}]: 1 connections are reset\n"
        other.say("receive")
        assert other.hear() == "BrokenResourceError"
        anyio.run(until, lambda: numbers(other, side="server") == [])
        assert f"connection {one} is reset, {ME}" in log(other)
        again = run(other, "close", "4711")
        assert (again.exit_code, "no connection has the number 4711" in again.stderr) == (2, True)


def test_memory_is_trimmed() -> None:
    with process(ROLE, device=DEVICE, streams=20) as other:
        other.hear()
        for each in numbers(other, side="client"):
            run(other, "close", str(each))
        anyio.run(until, lambda: answer(other, "trim")["state"] == "answered")
        assert any("bytes of unused memory were released" in line for line in log(other))


def test_which_process_is_meant() -> None:
    with process(ROLE, device=DEVICE) as one, process(ROLE, device=DEVICE) as other:
        one.hear()
        other.hear()
        done = run(None, "--program", "program.py", "set", "keepalive_ms=99")
        assert done.exit_code == 2
        assert "or all with --all" in done.stderr
        assert f"--pid {one.pid}  program.py" in done.stderr
        listed = run(None, "--program", "program.py", "list").stdout
        assert all(str(each.pid) in listed for each in (one, other))
        assert {one.pid, other.pid} <= {
            row["pid"] for row in json.loads(run(None, "--json", "list").stdout)["processes"]
        }
    assert run(one, "get").exit_code == 1


def test_a_process_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "PATIENCE_S", 0.3)
    with process(ROLE, device=DEVICE) as other:
        other.hear()
        other.say("sleep")
        assert other.hear() == "asleep"
        done = run(other, "set", "busy_poll_us=0")
        assert (done.exit_code, done.stdout) == (3, "")
        assert "NO ANSWER: it has not answered in " in done.stderr or "STUCK" in done.stderr
        with connected_to(other.pid) as sock:
            sock.sendall(packed(Switch("tcp")))
        other.say("wake up")
        assert other.hear() == "awake"
        # What was asked for and given up is not carried out later.
        assert ask_one(other.pid, ShowSettings()).state == "answered"
        assert len(numbers(other, path="rdma")) == 4
        assert log(other) == []


def test_on_a_terminal(shared: Process) -> None:
    with terminal("adm", "--pid", str(shared.pid), "get", "window") as screen:
        assert screen.end() == 0
    assert screen.seen == f"program.py[{shared.pid}]: window=64  (read at the start)\n"


def test_the_list_counts_what_stat_counts() -> None:
    with process(ROLE, device=DEVICE) as other:
        other.hear()
        run(other, "close", *map(str, numbers(other, side="client")))
        anyio.run(until, lambda: numbers(other) == [])
        row = run(other, "list").stdout.splitlines()[1].split()
        assert (row[0], row[3], row[-1]) == (str(other.pid), "0", "answered")


def test_a_loop_that_has_returned_is_listed_and_takes_no_changes() -> None:
    with returned("asyncio", "in order") as other:
        pid = ("--pid", str(other.pid))
        anyio.run(until, lambda: loops_of(other.pid)[0].page.returned_s > 2 * page.BEAT_SECONDS)
        done = run(None, *pid, "list")
        assert (done.exit_code, done.stdout.split()[-1]) == (0, "STOPPED")
        done = run(None, *pid, "set", "busy_poll_us=0")
        assert (done.exit_code, done.stdout) == (3, "")
        assert re.search(r"STOPPED: its event loop returned \d+ s ago, and was not closed\n", done.stderr)
        shown = CliRunner().invoke(stat, pid, catch_exceptions=False)
        assert (shown.exit_code, "STOPPED: its event loop returned" in shown.stdout) == (0, True)

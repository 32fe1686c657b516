"""`aiordma top`: rates from two reports, and what people and scripts see of running processes."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import jsonschema
import msgspec
import pytest
from click.testing import CliRunner
from rich.console import Console

from aiordma.admin.messages import Connection, Engine, Fallback, Link, Method, Totals
from aiordma.admin.report import Process, Report
from aiordma.cli.top.command import top
from aiordma.cli.top.rates import SCHEMA, Top, compare
from aiordma.cli.top.view import render
from tests.processes import process
from tests.world import DEVICE

from ..terminal import terminal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.processes import Process as Other

pytest.importorskip("aiordma._cq", reason="the compiled modules are not built")


def connection(number: int, sent: int, received: int, path: str = "rdma", **more: Any) -> Connection:
    mode, local, remote = "RDMA" if path == "rdma" else "TCP 0x05000000", "10.0.0.1:1", "10.0.0.2:2"
    return Connection(
        number, "stream", "client", "active", local, remote, path, mode, "", 1.0, 0.0, sent, received, **more
    )


def loop(pid: int = 7, program: str = "app.py", state: str = "answered", **views: Any) -> Process:
    text = "" if state == "answered" else "its event loop has not come by for 9 s"
    return Process(pid, 0, "root", program, "asyncio", state, text, 0.0, "1", 1, **views)


def report(at: float, *processes: Process) -> Report:
    return Report("aiordma-stat/1", at, list(processes))


def link(written: int, messages: int, waits: int) -> Link:
    names = "soft0", "", "10.0.0.2:2", "active", "client"
    return Link(*names, 17, 18, 0, 2, 0, 0, 0, messages, messages, 0, 0, written, waits, 0, 64, 4096, 0, 0)


#: Leaks by kind, slow calls, slow handlers.
MORE: Any = ({"idle": 2, "dropped": 1}, 6, 7)


def totals(completions: int, slow: int) -> Totals:
    return Totals(1, 1, {}, 0, 0, [Engine("soft0", completions, 0, 0, slow, 5_000_000, 0, 0, 0, 0, 0)], *MORE)


def test_the_first_look_has_no_rates() -> None:
    found = compare(None, report(10.0, loop(connections=[connection(1, 500, 5)], totals=totals(9, 0))))
    assert (found.schema, found.seconds) == (SCHEMA, 0.0)
    (only,) = found.processes
    assert (only.on_rdma, only.on_tcp, only.sent_per_s, only.completions_per_s) == (1, 0, 0.0, 0.0)


def test_rates_are_what_has_come_since() -> None:
    before = loop(
        connections=[connection(1, 1000, 0), connection(2, 0, 0, "tcp")],
        links=[link(100, 10, 1)],
        rpc=[
            Method("client", "", "kv.get", 1, 100, 1, 5, 10.0, 20.0, 30.0),
            Method("client", "x:1", "", 0, 9, 9),
        ],
        fallbacks=[Fallback("began", "TCP 0x05000000", 5, None, "why", 1)],
        totals=totals(1000, 1),
    )
    now = loop(
        connections=[
            connection(1, 3000, 500, times_blocked=0),
            connection(2, 100_000, 0, "tcp", waiting_bytes=77),
            connection(3, 10**9, 10**9),  # new: since when is not known
        ],
        links=[link(300, 30, 4)],
        rpc=[Method("client", "", "kv.get", 2, 300, 4, 6, 10.0, 20.0, 30.0)],
        fallbacks=[
            Fallback("began", "TCP 0x05000000", 5, None, "why", 3),
            Fallback("left", "TCP 0x06000000", 6, None, "the link failed", 4),
        ],
        totals=totals(5000, 3),
    )
    found = compare(report(10.0, before), report(12.0, now))
    assert found.seconds == 2.0
    (only,) = found.processes
    assert (only.on_rdma, only.on_tcp) == (2, 1)
    assert (only.sent_per_s, only.received_per_s) == (51_000.0, 250.0)
    assert (only.calls_per_s, only.completions_per_s) == (100.0, 2000.0)
    assert (only.slow_polls, only.slowest_poll_us) == (3, 5000.0)
    assert (only.slow_requests, only.slow_handlers, only.leaks) == (6, 7, 3)
    assert [(row.number, row.sent_per_s, row.waiting_bytes) for row in found.connections] == [
        (2, 50_000.0, 77),
        (1, 1000.0, 0),
        (3, 0.0, 0),
    ]
    assert [(row.written_per_s, row.messages_per_s, row.waits) for row in found.links] == [(100.0, 20.0, 3)]
    assert [(row.method, row.calls_per_s, row.new_errors, row.errors) for row in found.methods] == [
        ("kv.get", 100.0, 3, 4)
    ]
    assert [(row.when, row.connections, row.new) for row in found.fallbacks] == [
        ("left", 4, 4),
        ("began", 3, 2),
    ]


def test_loops_of_one_process_are_not_mixed_up_and_the_stuck_come_first() -> None:
    first = report(
        0.0, loop(connections=[connection(1, 0, 0)]), loop(connections=[connection(2, 0, 0)]), loop(8)
    )
    second = report(
        1.0,
        loop(connections=[connection(1, 10, 0)]),
        loop(connections=[connection(2, 30, 0)]),
        loop(8, state="stuck"),
    )
    found = compare(first, second)
    assert [(row.pid, row.state, row.sent_per_s) for row in found.processes] == [
        (8, "stuck", 0.0),
        (7, "answered", 30.0),
        (7, "answered", 10.0),
    ]


def shown(found: Top, height: int, width: int = 150) -> list[str]:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(render(found, height))
    return console.export_text().splitlines()


def test_it_fits_on_the_terminal() -> None:
    rows = [connection(number, 0, 0) for number in range(100)]
    found = compare(None, report(0.0, loop(connections=rows, links=[link(0, 0, 0)]), loop(8)))
    lines = shown(found, 24)
    assert len(lines) <= 24
    (title,) = [line for line in lines if line.startswith("BUSIEST CONNECTIONS")]
    assert title.rstrip().endswith("more)")
    assert "BUSIEST LINKS" in [line.rstrip() for line in lines]
    assert len(shown(found, 10_000)) > 100


def test_sentences_give_way_on_a_narrow_terminal() -> None:
    reason = "the stream was switched to its TCP connection on request, " * 3
    fallbacks = [Fallback("began", "TCP 0x06000000", 6, None, reason, 1234)]
    (row,) = [
        line
        for line in shown(compare(None, report(0.0, loop(fallbacks=fallbacks))), 24, width=80)
        if "0x06000000" in line
    ]
    assert " 1234 " in row
    assert " began " in row
    assert row.rstrip().endswith("…")


def test_names_are_neither_markup_nor_control_characters() -> None:
    lines = shown(compare(None, report(0.0, loop(program="[red]\x1b[2Jx"))), 24)
    assert any("[red]?[2Jx[7]" in line for line in lines)


@pytest.fixture(scope="module")
def busy() -> Iterator[Other]:
    with process("tests.admin.roles:connected", device=DEVICE, streams=3, plain=1) as other:
        other.hear()
        yield other


def test_on_a_terminal_until_ctrl_c(busy: Other) -> None:
    arguments = ("top", "--pid", str(busy.pid), "-i", "0.2")
    with terminal(*arguments, COLUMNS="160", LINES="40") as screen:
        screen.until(r"4 connections on RDMA, 2 on TCP")
        busy.say("echo")
        assert busy.hear() == "echoed"
        screen.until(r"RDMA +[1-9][\d.]*K? +[1-9]")
        screen.type("\x03")
        assert screen.end() == 0
    assert "BUSIEST CONNECTIONS" in screen.seen
    assert "FALLBACKS" in screen.seen
    assert "Traceback" not in screen.seen
    # The last look stays when the screen of before is back.
    assert "PROCESSES" in screen.seen.rpartition("\x1b[?1049l")[2]


def test_for_scripts(busy: Other) -> None:
    done = CliRunner().invoke(top, ["--pid", str(busy.pid), "-i", "0.1", "-n", "2", "--json"])
    assert (done.exit_code, done.stderr) == (0, "")
    first, second = [json.loads(line) for line in done.stdout.splitlines()]
    for each in (first, second):
        jsonschema.validate(each, msgspec.json.schema(Top))
        assert [row["pid"] for row in each["processes"]] == [busy.pid]
    assert (first["seconds"], second["seconds"] > 0) == (0.0, True)
    assert json.loads(CliRunner().invoke(top, ["--schema"]).stdout) == msgspec.json.schema(Top)


def test_no_process_uses_aiordma() -> None:
    done = CliRunner().invoke(top, ["--program", "no such program", "-n", "1"])
    assert (done.exit_code, "no process uses aiordma" in done.stdout) == (1, True)

"""Thousands of connections in `aiordma stat`: order, limit and sums."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from aiordma.admin import report
from aiordma.admin.messages import Connection
from aiordma.cli.stat.command import stat

if TYPE_CHECKING:
    from aiordma.admin.report import Report

COUNT = 6500


def _row(number: int) -> Connection:
    """Every tenth is on TCP; ten peers; the last ones have sent most."""
    tcp = number % 10 == 0
    return Connection(
        number=number,
        kind="stream",
        side="server",
        state="active",
        local="10.0.0.1:7100",
        remote=f"10.0.1.{number % 7}:{number}",
        path="tcp" if tcp else "rdma",
        mode="TCP 0x03010000" if tcp else "RDMA",
        reason="the peer did not offer RDMA" if tcp else "",
        age_s=1.0,
        idle_s=0.0,
        bytes_sent=number,
        bytes_received=2,
    )


def _report() -> Report:
    processes = [
        report.Process(pid, 0, "root", f"p{pid}", "asyncio", "answered", "", 0.0, "1", COUNT // 2)
        for pid in (1, 2)
    ]
    for at, process in enumerate(processes):
        process.connections = [_row(number) for number in range(1 + at, COUNT + 1, 2)]
    return report.Report(report.SCHEMA, 0.0, processes)


@pytest.fixture(autouse=True)
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "collect", lambda *_: _report())


def shown(*arguments: str) -> list[str]:
    done = CliRunner().invoke(stat, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout.splitlines()


SUM = f"{COUNT} connections, 5850 on RDMA, 650 on TCP; 20.1M bytes sent, 12.7K received"


def test_everything_comes_to_a_sum() -> None:
    lines = shown()
    assert len(lines) == 1 + COUNT + 2
    assert lines[-2:] == ["TCP 0x03010000: the peer did not offer RDMA", SUM]


def test_order_and_limit_are_of_all_processes() -> None:
    lines = shown("--sort", "sent", "--limit", "3")
    assert [line.split()[:2] for line in lines[1:4]] == [
        ["p2[2]", "6500"],
        ["p1[1]", "6499"],
        ["p2[2]", "6498"],
    ]
    assert lines[4] == "and 6497 more (--limit)"
    assert lines[-1] == SUM


def test_scripts_get_the_same_rows() -> None:
    (line,) = shown("--sort", "sent", "--limit", "3", "--json")
    found = {
        each["pid"]: [row["number"] for row in each["connections"]] for each in json.loads(line)["processes"]
    }
    assert found == {1: [6499], 2: [6500, 6498]}


def test_sums_by_peer_and_by_mode() -> None:
    lines = shown("--sum", "peer")
    assert lines[0].split() == "PEER CONNS RDMA TCP SENT RECEIVED WAITING BLOCKED".split()
    rows = {line.split()[0]: line.split()[1:4] for line in lines[1:8]}
    assert sorted(rows) == [f"10.0.1.{number}" for number in range(7)]
    assert sum(int(row[0]) for row in rows.values()) == COUNT
    assert all(int(row[0]) == int(row[1]) + int(row[2]) for row in rows.values())
    assert lines[-1] == SUM
    assert [line.split("  ")[0] for line in shown("--sum", "mode")[1:3]] == ["RDMA", "TCP 0x03010000"]


def test_sums_are_not_for_scripts() -> None:
    done = CliRunner().invoke(stat, ["--sum", "peer", "--json"])
    assert done.exit_code == 2

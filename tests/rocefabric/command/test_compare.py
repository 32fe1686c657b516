"""`aiordma fabric compare`: folders of counters against a plan and a simulation."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from click.testing import CliRunner

from aiordma.cli.main import main
from tests.rocefabric.networks import STAR
from tests.rocefabric.test_counters import ETHTOOL, GROUP, PORT, QUEUE

if TYPE_CHECKING:
    from pathlib import Path


def folders(tmp_path: Path) -> tuple[list[str], Path]:
    network, after, before = tmp_path / "net.toml", tmp_path / "after", tmp_path / "before"
    network.write_text(STAR.format(hosts=4, more=""), encoding="utf-8")
    for folder in (after, before):
        folder.mkdir()
    tables = {"Ethernet0": PORT, "Ethernet0:5": QUEUE | GROUP}
    (after / "tor.json").write_text(json.dumps(tables), encoding="utf-8")
    (after / "host1.txt").write_text(ETHTOOL, encoding="utf-8")
    (before / "host1.txt").write_text(ETHTOOL.replace("_discards: 2", "_discards: 1"), encoding="utf-8")
    how = ["fabric", "compare", str(network), str(after), "--seconds", "10", "--format", "markdown"]
    return how, after


def test_counters_are_compared_with_a_simulation(tmp_path: Path) -> None:
    how, after = folders(tmp_path)
    done = CliRunner().invoke(main, [*how, "--model", "endless-2", "--profile", "none"])
    assert done.exit_code == 1, done.output
    assert "BROKEN: Nothing lossless was dropped: 2 packets in 10 s" in done.output
    assert "| what | counted | endless-2 |" in done.output
    done = CliRunner().invoke(main, [*how, "--before", str(after.parent / "before")])
    assert "1 packets in 10 s" in done.output
    (after / "host1.txt").write_text(ETHTOOL.replace("_discards: 2", "_discards: 1"), encoding="utf-8")
    done = CliRunner().invoke(main, [*how, "--before", str(after.parent / "before")])
    assert done.exit_code == 0, done.output


def test_files_of_other_devices_are_named(tmp_path: Path) -> None:
    how, after = folders(tmp_path)
    (after / "host9.txt").write_text(ETHTOOL, encoding="utf-8")
    done = CliRunner().invoke(main, how)
    assert done.exit_code == 1
    assert "host9.txt:1: the network has no device 'host9'" in done.output
    (after / "host9.txt").rename(after / "host1.json")
    done = CliRunner().invoke(main, how)
    assert "there are two files of host1" in done.output
    for seconds in ("0", "nan", "inf"):
        done = CliRunner().invoke(main, ["fabric", "compare", how[2], str(after), "--seconds", seconds])
        assert done.exit_code == 2, seconds

"""`aiordma fabric discover`: from files of neighbours to a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from click.testing import CliRunner

from aiordma.cli.main import main
from tests.rocefabric.test_lldp import LEAF, SPINE, dump, entry

if TYPE_CHECKING:
    from pathlib import Path


def test_neighbours_become_a_plan(tmp_path: Path) -> None:
    files = [tmp_path / "leaf1.json", tmp_path / "spine1.json"]
    for path, text in zip(files, (LEAF, SPINE), strict=True):
        path.write_text(text, encoding="utf-8")
    network, settings = tmp_path / "network.toml", tmp_path / "settings"
    how = ["--fabric-rate", "400", "-o", str(network)]
    done = CliRunner().invoke(main, ["fabric", "discover", *map(str, files), *how])
    assert done.exit_code == 0, done.output
    arguments = ["fabric", "plan", str(network), "--format", "markdown", "--settings", str(settings)]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    assert "Headroom of a port of 400G, 30 m" in done.output
    assert {path.name for path in settings.iterdir()} >= {"sonic-leaf1.json", "cumulus-spine1.sh"}


def test_odd_neighbours_are_told_and_wrong_files_named(tmp_path: Path) -> None:
    path = tmp_path / "tor.json"
    cables = [entry(f"Ethernet{at}", f"h{at}", "eth0", forwards=False) for at in (0, 4)]
    path.write_text(dump(*cables, {"Ethernet8": {}}), encoding="utf-8")
    done = CliRunner().invoke(main, ["fabric", "discover", str(path), "--switch", "tor"])
    assert done.exit_code == 0, done.output
    assert "left out: tor Ethernet8: its neighbour tells no name" in done.output
    path.write_text("{", encoding="utf-8")
    done = CliRunner().invoke(main, ["fabric", "discover", str(path)])
    assert done.exit_code == 1
    assert f"Error: {path}:1: " in done.output
    again = tmp_path / "again"
    again.mkdir()
    (again / "tor.json").write_text("{}", encoding="utf-8")
    done = CliRunner().invoke(main, ["fabric", "discover", str(path), str(again / "tor.json")])
    assert done.exit_code == 2
    assert "two files have the name of one device" in done.output

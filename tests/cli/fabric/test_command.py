"""`aiordma fabric` from the outside."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from click.testing import CliRunner

from aiordma.cli.main import main
from tests.rocefabric.networks import EXAMPLE, STAR

if TYPE_CHECKING:
    from pathlib import Path


def test_a_plan_on_the_terminal() -> None:
    done = CliRunner().invoke(main, ["fabric", "plan", str(EXAMPLE)])
    assert done.exit_code == 0, done.output
    assert "Verdict: warning" in done.output


def test_a_plan_as_files(tmp_path: Path) -> None:
    report, settings = tmp_path / "plan.json", tmp_path / "settings"
    more = ["--settings", str(settings)]
    arguments = ["fabric", "plan", str(EXAMPLE), "--format", "json", "-o", str(report), *more]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    assert len(json.loads(report.read_text(encoding="utf-8"))["sections"]) == 6
    assert json.loads((settings / "sonic-tor1.json").read_text(encoding="utf-8"))["WRED_PROFILE"]


def test_a_broken_plan_fails(tmp_path: Path) -> None:
    network = tmp_path / "net.toml"
    text = STAR.format(hosts=4, more="").replace('"tor"\n', '"tor"\nboundary = false\n', 1)
    network.write_text(text, encoding="utf-8")
    done = CliRunner().invoke(main, ["fabric", "plan", str(network), "--format", "markdown"])
    assert done.exit_code == 1
    assert "BROKEN: Nothing else enters these queues" in done.output


def test_a_wrong_file_is_named_with_its_line(tmp_path: Path) -> None:
    network = tmp_path / "net.toml"
    network.write_text("mtu = 1024\nname = 5\n[[switches]]\nnom = 3\n", encoding="utf-8")
    done = CliRunner().invoke(main, ["fabric", "plan", str(network)])
    assert done.exit_code == 1
    assert f"{network}:4: unknown key 'nom'" in done.output


def test_a_simulation(tmp_path: Path) -> None:
    network, page, database = tmp_path / "net.toml", tmp_path / "page.html", tmp_path / "results.sqlite"
    network.write_text(STAR.format(hosts=5, more=""), encoding="utf-8")
    arguments = ["fabric", "simulate", str(network), "--model", "incast-2-64k", "--results", str(database)]
    done = CliRunner().invoke(main, [*arguments, "--jobs", "1", "--html", str(page)])
    assert done.exit_code == 0, done.output
    assert "ok      nothing lossless is dropped: 1 of 1 models" in done.output
    assert "incast-2-64k" in page.read_text(encoding="utf-8")
    again = CliRunner().invoke(main, arguments)
    assert again.output == done.output


def test_models_are_listed_and_checked(tmp_path: Path) -> None:
    listed = CliRunner().invoke(main, ["fabric", "simulate", "--list"])
    assert len(listed.output.splitlines()) >= 50
    network = tmp_path / "net.toml"
    network.write_text(STAR.format(hosts=5, more=""), encoding="utf-8")
    for command in ("simulate", "tune"):
        done = CliRunner().invoke(main, ["fabric", command, str(network), "--model", "tornado"])
        assert done.exit_code == 2
        assert "there is no traffic model 'tornado'" in done.output


def test_a_search(tmp_path: Path) -> None:
    network, drawing = tmp_path / "net.toml", tmp_path / "front.svg"
    network.write_text(STAR.format(hosts=5, more=""), encoding="utf-8")
    arguments = ["fabric", "tune", str(network), "--model", "incast-2-64k", "--trials", "2"]
    done = CliRunner().invoke(main, [*arguments, "--svg", str(drawing)])
    assert done.exit_code == 0, done.output
    assert done.output.count("Kmin") >= 3
    assert drawing.read_text(encoding="utf-8").count("<circle") == 2

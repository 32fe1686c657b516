"""`aiordma fabric` from the outside."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from aiordma.cli.main import main
from rocefabric import dcqcn
from rocefabric.command import shared
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


@pytest.mark.parametrize(
    "words",
    [
        ["simulate", str(EXAMPLE), "--seed", str(2**70)],
        ["sweep", str(EXAMPLE), "--seed", str(-(2**70))],
        ["tune", str(EXAMPLE), "--seed", str(2**32)],
        ["discover", str(EXAMPLE), "--rate", "nan"],
        ["discover", str(EXAMPLE), "--length", "nan"],
        ["compare", str(EXAMPLE), "--seconds", "nan"],
    ],
    ids=lambda words: " ".join(words[::2]).replace(str(EXAMPLE), ""),
)
def test_numbers_that_nothing_can_take(words: list[str]) -> None:
    done = CliRunner().invoke(main, ["fabric", *words])
    assert (done.exit_code, f"Invalid value for '{words[2]}'" in done.output) == (2, True), done.output


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


def test_a_network_that_cannot_be_simulated_is_said_in_one_line(tmp_path: Path) -> None:
    """It was the traceback of a process for `tune`."""
    network = tmp_path / "net.toml"
    text = STAR.format(hosts=40, more="").replace('"tor"\n', '"tor"\nbuffer_bytes = 65536\n', 1)
    network.write_text(text, encoding="utf-8")
    how = [str(network), "--model", "endless-1"]
    commands = (["simulate", *how], ["tune", *how, "--trials", "1"], ["sweep", *how, "--set", "pfc.alpha=1"])
    for command in commands:
        done = CliRunner().invoke(main, ["fabric", *command])
        assert done.exit_code == 1, command
        message = "Error: headroom and guarantees do not fit into the buffer of tor: see the plan"
        assert done.output.splitlines()[-1] == message, command
        assert "Traceback" not in done.output, command


def test_every_profile_can_be_chosen() -> None:
    assert set(shared.PROFILES) == {*dcqcn.PROFILES, dcqcn.NONE}


def test_a_search(tmp_path: Path) -> None:
    network, drawing = tmp_path / "net.toml", tmp_path / "front.svg"
    network.write_text(STAR.format(hosts=5, more=""), encoding="utf-8")
    arguments = ["fabric", "tune", str(network), "--model", "incast-2-64k", "--trials", "2"]
    done = CliRunner().invoke(main, [*arguments, "--svg", str(drawing)])
    assert done.exit_code == 0, done.output
    assert done.output.count("Kmin") >= 3
    assert drawing.read_text(encoding="utf-8").count("<circle") == 2


OWN = '[[transfers]]\nsource = "host"\ntarget = "host1"\nbytes = 20000\n'


def test_own_traffic(tmp_path: Path) -> None:
    network, one, other = tmp_path / "net.toml", tmp_path / "one.toml", tmp_path / "other.toml"
    network.write_text(STAR.format(hosts=5, more=""), encoding="utf-8")
    one.write_text(OWN, encoding="utf-8")
    other.write_text(f'name = "nightly"\n{OWN}', encoding="utf-8")
    arguments = ["fabric", "simulate", str(network), "--jobs", "1"]
    done = CliRunner().invoke(main, [*arguments, "--traffic", str(one), "--traffic", str(other)])
    assert done.exit_code == 0, done.output
    rows = [line.split()[0] for line in done.output.splitlines() if "4 of 4" in line]
    assert sorted(rows) == ["nightly", "own"]
    assert "incast" not in done.output
    done = CliRunner().invoke(
        main, [*arguments, "--traffic", str(one), "--model", "incast-2-64k", "--profile", "none"]
    )
    assert done.exit_code == 0, done.output
    assert {"own", "incast-2-64k"} <= {line.split(" ")[0] for line in done.output.splitlines()}
    done = CliRunner().invoke(main, [*arguments, "--traffic", str(one), "--traffic", str(one)])
    assert done.exit_code == 1
    assert f"{one}:1: the name 'own' is that of other traffic" in done.output


def test_own_traffic_is_swept_and_searched(tmp_path: Path) -> None:
    network, own = tmp_path / "net.toml", tmp_path / "own.toml"
    network.write_text(STAR.format(hosts=3, more=""), encoding="utf-8")
    own.write_text(OWN, encoding="utf-8")
    how = [str(network), "--traffic", str(own)]
    done = CliRunner().invoke(main, ["fabric", "sweep", *how, "--set", "pfc.alpha=0.5,1", "--jobs", "1"])
    assert done.exit_code == 0, done.output
    assert done.output.count("own seed 1") == 2
    done = CliRunner().invoke(main, ["fabric", "tune", *how, "--trials", "1"])
    assert done.exit_code == 0, done.output


def test_wrong_traffic_is_named_with_its_line(tmp_path: Path) -> None:
    network, own = tmp_path / "net.toml", tmp_path / "own.toml"
    network.write_text(STAR.format(hosts=3, more=""), encoding="utf-8")
    own.write_text(OWN.replace("host1", "host9"), encoding="utf-8")
    for command in (["simulate"], ["tune"], ["sweep", "--set", "pfc.alpha=1"]):
        done = CliRunner().invoke(main, ["fabric", *command, str(network), "--traffic", str(own)])
        assert done.exit_code == 1
        assert f"{own}:3: there is no host and no group of hosts 'host9'" in done.output

"""`aiordma smcr`, as far as that shows without the privilege to load a program (make test-smc does)."""

from __future__ import annotations

import configparser
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from aiordma.cli.main import main
from aiordma.cli.smcr import setup

if TYPE_CHECKING:
    from click.testing import Result


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["smcr", *arguments])


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the map would be."""
    path = tmp_path / "aiordma-smcr" / "map"
    monkeypatch.setattr(setup, "MAP", path)
    return path


@pytest.mark.usefixtures("place")
def test_a_host_that_is_not_set_up() -> None:
    result = run("status")
    assert result.exit_code == 1
    assert "the host is not set up (aiordma smcr enable, as root)" in result.output


def test_what_is_no_map_is_named(place: Path) -> None:
    place.parent.mkdir()
    place.touch()
    result = run("status")
    assert result.exit_code == 1
    assert str(place) in result.output or "bpf(7)" in result.output  # by what the kernel refuses first
    assert "can use it" not in result.output


def test_twice_is_once(place: Path) -> None:
    place.parent.mkdir()
    place.touch()
    result = run("enable", "--cgroup", "/")
    assert result.exit_code == 1
    assert "the host is set up" in result.output


def test_a_failure_leaves_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def libc(function: str, *_: object) -> None:
        done.append(function)

    monkeypatch.setattr(setup, "_libc", libc)
    result = run("enable", "--cgroup", str(place.parent.parent))  # no directory of a cgroup
    assert result.exit_code == 1
    assert done == ["mount", "umount2"]
    assert not place.parent.exists()


def test_cgroups_need_not_be_mounted(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As under ``ip netns exec``: they are for the moment that it takes."""
    calls: list[tuple[str, object]] = []
    attached: list[str] = []

    class Program:
        def __init__(self, cgroup: str) -> None:
            assert calls[-1] == ("mount", b"cgroup2")
            attached.append(cgroup)

        def keep(self, map_path: str, link_path: str) -> None:
            Path(map_path).touch()

        def close(self) -> None:
            pass

    def libc(function: str, *arguments: object) -> None:
        calls.append((function, arguments[2] if function == "mount" else None))

    def find_cgroup() -> Path:
        raise LookupError("not mounted")

    monkeypatch.setattr(setup, "find_cgroup", find_cgroup)
    monkeypatch.setattr(setup, "_libc", libc)
    monkeypatch.setattr(setup, "SynProgram", Program)
    monkeypatch.setattr(setup, "bounds", lambda: "seen nowhere else")
    result = run("enable")
    assert result.exit_code == 0, result.output
    assert calls == [("mount", b"bpf"), ("mount", b"cgroup2"), ("umount2", None)]
    assert not Path(attached[0]).exists()
    assert "note: seen nowhere else" in result.output


def test_a_group_that_is_none_is_named_before_anything_happens(place: Path) -> None:
    result = run("enable", "--group", "no-such-group")
    assert result.exit_code == 1
    assert "there is no group no-such-group" in result.output
    assert "groupadd --system no-such-group" in result.output
    assert not place.parent.exists()


def test_who_may_use_it_is_said(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(_: str) -> int:
        raise PermissionError

    place.parent.mkdir()
    place.touch()
    monkeypatch.setattr(setup, "open_pinned", closed)
    for number, said in (0, "root alone"), (os.getegid() or 4, "group"):
        monkeypatch.setattr(
            Path, "stat", lambda *_, n=number, **__: SimpleNamespace(st_gid=n, st_mode=0o100660)
        )
        text = run("status").output
        assert f"not open to this user: it is for {'' if not number else 'the '}{said}" in text


@pytest.mark.usefixtures("place")
def test_disable_is_idempotent() -> None:
    for _ in range(2):
        assert run("disable").exit_code == 0


@pytest.mark.parametrize("group", [None, "rdma"])
def test_a_unit_for_each_boot(group: str | None) -> None:
    options = [] if group is None else ["--group", group]
    printed = configparser.ConfigParser()
    printed.optionxform = str  # type: ignore[assignment,method-assign]
    printed.read_string(run("unit", *options).output)
    assert printed["Install"]["WantedBy"] == "multi-user.target"
    service = printed["Service"]
    assert (service["Type"], service["RemainAfterExit"]) == ("oneshot", "yes")
    begin, end = shlex.split(service["ExecStart"]), shlex.split(service["ExecStop"])
    assert begin[-len(options) - 2 :] == ["smcr", "enable", *options]
    assert end[:-2] == begin[: -len(options) - 2] == [sys.executable, "-m", "aiordma"]
    done = subprocess.run([*end[:-2], "smcr", "status"], capture_output=True, text=True, check=False)
    assert "SMC's TCP option" in done.stdout


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    path = tmp_path / "aiordma-smcr.service"
    path.write_text(run("unit", "--group", "rdma").output)
    command = ["systemd-analyze", "verify", "--recursive-errors=no", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")

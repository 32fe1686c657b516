"""`aiordma debug-bundle`: what is in the file, what is not, and that damaged ones are read, too."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import stat
import subprocess
import sys
import tarfile
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
from click.testing import CliRunner, Result

from aiordma.admin import asking
from aiordma.admin.messages import Task, Tasks
from aiordma.admin.report import schema
from aiordma.admin.requests import Inspect
from aiordma.cli.debug_bundle import command
from aiordma.cli.debug_bundle.command import debug_bundle
from tests.admin.looking import ask_one, rows
from tests.loops import LOOPS
from tests.processes import process
from tests.world import DEVICE

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("aiordma._cq", reason="the compiled modules are not built")

ROLE = "tests.admin.roles:connected"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(debug_bundle, arguments, catch_exceptions=False)


def files(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        return {entry.name: tar.extractfile(entry).read() for entry in tar}  # type: ignore[union-attr]


def test_it_has_everything_and_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    monkeypatch.setenv("AIORDMA_WINDOW", "64")
    path = tmp_path / "it.tgz"
    with process(ROLE, device=DEVICE, env={"SECRET_TOKEN": "hunter2"}, keepalive_ms=1234) as other:
        other.hear()
        done = run("-o", str(path), "--pid", str(other.pid))
        assert done.exit_code == 0
        assert done.stdout.endswith(" bytes, 1 event loops\n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["it.tgz"]
    found = files(path)
    folder = next(name for name in found if name.endswith("/inspect.json")).rpartition("/")[0]
    assert set(found) == {
        "aiordma/bundle.json",
        "aiordma/stat.json",
        "aiordma/doctor.json",
        *(f"{folder}/{name}" for name in ("inspect.json", "status", "limits", "wchan", "cgroup")),
    }
    facts = json.loads(found["aiordma/bundle.json"])
    assert (facts["schema"], facts["environment"]) == (
        "aiordma-bundle/1",
        {name: value for name, value in os.environ.items() if name.startswith(("AIORDMA_", "SOFTDEV_"))},
    )
    report = json.loads(found["aiordma/stat.json"])
    jsonschema.validate(report, schema())
    assert len(report["processes"][0]["connections"]) == 4
    inspected = json.loads(found[f"{folder}/inspect.json"])
    assert {row["name"]: row["value"] for row in inspected["settings"]}["keepalive_ms"] == 1234
    assert any("roles.py" in frame for task in inspected["tasks"] for frame in task["frames"])
    everything = b"".join(found.values())
    # Of the environment, and the payload of the streams.
    assert b"hunter2" not in everything
    assert b"hello" not in everything
    shown = run("--read", str(path)).stdout
    for words in (
        "==== stat.json",
        "4 connections, 4 on RDMA",
        "setting keepalive_ms=1234",
        "task ",
        "RDMA works",
    ):
        assert words in shown


@pytest.mark.parametrize("loop", LOOPS)
def test_tasks_show_where_they_wait(loop: str) -> None:
    with process(ROLE, loop, device=DEVICE) as other:
        other.hear()
        found: list[Task] = rows(ask_one(other.pid, Inspect()), Tasks)
    stacks = ["\n".join(task.frames) for task in found]
    (waiting,) = [stack for stack in stacks if "roles.py" in stack and "Control.hear" in stack]
    assert "connected" in waiting.partition("Control.hear")[0]
    assert sum("RdmaStream.receive" in stack for stack in stacks) == 2


def test_of_a_process_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "PATIENCE_S", 0.2)
    monkeypatch.setattr(asking, "_STUCK_S", 0.0)
    monkeypatch.setattr(command, "_PATIENCE_S", 0.2)
    path = tmp_path / "it.tgz"
    with process(ROLE, device=DEVICE) as other:
        other.hear()
        other.say("sleep")
        assert other.hear() == "asleep"
        assert run("-o", str(path), "--pid", str(other.pid), "--no-doctor").exit_code == 0
        other.say("wake up")
        assert other.hear() == "awake"
    (inspected,) = [json.loads(data) for name, data in files(path).items() if name.endswith("/inspect.json")]
    assert (inspected["state"], inspected["tasks"]) == ("stuck", [])
    assert "STUCK: its event loop" in run("--read", str(path)).stdout


def test_without_a_process(tmp_path: Path) -> None:
    path = tmp_path / "it.tgz"
    done = run("-o", str(path), "--pid", "1", "--no-doctor")
    assert (done.exit_code, set(files(path))) == (1, {"aiordma/bundle.json", "aiordma/stat.json"})
    nowhere = run("-o", str(tmp_path / "missing" / "it.tgz"), "--pid", "1", "--no-doctor")
    assert (nowhere.exit_code, "cannot write" in nowhere.stderr) == (1, True)


def _bundle(path: Path, contents: dict[str, Any]) -> None:
    with tarfile.open(path, "w:gz") as tar:
        for name, data in contents.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))


def test_files_of_others_are_printed_safely(tmp_path: Path) -> None:
    path = tmp_path / "it.tgz"
    _bundle(
        path,
        {
            "../../x\x1b[2J": b"\x1b]0;title\x07\n",
            "aiordma/stat.json": b"{}",
            "aiordma/p/inspect.json": b'{"state": 1}',
            "aiordma/doctor.json": b"\xff\xfe",
        },
    )
    done = run("--read", str(path))
    assert done.exit_code == 0
    assert "\x1b" not in done.stdout
    assert done.stdout.count("it is damaged: ") == 2
    path.write_bytes(path.read_bytes()[:60])
    broken = run("--read", str(path))
    assert (broken.exit_code, "cannot be read" in broken.stderr) == (1, True)
    path.write_bytes(b"no archive")
    assert "cannot be read" in run("--read", str(path)).stderr


DAMAGED = {
    "p/inspect.json": b"[" * 200_000,
    "q/inspect.json": json.dumps(
        {"state": "a", "text": "b", "settings": [], "tasks": [], "calls": [{"stages_us": [1]}]}
    ).encode(),
    "stat.json": b'{"processes":' + b"[" * 200_000,
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_in_a_bundle(name: str, tmp_path: Path) -> None:
    path = tmp_path / "it.tgz"
    _bundle(path, {f"aiordma/{name}": DAMAGED[name], "aiordma/doctor.json": b"the rest"})
    done = run("--read", str(path))
    assert (done.exit_code, done.stdout.count("it is damaged: ")) == (0, 1)
    assert "the rest" in done.stdout


def test_damage_anywhere_in_an_archive(tmp_path: Path) -> None:
    path = tmp_path / "it.tgz"
    _bundle(path, {"aiordma/doctor.json": random.Random(1).randbytes(3000).hex().encode()})
    whole = path.read_bytes()
    for at in range(10, len(whole), 97):
        damaged = bytearray(whole)
        damaged[at] ^= 0x55
        path.write_bytes(damaged)
        assert run("--read", str(path)).exit_code in (0, 1)


@pytest.mark.parametrize("way", ["a pipe", "a file"])
def test_a_bundle_in_stdout_is_an_archive_and_nothing_else(way: str, tmp_path: Path) -> None:
    path = tmp_path / "it.tgz"
    command = [
        sys.executable,
        "-m",
        "aiordma",
        "debug-bundle",
        "--no-doctor",
        "--pid",
        "1",
        "-o",
        "/dev/stdout",
    ]
    with path.open("wb") as file:
        done = subprocess.run(
            command, stdout=subprocess.PIPE if way == "a pipe" else file, stderr=subprocess.PIPE, check=False
        )
    data = done.stdout or path.read_bytes()
    assert b" event loops\n" in done.stderr
    with gzip.open(io.BytesIO(data)) as unpacked:  # complains about what is behind it
        unpacked.read()

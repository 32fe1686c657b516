"""`tests/vm/run` with several commands: none hides how another ended. A program stands in for QEMU."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .tree import ROOT

pytestmark = pytest.mark.skipif(
    not shutil.which("cpio"), reason="cpio is not installed: `make test-vm` does it"
)

# It gets the commands as the guest's first process does. The status 77 stands for a kernel that dies.
QEMU = """
import os, pathlib, subprocess, sys
here = pathlib.Path(__file__).parent
(here / "boots").open("a").write("boot\\n")
ports = {}
for word in sys.argv:
    if word.startswith("file,id="):
        fields = dict(field.split("=") for field in word.split(",")[1:])
        ports[fields["id"]] = fields["path"]
initramfs = sys.argv[sys.argv.index("-initrd") + 1]
guest = here / "guest"
guest.mkdir(exist_ok=True)
unpack = f"rm -rf job && cpio -i --quiet <{initramfs}"
subprocess.run(unpack, shell=True, cwd=guest, check=True)
with open(ports["out"], "w") as out, open(ports["err"], "w") as err, open(ports["status"], "w") as status:
    print("up", file=status, flush=True)
    for job in sorted((guest / "job").glob("[0-9]*")):
        text = (job / "command").read_text().replace("/run/tmp", str(guest / "tmp"))
        command = ["setpriv", "--pdeathsig", "KILL", "bash", "-c", text]
        done = subprocess.run(command, stdout=out, stderr=err, stdin=subprocess.DEVNULL)
        if done.returncode == 77:
            sys.exit("the kernel died")
        print(done.returncode, file=status, flush=True)
"""


@pytest.fixture
def run(tmp_path: Path) -> list[str]:
    """How to start it, with a kernel that is up to date."""
    programs = tmp_path / "bin"
    kernel = tmp_path / "kernel"
    programs.mkdir()
    kernel.mkdir()
    (programs / "qemu.py").write_text(QEMU)
    for name, text in {
        "qemu-system-x86_64": f'exec {sys.executable} {programs}/qemu.py "$@"',
        "busybox": "exit 1",
    }.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    (kernel / "version").write_text("6.0")
    (kernel / "vmlinux").write_text("a kernel")
    (kernel / "initramfs.cpio").write_text("what cpio skips")
    settings = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "AIORDMA_VM_KERNEL": str(kernel),
        "TMPDIR": str(tmp_path),
    }
    return ["env", *(f"{name}={value}" for name, value in settings.items()), f"{ROOT}/tests/vm/run"]


def result(command: list[str]) -> tuple[int, list[str], str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.splitlines(), done.stderr


def verdicts(printed: list[str]) -> dict[str, str]:
    rows = [re.fullmatch(r"=== (\S+) +(.*) in \d+:\d\d, processor time \d+:\d\d", line) for line in printed]
    return {row[1]: row[2] for row in rows if row}


def boots(tmp_path: Path) -> int:
    return len((tmp_path / "bin" / "boots").read_text().splitlines())


def test_one_command_has_its_output_and_status_alone(run: list[str]) -> None:
    status, printed, errors = result(
        [*run, "--env", "WORD=two words", "--", "sh", "-c", 'echo "$WORD"; echo no >&2; exit 3']
    )
    assert (status, printed, errors) == (3, ["two words"], "no\n")


def test_each_command_has_settings_and_a_verdict_of_its_own(run: list[str], tmp_path: Path) -> None:
    first = ["--name", "first", "--env", "WORD=a", "--", "sh", "-c", "echo $WORD; exit 4"]
    second = ["--then", "--name", "second", "--", "sh", "-c", 'echo "no ${WORD:-word}"; exit 5']
    third = ["--then", "--name", "third", "--net", "wire", "true"]
    status, printed, _ = result([*run, *first, *second, *third])
    assert status == 4
    assert printed[:5] == ["== first", "a", "== second", "no word", "== third"]
    assert verdicts(printed) == {"first": "FAILED (4)", "second": "FAILED (5)", "third": "done"}
    assert boots(tmp_path) == 1


def test_the_others_get_another_machine(run: list[str], tmp_path: Path) -> None:
    """One command's machine dies, the next command hangs."""
    dies = ["--name", "dies", "--", "sh", "-c", "echo so far; exit 77"]
    hangs = ["--then", "--name", "hangs", "--timeout", "2", "--", "sleep", "1000"]
    last = ["--then", "--name", "last", "--", "echo", "here"]
    status, printed, errors = result([*run, *dies, *hangs, *last])
    assert status == 125
    assert verdicts(printed) == {"dies": "FAILED (125)", "hangs": "FAILED (124)", "last": "done"}
    assert {"so far", "here"} <= set(printed)
    assert "the kernel died" in errors
    assert "the time limit of 2 s was reached" in errors
    assert boots(tmp_path) == 3


def test_no_command_follows_a_network_that_cannot_be_taken_back(run: list[str], tmp_path: Path) -> None:
    status, printed, errors = result([*run, "--net", "wire", "true", "--then", "true"])
    assert (status, printed) == (125, [])
    assert "must be the last" in errors
    assert list(tmp_path.glob("aiordma-vm.*")) == []

"""The software device stands by itself: it names nothing of aiordma, and a user of C can install it alone.

Its doors are the verbs ABI and one header. What users read of it (header, manual, README, changelog) agrees
with what the library does.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from .tree import ROOT, tracked_files

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

SOFTDEV = ROOT / "softdev"
#: Files that name aiordma, each with its reason. There should be no other.
NAMES_IT = {"softdev/src/base/names.h": "names of sockets by which processes of older builds are met"}
OTHERS = re.compile(rb"aiordma|\baio_", re.IGNORECASE)


def naming(files: Iterable[Path], root: Path) -> set[str]:
    """Files whose name or content names what the device must not know."""
    found = set()
    for path in files:
        name = str(path.relative_to(root))
        if OTHERS.search(name.encode()) or OTHERS.search(path.read_bytes()):
            found.add(name)
    return found


def read(name: str) -> str:
    return (SOFTDEV / name).read_text(encoding="utf-8")


def test_nothing_of_aiordma_is_named() -> None:
    files = [path for path in tracked_files() if path.is_relative_to(SOFTDEV)]
    assert len(files) > 400
    assert naming(files, ROOT) == set(NAMES_IT)


def test_the_names_that_stay_are_no_others() -> None:
    code = re.sub(r"/\*.*?\*/", "", read("src/base/names.h"), flags=re.DOTALL)
    assert re.findall(r'"(.*)"', code) == ["aiordma", "aiordma-soft", "aiordma-cm", "aiordma-wire"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("src/core/proc.c", "/* as aiordma does */\n"),
        ("src/core/proc.c", 'getenv("AIORDMA_DEVICE");\n'),
        ("README.md", "part of AIORDMA\n"),
        ("tests/core/aiordma.c", "\n"),
        ("src/base/copy.h", "aio_copy(to, from, n);\n"),
    ],
)
def test_a_planted_name_is_found(tmp_path: Path, name: str, text: str) -> None:
    planted = tmp_path / name
    planted.parent.mkdir(parents=True, exist_ok=True)
    planted.write_text(text)
    (tmp_path / "fine.c").write_text("/* radio_wave, softdev */\n")
    assert naming(tmp_path.rglob("*.*"), tmp_path) == {name}


# ---- what users read


def settings_read() -> set[str]:
    sources = [
        path.read_text(encoding="utf-8")
        for folder in ("src", "present", "trace")
        for path in (SOFTDEV / folder).rglob("*.c")
    ]
    return {name for text in sources for name in re.findall(r'(?:getenv|read_one)\("(SOFTDEV_\w+)"', text)}


def test_the_manual_and_the_readme_have_every_setting() -> None:
    settings = settings_read()
    assert {"SOFTDEV_WIRE", "SOFTDEV_DEVICE", "SOFTDEV_DSCP"} <= settings
    entries = re.findall(r"^\.TP\n\.BR (SOFTDEV_\w+) = ", read("man/softdev.7"), re.MULTILINE)
    assert set(entries) == settings
    rows = [line for line in read("README.md").splitlines() if line.startswith("| `SOFTDEV_")]
    assert {name for row in rows for name in re.findall(r"`(SOFTDEV_\w+)`", row)} == settings


def test_the_manual_has_every_function() -> None:
    header = re.sub(r"/\*.*?\*/", "", read("include/softdev.h"), flags=re.DOTALL)
    functions = set(re.findall(r"\b(softdev_\w+)\(", header))
    assert {"softdev_version", "softdev_choose", "softdev_alloc"} <= functions
    assert set(re.findall(r"\bsoftdev_\w+", read("man/softdev.7"))) == functions


#: The argument that names a finding; names that are returned or chosen before have a hyphen, or a variable.
FINDING = re.compile(
    r'\bfound\(to, s, "([a-z-]+)"|(?:\bname =|\breturn) "([a-z-]+)"|[?:]\s+"([a-z]+-[a-z-]+)"'
)


def test_the_manual_has_every_finding() -> None:
    rules = [path.read_text(encoding="utf-8") for path in (SOFTDEV / "trace/explain").glob("rules_*.c")]
    names = {name for text in rules for match in FINDING.findall(text) for name in match if name}
    assert {"wrong-rkey", "wrong-lkey", "not-rearmed", "no-such-peer", "length", "unacknowledged"} <= names
    section = read("man/softdev.7").partition("Each finding has a weight")[2].partition(".PP")[0]
    entries = "".join(line for line in section.splitlines(True) if line.startswith(".BR"))
    assert {name.replace("\\", "") for name in re.findall(r"[a-z]+(?:\\-[a-z]+)*", entries)} == names


def test_there_is_one_version() -> None:
    header = read("include/softdev.h")
    version = ".".join(re.findall(r"^#define SOFTDEV_VERSION_\w+ (\d+)$", header, re.MULTILINE))
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    heading = re.search(r"^## (\S+)", read("CHANGELOG.md"), re.MULTILINE)
    assert heading is not None
    assert heading[1] == version
    assert f'"softdev {version}"' in read("man/softdev.7")


def test_both_copies_of_copying_are_one() -> None:
    """The device and aiordma's Cython modules copy payload alike, and have no file in common."""

    def code(path: Path, name: str) -> str:
        text = path.read_text(encoding="utf-8")
        return text.partition("#ifndef")[2].replace(name, "NAME").replace(name.upper(), "NAME")

    ours = code(ROOT / "aiordma" / "verbs" / "_copy.h", "aio_copy")
    assert ours.count("NAME") > 10
    assert code(SOFTDEV / "src" / "base" / "copy.h", "soft_copy") == ours


# ---- without Python

PROGRAM = """
#include <infiniband/verbs.h>
#include <softdev.h>
#include <stdio.h>

int main(void)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_context *context = list && list[0] ? ibv_open_device(list[0]) : NULL;

    printf("%d %d\\n", context && softdev_is(context), softdev_version() == SOFTDEV_VERSION);
    return 0;
}
"""


LOADS_BY_NAME = """
import ctypes
verbs = ctypes.CDLL("libibverbs.so.1")
verbs.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
verbs.ibv_get_device_name.restype = verbs.ibv_wc_status_str.restype = ctypes.c_char_p
devices = verbs.ibv_get_device_list(None)
last = next(device for n, device in enumerate(devices) if not devices[n + 1])
print(verbs.ibv_get_device_name(ctypes.c_void_p(last)).decode(), verbs.ibv_wc_status_str(0).decode())
"""
"""The second is the real library's."""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.xdist_group("packaging")
def test_a_user_of_c_installs_it_and_uses_it(tmp_path: Path) -> None:
    prefix = tmp_path / "prefix"

    def run(*command: str | Path, **environment: str) -> str:
        done = subprocess.run(
            command, cwd=tmp_path, env=os.environ | environment, text=True, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
        return done.stdout

    # What is optimized is in the wheel, whose tests run it.
    where = f"PREFIX={prefix}", f"BUILD={tmp_path / 'build'}"
    run("make", "-C", SOFTDEV, "install", *where, "WHOLE=OFF", "OPTIMIZE=-O0")
    installed = {str(path.relative_to(prefix)) for path in prefix.rglob("*") if path.is_file()}
    library = "lib/libsoftdev.so"
    beside = {"include/softdev.h", "lib/pkgconfig/softdev.pc", "share/man/man7/softdev.7"}
    stand_ins = {
        f"lib/softdev/lib{name}{real}.so.1" for name in ("ibverbs", "rdmacm") for real in ("", "-real")
    }
    recorder = {"lib/softdev/libsoftdev-trace.so", "lib/softdev/softdev-trace"}
    presence = {"lib/softdev/libsoftdev-present.so", "lib/softdev/softdev-tree"}
    commands = {"bin/softdev", "lib/softdev/softdev-fault"}
    assert installed == beside | stand_ins | recorder | presence | commands | {library}
    assert "soft0" in run("ibv_devices", LD_PRELOAD=str(prefix / library))

    dropin = run(prefix / "bin/softdev", "dir", tmp_path / "a directory").strip()
    assert "soft0" in run("ibv_devices", LD_LIBRARY_PATH=dropin)
    said = run(prefix / "bin/softdev", "trace", "-o", tmp_path / "recordings", "ibv_devinfo", "-d", "soft0")
    assert "Nothing went wrong" in said
    assert "soft0" in run(prefix / "bin/softdev", "present", "ls", "/sys/class/infiniband")
    assert "softdev fault 4711 port=down for=2s" in run(prefix / "bin/softdev", "fault", "--help")
    real = run(sys.executable, "-c", LOADS_BY_NAME, LD_LIBRARY_PATH=dropin).split()
    assert real == ["soft0", "success"]

    (tmp_path / "program.c").write_text(PROGRAM)
    flags = run("pkg-config", "--cflags", "--libs", "softdev", PKG_CONFIG_PATH=str(prefix / "lib/pkgconfig"))
    run("cc", "-o", "program", "program.c", *flags.split(), "-libverbs")
    only = {"LD_LIBRARY_PATH": str(prefix / "lib"), "SOFTDEV_DEVICE": "soft"}
    assert run("./program", **only).splitlines()[-1] == "1 1"

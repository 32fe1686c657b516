"""The limit of memory of this process's cgroup, as both versions state it, and what a Config makes of it."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from aiordma.cgroup import memory_limit
from tests.cgroup import little_memory

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20
GIB = 1 << 30
#: Where version 1 has no limit.
NONE = 2**63 - 4096


def tree(root: Path, membership: str, files: dict[str, str]) -> int | None:
    (root / "membership").write_text(membership)
    for name, text in files.items():
        path = root / "mount" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return memory_limit(str(root / "membership"), str(root / "mount"))


@pytest.mark.parametrize(
    ("membership", "files", "limit"),
    [
        pytest.param("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": "max\n"}, None, id="no limit"),
        pytest.param("0::/a/b\n", {"a/b/memory.max": "7000000\n"}, 7_000_000, id="its own"),
        pytest.param(
            "0::/a/b\n", {"a/b/memory.max": "9000000", "a/memory.max": "8000000"}, 8_000_000, id="around it"
        ),
        pytest.param("0::/\n", {"memory.max": "5000000\n"}, 5_000_000, id="a container's namespace"),
        pytest.param("0::/../b\n", {"b/memory.max": "5000000\n"}, 5_000_000, id="beside the namespace"),
        pytest.param("0::/docker/1\n", {"memory.max": "5000000\n"}, 5_000_000, id="a container's mount"),
        pytest.param(
            "9:cpu,cpuacct:/c\n4:memory:/a\n0::/\n",
            {"memory/a/memory.limit_in_bytes": "6000000", "memory/memory.limit_in_bytes": f"{NONE}"},
            6_000_000,
            id="version 1",
        ),
        pytest.param(
            "4:memory:/a\n", {"memory/memory.limit_in_bytes": f"{NONE}"}, None, id="version 1, none"
        ),
        pytest.param("0::/a\nnothing\n", {"a/memory.max": "many", "memory.max": "-1"}, None, id="no number"),
        pytest.param("", {}, None, id="no cgroup"),
    ],
)
def test_limits(tmp_path: Path, membership: str, files: dict[str, str], limit: int | None) -> None:
    assert tree(tmp_path, membership, files) == limit


def test_no_proc(tmp_path: Path) -> None:
    assert memory_limit(str(tmp_path / "none"), str(tmp_path)) is None


@pytest.mark.parametrize(("limit", "expected"), [(200 * MIB, 100 * MIB), (64 * GIB, 2 * GIB)])
def test_the_default_of_a_process_in_a_cgroup(limit: int, expected: int) -> None:
    program = (
        "import sys; open(sys.argv[1], 'w').write('0'); from aiordma import Config; "
        "print(Config().memory_limit_bytes, Config.from_env().memory_limit_bytes, "
        "Config(memory_limit_bytes=1 << 40).memory_limit_bytes)"
    )
    with little_memory() as cgroup:
        cgroup.limit(limit)
        answer = subprocess.run(
            [sys.executable, "-c", program, str(cgroup.path / "cgroup.procs")],
            capture_output=True,
            text=True,
            check=True,
        )
    assert answer.stdout.split() == [str(expected)] * 2 + [str(1 << 40)]

"""/dev/shm is full, or becomes so, which any user can bring about: nobody is killed by a signal for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.processes import FULL_PATIENCE
from tests.softdev.conftest import library  # noqa: F401  # a fixture
from tests.tools import listening, run_pair

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

#: As on a host that has no directories of users: they would be taken instead of /dev/shm. $2 is the one in
#: which the admin socket may be as well.
MOUNTS = """
[ ! -d /run/user ] || mount -t tmpfs -o ro none /run/user || exit 77
mount -t tmpfs -o size=$1 none /dev/shm && mount -t tmpfs -o size=$2 none /tmp || exit 77
shift 2
exec "$@"
"""
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "XDG_RUNTIME_DIR"}
WARNING = "aiordma stat will not see this process: "


def inside(shm: str, tmp: str) -> list[str]:
    """A command in front of another one, which has a /dev/shm and a /tmp of these sizes then."""
    unshare = shutil.which("unshare")
    if (
        unshare is None
        or subprocess.run([unshare, "-m", "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("this user cannot make a mount namespace")
    return [unshare, "-m", "sh", "-c", MOUNTS, "sh", shm, tmp]


@pytest.mark.parametrize("tmp", ["0", "4k"], ids=["room in tmp", "no room at all"])
@pytest.mark.parametrize("size", ["64k", "1m"])
@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_every_part_works(size: str, when: str, tmp: str) -> None:
    fill = ["sh", "-c", 'head -c 4096 /dev/zero >/tmp/filled; exec "$@"', "sh"] if tmp == "4k" else []
    program = [sys.executable, "-m", "tests.system.adversity.full_shm", when]
    command = [*inside(size, tmp), *fill, *program]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=FULL_PATIENCE, env=ENVIRONMENT, check=False
    )
    assert done.returncode == 0, done.stderr
    nowhere = when == "before" and tmp == "4k"
    assert done.stdout == f"rdma {'not seen' if nowhere else 'seen'}\n"
    assert done.stderr.count(WARNING) == nowhere, done.stderr


def test_programs_in_c(library: Path) -> None:  # noqa: F811
    around = [*inside("64k", "64k"), "sh", "-c", 'head -c 65536 /dev/zero >/dev/shm/x; exec "$@"', "sh"]
    server = ["ibv_rc_pingpong", "-p", "18533", "-d", "soft0", "-g", "0", "-c"]
    run_pair(
        [*around, *server],
        [*around, *server, "127.0.0.1"],
        environ={**ENVIRONMENT, "LD_PRELOAD": str(library)},
        ready=lambda pid: listening(pid, 18533),
        limit=FULL_PATIENCE,
    )

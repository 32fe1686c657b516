"""The kernel's SMC-R as the peer, in a machine with rxe: ``make test-smc``."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aiordma.cli.smcr import setup
from aiordma.config import Config
from aiordma.negotiation.smc_map import PINNED_AT
from aiordma.negotiation.sockops import SynOptions, open_pinned
from tests.processes import FULL_PATIENCE

from .ends import EID, HERE, KERNEL, THERE, THERE_COMMAND

if TYPE_CHECKING:
    from collections.abc import Iterator

# They set an enterprise id and attach a program to all sockets of the machine they run in.
if os.environ.get("AIORDMA_VM") != "smc":
    collect_ignore_glob = ["test_*.py"]

_CGROUP = "/run/aiordma-cgroup2"
_COMPLAINTS = re.compile(r"BUG:|WARNING:|Oops|hung_task|blocked for more|soft lockup|rcu.*stall|refcount_t")


@pytest.fixture(scope="session")
def cgroup() -> Iterator[Path]:
    """Cgroup version 2, and an enterprise id in the namespace of the kernel's sockets."""
    prepare = "from benchmarks.smc_socket import allow_v2, name_networks; allow_v2()"
    if KERNEL < (6, 12):
        prepare += "; name_networks()"
    subprocess.run([*THERE_COMMAND, sys.executable, "-c", prepare], check=True)
    if not THERE_COMMAND:
        # Both ends are of this host: connections of programs that name no source would go over its loopback.
        for own, other in (HERE, THERE), (THERE, HERE):
            route = ["ip", "route", "replace", "local", own, "dev", "lo", "table", "local", "src", other]
            subprocess.run(route, check=True)
    os.makedirs(_CGROUP, exist_ok=True)
    subprocess.run(["mount", "-t", "cgroup2", "none", _CGROUP], check=True)
    yield Path(_CGROUP)
    subprocess.run(["umount", _CGROUP], check=True)


@pytest.fixture(scope="module")
def syn_options(cgroup: Path) -> Iterator[SynOptions]:
    """The set-up of the host."""
    setup.enable(cgroup, "nogroup")
    fd = open_pinned(PINNED_AT)
    yield SynOptions(fd)
    os.close(fd)
    setup.disable()
    assert not os.path.lexists(PINNED_AT)


@pytest.fixture
def config(syn_options: SynOptions) -> Config:
    return Config.from_env(smcr=f"fd:{syn_options.map_fd}", smcr_eids=EID, soft_wire="auto")


@pytest.fixture(autouse=True)
def kernel() -> Iterator[None]:
    """It has nothing to complain of, and no process hangs in it."""
    with open("/dev/kmsg", "rb", buffering=0, opener=_without_waiting) as log:
        log.seek(0, os.SEEK_END)
        yield
        until = time.monotonic() + FULL_PATIENCE
        while stuck := _stuck():
            assert time.monotonic() < until, f"in D state: {stuck}"
            time.sleep(0.1)  # the kernel says nothing when it is over
        said = []
        while (record := log.read(8192)) is not None:
            said.append(record.decode(errors="replace"))
        assert [line for line in said if _COMPLAINTS.search(line)] == []


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _stuck() -> list[str]:
    """Processes that nothing can end, but the kernel's own."""
    found = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            name, _, fields = place.read_text(encoding="utf-8", errors="replace").rpartition(")")
            state, parent = fields.split()[:2]
            if state == "D" and parent != "2":
                found.append(name)
    return found

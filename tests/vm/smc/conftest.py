"""The kernel's SMC-R as the peer, in a machine with rxe: ``make test-smc``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aiordma.cli.smcr import setup
from aiordma.negotiation.smc_place import PINNED_AT
from aiordma.negotiation.sockops import SynOptions, open_pinned

if TYPE_CHECKING:
    from collections.abc import Iterator

# They set an enterprise id and attach a program to all sockets of the machine they run in.
if os.environ.get("AIORDMA_VM") != "smc":
    collect_ignore_glob = ["test_*.py"]

_CGROUP = "/run/aiordma-cgroup2"


@pytest.fixture(scope="session")
def syn_options() -> Iterator[SynOptions]:
    # In the namespace of the kernel's sockets, if that is another one.
    allow = "from benchmarks.smc_socket import allow_v2; allow_v2()"
    subprocess.run(
        [*os.environ.get("AIORDMA_VM_SMC_THERE", "").split(), sys.executable, "-c", allow], check=True
    )
    os.makedirs(_CGROUP, exist_ok=True)
    subprocess.run(["mount", "-t", "cgroup2", "none", _CGROUP], check=True)
    setup.enable(Path(_CGROUP), "nogroup")
    fd = open_pinned(PINNED_AT)
    yield SynOptions(fd)
    os.close(fd)
    setup.disable()
    assert not os.path.lexists(PINNED_AT)
    subprocess.run(["umount", _CGROUP], check=True)

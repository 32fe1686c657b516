"""What a report consists of: a command each, whose output is a file, whether or not it succeeds."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: The tests that also run on the kernel's rxe, and what runs there by hand.
SUITE = "@tests/vm/suite.txt tests/memory"
BENCHMARK = (
    "--rounds 3 --workloads roundtrip,load,throughput,calls"
    " --peers stream-*,writer-*,tcp-uvloop,rpc-bare-*,msgpack-uvloop"
)
#: Where `python -m benchmarks` leaves its rounds.
RESULTS = Path("benchmarks/results/partial.json")


@dataclass(frozen=True)
class Step:
    name: str
    what: str
    command: Sequence[str | Path]
    environment: dict[str, str]
    brings: Path | None = None
    """A file that it leaves in the tree, to be sent, too."""


def steps(device: str, suite: str, benchmark: str) -> Iterator[Step]:
    python = sys.executable
    on = {"AIORDMA_DEVICE": device}
    yield Step(
        "machine", "kernel, processor, cards", ["sh", "-c", "uname -a; lscpu; lspci -nn; ip -br link"], {}
    )
    yield Step("device", "its attributes", ["ibv_devinfo", "-v", "-d", device], {})
    yield Step("doctor", "aiordma doctor", [python, "-m", "aiordma", "doctor"], on)
    yield Step(
        "tests",
        "the tests for kernel devices",
        [python, "-m", "pytest", "-p", "no:cacheprovider", "-q", "--durations", "20", *shlex.split(suite)],
        {"AIORDMA_TEST_DEVICE": device, "AIORDMA_TEST_SLOWER": "3"},
    )
    yield Step(
        "benchmark",
        "both ends on the card, beside TCP over loopback",
        [python, "-m", "benchmarks", "--device", device, *shlex.split(benchmark)],
        {},
        RESULTS,
    )
    # Of RDMA only: the rest is nobody's business.
    said = (
        "dmesg --ctime | grep -iE 'rdma|infiniband|roce|iwarp|_ib|ib_|mlx|irdma|bnxt|rxe|siw|efa' | tail -200"
    )
    yield Step("after", "what the kernel said", ["sh", "-c", said], {})


def run(step: Step, folder: Path, root: Path, limit: float) -> str:
    """Run it. Its output goes to a file of its name; the sentence says how it ended."""
    if shutil.which(step.command[0]) is None:
        return f"left out: there is no {step.command[0]} here"
    with (folder / f"{step.name}.txt").open("w", encoding="utf-8") as output:
        try:
            code = subprocess.run(
                step.command,
                cwd=root,
                env=os.environ | step.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=limit,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            return f"had not ended after {limit:.0f} s"
    if step.brings is not None and (root / step.brings).exists():
        shutil.copy(root / step.brings, folder)
    return "ended well" if code == 0 else f"ended with status {code}, see {step.name}.txt"

"""What two processes on two CPUs need at least, in C: `python -m benchmarks.floor`.

A message of 64 bytes there and back through shared memory, both awake; the same by what the kernel has to
wake a process, asleep; and copies of 1 MiB, one by a process alone, and two through a ring by two processes
at the same time. No transport with an event loop, objects or a protocol is faster. Needs a quiet machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
from pathlib import Path

from .machine import describe
from .markdown import table

SOURCE = Path(__file__).with_suffix(".c")

#: What the program prints: its name, and how many digits its number has in the table.
TITLES = {
    "awake": ("64 B there and back through shared memory, both awake", "ns", ".0f"),
    "eventfd": ("there and back by an eventfd each way: read(), write()", "ns", ",.0f"),
    "eventfd_epoll": ("the same with epoll_wait() before read()", "ns", ",.0f"),
    "unix": ("64 B there and back by a Unix socket: read(), write()", "ns", ",.0f"),
    "unix_epoll": ("the same with epoll_wait() before read()", "ns", ",.0f"),
    "one_copy": ("one memcpy of 1 MiB again and again", "GB/s", ".1f"),
    "two_copies": ("into a ring of 512 KiB and out of it, by two processes", "GB/s", ".1f"),
}


def compiled(folder: str) -> Path:
    """The program. Raises OSError or CalledProcessError: there is no compiler, or it refuses."""
    program = Path(folder) / "floor"
    subprocess.run([os.environ.get("CC", "cc"), "-O2", "-o", program, SOURCE], check=True)
    return program


def once(program: Path, seconds: float) -> dict[str, float]:
    """One run, on the first and the last CPU. Raises CalledProcessError."""
    cpus = sorted(os.sched_getaffinity(0))
    command = [str(program), str(cpus[0]), str(cpus[-1]), str(seconds)]
    out = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return {name: float(value) for name, value in (line.split() for line in out.splitlines())}


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.floor", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3, help="of each number")
    options = parser.parse_args()
    machine = describe()
    with tempfile.TemporaryDirectory() as folder:
        program = compiled(folder)
        runs = [once(program, options.seconds) for _ in range(options.rounds)]
    rows = []
    for name, (title, unit, form) in TITLES.items():
        found = sorted(run[name] for run in runs)
        middle, low, high = (format(value, form) for value in (statistics.median(found), found[0], found[-1]))
        rows.append([title, f"{middle} {unit} [{low}-{high}]"])
    print(f"{machine['cpu']}, kernel {machine['kernel']}, load before: {machine['load_before']:.1f}\n")
    print(table(["", "median of the rounds [least-most]"], rows))


if __name__ == "__main__":
    main()

"""What a process has done so far, read from outside: CPU time, switches, system calls, counts of its engines.

Counts say more than times on a machine that does other work, too: noise does not move them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator


class EngineCounts(NamedTuple):
    """Of all engines of a process."""

    completions: int = 0
    polls: int = 0
    empty_polls: int = 0
    #: wake-ups: events read from the completion channel
    events: int = 0
    arms: int = 0
    #: busy polls, and those that found what they waited for
    busy_polls: int = 0
    busy_poll_hits: int = 0

    def __sub__(self, other: EngineCounts) -> EngineCounts:
        return EngineCounts(*(mine - its for mine, its in zip(self, other, strict=True)))


def read_engines(pid: int) -> EngineCounts:
    """What `aiordma stat --totals` shows; zeroes for a process without an engine."""
    aiordma = [sys.executable, "-m", "aiordma", "stat", "--totals", "--json", "--absolute"]
    done = subprocess.run([*aiordma, "--pid", str(pid)], capture_output=True, text=True, check=False)
    total = EngineCounts()
    if not done.stdout:
        return total
    for process in json.loads(done.stdout)["processes"]:
        for engine in (process["totals"] or {}).get("engines", ()):
            one = EngineCounts(*(engine[name] for name in EngineCounts._fields))
            total = EngineCounts(*(a + b for a, b in zip(total, one, strict=True)))
    return total


@contextlib.contextmanager
def system_calls(pids: dict[str, int]) -> Iterator[dict[str, int]]:
    """Count the system calls of processes while the block runs, by role; filled in at its end.

    perf counts them in the kernel, which slows a process by a tenth of a microsecond for each; strace stops
    it at each, and that changes the batches.

    Raises OSError: perf is missing, or may not count them (it needs root, and tracefs).
    """
    counted: dict[str, int] = {}
    counters = {role: _Counter(pid) for role, pid in pids.items()}
    try:
        for counter in counters.values():
            counter.begin()
        yield counted
    finally:
        counted.update({role: counter.end() for role, counter in counters.items()})


class _Counter:
    """`perf stat` on one process."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        orders, self._orders = os.pipe()
        self._acks, acks = os.pipe()
        what = [
            "-e",
            "raw_syscalls:sys_enter",
            "-p",
            str(pid),
            "-D",
            "-1",
            "--control",
            f"fd:{orders},{acks}",
        ]
        self._perf = subprocess.Popen(
            ["perf", "stat", "-x", ",", *what],
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=(orders, acks),
        )
        os.close(orders)
        os.close(acks)

    def begin(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(self._orders, b"enable\n")
        if not os.read(self._acks, 16).startswith(b"ack"):
            said = self._perf.communicate()[1].strip()
            raise OSError(f"perf cannot count the system calls of process {self._pid}: {said}")

    def end(self) -> int:
        self._perf.send_signal(signal.SIGINT)
        said = self._perf.communicate()[1]
        os.close(self._orders)
        os.close(self._acks)
        return parse_count(said)


def parse_count(text: str) -> int:
    """The count in what `perf stat -x ,` prints; 0 if there is none."""
    found = re.search(r"^(\d+),,raw_syscalls:sys_enter,", text, re.MULTILINE)
    return int(found[1]) if found else 0

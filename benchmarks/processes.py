"""What a process has used so far, read from outside.

Counts say more than times on a machine that does other work, too: noise does not move them.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import NamedTuple


class Reading(NamedTuple):
    """Of all threads of a process since it began."""

    #: of a thread that runs: as of its last tick, some milliseconds ago
    cpu_us: float
    #: microseconds in which it could have run, and no CPU was free
    delay_us: float
    #: switches because it waited
    waits: int

    def __sub__(self, other: Reading) -> Reading:
        return Reading(self.cpu_us - other.cpu_us, self.delay_us - other.delay_us, self.waits - other.waits)


def read_process(pid: int) -> Reading:
    """Raises OSError: it has ended."""
    cpu_ns = delay_ns = waits = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # this thread has just ended
            on_cpu, delayed, _ = (task / "schedstat").read_text(encoding="ascii").split()
            status = (task / "status").read_text(encoding="utf-8")
            cpu_ns += int(on_cpu)
            delay_ns += int(delayed)
            waits += int(status.partition("\nvoluntary_ctxt_switches:")[2].split(maxsplit=1)[0])
    return Reading(cpu_ns / 1000, delay_ns / 1000, waits)

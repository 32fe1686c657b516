"""What a process has of memory, descriptors, maps and threads, as the kernel counts it."""

from __future__ import annotations

import os


def sample(pid: int) -> dict[str, float]:
    """The values of one moment, by name; bytes and numbers.

    :raises OSError: the process has ended.
    """
    values = _rollup(pid)
    values["fds"] = len(os.listdir(f"/proc/{pid}/fd"))
    values["threads"] = len(os.listdir(f"/proc/{pid}/task"))
    with open(f"/proc/{pid}/maps", "rb") as file:
        values["maps"] = sum(1 for _ in file)
    return values


def _rollup(pid: int) -> dict[str, float]:
    """RSS, and PSS: what is shared with other processes counts in part (proc(5))."""
    found = {}
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name in ("Rss", "Pss"):
                found[name.lower()] = int(value.split()[0]) * 1024.0
    if len(found) != 2:
        raise ProcessLookupError(f"process {pid} has no memory any more")
    return found

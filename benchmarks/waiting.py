"""Round trips by how both ends wait: who spins is compared with who spins, who sleeps with who sleeps."""

from __future__ import annotations

from collections.abc import Iterator

from .markdown import number, table
from .peers import ADAPTIVE, ASLEEP, AWAKE, PEERS
from .summary import Summary

NOTE = """\
The same 64 B round trips, by how both ends wait for each other, fastest first. CPU: microseconds of both
processes for each round trip; sleeps: how often one of them gave up its CPU. Ends that never sleep use two
whole CPUs, whatever they wait for.
"""

TITLES = {
    ASLEEP: "Both ends sleep until the kernel wakes them",
    ADAPTIVE: "The default of aiordma: an end polls for a bounded time before it sleeps",
    AWAKE: "Both ends spin",
}


def tables(summary: Summary) -> str:
    """A title and a table for each way to wait that was measured."""
    return "\n".join(_tables(summary))


def _tables(summary: Summary) -> Iterator[str]:
    for waits, title in TITLES.items():
        names = [
            name
            for name in summary.peers("roundtrip")
            if name in PEERS
            and PEERS[name].waits == waits
            and summary.value(name, "roundtrip", "64", "server_cpu_us") is not None
        ]
        if names:
            names.sort(key=lambda name: summary.value(name, "roundtrip", "64", "p50_us") or 0.0)
            yield f"{title}:\n"
            yield table(["", "p50", "p99", "CPU", "sleeps"], [_row(summary, name) for name in names])


def _row(summary: Summary, name: str) -> list[str]:
    def value(key: str) -> float:
        return summary.value(name, "roundtrip", "64", key) or 0.0

    cpu = value("client_cpu_us") + value("server_cpu_us")
    sleeps = value("client_waits") + value("server_waits")
    times = number(value("p50_us")), number(value("p99_us"))
    return [summary.title(name), *times, number(cpu), number(sleeps, ".2f")]

"""Draws docs/first-look.svg, the bars of the README, from result files: ``python -m benchmarks.picture``.

Each bar is a work that programs do, beside what one would use otherwise. A note under a bar says how it
compares when both sides wait in the same way, so that no bar hides what it costs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from rocefabric import drawing

from .summary import Summary

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
DRAWING = ROOT / "docs" / "first-look.svg"
#: By how ends wait, and everything else.
WAITING = REST = "20261201-074358-9716dcdc9507"
OURS, AWAKE, ASLEEP, CALLS, ASYNC_CALLS = (
    "stream-hybrid-uvloop",
    "stream-spin-uvloop",
    "stream-events-uvloop",
    "rpc-def-uvloop",
    "rpc-bare-uvloop",
)
TCP, TCP_AWAKE, MSGPACK, GRPC = "tcp-uvloop", "tcp-spin-uvloop", "msgpack-uvloop", "grpc-asyncio"


class Pair(NamedTuple):
    """The same number of both sides."""

    ours: float
    theirs: float

    @property
    def factor(self) -> float:
        """How many times less time."""
        return self.theirs / self.ours


def pair(summary: Summary, ours: str, theirs: str, *keys: str) -> Pair:
    """:raises LookupError: the file lacks one of them."""
    found = summary.value(ours, *keys), summary.value(theirs, *keys)
    if found[0] is None or found[1] is None:
        raise LookupError(f"{ours} or {theirs} has no {'/'.join(keys)}")
    return Pair(found[0], found[1])


def round_trip(summary: Summary) -> drawing.Bar:
    keys = "roundtrip", "64", "p50_us"
    usual, awake = pair(summary, OURS, TCP, *keys), pair(summary, AWAKE, TCP_AWAKE, *keys)
    asleep = pair(summary, ASLEEP, TCP, *keys)
    return drawing.Bar(
        "64 B there and back, uvloop",
        usual.factor,
        f"{usual.ours:.1f} µs / {usual.theirs:.0f} µs by TCP",
        f"aiordma polls, TCP sleeps. Both awake: {awake.factor:.1f}x. Both asleep: {asleep.factor:.2f}x.",
    )


def sends(summary: Summary) -> drawing.Bar:
    rates = pair(summary, OURS, TCP, "throughput", "gigabytes_per_second")
    return drawing.Bar(
        "1 MiB sends, uvloop",
        rates.ours / rates.theirs,
        f"{rates.ours:.0f} GB/s / {rates.theirs:.1f} GB/s by TCP",
    )


def calls(summary: Summary) -> drawing.Bar:
    rates = pair(summary, CALLS, MSGPACK, "calls", "64", "per_second")
    single = pair(summary, CALLS, MSGPACK, "calls", "64", "p50_us")
    grpc = pair(summary, CALLS, GRPC, "calls", "64", "p50_us")
    waiting = pair(summary, ASYNC_CALLS, MSGPACK, "calls", "64", "per_second")
    return drawing.Bar(
        "64 B calls, 64 in flight, def handler",
        rates.ours / rates.theirs,
        f"{rates.ours / 1e3:.0f} k/s / {rates.theirs / 1e3:.0f} k/s by msgpack on TCP",
        f"async def: {waiting.ours / waiting.theirs:.2f}x. "
        f"One at a time, def: {single.factor:.0f}x msgpack on TCP, {grpc.factor:.0f}x grpc.aio.",
    )


def read(name: str) -> Summary:
    return Summary(json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8")))


def host(summary: Summary) -> str:
    """The machine, and how busy it was."""
    machine = summary.results["machine"]
    kind = "virtual machine" if machine["virtual"] else "machine"
    return (
        f"One {kind}: {machine['cpu']}, {machine['cpus']} CPUs, Linux {machine['kernel'].split('-')[0]}. "
        "Both ends on it, software device. Medians."
    )


def picture() -> str:
    """The SVG."""
    waiting, rest = read(WAITING), read(REST)
    return drawing.bars(
        "aiordma beside TCP, on one host without an RDMA card",
        "how many times as fast; default settings of both",
        [round_trip(waiting), sends(rest), calls(rest)],
        one="TCP",
        foot=host(rest),
    )


if __name__ == "__main__":
    DRAWING.write_text(picture(), encoding="utf-8")
    print(DRAWING.relative_to(ROOT))

"""The simulation of what `benchmarks.truth` has recorded: figures side by side, and drawings."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import mean, quantiles
from typing import TYPE_CHECKING, Any

from rocefabric import charts, dcqcn, model, simulate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Series", "compare", "measured", "simulated", "table"]

DRAWINGS = Path(__file__).parent / "notes"
#: Of a middle packet of a WRITE in the router's queue: Ethernet without FCS, IP, UDP, BTH, 1024 bytes, ICRC.
FRAME = 1082
#: The software device's profile is for 40 Gb/s; on slower networks it stretches times, by this much at most.
SLOWER = 100
#: WRITEs of 16 KiB that each queue pair has posted (`Peer.write_for`), in packets.
WINDOW = 7 * 16
STEP = 0.05
#: The first seconds, in which rates start from what the burst at the beginning has shown.
BEGIN = 2.0
SEEDS = 5

#: The tests' router. TBF counts FRAME bytes of a packet where the simulator counts preamble to gap, 1106: the
#: rate is raised so that as many packets leave. Marks are those of Linux' RED (burst 28 means Wlog 1: the
#: average takes half of each new length).
ROUTER = """\
mtu = 1024
[[switches]]
name = "router"
cell_bytes = 1086
latency_ns = 0
[[hosts]]
name = "left"
[[hosts]]
name = "right"
[[links]]
a = "left"
b = "router"
rate_gbps = 1
[[links]]
a = "right"
b = "router"
rate_gbps = {rate}
[ecn]
kmin_cells = {kmin}
kmax_cells = {kmax}
pmax_percent = {pmax}
poll_us = {packet_us}
weight = 0.5
spaced_marks = {spaced}
[senders]
window = {window}
timeout_us = 500000
"""


@dataclass(frozen=True)
class Series:
    """Of one run, after its beginning."""

    #: Bytes, every STEP seconds.
    queue: tuple[float, ...]
    #: Mb/s through the queue.
    rate: tuple[float, ...]
    #: Mb/s of data that each flow got, over all the time.
    flows: tuple[float, ...]
    #: Congestion notifications per second.
    notifications: float

    def figures(self, kmin: float) -> dict[str, float]:
        """Means, and how often the queue swings through Kmin."""
        ups = sum(one <= kmin < other for one, other in pairwise(self.queue))
        return {
            "queue, mean kB": mean(self.queue) / 1e3,
            "queue, 95 % below kB": quantiles(self.queue, n=20)[-1] / 1e3,
            "line used, %": mean(self.rate) / 16 * 100,
            "notifications per s": self.notifications,
            "least flow / greatest": min(self.flows) / max(self.flows),
            "swings per s": ups / (len(self.queue) * STEP),
        }


def red(words: Sequence[str]) -> dict[str, float]:
    """The numbers of `tc qdisc ... red` by name."""
    return {words[at]: float(words[at + 1]) for at in range(0, len(words) - 1, 2) if words[at] != "bandwidth"}


def measured(recording: Mapping[str, Any], flows: int) -> Series:
    """From the file."""
    last = float(recording["settings"]["seconds"])
    rows = [row for row in recording[str(flows)]["points"] if BEGIN <= row[0] <= last]
    passed = rows[-1][0] - rows[0][0]
    got = [(rows[-1][4 + at] - rows[0][4 + at]) * 8e-6 / passed for at in range(flows)]
    notes = recording[str(flows)]["counters"]["cnps_received"] / last
    return Series(tuple(row[1] for row in rows), tuple(row[3] for row in rows), tuple(got), notes)


def simulated(settings: Mapping[str, Any], flows: int, *, spaced: bool = True, seed: int = 1) -> Series:
    """The same settings in the engine."""
    given, line = red(settings["red"]), settings["bits_per_second"]
    text = ROUTER.format(
        rate=line / 1e9 * 1106 / FRAME, kmin=round(given["min"] / FRAME), kmax=round(given["max"] / FRAME),
        pmax=100 * given["probability"], packet_us=FRAME * 8e6 / line, spaced=str(spaced).lower(),
        window=WINDOW,
    )  # fmt: skip
    seconds = float(settings["seconds"])
    transfers = tuple(simulate.Transfer("left", "right", start_us=at) for at in range(flows))
    profile = dcqcn.stretched(replace(dcqcn.PROFILES["sigcomm15"], from_line=False), SLOWER)
    running = simulate.assemble(
        model.parse(text), simulate.Traffic("router", transfers, seconds * 1e6), seed=seed, profile=profile,
        pauses=False,
    )  # fmt: skip
    sim = running.sim
    (out,) = (number for number, name in running.switch_ports().items() if name == "router to right")
    queue, rate = [], []
    sim.run(int(BEGIN * 1e12))
    before = begin = [sim.flow(flow)["received"] for flow in running.flows]
    for at in range(1, int((seconds - BEGIN) / STEP) + 1):
        sim.run(int((BEGIN + at * STEP) * 1e12))
        now = [sim.flow(flow)["received"] for flow in running.flows]
        queue.append(float(sim.queue(out) * FRAME))
        rate.append((sum(now) - sum(before)) * 8e-6 / STEP * FRAME / 1106)
        before = now
    passed = seconds - BEGIN
    got = [(last - first) * 8e-6 / passed * 1024 / 1106 for first, last in zip(begin, before, strict=True)]
    notes = sum(sim.flow(flow)["notes"] for flow in running.flows) / seconds
    return Series(tuple(queue), tuple(rate), tuple(got), notes)


def draw(flows: int, real: Series, same: Series, levels: Mapping[str, float], shown: float = 6) -> None:
    """Queue and rate of both in one drawing each, of the first seconds after the beginning."""
    count = int(shown / STEP)
    for what, up, pair, at in (
        ("queue", "kB", ([each / 1e3 for each in one.queue[:count]] for one in (real, same)), levels),
        ("rate", "Mb/s", ([*one.rate[:count]] for one in (real, same)), {"line": 16.0}),
    ):
        title = f"{what}, {flows} flow{'s' * (flows > 1)}"
        drawn = charts.lines(title, up, STEP * 1e6, list(pair), at, ("device", "simulator"))
        (DRAWINGS / f"fabric-truth-{flows}-{what}.svg").write_text(drawn + "\n", encoding="utf-8")


def table(recording: Mapping[str, Any], flows: int) -> dict[str, tuple[float, float, float]]:
    """Each figure: the device's, the simulator's, and that with independent marks (means of SEEDS runs)."""
    settings = recording["settings"]
    kmin = red(settings["red"])["min"]
    found = measured(recording, flows).figures(kmin)
    runs = [
        [simulated(settings, flows, spaced=spaced, seed=seed).figures(kmin) for seed in range(1, SEEDS + 1)]
        for spaced in (True, False)
    ]
    means = [{name: mean(run[name] for run in same) for name in found} for same in runs]
    return {name: (value, means[0][name], means[1][name]) for name, value in found.items()}


def compare(path: Path) -> None:
    """Print the figures and write the drawings."""
    recording = json.loads(path.read_text(encoding="utf-8"))
    settings = recording["settings"]
    given = red(settings["red"])
    levels = {"Kmin": given["min"] / 1e3, "Kmax": given["max"] / 1e3}
    for flows in sorted(int(key) for key in recording if key != "settings"):
        print(f"\n{f'flows: {flows}':24} {'device':>8} {'simulator':>10} {'independent marks':>18}")
        for name, (device, simulator, alone) in table(recording, flows).items():
            print(f"{name:24} {device:8.2f} {simulator:10.2f} {alone:18.2f}")
        draw(flows, measured(recording, flows), simulated(settings, flows), levels)

"""The picture of a soak: memory and descriptors of each process over time, and work a second."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING

from rocefabric import drawing
from tests.soak.trend import Curve
from tests.soak.verdict import WARM_UP

if TYPE_CHECKING:
    from pathlib import Path

    from tests.soak.member import Member

MIB = 1 << 20
MINUTE = 60
#: Points of the curves of work: the difference between neighbours is a rate.
RATE_POINTS = 120


def rates(curve: Curve, points: int = RATE_POINTS) -> list[tuple[float, float]]:
    """From a counter to its increase a second, smoothed to about ``points`` points."""
    step = max(1, len(curve) // points)
    some = list(curve[::step])
    return [
        (later[0], (later[1] - earlier[1]) / (later[0] - earlier[0]))
        for earlier, later in itertools.pairwise(some)
        if later[0] > earlier[0]
    ]


def draw(path: Path, members: list[Member], seconds: float, title: str) -> None:
    """Write the picture, SVG: a panel for each process and for each kind of work."""
    warm_up = seconds * WARM_UP / MINUTE
    shown = [_memory(member) for member in members]
    shown += [_descriptors(members), _moved(members), *_work(members)]
    for panel in shown:
        panel.warm_up = warm_up
    foot = f"Grey: warm-up, which is not judged. {os.cpu_count()} CPUs. Load: {os.getloadavg()[0]:.1f}."
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        drawing.panels(shown, columns=3, title=title, foot=foot, width=400) + "\n", encoding="utf-8"
    )


def _scaled(curve: Curve, unit: float) -> list[tuple[float, float]]:
    """Over minutes."""
    return [(time / MINUTE, value / unit) for time, value in curve]


def _memory(member: Member) -> drawing.Panel:
    curves = {name.upper(): _scaled(member.record.curves.get(name, []), MIB) for name in ("rss", "pss")}
    return drawing.Panel(f"memory of {member.child.name}", "MiB", "min", curves)


def _descriptors(members: list[Member]) -> drawing.Panel:
    curves = {member.child.name: _scaled(member.record.curves.get("all fds", []), 1) for member in members}
    return drawing.Panel("open descriptors of all", "", "min", curves, crowd=True)


def _moved(members: list[Member]) -> drawing.Panel:
    moving = {
        member.child.name: _scaled(rates(member.work["bytes"]), MIB)
        for member in members
        if member.record.progress
    }
    return drawing.Panel("bytes of all clients", "MiB/s", "min", moving, crowd=True)


def _work(members: list[Member]) -> list[drawing.Panel]:
    """Each kind of work, of all clients together."""
    found = []
    for kind in dict.fromkeys(kind for member in members for kind in member.record.progress):
        curves = [rates(member.work[kind]) for member in members if kind in member.record.progress]
        points = [(each[0][0], sum(rate for _, rate in each)) for each in zip(*curves, strict=False) if each]
        found.append(drawing.Panel(kind, "a second", "min", {"": _scaled(points, 1)}))
    return found

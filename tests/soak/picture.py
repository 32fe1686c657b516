"""The picture of a soak: memory and descriptors of each process over time, and work a second."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.soak.trend import Curve
from tests.soak.verdict import WARM_UP

if TYPE_CHECKING:
    from tests.soak.member import Member

MIB = 1 << 20
MINUTE = 60
#: Points of the curves of work: the difference between neighbours is a rate.
RATE_POINTS = 120
#: Of the kinds of work: matplotlib's ten, and others for more kinds.
COLOURS = [*(f"C{index}" for index in range(10)), "black", "gold", "navy", "lime"]


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
    """Write the picture; the format follows from the name.

    :raises ImportError: matplotlib is not installed.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(5, 1, figsize=(11, 18), sharex=True, layout="constrained")
    figure.suptitle(title)
    for axis, (name, label, unit) in zip(axes, PROCESSES, strict=False):
        for index, member in enumerate(members):
            curve = member.record.curves.get(name, [])
            _line(axis, curve, unit, member.child.name, f"C{index}")
        axis.set_ylabel(label)
        axis.set_ylim(bottom=0)
    _work(axes[3], members)
    _moved(axes[4], members)
    for axis in axes:
        axis.grid(alpha=0.3)
        axis.axvspan(0, seconds * WARM_UP / MINUTE, color="0.9")
        axis.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize="small")
    axes[-1].set_xlabel("minutes (grey: warm-up, which is not judged)")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    pyplot.close(figure)


#: Curves of each process: name, label, what one unit of the axis is.
PROCESSES = (("pss", "PSS, MiB", MIB), ("rss", "RSS, MiB", MIB), ("all fds", "open descriptors", 1))


def _line(axis: Any, curve: Curve, unit: float, label: str, colour: str) -> None:
    axis.plot(
        [time / MINUTE for time, _ in curve],
        [value / unit for _, value in curve],
        label=label,
        color=colour,
        linewidth=1,
    )


def _work(axis: Any, members: list[Member]) -> None:
    """Each kind of work, of all clients together."""
    kinds = dict.fromkeys(kind for member in members for kind in member.record.progress)
    for index, kind in enumerate(kinds):
        curves = [rates(member.work[kind]) for member in members if kind in member.record.progress]
        points = [(each[0][0], sum(rate for _, rate in each)) for each in zip(*curves, strict=False) if each]
        _line(axis, points, 1, kind, COLOURS[index % len(COLOURS)])
    axis.set_ylabel("pieces of work a second")
    axis.set_yscale("symlog", linthresh=1)


def _moved(axis: Any, members: list[Member]) -> None:
    for index, member in enumerate(members):
        if member.record.progress:
            _line(axis, rates(member.work["bytes"]), MIB, member.child.name, f"C{index}")
    axis.set_ylabel("MiB a second")
    axis.set_ylim(bottom=0)

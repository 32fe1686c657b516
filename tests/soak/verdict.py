"""The rules by which a soak is judged: what grows, what hangs, who died. Functions of recorded numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.soak.trend import Curve, between, middle, slope

#: Caches fill meanwhile: nothing that happens in this part of the time is judged.
WARM_UP = 0.1
#: With fewer points after the warm-up nothing is said about growth.
FEWEST_POINTS = 10
#: Slopes of pairs of points that may be small where a curve grows; with a single step half of them are.
FEW = 0.4


class Tolerance(NamedTuple):
    """What a curve may rise between the second and the last fifth of the time."""

    #: part of the value in the second fifth
    part: float
    #: added to it
    beside: float
    unit: str

    def allowed(self, value: float) -> float:
        return value * self.part + self.beside


MIB = 1 << 20
#: The curves that are judged. Descriptors are counted without those of live connections.
TOLERANCES = {
    "pss": Tolerance(0.05, 4 * MIB, "B"),
    "fds": Tolerance(0, 8, "descriptors"),
    "maps": Tolerance(0.05, 16, "maps"),
    "threads": Tolerance(0, 2, "threads"),
    # What the process's own allocators have given out: far steadier than PSS, so less is allowed.
    "malloc": Tolerance(0.05, 2 * MIB, "B"),
    "blocks": Tolerance(0.05, 10_000, "blocks"),
}


class Growth(NamedTuple):
    """How a curve went from the second fifth of the time to the last."""

    before: float
    after: float
    #: of the Theil-Sen line, after the warm-up, an hour
    an_hour: float
    #: the medians rose by more than is allowed
    rose: bool
    #: ... and the line rises, too: it goes on, and is no step
    grows: bool


def growth(curve: Curve, tolerance: Tolerance, total: float) -> Growth:
    """Compare the median of the second fifth of ``total`` seconds with the one of the last.

    A curve *grows* if the difference is more than the tolerance, and it rose all the time: most pairs of
    points after the warm-up have a slope by which it rises half as much. The teeth of a sawtooth fulfil one
    of the two at most, and so does a single step, wherever it is: at most half of the pairs lie around it.
    """
    before = middle(curve, total * 0.2, total * 0.4)
    after = middle(curve, total * 0.8, total)
    judged = between(curve, total * WARM_UP, total)
    if len(judged) < FEWEST_POINTS or math.isnan(before) or math.isnan(after):
        return Growth(before, after, 0.0, False, False)
    allowed = tolerance.allowed(before)
    rose = after - before > allowed
    # From the middle of the one fifth to the middle of the other.
    goes_on = slope(judged, FEW) * total * 0.6 > allowed / 2
    return Growth(before, after, slope(judged) * 3600, rose, rose and goes_on)


def stalls(progress: Curve, patience: float, total: float) -> list[tuple[float, float]]:
    """The intervals of more than ``patience`` seconds in which a counter of work did not rise.

    The beginning and the end count. Work that was never done is one stall, however short the time.

    :param progress: (seconds, counter), in order.
    """
    found = []
    since = count = 0.0
    for time, value in progress:
        if value > count:
            if time - since > patience:
                found.append((since, time))
            since, count = time, value
    if total - since > patience or not count:
        found.append((since, total))
    return found


@dataclass
class Record:
    """What is known of one long-lived process."""

    name: str
    #: curves by name (see TOLERANCES, and others that are only shown)
    curves: Mapping[str, Curve] = field(default_factory=dict)
    #: counters of the kinds of work that must go on
    progress: Mapping[str, Curve] = field(default_factory=dict)
    #: what it reported: wrong bytes, unexpected errors, hangs
    faults: list[str] = field(default_factory=list)
    #: why it ended, if it should not have
    death: str = ""
    #: what it printed on standard error
    said: str = ""


class Verdict(NamedTuple):
    """``findings`` make a soak fail; ``notes`` are worth a look."""

    findings: list[str]
    notes: list[str]

    @property
    def clean(self) -> bool:
        return not self.findings


def judge(records: list[Record], patience: float, total: float) -> Verdict:
    """The verdict on ``total`` seconds."""
    verdict = Verdict([], [])
    for record in records:
        findings = [*record.faults]
        if record.death:
            findings.append(record.death)
        if record.said:
            findings.append(f"said on standard error:\n{record.said}")
        # The dead do nothing.
        for kind, curve in () if record.death else record.progress.items():
            findings += [
                f"hang: no {kind} was done from {begin:.0f} s to {end:.0f} s"
                for begin, end in stalls(curve, patience, total)
            ]
        verdict.findings.extend(f"{record.name}: {finding}" for finding in findings)
        for name, tolerance in TOLERANCES.items():
            found = growth(record.curves.get(name, ()), tolerance, total)
            if found.rose:
                where = verdict.findings if found.grows else verdict.notes
                where.append(f"{record.name}: {told(name, found, tolerance)}")
    return verdict


def told(name: str, found: Growth, tolerance: Tolerance) -> str:
    """One sentence about a curve that rose."""
    what = "grows" if found.grows else "rose, and does not go on"
    return (
        f"{name} {what}: {shown(found.before, tolerance.unit)} in the second fifth, "
        f"{shown(found.after, tolerance.unit)} in the last "
        f"(allowed: +{shown(tolerance.allowed(found.before), tolerance.unit)}); "
        f"{shown(found.an_hour, tolerance.unit)} an hour"
    )


def shown(value: float, unit: str) -> str:
    """For people."""
    return f"{value / MIB:.1f} MiB" if unit == "B" else f"{value:.0f} {unit}"

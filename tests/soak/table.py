"""The table at the end of a soak: how each process went, and what was done."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tests.soak.verdict import TOLERANCES, growth, shown

if TYPE_CHECKING:
    from tests.soak.member import Member


def table(members: list[Member], seconds: float) -> str:
    """Curves of each process, second fifth -> last fifth, and trend; then the work by kind and event loop."""
    return "\n".join([*_curves(members, seconds), "", *_work(members, seconds)])


def _curves(members: list[Member], seconds: float) -> list[str]:
    lines = [f"{'second -> last fifth':24}" + "".join(f"{name:>28}" for name in TOLERANCES)]
    for member in members:
        cells = []
        for name, tolerance in TOLERANCES.items():
            found = growth(member.record.curves.get(name, ()), tolerance, seconds)
            unit = tolerance.unit if tolerance.unit == "B" else ""
            before, after = shown(found.before, unit).strip(), shown(found.after, unit).strip()
            cells.append(f"{before} -> {after} ({shown(found.an_hour, unit).strip()}/h)")
        lines.append(f"{member.child.name:24}" + "".join(f"{cell:>28}" for cell in cells))
    return lines


def _work(members: list[Member], seconds: float) -> list[str]:
    loops = list(dict.fromkeys(member.loop for member in members))
    done = {loop: Counter[str]() for loop in loops}
    for member in members:
        done[member.loop].update(member.done)
    kinds = list(dict.fromkeys(kind for loop in loops for kind in done[loop]))
    lines = [f"{'done (a second)':24}" + "".join(f"{loop:>22}" for loop in loops)]
    for kind in kinds:
        cells = [f"{done[loop][kind]} ({done[loop][kind] / max(seconds, 1):.1f})" for loop in loops]
        lines.append(f"{kind:24}" + "".join(f"{cell:>22}" for cell in cells))
    return lines

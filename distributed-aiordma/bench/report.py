"""The report of the benchmark: medians, the ratios of ``rdma://`` to the others, and what is aimed at."""

from __future__ import annotations

import os
import platform
from collections import defaultdict
from statistics import median
from typing import TYPE_CHECKING, Any

import distributed
from measure import MIB

import aiordma

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from measure import Sample

__all__ = ["report"]

#: What is measured: how it is shown, and the unit.
ROWS = {
    "transfer": ("worker to worker", "GB/s"),
    "transfer cpu": ("CPU of both workers", "ms"),
    "scatter": ("scatter", "GB/s"),
    "gather": ("gather", "GB/s"),
    "tiny task cpu": ("CPU for a tiny task", "us"),
    "tiny tasks": ("tiny tasks", "per s"),
    "start-up": ("start-up", "s"),
}
_FACTOR = {"GB/s": 1e-9, "ms": 1e3, "us": 1e6, "per s": 1.0, "s": 1.0}


#: Of these, less is better.
_COSTS = {"transfer cpu", "tiny task cpu", "start-up"}


def aim(what: str, nbytes: int) -> tuple[float, bool] | None:
    """(the ratio to ``tcp://`` that is aimed at, whether more is better)."""
    if what == "transfer":
        return (3.0 if nbytes >= 16 * MIB else 1.0), True
    if what in ("scatter", "gather") and nbytes >= 64 * MIB:
        return 2.0, True
    return {"tiny task cpu": (1.05, False), "start-up": (1.3, False)}.get(what)


def report(
    samples: Sequence[Sample], paths: Mapping[str, Sequence[Any]], rounds: int, notes: Sequence[str]
) -> str:
    """As Markdown.

    :param notes: sentences about what was not measured, or not to its end.
    """
    values: dict[tuple[str, int], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for sample in samples:
        values[sample.what, sample.nbytes][sample.protocol].append(sample.value)
    names = list(paths)
    lines = [
        f"{rounds} round{'' if rounds == 1 else 's'} by turns, medians; {os.cpu_count()} CPUs, Linux "
        f"{platform.release()}, Python {platform.python_version()}, "
        f"distributed {distributed.__version__}, aiordma {aiordma.__version__}.",
        "",
        f"| | size | {' | '.join(f'`{name}://`' for name in names)} | rdma / tcp | aim | | ahead of ucxx |",
        f"| --- | --- |{' --- |' * len(names)} --- | --- | --- | --- |",
    ]
    for (what, nbytes), by_name in sorted(
        values.items(), key=lambda item: (list(ROWS).index(item[0][0]), item[0][1])
    ):
        lines.append(_row(what, nbytes, names, by_name))
    lines += ["", "Paths of the open comms at the end of the rounds:", ""]
    for name, seen in paths.items():
        counted: dict[str, int] = defaultdict(int)
        for one in seen:
            for counts in [*one["workers"], one["scheduler and client"]]:
                for path, count in counts.items():
                    counted[path] += count
        loads = ", ".join(f"{one['load']:.1f}" for one in seen)
        shown = ", ".join(f"{count} x {path}" for path, count in sorted(counted.items()))
        lines.append(f"* `{name}://`: {shown}. Load of the machine: {loads}.")
    return "\n".join([*lines, *(f"* {text}" for text in notes)]) + "\n"


def _row(what: str, nbytes: int, names: Sequence[str], by_name: Mapping[str, Sequence[float]]) -> str:
    title, unit = ROWS[what]
    medians = {name: median(found) for name, found in by_name.items()}
    cells = [f"{medians[name] * _FACTOR[unit]:.3g} {unit}" if name in medians else "" for name in names]
    ratio = goal = verdict = ahead = ""
    if "ucxx" in medians and "rdma" in medians:
        quotient = medians["rdma"] / medians["ucxx"]
        ahead = f"{'yes' if (quotient < 1 if what in _COSTS else quotient > 1) else 'no'}, {quotient:.2g}x"
    if "tcp" in medians and "rdma" in medians:
        quotient = medians["rdma"] / medians["tcp"]
        ratio = f"{quotient:.2f}x"
        aimed = aim(what, nbytes)
        if aimed is not None:
            bound, more = aimed
            goal = f"{'at least' if more else 'at most'} {bound:g}x"
            verdict = "reached" if (quotient >= bound if more else quotient <= bound) else "missed"
    size = f"{nbytes // MIB} MiB" if nbytes else ""
    return f"| {title} | {size} | {' | '.join(cells)} | {ratio} | {goal} | {verdict} | {ahead} |"

"""`python -m benchmarks.congestion`: the effect of DCQCN on the queue of a slow router that marks ECN.

Record in a virtual machine, into the directory that the machine may write to:

    tests/vm/run --net none --rw benchmarks/results -- .venv/bin/python -m benchmarks.congestion record

and draw the recording into docs/explanation/congestion.svg:

    .venv/bin/python -m benchmarks.congestion draw
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, NamedTuple

from aiordma.verbs import softlib
from tests.vm.wire import router

if TYPE_CHECKING:
    from collections.abc import Sequence

HERE = Path(__file__).parent
RECORD = HERE / "results" / "congestion.json"
DRAWING = HERE.parent / "docs" / "explanation" / "congestion.svg"
KINDS = {"sigcomm15": "#1f77b4", "connectx": "#d95f02", "off": "#777777"}
STEP = 0.1  # seconds averaged into one point


def points(seen: Sequence[router.Sample]) -> list[tuple[float, float, float]]:
    """Seconds, Mb/s that arrived at the queue, kB queued."""
    found = []
    begin, group = seen[0], [seen[0]]
    for sample in seen[1:]:
        group.append(sample)
        passed = sample.seconds - begin.seconds
        if passed >= STEP:
            came = sample.passed + sample.waiting - begin.passed - begin.waiting
            waiting = mean(each.waiting for each in group)
            found.append((round(sample.seconds, 3), round(came * 8e-6 / passed, 2), round(waiting / 1e3, 1)))
            begin, group = sample, [sample]
    return found


def record(writes: int) -> None:
    library = softlib.locate()
    assert library is not None, "the software device is not installed: run 'make install'"
    told = {}
    with router.router():
        for kind in KINDS:
            seen, counters = router.transfer(library, {"SOFTDEV_CONGESTION": kind}, writes)
            told[kind] = {"points": points(seen), "notifications": counters["cnps_received"]}
            lasted = seen[-1].seconds - seen[0].seconds
            used = (seen[-1].passed - seen[0].passed) * 8 / lasted / router.BITS_PER_SECOND
            waiting = mean(sample.waiting for sample in seen) / 1e3
            print(
                f"{kind:10} {lasted:6.1f} s, {used:4.0%} of the line used, {waiting:6.1f} kB in the queue",
                flush=True,
            )
    lines = ",\n".join(f"{json.dumps(kind)}: {json.dumps(what)}" for kind, what in told.items())
    RECORD.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


class Panel(NamedTuple):
    title: str
    column: int
    top: int
    most: float
    ticks: Sequence[int]


WIDTH, HEIGHT, LEFT, ACROSS, DOWN = 720, 470, 60, 640, 170


def draw_panel(panel: Panel, told: dict[str, list[list[float]]], longest: float) -> list[str]:
    def y(value: float) -> float:
        return panel.top + DOWN * (1 - min(value, panel.most) / panel.most)

    out = [f'<text x="{LEFT}" y="{panel.top - 8}">{panel.title}</text>']
    for tick in panel.ticks:
        out.append(f'<path d="M{LEFT} {y(tick):.1f}h{ACROSS}" stroke="#ddd"/>')
        out.append(f'<text x="{LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick}</text>')
    for kind, rows in told.items():
        line = " ".join(f"{LEFT + ACROSS * row[0] / longest:.1f},{y(row[panel.column]):.1f}" for row in rows)
        out.append(f'<polyline points="{line}" fill="none" stroke="{KINDS[kind]}" stroke-width="1.5"/>')
    return out


def draw() -> None:
    told = {kind: what["points"] for kind, what in json.loads(RECORD.read_text(encoding="utf-8")).items()}
    longest = max(rows[-1][0] for rows in told.values())
    deepest = max(row[2] for rows in told.values() for row in rows)
    panels = (
        Panel("Mb/s that come to the router; its line has 16", 1, 50, 48, range(0, 49, 16)),
        Panel("kB in its queue; RED marks from 30 on", 2, 260, deepest * 1.05, (0, 30, 90, int(deepest))),
    )
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"',
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for n, (kind, colour) in enumerate(KINDS.items()):
        out.append(f'<path d="M{LEFT + 110 * n} 18h24" stroke="{colour}" stroke-width="3"/>')
        out.append(f'<text x="{LEFT + 30 + 110 * n}" y="22">{kind}</text>')
    for panel in panels:
        out += draw_panel(panel, told, longest)
    for second in range(0, int(longest) + 1, max(1, int(longest) // 10)):
        x = LEFT + ACROSS * second / longest
        out.append(f'<text x="{x:.1f}" y="{HEIGHT - 16}" text-anchor="middle">{second} s</text>')
    DRAWING.write_text("\n".join([*out, "</svg>"]) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("what", choices=("record", "draw"))
    parser.add_argument("--writes", type=int, default=300, help="of 64 KiB for each kind [300]")
    options = parser.parse_args()
    if options.what == "record":
        record(options.writes)
    else:
        draw()


if __name__ == "__main__":
    main()

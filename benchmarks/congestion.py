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
from typing import TYPE_CHECKING

from aiordma.verbs import softlib
from rocefabric import drawing
from tests.vm.wire import router

if TYPE_CHECKING:
    from collections.abc import Sequence

HERE = Path(__file__).parent
RECORD = HERE / "results" / "congestion.json"
DRAWING = HERE.parent / "docs" / "explanation" / "congestion.svg"
KINDS = ("sigcomm15", "connectx", "off")
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


def picture() -> str:
    """The recording as SVG."""
    told = {kind: what["points"] for kind, what in json.loads(RECORD.read_text(encoding="utf-8")).items()}
    rate, queue = (
        {kind: [(row[0], row[column]) for row in rows] for kind, rows in told.items()} for column in (1, 2)
    )
    panels = [
        drawing.Panel("What comes to the router", "Mb/s", "s", rate, {"its line": 16}),
        drawing.Panel("In its queue", "kB", "s", queue, {"Kmin": 30, "Kmax": 90}),
    ]
    return drawing.panels(panels, width=720) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("what", choices=("record", "draw"))
    parser.add_argument("--writes", type=int, default=300, help="of 64 KiB for each kind [300]")
    options = parser.parse_args()
    if options.what == "record":
        record(options.writes)
    else:
        DRAWING.write_text(picture(), encoding="utf-8")


if __name__ == "__main__":
    main()

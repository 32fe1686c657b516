"""`python -m benchmarks.truth`: the simulator of networks beside the software device, over a marking queue.

Record in a virtual machine, into the directory that the machine may write to, then compare and draw:

    tests/vm/run --net none --smp 1 --icount 0 --rw benchmarks/results -- \\
      .venv/bin/python -m benchmarks.truth record
    .venv/bin/python -m benchmarks.truth compare

`make fabric-truth` does both. Recorded is what a router's RED queue of 16 Mb/s does and how the senders share
it. The simulation has the same queue, thresholds, marking and senders.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from aiordma.verbs import softlib
from tests.vm.wire import router
from tests.vm.wire.ends import run

from .truth_compare import compare

if TYPE_CHECKING:
    from collections.abc import Sequence

HERE = Path(__file__).parent
RECORD = HERE / "results" / "truth.json"
STEP = 0.05  # seconds in one point
LENGTH = 16 << 10
FLOWS = (1, 2, 4)


def points(found: router.Flood, flows: int) -> list[list[float]]:
    """Seconds, bytes queued then, and on average, Mb/s that left, and bytes that each flow got."""
    rows: list[list[float]] = []
    group: list[router.Sample] = []
    ends = iter([*found.ends, (float("inf"), 0)])
    at, which = next(ends)
    totals = [0] * flows
    for sample in found.seen:
        group.append(sample)
        passed = sample.seconds - group[0].seconds
        if passed < STEP:
            continue
        while at <= sample.seconds:
            totals[which] += LENGTH
            at, which = next(ends)
        rate = (sample.passed - group[0].passed) * 8e-6 / passed
        waiting = sum(each.waiting for each in group[1:]) / (len(group) - 1)
        rows.append([round(sample.seconds, 3), sample.waiting, round(waiting), round(rate, 2), *totals])
        group = [sample]
    return rows


def record(seconds: float, flows: Sequence[int]) -> None:
    """Write the recording."""
    library = softlib.locate()
    assert library is not None, "the software device is not installed: run 'make install'"
    told = {}
    with router.router():
        run(
            "ip", "-n", "left", "link", "set", "cable", "gso_max_segs", "1"
        )  # RED marks packets, not runs of them
        for count in flows:
            found = router.flood(library, {"SOFTDEV_CONGESTION": "sigcomm15"}, count, seconds, LENGTH)
            counters = {name: found.sent[name] for name in ("sent", "cnps_received", "paced")}
            counters |= {name: found.received[name] for name in ("marked", "cnps_sent")}
            told[str(count)] = {"counters": counters, "points": points(found, count)}
            print(f"{count} flows: {counters}", flush=True)
    settings = {
        "bits_per_second": router.BITS_PER_SECOND,
        "red": router.RED,
        "write": LENGTH,
        "seconds": seconds,
    }
    lines = ",\n".join(f"{json.dumps(flows)}: {json.dumps(what)}" for flows, what in told.items())
    RECORD.write_text(f'{{"settings": {json.dumps(settings)},\n{lines}\n}}\n', encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("what", choices=("record", "compare"))
    parser.add_argument("--seconds", type=float, default=20, help="that the senders send [20]")
    parser.add_argument("--flows", type=int, nargs="+", default=FLOWS, help="one recording for each [1 2 4]")
    options = parser.parse_args()
    if options.what == "record":
        record(options.seconds, options.flows)
    else:
        compare(RECORD)


if __name__ == "__main__":
    main()

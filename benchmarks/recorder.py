"""`python -m benchmarks.recorder`: what `softdev trace` costs in perftest's `ib_write_lat`, on this machine.

Both ends on the software device, a processor for each, with the recorder at both and at neither by turns
(``make bench-recorder``). A pair of runs next to each other gives one ratio, of their typical latencies; the
table has the median of the ratios, and between what bounds it lies in 95 of 100 draws of as many pairs out of
those measured. Runs in which other work held one of the ends up differ by more than the recorder costs:
measure on a quiet machine, with enough pairs that the bounds are near to each other.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import sys
import tempfile
from pathlib import Path
from statistics import median

from tests.tools import listening, perftest, run_pair

PORT = 18700
LIMIT = 60.0
DRAWS = 2000


def typical(size: int, times: int, environment: dict[str, str]) -> float:
    """Microseconds of a WRITE, as `ib_write_lat` has it: half of the way there and back."""
    words = ["ib_write_lat", "-d", "soft0", "-s", str(size), "-n", str(times), "-p", str(PORT), "-F"]
    there, here = (["taskset", "-c", cpu, *words] for cpu in "01")

    def run() -> tuple[str, str]:
        return run_pair(
            there,
            [*here, "127.0.0.1"],
            ready=lambda pid: listening(pid, PORT),
            limit=LIMIT,
            environ={**os.environ, **environment},
        )

    text = perftest(run)[1]
    line = re.search(rf"(?m)^ *{size} +{times}((?:\s+[\d.]+){{3}})", text)
    assert line, text
    return float(line[1].split()[2])


def bounds(ratios: list[float]) -> tuple[float, float]:
    """Between which the median lies in 95 of 100 draws of as many ratios."""
    draw = random.Random(1).choices
    medians = sorted(median(draw(ratios, k=len(ratios))) for _ in range(DRAWS))
    return medians[DRAWS * 25 // 1000], medians[DRAWS * 975 // 1000]


def main() -> None:
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shape)
    parser.add_argument("device", type=Path, help="the prefix that `make -C softdev install` was given")
    parser.add_argument("--pairs", type=int, default=60, help="runs with the recorder, and without [60]")
    parser.add_argument("--times", type=int, default=50000, help="WRITEs of one run [50000]")
    parser.add_argument("--sizes", type=int, nargs="+", default=[8, 4096], help="in bytes [8 4096]")
    options = parser.parse_args()
    device = options.device / "lib/libsoftdev.so"
    recorder = next(options.device.glob("lib/**/libsoftdev-trace.so"), None)
    if recorder is None or not device.exists():
        sys.exit(f"no device with a recorder is in {options.device}: `make bench-recorder` installs one")
    if shutil.which("ib_write_lat") is None:
        sys.exit("perftest's ib_write_lat is not here: apt-get install perftest")
    print(
        "| bytes | without, us | recorded, us | recorded / without | 95 of 100 draws |\n" + "| --- " * 5 + "|"
    )
    for size in options.sizes:
        times: list[list[float]] = [[], []]
        for turn in range(2 * options.pairs):
            # Without first and recorded first, by turns, so that a machine that slows down favours neither.
            recorded = (turn + turn // 2) % 2
            with tempfile.TemporaryDirectory() as kept:
                front = f"{recorder}:" if recorded else ""
                environment = {"LD_PRELOAD": f"{front}{device}", "SOFTDEV_TRACE": kept if recorded else ""}
                times[recorded].append(typical(size, options.times, environment))
                assert len(list(Path(kept).iterdir())) == 2 * recorded, "a run was not recorded"
        ratios = [b / a for a, b in zip(*times, strict=True)]
        least, most = bounds(ratios)
        shown = [f"{median(of):.2f}" for of in times] + [
            f"{median(ratios):.3f}",
            f"{least:.3f} to {most:.3f}",
        ]
        print(f"| {size} | {' | '.join(shown)} |", flush=True)


if __name__ == "__main__":
    main()

"""`python -m tests.soak`: run it, print the progress, the table and the verdict, and draw the picture.

The exit status is 0 for a clean verdict, 1 for findings, 2 for a soak that could not run. Ctrl-C ends it with
the verdict on the time so far.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from random import SystemRandom

import anyio

from tests.soak.conductor import Options, Soak
from tests.soak.picture import draw
from tests.soak.table import table
from tests.soak.verdict import Verdict, judge

PICTURE = Path("build/soak.svg")


def options() -> tuple[Options, Path]:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__.split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=60, help="how long [%(default)s]")
    parser.add_argument("--seed", type=int, help="of all random numbers; the times of events still differ")
    parser.add_argument("--picture", type=Path, default=PICTURE, help="SVG [%(default)s]")
    parser.add_argument("--interval", type=float, help="seconds between two samples [5, or less]")
    parser.add_argument(
        "--patience",
        type=float,
        default=30,
        help="seconds after which a piece of work that is not done hangs; and a kind of work of which none "
        "is done (divided by the pace, if that is below 1) [%(default)s]",
    )
    parser.add_argument("--pace", type=float, default=1, help="divides all pauses [%(default)s]")
    given = parser.parse_args()
    seconds = given.minutes * 60
    if min(seconds, given.patience, given.pace, given.interval or 1) <= 0:
        parser.error("--minutes, --interval, --patience and --pace must be more than 0")
    seed = SystemRandom().randrange(1 << 32) if given.seed is None else given.seed
    interval = given.interval or min(5, seconds / 60)
    lines = 60 if seconds > 900 else 10
    return Options(seconds, seed, given.patience, interval, lines, given.pace), given.picture


def save(soak: Soak, path: Path, title: str) -> None:
    """The picture, and the numbers beside it."""
    numbers = path.with_suffix(".json")
    numbers.parent.mkdir(parents=True, exist_ok=True)
    kept = {each.child.name: {"curves": each.record.curves, "work": each.work} for each in soak.members}
    numbers.write_text(json.dumps({"title": title, "processes": kept}), encoding="utf-8")
    draw(path, soak.members, soak.lasted, title)
    print(f"The picture is {path}, its numbers are in {numbers}.")


def tell(verdict: Verdict) -> None:
    """Everything, then a line for each finding."""
    for note in verdict.notes:
        print(f"NOTE {note}")
    for number, finding in enumerate(verdict.findings, 1):
        print(f"FINDING {number}: {finding}")
    if verdict.clean:
        print("CLEAN")
        return
    print(f"NOT CLEAN: {len(verdict.findings)} findings")
    for number, finding in enumerate(verdict.findings, 1):
        print(f"  {number}: {finding.splitlines()[0]}")


def main() -> int:
    given, picture = options()
    print(f"{given.seconds / 60:g} minutes, --seed {given.seed}", flush=True)
    soak = Soak(given)
    try:
        anyio.run(soak.run)
    except* (TimeoutError, RuntimeError) as errors:
        print(f"The soak could not run: {errors.exceptions}", file=sys.stderr)
        sys.exit(2)
    records = soak.records()
    print(soak.line())
    print(table(soak.members, soak.lasted))
    save(soak, picture, f"{soak.lasted / 60:.1f} minutes, seed {given.seed}")
    verdict = judge(records, given.silence, soak.lasted)
    tell(verdict)
    return 0 if verdict.clean else 1


if __name__ == "__main__":
    sys.exit(main())

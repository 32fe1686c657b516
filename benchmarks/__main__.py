"""`python -m benchmarks` (see `make bench`): run, keep all rounds as JSON, write the tables."""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from fnmatch import fnmatch
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown

from . import wire
from .peers import PEERS
from .report import markdown
from .runner import WORKLOADS, Plan, run

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "benchmarks-results.md"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench ARGS=...", description=__doc__)
    parser.add_argument("--rounds", type=int, help="rounds over all peers (5; with --quick 1)")
    parser.add_argument("--seconds", type=float, help="time for one number (0.3; with --quick 0.06)")
    parser.add_argument(
        "--quick", action="store_true", help="takes under a minute; leaves the docs unchanged"
    )
    parser.add_argument("--peers", default="*", help="names or patterns, separated by commas (see --list)")
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help="separated by commas")
    parser.add_argument("--device", default="", help="aiordma's RDMA device [as it chooses]")
    parser.add_argument("--list", action="store_true", help="list the peers and exit")
    parser.add_argument("--report", type=Path, help="no run: show the tables of this result file")
    options = parser.parse_args()
    if options.rounds is None:
        options.rounds = 1 if options.quick else 5
    if options.seconds is None:
        options.seconds = 0.06 if options.quick else 0.3
    if options.rounds < 1 or options.seconds <= 0:
        parser.error("--rounds must be at least 1 and --seconds more than 0")
    return options


def main() -> int:
    options = _options()
    if options.list:
        print("\n".join(f"{peer.name:24}{peer.title}" for peer in PEERS.values()))  # at once: for `| head`
        return 0
    console = Console(stderr=True)
    if options.report is not None:
        text = markdown(json.loads(options.report.read_text(encoding="utf-8")))
        Console().print(Markdown(text))
        return 0

    patterns = options.peers.split(",")
    peers = [peer for peer in PEERS.values() if any(fnmatch(peer.name, pattern) for pattern in patterns)]
    if not peers:
        console.print(f"no peer matches {options.peers!r}; --list shows the names")
        return 2
    workloads = tuple(options.workloads.split(","))
    plan = Plan(peers, options.rounds, options.seconds, options.quick, workloads, options.device)
    started = datetime.datetime.now(datetime.UTC)

    def tell(line: str) -> None:
        console.print(f"[dim]{line}[/dim]", highlight=False)

    results = run(plan, tell)
    if "wire" in plan.workloads and len(peers) == len(PEERS):
        results["wire"] = wire.run(min(plan.rounds, 3), plan.slice_seconds * 2, tell)
    results["started"] = started.isoformat(timespec="seconds")

    whole = (
        not options.quick and not options.device and len(peers) == len(PEERS) and plan.workloads == WORKLOADS
    )
    name = f"{started:%Y%m%d-%H%M%S}-{results['machine']['revision'] or 'unknown'}" if whole else "partial"
    RESULTS.mkdir(exist_ok=True)
    target = RESULTS / f"{name}.json"
    target.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    text = markdown(results)
    Console().print(Markdown(text))
    console.print(f"all rounds: {target.relative_to(ROOT)}")
    if whole:
        PAGE.write_text(text, encoding="utf-8")
        console.print(f"tables: {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

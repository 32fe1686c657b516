"""`python -m benchmarks.fabric_events`: events per second of the simulator of networks, on one core."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median

from rocefabric import model, simulate, traffic
from rocefabric.topology import build

EXAMPLE = Path(__file__).parents[1] / "examples" / "fabric" / "clos64.toml"
MODELS = ("endless-39", "permutation-8", "websearch-60", "all-to-all-64-2k")


def rate(network: model.Network, name: str) -> tuple[int, float]:
    """Events of two milliseconds of this traffic, and millions of them per second of CPU time."""
    running = simulate.assemble(network, traffic.make(name, build(network)))
    begin = time.process_time()
    events = running.sim.run(2_000_000_000)
    return events, events / (time.process_time() - begin) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "network", nargs="?", type=Path, default=EXAMPLE, help="a network's file [clos64.toml]"
    )
    parser.add_argument("--runs", type=int, default=7, help="of each model; the median counts [7]")
    options = parser.parse_args()
    network = model.load(options.network)
    for name in MODELS:
        found = [rate(network, name) for _ in range(options.runs)]
        print(
            f"{name:18} {found[0][0]:9} events, {median(speed for _, speed in found):5.1f} million a second"
        )


if __name__ == "__main__":
    main()

"""Draws the pictures of docs/howto/fabric.md: `python examples/fabric/pictures.py FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from rocefabric import charts, ecn, model, simulate, traffic
from rocefabric.topology import build

NETWORK = Path(__file__).parent / "clos64.toml"


def queue_and_rates(network: model.Network, name: str, folder: Path) -> simulate.Outcome:
    """Two drawings of one traffic model: `NAME-queue.svg` and `NAME-rates.svg`."""
    topology = build(network)
    outcome = simulate.run(simulate.assemble(network, traffic.make(name, topology)))
    found = ecn.thresholds(network, topology, 25, 208)
    levels = {"Kmin": float(found.kmin), "Kmax": float(found.kmax)}
    queue = charts.lines(
        f"queue of {outcome.queue_name}", "cells", outcome.sample_us, [outcome.queue], levels
    )
    rates = list(zip(*outcome.rates, strict=True))
    (folder / f"fabric-{name}-queue.svg").write_text(queue + "\n", encoding="utf-8")
    drawn = charts.lines("rates of the senders", "Gb/s", outcome.sample_us, rates)
    (folder / f"fabric-{name}-rates.svg").write_text(drawn + "\n", encoding="utf-8")
    return outcome


def main(folder: Path) -> None:
    """Write the pictures there."""
    network = model.load(NETWORK)
    queue_and_rates(network, "endless-4", folder)
    storm = queue_and_rates(network, "endless-39", folder)
    drawn = charts.pause_map(build(network), storm.pauses_by_port)
    (folder / "fabric-endless-39-pauses.svg").write_text(drawn + "\n", encoding="utf-8")
    print(f"{storm.pauses} pauses, {storm.lossless_drops} lost")


if __name__ == "__main__":
    main(Path(*sys.argv[1:]))

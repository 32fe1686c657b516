"""``aiordma fabric compare``: what a network counted, beside its plan and simulations."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .shared import FILE, FORMATS, NETWORK, PROFILE, TRAFFIC, Number, chosen, load, own_traffic, show_report

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..counters import Counters
    from ..model import Network

__all__ = ["compare"]

_DEVICES = click.Path(exists=True, file_okay=False, path_type=Path)


def _read(folder: Path, network: Network) -> dict[str, dict[str, Counters]]:
    """The counters of each device that has a file in the folder."""
    from .. import counters
    from ..errors import NetworkError
    from ..reading import read_text
    from ..topology import build

    topology = build(network)
    switch_queues = {each.queue for each in network.marking.lossless()}
    priorities = {each.priority for each in network.marking.lossless()}
    found = {}
    for path in sorted(folder.iterdir()):
        if not path.is_file() or path.name.startswith("."):
            continue
        name = path.name if path.name in topology.ports else path.stem
        if name not in topology.ports:
            raise NetworkError(f"{path}:1: the network has no device {name[:64]!r}")
        if name in found:
            raise NetworkError(f"{path}:1: there are two files of {name}")
        classes = switch_queues if name in topology.switches else priorities
        found[name] = counters.parse(read_text(path, 64 << 20), str(path), classes)
    if not found:
        raise NetworkError(f"{folder}: there are no files of devices")
    return found


@dataclass(frozen=True)
class _Times:
    """Earlier files, and how long was counted."""

    before: Path | None
    seconds: float


def _times(command: Callable[..., None]) -> Callable[..., None]:
    """Adds `--before` and `--seconds` to a command, which gets both as `times`."""

    @click.option("--before", type=_DEVICES, help="The same files, earlier: what was counted since then.")
    @click.option(
        "--seconds",
        type=Number(0.001, 1e9),
        required=True,
        help="Between both, or since the counters were cleared.",
    )
    @functools.wraps(command)
    def call(before: Path | None, seconds: float, **rest: Any) -> None:
        if not math.isfinite(seconds):
            raise click.BadParameter("seconds are a number")
        command(times=_Times(before, seconds), **rest)

    return call


def _counted(after: Path, times: _Times, network: Network) -> dict[str, dict[str, Counters]]:
    from .. import counters

    late = _read(after, network)
    if times.before is None:
        return late
    early = _read(times.before, network)
    return {
        name: counters.since(early.get(name, {}), ports, str(after / name)) for name, ports in late.items()
    }


@click.command()
@NETWORK
@click.argument("after", type=_DEVICES)
@_times
@click.option("--model", "names", multiple=True, help="A traffic model to simulate beside it, or several.")
@TRAFFIC
@PROFILE
@FORMATS
@click.option("-o", "--output", type=FILE, help="Write the report there.")
def compare(
    network: Path,
    after: Path,
    times: _Times,
    names: tuple[str, ...],
    files: tuple[Path, ...],
    profile: str,
    kind: str,
    output: Path | None,
) -> None:
    """Compare what devices of NETWORK counted, one file each in the folder AFTER, with plan and simulation.

    Files have the names of devices: for hosts `ethtool -S` (and `hw_counters`) or `rdma -j statistic`, for
    switches SONiC's COUNTERS_DB. It says whether headroom and queues were as planned, and the response time
    (pfc.response_ns) that the headroom shows. Ends with status 1 if something is broken.

    \b
    Example:
      ssh leaf1 sonic-db-dump -n COUNTERS_DB -y > after/leaf1.json
      ssh gpu1 ethtool -S enp1s0 > after/gpu1.txt
      aiordma fabric compare network.toml after --before before --seconds 60 --model endless-4
    """
    from .. import compare as comparing
    from .. import traffic
    from ..errors import NetworkError
    from ..report import Report, Verdict
    from ..topology import build

    found = load(network)
    own = own_traffic(files, found)
    names = chosen(names, found)
    try:
        topology = build(found)
        counted = _counted(after, times, found)
        sent = [*(traffic.make(name, topology) for name in names), *own]
        others = [comparing.simulated(found, each, profile=profile) for each in sent]
        part = comparing.section(found, topology, counted, times.seconds, others)
    except NetworkError as error:
        raise click.ClickException(str(error)) from None
    report = Report(f"Counters of {found.name}", [part])
    show_report(report, kind, output)
    if report.verdict is Verdict.BROKEN:
        raise SystemExit(1)

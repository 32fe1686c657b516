"""``aiordma fabric sweep``: variants of a network, each with every traffic model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .shared import (
    JOBS,
    NETWORK,
    PROFILE,
    SEEDS,
    TRAFFIC,
    chosen,
    load,
    means,
    own_traffic,
    resources,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ..simulate import Outcome, Traffic
    from ..suite import Job
    from .shared import Means

__all__ = ["sweep"]


@click.command()
@NETWORK
@click.option(
    "--set",
    "settings",
    multiple=True,
    required=True,
    metavar="TABLE.KEY=VALUES",
    help="Values for a key of the file, with commas between them; with several options, all combinations.",
)
@click.option("--model", "names", multiple=True, help="A traffic model, or several; four kinds by default.")
@TRAFFIC
@SEEDS
@PROFILE
@means
@JOBS
def sweep(
    network: Path,
    settings: tuple[str, ...],
    names: tuple[str, ...],
    files: tuple[Path, ...],
    seeds: tuple[int, ...],
    profile: str,
    given: Means,
    jobs: int | None,
) -> None:
    """Simulate variants of NETWORK: every combination of settings, with every traffic model and seed.

    For each variant it counts the models that meet each goal (--model all: of all models).

    \b
    Example, kept as Parquet and resumed if it is interrupted:
      aiordma fabric sweep network.toml --set ecn.kmin_cells=10,30,90 --set pfc.alpha=0.125,0.5 \\
        --model endless-8 --results sweep.parquet
    """
    from .. import suite, tune
    from .. import sweep as sweeps
    from ..errors import NetworkError
    from ..judge import summary

    found = load(network)
    own = own_traffic(files, found)
    names = chosen(names, found) or (() if own else tune.MODELS)
    models: list[str | Traffic] = [*names, *own]
    try:
        work = [
            suite.job(variant, each, seed, profile, values)
            for values, variant in sweeps.variants(found, sweeps.parse_settings(settings))
            for each in models
            for seed in seeds
        ]
        with resources(given) as how:
            outcomes = suite.work(work, workers=jobs, progress=_sweep_progress(len(work)), **how)
    except NetworkError as error:
        raise click.ClickException(str(error)) from None
    count = len(models) * len(seeds)
    for at in range(0, len(work), count):
        click.echo(f"\n{_settings_text(work[at])}")
        for what, met, numbers in summary(outcomes[at : at + count], found.goals):
            click.echo(f"  {'ok' if met else 'missed':7} {what}: {numbers}")


def _settings_text(job: Job) -> str:
    return " ".join(f"{key}={value:g}" for key, value in job.settings.items())


def _sweep_progress(count: int) -> Callable[[Job, Outcome, bool], None]:
    done = 0

    def show(job: Job, outcome: Outcome, stored: bool) -> None:
        nonlocal done
        done += 1
        busy = "-" if outcome.throughput < 0 else f"{100 * outcome.throughput:.1f} %"
        click.echo(
            f"{done:{len(str(count))}} of {count}  {_settings_text(job)}  {job.name} seed {job.seed}  "
            f"busy ports {busy}  p99 {outcome.latency_99_us:.1f} us  most {outcome.latency_most_us:.1f} us  "
            f"pauses {outcome.pauses}  dropped {outcome.lossless_drops}{'  (stored)' if stored else ''}"
        )

    return show

"""``aiordma fabric tune``: a search for better thresholds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..whole_file import write_whole
from .shared import FILE, NETWORK, PROFILE, TRAFFIC, chosen, load, means, own_traffic, resources

if TYPE_CHECKING:
    from pathlib import Path

    from ..tune import Trial
    from .shared import Means

__all__ = ["tune"]


def _show(trial: Trial) -> None:
    click.echo(
        f"{'best' if trial.best else '':4} Kmin {trial.kmin_cells:5} Kmax {trial.kmax_cells:5} "
        f"Pmax {trial.pmax_percent:3g} % alpha {trial.alpha:<6g} unused {100 * trial.unused:5.1f} % "
        f"p99 {trial.latency_us:7.1f} us pauses {trial.pauses:5.0f}"
    )


# long: its options, one a line
@click.command()
@NETWORK
@click.option(
    "--model",
    "names",
    multiple=True,
    help="A traffic model, or several; four kinds and a large incast by default.",
)
@TRAFFIC
@click.option("--trials", type=click.IntRange(1), default=40, show_default=True, help="Settings to try.")
@click.option(
    "--seed",
    type=click.IntRange(0, (1 << 32) - 1),
    default=1,
    show_default=True,
    help="Of the search and its traffic.",
)
@PROFILE
@means
@click.option("--svg", type=FILE, help="Draw throughput against latency there.")
def tune(
    network: Path,
    names: tuple[str, ...],
    files: tuple[Path, ...],
    trials: int,
    seed: int,
    profile: str,
    given: Means,
    svg: Path | None,
) -> None:
    """Search Kmin, Kmax, Pmax and alpha for NETWORK, and show the settings that nothing beats.

    \b
    Example:
      aiordma fabric tune network.toml --traffic ours.toml --trials 100 --svg trials.svg
    """
    from .. import charts
    from .. import tune as search
    from ..errors import NetworkError

    found = load(network)
    names, own = chosen(names, found), own_traffic(files, found)
    try:
        with resources(given) as how:
            tried = search.tune(
                found,
                trials=trials,
                models=[*names, *own] or None,
                seed=seed,
                profile=profile,
                progress=_show,
                **how,
            )
    except NetworkError as error:
        raise click.ClickException(str(error)) from None
    except ImportError:
        raise click.ClickException("the search needs Optuna: pip install 'aiordma[fabric]'") from None
    click.echo("\nNothing beats (cells for the slowest ports):")
    for trial in sorted((trial for trial in tried if trial.best), key=lambda trial: trial.latency_us):
        _show(trial)
    if svg is not None:
        points = [(trial.latency_us, 100 * trial.unused, trial.best) for trial in tried]
        write_whole(svg, charts.scatter("unused capacity of each trial, over its p99", "us", "%", points))

"""``aiordma fabric simulate``: traffic through a network, judged by its goals."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..whole_file import write_whole
from .shared import (
    FILE,
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
    from pathlib import Path

    from ..model import Goals
    from ..simulate import Outcome, Traffic
    from ..suite import Job
    from .shared import Means

__all__ = ["simulate"]


def _list_models(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        from ..traffic import MODELS

        click.echo("\n".join(MODELS))
        context.exit()


def _show_row(cells: tuple[str, ...], width: int) -> None:
    first, *rest = cells
    click.echo("  ".join([first.ljust(width), *(cell.rjust(11) for cell in rest)]))


def _show_goals(outcomes: list[Outcome], goals: Goals) -> None:
    from ..judge import reasons, summary

    click.echo()
    for what, met, numbers in summary(outcomes, goals):
        click.echo(f"{'ok' if met else 'missed':7} {what}: {numbers}")
    for outcome in outcomes:
        if texts := reasons(outcome, goals):
            click.echo(f"        {outcome.traffic}, seed {outcome.seed}: {'; '.join(texts)}")


# long: what it teaches
@click.command()
@NETWORK
@click.option("--model", "names", multiple=True, help="A traffic model, or several; all of them by default.")
@TRAFFIC
@click.option(
    "--list", is_flag=True, is_eager=True, expose_value=False, callback=_list_models, help="List models."
)
@SEEDS
@PROFILE
@means
@click.option("--html", type=FILE, help="Write tables and drawings there.")
@JOBS
def simulate(
    network: Path,
    names: tuple[str, ...],
    files: tuple[Path, ...],
    seeds: tuple[int, ...],
    profile: str,
    given: Means,
    html: Path | None,
    jobs: int | None,
) -> None:
    """Send traffic through NETWORK with the planned settings, packet by packet, and judge it by the goals.

    With --traffic only that is sent, unless --model names more. Ends with status 1 if anything lossless was
    dropped.

    \b
    Examples:
      aiordma fabric simulate network.toml --model incast-8-64k --model endless-4
      aiordma fabric simulate network.toml --traffic backup.toml --seed 1 --seed 2
      aiordma fabric simulate network.toml --traffic backup.toml --profile none    only pauses, no ECN

    \b
    Such a file (a name is a host, a group of hosts, or "*"):
      [[transfers]]
      source = "host"
      target = "host1"
      bytes = 1000000
    """
    from .. import results as pages
    from .. import suite
    from ..errors import NetworkError

    found = load(network)
    own = own_traffic(files, found)
    names = chosen(names if names or own else ("all",), found)
    width = max(map(len, [*names, *(each.name for each in own)])) + 1
    _show_row(pages.HEAD, width)

    def progress(job: Job, outcome: Outcome, stored: bool) -> None:
        _show_row(pages.row(outcome, found), width)

    models: list[str | Traffic] = [*names, *own]
    work = [suite.job(found, each, seed, profile) for each in models for seed in seeds]
    try:
        with resources(given) as how:
            outcomes = suite.work(work, workers=jobs, progress=progress, **how)
    except NetworkError as error:
        raise click.ClickException(str(error)) from None
    _show_goals(outcomes, found.goals)
    if html is not None:
        write_whole(html, pages.to_html(found, outcomes))
    if any(outcome.lossless_drops + outcome.watchdog_drops for outcome in outcomes):
        raise SystemExit(1)

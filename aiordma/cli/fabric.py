"""``aiordma fabric``: plan and simulate the lossless network that RDMA runs on."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from ..fabric.model import Network
    from ..fabric.simulate import Outcome
    from ..fabric.suite import Store
    from ..fabric.tune import Trial

__all__ = ["fabric"]

_NETWORK = click.argument("network", type=click.Path(exists=True, dir_okay=False, path_type=Path))
_FILE = click.Path(dir_okay=False, path_type=Path)
_FOLDER = click.Path(file_okay=False, path_type=Path)
# As in `fabric.dcqcn.PROFILES`, without importing it for every command.
_PROFILES = ["sigcomm15", "connectx"]
_FORMATS = ["terminal", "markdown", "html", "json"]


@click.group()
def fabric() -> None:
    """Plan and simulate a lossless RoCE network, described in a TOML file.

    \b
    Examples:
      aiordma fabric plan examples/fabric/clos64.toml                        settings, and what they rest on
      aiordma fabric plan examples/fabric/clos64.toml --settings build/plan  files for switches and hosts, too
      aiordma fabric simulate examples/fabric/clos64.toml --model incast-8-64k
      aiordma fabric tune examples/fabric/clos64.toml --trials 100           search better thresholds
    """


def _load(path: Path) -> Network:
    from ..fabric.errors import NetworkError
    from ..fabric.model import load

    try:
        return load(path)
    except NetworkError as error:
        raise click.ClickException(str(error)) from None


def _console() -> Console:
    try:
        from rich.console import Console
    except ImportError:
        text = "the report on a terminal needs rich: pip install 'aiordma[fabric]'"
        raise click.ClickException(text) from None
    return Console()


def _show(text: str, to: Path | None) -> None:
    if to is None:
        click.echo(text, nl=False)
    else:
        to.write_text(text, encoding="utf-8")


@fabric.command()
@_NETWORK
@click.option("--format", "kind", type=click.Choice(_FORMATS), default="terminal")
@click.option("-o", "--output", type=_FILE, help="Write the report there.")
@click.option("--settings", type=_FOLDER, help="Write the devices' settings there.")
def plan(network: Path, kind: str, output: Path | None, settings: Path | None) -> None:
    """Work out switch and host settings for NETWORK, with formula and source of each number.

    Ends with status 1 if a check is broken.
    """
    from ..fabric import planner, render
    from ..fabric.errors import NetworkError
    from ..fabric.report import Verdict

    try:
        report = planner.plan(_load(network))
    except NetworkError as error:
        raise click.ClickException(str(error)) from None
    if kind == "terminal" and output is None:
        render.to_terminal(report, _console())
    else:
        make = {"html": render.to_html, "json": render.to_json}.get(kind, render.to_markdown)
        _show(make(report), output)
    if settings is not None:
        settings.mkdir(parents=True, exist_ok=True)
        for name, text in report.files().items():
            (settings / name).write_text(text, encoding="utf-8")
    if report.verdict is Verdict.BROKEN:
        raise SystemExit(1)


@contextlib.contextmanager
def _store(path: Path | None) -> Iterator[Store | None]:
    from ..fabric import suite

    if path is None:
        yield None
        return
    with contextlib.closing(suite.Store(path)) as found:
        yield found


def _list_models(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        from ..fabric.traffic import MODELS

        click.echo("\n".join(MODELS))
        context.exit()


def _chosen(names: tuple[str, ...]) -> tuple[str, ...]:
    from ..fabric.traffic import MODELS

    for name in names:
        if name not in MODELS:
            text = f"there is no traffic model {name!r} (aiordma fabric simulate --list shows them)"
            raise click.BadParameter(text)
    return names


def _show_row(cells: tuple[str, ...], width: int) -> None:
    first, *rest = cells
    click.echo("  ".join([first.ljust(width), *(cell.rjust(11) for cell in rest)]))


@fabric.command()
@_NETWORK
@click.option("--model", "names", multiple=True, help="A traffic model, or several; all of them by default.")
@click.option(
    "--list", is_flag=True, is_eager=True, expose_value=False, callback=_list_models, help="List models."
)
@click.option("--seed", "seeds", type=int, multiple=True, default=(1,), show_default=True)
@click.option(
    "--profile", type=click.Choice(_PROFILES), default=_PROFILES[0], help="DCQCN parameters of the hosts."
)
@click.option("--database", type=_FILE, help="SQLite file with results: what is in it is not computed again.")
@click.option("--html", type=_FILE, help="Write tables and drawings there.")
@click.option("--jobs", type=click.IntRange(1), help="Processes; one for each CPU by default.")
def simulate(
    network: Path,
    names: tuple[str, ...],
    seeds: tuple[int, ...],
    profile: str,
    database: Path | None,
    html: Path | None,
    jobs: int | None,
) -> None:
    """Send traffic through NETWORK with the planned settings, packet by packet, and judge it by the goals.

    Ends with status 1 if anything lossless was dropped.
    """
    from ..fabric import results, suite
    from ..fabric.errors import NetworkError
    from ..fabric.judge import summary
    from ..fabric.traffic import MODELS

    names = _chosen(names) or tuple(MODELS)
    found = _load(network)
    width = max(map(len, names)) + 1
    _show_row(results.HEAD, width)

    def progress(outcome: Outcome, stored: bool) -> None:
        _show_row(results.row(outcome, found), width)

    try:
        with _store(database) as store:
            outcomes = suite.run(
                found,
                names,
                seeds=seeds,
                profile=profile,
                store=store,
                workers=jobs,
                progress=progress,
            )
    except NetworkError as error:
        raise click.ClickException(str(error)) from None
    click.echo()
    for what, met, numbers in summary(outcomes, found.goals):
        click.echo(f"{'ok' if met else 'missed':7} {what}: {numbers}")
    if html is not None:
        html.write_text(results.to_html(found, outcomes), encoding="utf-8")
    if any(outcome.lossless_drops for outcome in outcomes):
        raise SystemExit(1)


@fabric.command()
@_NETWORK
@click.option("--model", "names", multiple=True, help="A traffic model, or several; four kinds by default.")
@click.option("--trials", type=click.IntRange(1), default=40, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option(
    "--profile", type=click.Choice(_PROFILES), default=_PROFILES[0], help="DCQCN parameters of the hosts."
)
@click.option("--database", type=_FILE, help="SQLite file with results: what is in it is not computed again.")
@click.option("--svg", type=_FILE, help="Draw throughput against latency there.")
def tune(
    network: Path,
    names: tuple[str, ...],
    trials: int,
    seed: int,
    profile: str,
    database: Path | None,
    svg: Path | None,
) -> None:
    """Search Kmin, Kmax, Pmax and alpha for NETWORK, and show the settings that nothing beats."""
    from ..fabric import charts
    from ..fabric import tune as search

    _chosen(names)

    def show(trial: Trial) -> None:
        click.echo(
            f"{'best' if trial.best else '':4} Kmin {trial.kmin_cells:5} Kmax {trial.kmax_cells:5} "
            f"Pmax {trial.pmax_percent:3g} % alpha {trial.alpha:<6g} unused {100 * trial.unused:5.1f} % "
            f"p99 {trial.latency_us:7.1f} us pauses {trial.pauses:5.0f}"
        )

    found = _load(network)
    try:
        with _store(database) as store:
            tried = search.tune(
                found,
                trials=trials,
                models=names or search.MODELS,
                seed=seed,
                profile=profile,
                store=store,
                progress=show,
            )
    except ImportError:
        raise click.ClickException("the search needs Optuna: pip install 'aiordma[fabric]'") from None
    click.echo("\nNothing beats (cells for the slowest ports):")
    for trial in sorted((trial for trial in tried if trial.best), key=lambda trial: trial.latency_us):
        show(trial)
    if svg is not None:
        points = [(trial.latency_us, 100 * trial.unused, trial.best) for trial in tried]
        svg.write_text(
            charts.scatter("trials, the best in red", "p99 us", "unused %", points), encoding="utf-8"
        )

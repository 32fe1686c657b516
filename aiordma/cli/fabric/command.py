"""``aiordma fabric``: plan and simulate the lossless network that RDMA runs on."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..whole_file import make_folder, write_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Executor
    from typing import Any

    from rich.console import Console

    from rocefabric.model import Network
    from rocefabric.simulate import Outcome
    from rocefabric.store import Store
    from rocefabric.suite import Job
    from rocefabric.tune import Trial

__all__ = ["fabric"]

_NETWORK = click.argument("network", type=click.Path(exists=True, dir_okay=False, path_type=Path))
_FILE = click.Path(dir_okay=False, path_type=Path)
_FOLDER = click.Path(file_okay=False, path_type=Path)
# As in `rocefabric.dcqcn`, without importing it for every command.
_PROFILES = ["sigcomm15", "connectx", "ns3", "none"]
_RESULTS = click.option(
    "--results",
    type=click.Path(path_type=Path),
    help="Keep results there; what is there is not computed again. A folder of Parquet files if the name "
    "ends with .parquet, an SQLite file otherwise.",
)
_DASK = click.option(
    "--dask",
    metavar="ADDRESS",
    help="Run on the workers of this Dask scheduler, such as tcp://10.0.0.1:8786.",
)
_JOBS = click.option("--jobs", type=click.IntRange(1), help="Processes; one for each CPU by default.")
_SEEDS = click.option("--seed", "seeds", type=int, multiple=True, default=(1,), show_default=True)
_PROFILE = click.option(
    "--profile",
    type=click.Choice(_PROFILES),
    default=_PROFILES[0],
    help="DCQCN parameters of the hosts; none: no ECN at all, only pauses.",
)
_FORMATS = ["terminal", "markdown", "html", "json"]


@click.group()
def fabric() -> None:
    """Plan and simulate a lossless RoCE network, described in a TOML file.

    \b
    Examples:
      aiordma fabric plan examples/fabric/clos64.toml                        settings, and what they rest on
      aiordma fabric plan examples/fabric/clos64.toml --settings build/plan  files for switches and hosts, too
      aiordma fabric simulate examples/fabric/clos64.toml --model incast-8-64k
      aiordma fabric sweep examples/fabric/clos64.toml --set ecn.kmin_cells=20,60 --model endless-4
      aiordma fabric tune examples/fabric/clos64.toml --trials 100           search better thresholds
    """


def _load(path: Path) -> Network:
    from rocefabric.errors import NetworkError
    from rocefabric.model import load

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
        write_whole(to, text)


@fabric.command()
@_NETWORK
@click.option("--format", "kind", type=click.Choice(_FORMATS), default="terminal")
@click.option("-o", "--output", type=_FILE, help="Write the report there.")
@click.option("--settings", type=_FOLDER, help="Write the devices' settings there.")
def plan(network: Path, kind: str, output: Path | None, settings: Path | None) -> None:
    """Work out switch and host settings for NETWORK, with formula and source of each number.

    Ends with status 1 if a check is broken.
    """
    from rocefabric import planner, render
    from rocefabric.errors import NetworkError
    from rocefabric.report import Verdict

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
        make_folder(settings)
        for name, text in report.files().items():
            write_whole(settings / name, text)
    if report.verdict is Verdict.BROKEN:
        raise SystemExit(1)


@contextlib.contextmanager
def _resources(results: Path | None, dask: str | None) -> Iterator[dict[str, Any]]:
    """The store and the executor that the options name, as arguments of `suite.work`."""
    from rocefabric import store, suite
    from rocefabric.errors import NetworkError

    with contextlib.ExitStack() as stack:
        found: Store | None = None
        executor: Executor | None = None
        try:
            if results is not None:
                found = stack.enter_context(contextlib.closing(store.open_store(results)))
            if dask is not None:
                executor = stack.enter_context(suite.dask(dask))
        except NetworkError as error:
            raise click.ClickException(str(error)) from None
        except ImportError as error:
            text = f"{error.name} is missing: pip install 'aiordma[fabric]'"
            raise click.ClickException(text) from None
        except (OSError, ValueError) as error:
            raise click.ClickException(f"no Dask scheduler at {dask}: {error}") from None
        yield {"store": found, "executor": executor}


def _list_models(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        from rocefabric.traffic import MODELS

        click.echo("\n".join(MODELS))
        context.exit()


def _chosen(names: tuple[str, ...], network: Network) -> tuple[str, ...]:
    from rocefabric.errors import NetworkError
    from rocefabric.topology import build
    from rocefabric.traffic import MODELS, possible

    if names == ("all",):
        try:
            return tuple(possible(build(network)))
        except NetworkError as error:
            raise click.ClickException(str(error)) from None
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
@_SEEDS
@_PROFILE
@_RESULTS
@_DASK
@click.option("--html", type=_FILE, help="Write tables and drawings there.")
@_JOBS
def simulate(
    network: Path,
    names: tuple[str, ...],
    seeds: tuple[int, ...],
    profile: str,
    results: Path | None,
    dask: str | None,
    html: Path | None,
    jobs: int | None,
) -> None:
    """Send traffic through NETWORK with the planned settings, packet by packet, and judge it by the goals.

    Ends with status 1 if anything lossless was dropped.
    """
    from rocefabric import results as pages
    from rocefabric import suite
    from rocefabric.errors import NetworkError
    from rocefabric.judge import reasons, summary

    found = _load(network)
    names = _chosen(names or ("all",), found)
    width = max(map(len, names)) + 1
    _show_row(pages.HEAD, width)

    def progress(job: Job, outcome: Outcome, stored: bool) -> None:
        _show_row(pages.row(outcome, found), width)

    work = [suite.Job(found, name, seed, profile) for name in names for seed in seeds]
    try:
        with _resources(results, dask) as resources:
            outcomes = suite.work(work, workers=jobs, progress=progress, **resources)
    except NetworkError as error:
        raise click.ClickException(str(error)) from None
    click.echo()
    for what, met, numbers in summary(outcomes, found.goals):
        click.echo(f"{'ok' if met else 'missed':7} {what}: {numbers}")
    for outcome in outcomes:
        if texts := reasons(outcome, found.goals):
            click.echo(f"        {outcome.traffic}, seed {outcome.seed}: {'; '.join(texts)}")
    if html is not None:
        write_whole(html, pages.to_html(found, outcomes))
    if any(outcome.lossless_drops for outcome in outcomes):
        raise SystemExit(1)


@fabric.command()
@_NETWORK
@click.option(
    "--set",
    "settings",
    multiple=True,
    required=True,
    metavar="TABLE.KEY=VALUES",
    help="Values for a key of the file, with commas between them; with several options, all combinations.",
)
@click.option("--model", "names", multiple=True, help="A traffic model, or several; four kinds by default.")
@_SEEDS
@_PROFILE
@_RESULTS
@_DASK
@_JOBS
def sweep(
    network: Path,
    settings: tuple[str, ...],
    names: tuple[str, ...],
    seeds: tuple[int, ...],
    profile: str,
    results: Path | None,
    dask: str | None,
    jobs: int | None,
) -> None:
    """Simulate variants of NETWORK: every combination of settings, with every traffic model and seed.

    For each variant it counts the models that meet each goal (--model all: of all models).

    \b
    Example, kept as Parquet and resumed if it is interrupted:
      aiordma fabric sweep network.toml --set ecn.kmin_cells=10,30,90 --set pfc.alpha=0.125,0.5 \\
        --model endless-8 --results sweep.parquet
    """
    from rocefabric import suite, tune
    from rocefabric import sweep as sweeps
    from rocefabric.errors import NetworkError
    from rocefabric.judge import summary

    found = _load(network)
    names = _chosen(names, found) or tune.MODELS
    try:
        work = [
            suite.Job(variant, name, seed, profile, chosen)
            for chosen, variant in sweeps.variants(found, sweeps.parse_settings(settings))
            for name in names
            for seed in seeds
        ]
        with _resources(results, dask) as resources:
            outcomes = suite.work(work, workers=jobs, progress=_sweep_progress(len(work)), **resources)
    except NetworkError as error:
        raise click.ClickException(str(error)) from None
    each = len(names) * len(seeds)
    for at in range(0, len(work), each):
        click.echo(f"\n{_settings_text(work[at])}")
        for what, met, numbers in summary(outcomes[at : at + each], found.goals):
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


@fabric.command()
@_NETWORK
@click.option(
    "--model",
    "names",
    multiple=True,
    help="A traffic model, or several; four kinds and a large incast by default.",
)
@click.option("--trials", type=click.IntRange(1), default=40, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True, help="Of the search and its traffic.")
@_PROFILE
@_RESULTS
@_DASK
@click.option("--svg", type=_FILE, help="Draw throughput against latency there.")
def tune(
    network: Path,
    names: tuple[str, ...],
    trials: int,
    seed: int,
    profile: str,
    results: Path | None,
    dask: str | None,
    svg: Path | None,
) -> None:
    """Search Kmin, Kmax, Pmax and alpha for NETWORK, and show the settings that nothing beats."""
    from rocefabric import charts
    from rocefabric import tune as search

    def show(trial: Trial) -> None:
        click.echo(
            f"{'best' if trial.best else '':4} Kmin {trial.kmin_cells:5} Kmax {trial.kmax_cells:5} "
            f"Pmax {trial.pmax_percent:3g} % alpha {trial.alpha:<6g} unused {100 * trial.unused:5.1f} % "
            f"p99 {trial.latency_us:7.1f} us pauses {trial.pauses:5.0f}"
        )

    found = _load(network)
    names = _chosen(names, found)
    try:
        with _resources(results, dask) as resources:
            tried = search.tune(
                found,
                trials=trials,
                models=names or None,
                seed=seed,
                profile=profile,
                progress=show,
                **resources,
            )
    except ImportError:
        raise click.ClickException("the search needs Optuna: pip install 'aiordma[fabric]'") from None
    click.echo("\nNothing beats (cells for the slowest ports):")
    for trial in sorted((trial for trial in tried if trial.best), key=lambda trial: trial.latency_us):
        show(trial)
    if svg is not None:
        points = [(trial.latency_us, 100 * trial.unused, trial.best) for trial in tried]
        write_whole(svg, charts.scatter("trials, the best in red", "p99 us", "unused %", points))

"""What the commands of ``aiordma fabric`` have in common: arguments, files, stores and engines."""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..whole_file import write_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Executor

    from rich.console import Console

    from ..model import Network
    from ..report import Report
    from ..simulate import Traffic
    from ..store import Store

__all__ = [
    "FILE",
    "FOLDER",
    "FORMATS",
    "JOBS",
    "NETWORK",
    "PROFILE",
    "SEEDS",
    "TRAFFIC",
    "Means",
    "Number",
    "chosen",
    "load",
    "means",
    "own_traffic",
    "resources",
    "show",
    "show_report",
]


class Number(click.FloatRange):
    """Within its range; ``nan``, which is within every range of click's, is none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if found != found:
            self.fail(f"{value} is no number", param, ctx)
        return found


NETWORK = click.argument("network", type=click.Path(exists=True, dir_okay=False, path_type=Path))
FILE = click.Path(dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)
# As in `rocefabric.dcqcn`, without importing it for every command.
PROFILES = ["sigcomm15", "connectx", "connectx-scaled", "ns3", "none"]
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
JOBS = click.option("--jobs", type=click.IntRange(1), help="Processes; one for each CPU by default.")
SEEDS = click.option(
    "--seed",
    "seeds",
    type=click.IntRange(-(1 << 63), (1 << 63) - 1),  # what a store holds
    multiple=True,
    default=(1,),
    show_default=True,
    help="Of the traffic; several: a run with each.",
)
TRAFFIC = click.option(
    "--traffic",
    "files",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Traffic of your own, a TOML file with [[transfers]]; or several.",
)
FORMATS = click.option(
    "--format",
    "kind",
    type=click.Choice(["terminal", "markdown", "html", "json"]),
    default="terminal",
    help="Of the report.",
)
PROFILE = click.option(
    "--profile",
    type=click.Choice(PROFILES),
    default=PROFILES[0],
    show_default=True,
    help="DCQCN parameters of the hosts. sigcomm15: the paper's; connectx: an adapter's manual; ns3: the "
    "authors' model. The steps of sigcomm15 and connectx-scaled grow with lines of 100G to 400G. none: no "
    "ECN, only pauses.",
)


def load(path: Path) -> Network:
    """A network from its file; what is wrong there ends the command with one line."""
    from ..errors import NetworkError
    from ..model import load

    try:
        return load(path)
    except NetworkError as error:
        raise click.ClickException(str(error)) from None


def own_traffic(files: tuple[Path, ...], network: Network) -> list[Traffic]:
    """What files say that the hosts do, each with a name of its own."""
    if not files:
        return []
    from .. import own
    from ..errors import NetworkError
    from ..topology import build

    try:
        topology = build(network)
        found = [own.make(own.load(path), topology) for path in files]
    except NetworkError as error:
        raise click.ClickException(str(error)) from None
    names = [each.name for each in found]
    for at, name in enumerate(names):
        if name in names[:at]:
            text = f"{files[at]}:1: the name {name!r} is that of other traffic: give it another"
            raise click.ClickException(text)
    return found


def console() -> Console:
    """Of rich, which an extra brings."""
    try:
        from rich.console import Console
    except ImportError:
        text = "the report on a terminal needs rich: pip install 'aiordma[fabric]'"
        raise click.ClickException(text) from None
    return Console()


def show_report(report: Report, kind: str, output: Path | None) -> None:
    """On the terminal with colours, or as text."""
    from .. import render

    if kind == "terminal" and output is None:
        render.to_terminal(report, console())
    else:
        make = {"html": render.to_html, "json": render.to_json}.get(kind, render.to_markdown)
        show(make(report), output)


def show(text: str, to: Path | None) -> None:
    """On the terminal, or into a file."""
    if to is None:
        click.echo(text, nl=False)
    else:
        write_whole(to, text)


@dataclass(frozen=True)
class Means:
    """Where results are kept, and what runs the simulations."""

    results: Path | None
    dask: str | None


def means(command: Callable[..., None]) -> Callable[..., None]:
    """Adds `--results` and `--dask` to a command, which gets both as `given`."""

    @functools.wraps(command)
    def call(results: Path | None, dask: str | None, **rest: Any) -> None:
        command(given=Means(results, dask), **rest)

    return _RESULTS(_DASK(call))


@contextlib.contextmanager
def resources(given: Means) -> Iterator[dict[str, Any]]:
    """The store and the executor that the options name, as arguments of `suite.work`."""
    from .. import store, suite
    from ..errors import NetworkError

    with contextlib.ExitStack() as stack:
        results, dask = given.results, given.dask
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


def chosen(names: tuple[str, ...], network: Network) -> tuple[str, ...]:
    """Traffic models by name; `all` is what the network can have."""
    from ..errors import NetworkError
    from ..topology import build
    from ..traffic import MODELS, possible

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

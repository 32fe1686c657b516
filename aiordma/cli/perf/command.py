"""``aiordma perf``: throughput, rates and times to a server, beside what they are compared with."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rocefabric.whole_file import write_whole

from ..arguments import Time, parse_diagnostics, with_options
from ..output import tolerate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ...measure.perf import Perf, Point

_FAILED = 1
#: As shells have it for Ctrl-C.
_INTERRUPTED = 130
_MOST_BYTES = 16 << 20
#: As in measure.turns, which takes longer to load than `--help` may.
_MODES = ("stream", "both-ways", "round-trip", "datagram", "call", "read", "write", "connect")
_AGAINST = ("fallback", "tcp", "uvloop", "unix")


def _parse_sizes(context: click.Context, parameter: click.Parameter, value: str) -> tuple[int, ...]:
    from ...measure.perf import sizes_of

    try:
        found = tuple(sizes_of(value))
    except ValueError:
        raise click.BadParameter(f"{value!r} is no list such as 64,4k,1m") from None
    if any(not 0 < size <= _MOST_BYTES for size in found):
        raise click.BadParameter(f"sizes are from 1 to {_MOST_BYTES}")
    return tuple(dict.fromkeys(found))


def _parse_list(allowed: tuple[str, ...], all_name: str) -> Callable[..., tuple[str, ...]]:
    def parse(context: click.Context, parameter: click.Parameter, value: str) -> tuple[str, ...]:
        names = tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))
        if names == (all_name,):
            return allowed if all_name == "all" else ()
        for name in names:
            if name not in allowed:
                raise click.BadParameter(f"{name!r} is none of {', '.join(allowed)} (or {all_name})")
        if not names:
            raise click.BadParameter(f"needs some of {', '.join(allowed)} (or {all_name})")
        return names

    return parse


def _parse_plot(context: click.Context, parameter: click.Parameter, value: Path | None) -> Path | None:
    if value is not None and value.suffix != ".svg":
        raise click.BadParameter(f"{value.name!r} does not end in .svg")
    return value


_OPTIONS: list[Callable[..., Any]] = [
    click.option(
        "--mode",
        "modes",
        default="stream,round-trip",
        show_default=True,
        callback=_parse_list(_MODES, "all"),
        help=f"Some of {', '.join(_MODES)}; or all.",
    ),
    click.option(
        "-s",
        "--sizes",
        default="64,4k,64k,1m",
        show_default=True,
        callback=_parse_sizes,
        help="Bytes of messages.",
    ),
    click.option(
        "--against",
        default="tcp",
        show_default=True,
        callback=_parse_list(_AGAINST, "none"),
        help="By turns with: tcp, uvloop, unix (asyncio's streams), fallback (aiordma on TCP); or none.",
    ),
    click.option(
        "-c", "--connections", type=click.IntRange(1, 1000), default=1, show_default=True, help="At a time."
    ),
    click.option(
        "--in-flight",
        type=click.IntRange(1, 1024),
        default=1,
        show_default=True,
        help="Messages under way on each connection.",
    ),
    click.option(
        "--seconds",
        type=Time(0.01, 3600),
        default=0.5,
        show_default=True,
        help="Seconds of each measurement.",
    ),
    click.option(
        "--warm-up",
        type=Time(0, 60),
        default=0.1,
        show_default=True,
        help="Seconds before, not counted.",
    ),
    click.option(
        "--rounds", type=click.IntRange(1, 1000), default=3, show_default=True, help="The best one counts."
    ),
    click.option(
        "--busy-poll",
        type=click.IntRange(0, 1_000_000),
        metavar="US",
        help="Microseconds, as AIORDMA_BUSY_POLL_US.",
    ),
    click.option("--events", is_flag=True, help="Without polling: as --busy-poll 0."),
    click.option("--uvloop", is_flag=True, help="aiordma on uvloop."),
    click.option("--require-rdma", is_flag=True, help="Fail with the reason instead of falling back to TCP."),
    click.option(
        "--plot",
        type=click.Path(dir_okay=False, writable=True, path_type=Path),
        callback=_parse_plot,
        metavar="FILE.svg",
        help="Draw throughput and times.",
    ),
    click.option("--json", "as_json", is_flag=True, help="One JSON object (schema aiordma-perf/2)."),
    click.option("--schema", is_flag=True, help="Print the JSON schema of --json."),
]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("peer", metavar="[HOST[:PORT]]", callback=parse_diagnostics, required=False)
@with_options(_OPTIONS)
def perf(peer: tuple[str, int] | None, **given: Any) -> None:
    """Measure throughput, rates and times to `aiordma serve-diagnostics` at HOST:PORT (7118).

    Everything is measured by turns on new connections, so that what else the hosts do concerns all alike. A
    stream or a series of datagrams counts until the server has told that it has received everything. READ and
    WRITE are one-sided: the server's program does nothing. The server's settings are its own. CPU is the time
    of processors that a message takes at this end, in microseconds, with the software device's.

    Ctrl-C ends the measurement, and shows the sizes that are complete.

    Exit status: 0; 1 if there was no connection, or it was lost; 130 after Ctrl-C.

    \b
    Examples:
      aiordma perf server7                          four sizes, streams and round trips, beside TCP
      aiordma perf server7:7118 --mode stream,both-ways -s 1m --seconds 5
      aiordma perf server7:7118 --mode call,read,write --in-flight 16 --against fallback
      aiordma perf server7:7118 --against tcp,uvloop,unix --plot perf.svg
      aiordma perf server7:7118 --events --require-rdma --against none
      aiordma perf server7:7118 --json              for scripts
    """
    tolerate()
    if given["schema"]:
        import msgspec

        from ...measure.perf import Perf

        click.echo(json.dumps(msgspec.json.schema(Perf), indent=2))
        return
    if peer is None:
        raise click.UsageError("HOST:PORT of an `aiordma serve-diagnostics` is missing")
    if given["events"] and given["busy_poll"]:
        raise click.UsageError("--events is --busy-poll 0: give one of them")
    # What goes wrong is the result.
    logging.getLogger("aiordma").addHandler(logging.NullHandler())
    found = _measured(peer, given)
    if given["as_json"]:
        import msgspec

        click.echo(msgspec.json.encode(found))
    else:
        _show(found)
    if given["plot"] is not None:
        from .pictures import plot

        write_whole(given["plot"], plot(found))
    sys.exit(_INTERRUPTED if found.interrupted else 0)


def _measured(peer: tuple[str, int], given: dict[str, Any]) -> Perf:
    from ...measure.perf import Wanted, measure

    wanted = Wanted(
        *peer,
        given["modes"],
        given["sizes"],
        given["against"],
        given["connections"],
        given["in_flight"],
        given["rounds"],
        given["seconds"],
        given["warm_up"],
        0 if given["events"] else given["busy_poll"],
        given["uvloop"],
        given["require_rdma"],
    )
    try:
        with _progress() as progress:
            return measure(wanted, progress)
    except KeyboardInterrupt:
        click.echo("interrupted before the first size was complete", err=True)
        sys.exit(_INTERRUPTED)
    except ImportError as error:
        if not given["uvloop"] and "uvloop" not in given["against"]:
            raise
        raise click.ClickException(f"{error}: pip install 'aiordma[uvloop]'") from None
    except Exception as error:
        text = str(getattr(error, "text", "")) or getattr(error, "strerror", None) or str(error)
        click.echo(f"{peer[0]}:{peer[1]}: {text or type(error).__name__}", err=True)
        sys.exit(_FAILED)


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[int, int, str], None]]:
    """A bar on a terminal. It is drawn between turns only, for a thread that draws would be measured, too."""
    if not sys.stderr.isatty():
        yield lambda number, total, text: None
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError:  # the extra `cli`
        yield lambda number, total, text: click.echo(f"\r\x1b[K{number}/{total} {text}", nl=False, err=True)
        click.echo("\r\x1b[K", nl=False, err=True)
        return
    columns = MofNCompleteColumn(), BarColumn(24), TimeRemainingColumn(), TextColumn("{task.description}")
    console = Console(stderr=True)
    with Progress(*columns, console=console, auto_refresh=False, transient=True) as bar:
        task = bar.add_task("", total=None)

        def show(number: int, total: int, text: str) -> None:
            bar.update(task, completed=number, total=total, description=text, refresh=True)

        yield show


def _show_busy(found: Perf) -> None:
    from ...measure.limits import busy_there
    from ..tables import clean

    there = "" if found.server.host == socket.gethostname() else busy_there(found.server.busy)
    for text in filter(None, (found.busy, there)):
        click.echo(clean(text))


def _show(found: Perf) -> None:
    from ..tables import Column, bytes_text, clean, micros_text, table

    ours = {
        (each.mode, each.size_bytes): each.messages_per_s
        for each in found.points
        if each.subject == "aiordma"
    }

    def against(point: Point) -> str:
        if point.subject == "aiordma" or not point.messages_per_s:
            return ""
        return f"{ours[point.mode, point.size_bytes] / point.messages_per_s:.2f}x"

    def time_of(name: str) -> Column:
        title = name.upper().replace("P999", "P99.9")

        def text(point: Point) -> str:
            return micros_text(getattr(point, f"{name}_us"), name, point.timed) if point.max_us else ""

        return Column(title, text, True)

    columns = [
        Column("MODE", lambda point: point.mode),
        Column("SIZE", lambda point: bytes_text(point.size_bytes) if point.size_bytes else "", True),
        Column("WITH", lambda point: point.subject),
        Column("PATH", lambda point: point.path.upper()),
        Column("MESSAGES/S", lambda point: f"{point.messages_per_s:.0f}", True),
        Column("BYTES/S", lambda point: bytes_text(point.bytes_per_s) if point.size_bytes else "", True),
        *[time_of(name) for name in ("min", "median", "p99", "p999", "max")],
        Column("CPU", lambda point: f"{point.cpu_us:.1f}" if point.cpu_us else "", True),
    ]
    if any(point.subject != "aiordma" for point in found.points):
        columns.append(Column("AIORDMA-IS", against, True))
    if any(point.lost for point in found.points):
        columns.append(Column("LOST", lambda point: point.lost, True))
    first = found.points[0]
    several = "".join(
        f", {count} {what}"
        for count, what in (
            (first.connections, "connections"),
            (max((p.in_flight for p in found.points if p.mode != "both-ways"), default=1), "in flight"),
        )
        if count > 1
    )
    title = f"the best of {len(first.rounds)} rounds of {found.seconds:g} s{several}, times in microseconds"
    click.echo(f"{found.host}:{found.port}: {title}")
    _show_busy(found)
    click.echo("\n".join(table(columns, found.points)))
    reasons = [p.reason for p in found.points if p.subject == "aiordma" and p.path == "tcp"]
    for line in dict.fromkeys(
        [
            *reasons,
            *found.left_out,
        ]
    ):
        click.echo(clean(line))
    if found.interrupted:
        click.echo("interrupted: what was not complete is missing", err=True)

"""``aiordma ping``: round trips of several kinds beside each other, and of all pairs of many hosts."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ..arguments import DIAGNOSTICS_PORT, Time, parse_diagnostics, with_options
from ..output import tolerate
from .live import Live

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...measure.mesh import Mesh
    from ...measure.ping import Kind, Run

_LOST = 1
#: Round trips with such a pause between them have a line each.
_READABLE_S = 0.2


_OPTIONS: list[Callable[..., Any]] = [
    click.option(
        "-n",
        "--count",
        type=click.IntRange(1, 10_000_000),
        default=1000,
        show_default=True,
        help="Round trips of each kind.",
    ),
    click.option(
        "-s",
        "--size",
        type=click.IntRange(1, 16 << 20),
        default=64,
        show_default=True,
        help="Bytes of a message.",
    ),
    click.option(
        "-i",
        "--interval",
        type=Time(0),
        default=0.0,
        help="Seconds between round trips; without it, none.",
    ),
    click.option(
        "--warm-up",
        type=click.IntRange(0),
        default=100,
        show_default=True,
        help="Round trips before, not counted.",
    ),
    click.option(
        "--timeout",
        type=Time(0.01),
        default=5.0,
        show_default=True,
        help="Seconds for an answer.",
    ),
    click.option("--rdma", is_flag=True, help="Also one-sided WRITE and READ, which the device answers."),
    click.option("--channel", is_flag=True, help="Also calls on a message channel: where their time goes."),
    click.option("--tcp", is_flag=True, help="Also a stream on TCP."),
    click.option("--require-rdma", is_flag=True, help="Fail with the reason instead of falling back to TCP."),
    click.option(
        "--mesh",
        "mesh_file",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="All pairs of the hosts in FILE, which run `aiordma serve-diagnostics --mesh`.",
    ),
    click.option(
        "--html",
        type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
        metavar="FILE",
        help="With --mesh: write a heat map.",
    ),
    click.option("--json", "as_json", is_flag=True, help="One JSON object (aiordma-ping/2, aiordma-mesh/1)."),
    click.option("--schema", is_flag=True, help="Print the JSON schema of --json."),
]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("peer", metavar="[HOST[:PORT]]", callback=parse_diagnostics, required=False)
@with_options(_OPTIONS)
def ping(peer: tuple[str, int] | None, mesh_file: Path | None, schema: bool, **given: Any) -> None:
    """Measure round trips to `aiordma serve-diagnostics` at HOST:PORT (7118), from event loop to event loop.

    The path is the one that every connection of aiordma takes, and is shown, with the reason if it is TCP.
    With --rdma, --channel and --tcp, what is slow shows: a WRITE needs no event loop at the server, and a
    call tells how long it was in either loop and on the wire (with the clocks' difference taken out).
    On a terminal there is a line each second, or with -i one for each round trip. Ctrl-C ends the measurement
    and shows what there was. A percentile for which there were too few round trips is "-".

    FILE has one HOST or HOST:PORT in each line. Its hosts measure streams, with at most 65536 bytes, 10000
    round trips and a timeout of 10 s.

    Exit status: 0; 1 if there was no connection, or a message was not answered.

    \b
    Examples:
      aiordma ping server7                          1000 round trips of 64 bytes
      aiordma ping server7:7118 --rdma --channel --tcp
      aiordma ping server7:7118 --require-rdma -n 100000
      aiordma ping server7:7118 -i 1 -n 60          one a second
      aiordma ping server7:7118 --json              for scripts
      aiordma ping --mesh hosts.txt --html mesh.html
    """
    tolerate()
    # What goes wrong is in the report.
    logging.getLogger("aiordma").addHandler(logging.NullHandler())
    if schema:
        _print_schema(mesh_file is not None)
    elif mesh_file is not None:
        if peer is not None:
            raise click.UsageError("either HOST:PORT or --mesh FILE")
        try:
            text = mesh_file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise click.FileError(str(mesh_file), getattr(error, "strerror", None) or str(error)) from None
        _mesh(text, given)
    elif peer is None:
        raise click.UsageError("HOST:PORT of an `aiordma serve-diagnostics`, or --mesh FILE, is missing")
    elif given["html"] is not None:
        raise click.UsageError("--html draws a mesh: it needs --mesh FILE")
    else:
        _ping(peer, given)


def _print_schema(of_mesh: bool) -> None:
    import msgspec

    from ...measure.mesh import Mesh
    from ...measure.ping import Ping

    click.echo(json.dumps(msgspec.json.schema(Mesh if of_mesh else Ping), indent=2))


# ---- one server


def _ping(peer: tuple[str, int], given: dict[str, Any]) -> None:
    kinds: list[Kind] = ["stream"]
    kinds += ["write", "read"] if given["rdma"] else []
    kinds += ["call"] if given["channel"] else []
    kinds += ["tcp"] if given["tcp"] else []
    import anyio

    from ...measure.limits import busy
    from ...measure.ping import busy_server

    was_busy = busy(), anyio.run(busy_server, *peer)
    runs: list[Run] = []
    for kind in kinds:
        run, interrupted = _measured(peer, kind, given)
        runs.append(run)
        if interrupted:
            break
    if given["as_json"]:
        import msgspec

        from ...measure.ping import SCHEMA, Ping

        click.echo(msgspec.json.encode(Ping(SCHEMA, *peer, given["size"], runs, *was_busy)))
    else:
        _show(peer, given["size"], runs, was_busy)
    sys.exit(_LOST if any(run.error or run.lost for run in runs) else 0)


def _measured(peer: tuple[str, int], kind: Kind, given: dict[str, Any]) -> tuple[Run, bool]:
    """:return: the run, and whether Ctrl-C has ended it."""
    import anyio

    from ...measure.ping import Wanted, measure

    wanted = Wanted(
        *peer,
        kind,
        given["size"],
        given["count"],
        given["warm_up"],
        given["interval"],
        given["timeout"],
        given["require_rdma"],
    )
    kept: list[Run] = []
    try:
        live = None
        if sys.stderr.isatty() and not given["as_json"]:
            live = Live(_NAMES[kind], given["count"], given["interval"] >= _READABLE_S)
        return anyio.run(measure, wanted, kept.append, live), False
    except KeyboardInterrupt:
        if not kept:
            raise
        return kept[-1], True


#: How the kinds are called in the table, and what answers.
_NAMES = {"stream": "stream", "tcp": "stream", "call": "call", "write": "WRITE", "read": "READ"}


def _show(peer: tuple[str, int], size: int, runs: list[Run], was_busy: tuple[str, str]) -> None:
    from ..tables import Column, clean, micros_text, table

    def time_of(name: str) -> Column:
        title = name.upper().replace("P999", "P99.9")
        return Column(title, lambda run: micros_text(getattr(run, f"{name}_us"), name, run.count), True)

    columns = [
        Column("KIND", lambda run: _NAMES[run.kind]),
        Column("PATH", lambda run: run.path.upper() or "-"),
        Column("CONNECT", lambda run: f"{run.connect_ms:.1f}ms", True),
        Column("TRIPS", lambda run: run.count, True),
        Column("LOST", lambda run: run.lost, True),
        *[time_of(name) for name in ("min", "mean", "median", "p99", "p999", "max")],
    ]
    host, port = peer
    click.echo(f"{host}:{port}: round trips of {size} bytes, in microseconds")
    for text in filter(None, was_busy):
        click.echo(clean(text))
    click.echo("\n".join(table(columns, runs)))
    for run in runs:
        if run.stages is not None:
            parts = run.stages
            each = ", ".join(f"{name} {value:.1f}" for name, value in parts.each_us.items())
            click.echo(
                f"of a call: this event loop {parts.client_us:.1f}, wire {parts.wire_us:.1f}, the server's "
                f"event loop {parts.server_us:.1f} (medians; {clean(each)})"
            )
    reasons = dict.fromkeys(run.mode for run in runs if run.kind != "tcp" and run.path == "tcp")
    for reason in reasons:
        click.echo(clean(reason))
    for run in runs:
        if run.error:
            click.echo(clean(f"{_NAMES[run.kind]}: {run.error}"), err=True)


# ---- all pairs

#: What a host is not asked for when it measures to another one.
_NOT_OF_A_MESH = ("interval", "warm_up", "rdma", "channel", "tcp", "require_rdma")


def _check_mesh() -> None:
    context = click.get_current_context()
    for name in _NOT_OF_A_MESH:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name.replace('_', '-')} is not for --mesh")


def _mesh(text: str, given: dict[str, Any]) -> None:
    import anyio

    from ...measure.mesh import hosts_of, measure_mesh
    from ...measure.ping import PingRequest

    _check_mesh()
    try:
        PingRequest("", 0, given["size"], given["count"], given["timeout"]).wanted()
    except ValueError as error:
        raise click.UsageError(f"a host refuses that: {error}") from None
    try:
        hosts = hosts_of(text, DIAGNOSTICS_PORT)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--mesh") from None
    kept: list[Mesh] = []

    def progress(mesh: Mesh, total: int) -> None:
        kept[:] = [mesh]
        if sys.stderr.isatty():
            click.echo(f"\r\x1b[K{len(mesh.pairs)} of {total} pairs", nl=False, err=True)

    with contextlib.suppress(KeyboardInterrupt):
        anyio.run(measure_mesh, hosts, given["size"], given["count"], given["timeout"], progress)
    if sys.stderr.isatty():
        click.echo("\r\x1b[K", nl=False, err=True)
    mesh = kept[0]
    if given["as_json"]:
        import msgspec

        click.echo(msgspec.json.encode(mesh))
    else:
        _show_mesh(mesh)
    if given["html"] is not None:
        from .heat_map import write

        write(mesh, Path("/dev/stdout") if str(given["html"]) == "-" else given["html"])
    whole = len(mesh.pairs) == len(hosts) * (len(hosts) - 1)
    sys.exit(_LOST if not whole or any(pair.error for pair in mesh.pairs) else 0)


def _show_mesh(mesh: Mesh) -> None:
    from ...measure.mesh import matrix, problems
    from ..tables import Column, clean, table

    pairs = matrix(mesh)

    def cell(source: str, target: str) -> str:
        pair = pairs.get((source, target))
        if pair is None or not pair.count:
            return "" if source == target else "-"
        return f"{pair.median_us:.1f}" + ("*" if pair.path == "tcp" else "")

    def column(target: str) -> Column:
        return Column(target, lambda source: cell(source, target), True)

    click.echo(f"round trips of {mesh.size_bytes} bytes, medians in microseconds, from row to column")
    click.echo("\n".join(table([Column("", lambda source: source), *map(column, mesh.hosts)], mesh.hosts)))
    if any(pair.path == "tcp" for pair in mesh.pairs):
        click.echo("* by TCP")
    for text, found in problems(mesh.pairs).items():
        first, more = found[0], f" and {len(found) - 1} more" if len(found) > 1 else ""
        click.echo(clean(f"{first.source} to {first.target}{more}: {text}"), err=bool(first.error))

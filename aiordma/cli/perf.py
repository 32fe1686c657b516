"""``aiordma perf``: throughput and rates to a server, over RDMA and TCP beside each other."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any, Literal

import click

from .arguments import parse_peer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .performing import Point

__all__ = ["perf"]

_FAILED = 1
_MOST_BYTES = 16 << 20


def _parse_sizes(context: click.Context, parameter: click.Parameter, value: str) -> tuple[int, ...]:
    from .performing import sizes_of

    try:
        found = tuple(sizes_of(value))
    except ValueError:
        raise click.BadParameter(f"{value!r} is no list such as 64,4k,1m") from None
    if any(not 0 < size <= _MOST_BYTES for size in found):
        raise click.BadParameter(f"sizes are from 1 to {_MOST_BYTES}")
    return found


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("peer", metavar="HOST:PORT", callback=parse_peer)
@click.option(
    "--mode",
    type=click.Choice(["stream", "round-trip", "both"]),
    default="both",
    show_default=True,
    help="stream: one way, back to back; round-trip: one message at a time.",
)
@click.option(
    "-s",
    "--sizes",
    default="64,4k,64k,1m",
    show_default=True,
    callback=_parse_sizes,
    help="Bytes of messages.",
)
@click.option(
    "--seconds", type=click.FloatRange(0.01, 3600), default=0.5, show_default=True, help="For a number."
)
@click.option(
    "--rounds", type=click.IntRange(1, 1000), default=3, show_default=True, help="The best one counts."
)
@click.option("--tcp/--no-tcp", default=True, help="Whether to measure TCP by turns with RDMA.")
@click.option("--rdma", is_flag=True, help="Fail with the reason instead of measuring TCP as a fallback.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object (schema aiordma-perf/1).")
def perf(peer: tuple[str, int], as_json: bool, **given: Any) -> None:
    """Measure rates and throughput to `aiordma serve-diagnostics` at HOST:PORT, over RDMA and over TCP.

    Both paths are measured by turns on new connections, so that what else the hosts do concerns both. A
    stream counts until the server has told that it has received everything. Settings come from the
    environment.

    Exit status: 0; 1 if there was no connection, or it was lost.

    \b
    Examples:
      aiordma perf server7:7118                     four sizes, both modes, both paths
      aiordma perf server7:7118 --mode stream -s 1m --seconds 5
      aiordma perf server7:7118 --rdma --no-tcp     RDMA only, or fail with the reason
      AIORDMA_BUSY_POLL_US=0 aiordma perf server7:7118
      aiordma perf server7:7118 --json              for scripts
    """
    # What goes wrong is the result.
    logging.getLogger("aiordma").addHandler(logging.NullHandler())
    try:
        points = _measured(peer, given, _progress(as_json))
    except Exception as error:
        text = str(getattr(error, "text", "")) or getattr(error, "strerror", None) or str(error)
        click.echo(f"{peer[0]}:{peer[1]}: {text or type(error).__name__}", err=True)
        sys.exit(_FAILED)
    if as_json:
        import msgspec

        from .performing import SCHEMA, Perf

        click.echo(msgspec.json.encode(Perf(SCHEMA, *peer, given["seconds"], points)))
    else:
        _show(peer, points)


def _measured(peer: tuple[str, int], given: dict[str, Any], progress: Callable[[str], None]) -> list[Point]:
    import anyio

    from .performing import Mode, Wanted, measure

    paths: list[Literal["auto", "rdma", "tcp"]] = ["rdma" if given["rdma"] else "auto"]
    if given["tcp"]:
        paths.append("tcp")
    modes: Sequence[Mode] = ("stream", "round-trip") if given["mode"] == "both" else (given["mode"],)
    points: list[Point] = []
    for mode in modes:
        wanted = Wanted(*peer, mode, given["sizes"], tuple(paths), given["rounds"], given["seconds"])
        points += anyio.run(measure, wanted, progress)
    return points


def _progress(as_json: bool) -> Callable[[str], None]:
    if as_json or not sys.stderr.isatty():
        return lambda text: None
    return lambda text: click.echo(f"\r\x1b[K{text}", nl=False, err=True)


def _show(peer: tuple[str, int], points: list[Point]) -> None:
    from .tables import Column, bytes_text, clean, table

    on_tcp = {(each.mode, each.size_bytes): each for each in points if each.path == "tcp"}

    def against(point: Point) -> str:
        other = on_tcp.get((point.mode, point.size_bytes))
        if other is None or point.path == "tcp" or not other.messages_per_s:
            return ""
        return f"{point.messages_per_s / other.messages_per_s:.2f}"

    columns = [
        Column("MODE", lambda point: point.mode),
        Column("SIZE", lambda point: bytes_text(point.size_bytes), True),
        Column("PATH", lambda point: point.path.upper()),
        Column("MESSAGES/S", lambda point: f"{point.messages_per_s:.0f}", True),
        Column("BYTES/S", lambda point: bytes_text(point.bytes_per_s), True),
        Column("MEAN", lambda point: f"{point.mean_us:.1f}us", True),
        Column("TIMES-TCP", against, True),
    ]
    if sys.stderr.isatty():
        click.echo("\r\x1b[K", nl=False, err=True)
    click.echo(f"{peer[0]}:{peer[1]}: the best of {len(points[0].rounds)} rounds")
    click.echo("\n".join(table(columns, points)))
    if all(point.path == "tcp" for point in points):
        click.echo(clean(points[0].reason))

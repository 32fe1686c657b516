"""``aiordma ping`` and its server, ``aiordma serve-diagnostics``."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any, Literal

import click

from .arguments import DIAGNOSTICS_PORT, parse_peer

if TYPE_CHECKING:
    from .pinging import Run

__all__ = ["ping", "serve_diagnostics"]

_LOST = 1


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("peer", metavar="HOST:PORT", callback=parse_peer)
@click.option("-n", "--count", type=click.IntRange(1, 10_000_000), default=1000, show_default=True)
@click.option("-s", "--size", type=click.IntRange(1, 16 << 20), default=64, show_default=True, help="Bytes.")
@click.option("-i", "--interval", type=click.FloatRange(0), default=0.0, help="Seconds between round trips.")
@click.option("--warm-up", type=click.IntRange(0), default=100, show_default=True, help="Round trips before.")
@click.option("--timeout", type=click.FloatRange(0.01), default=5.0, show_default=True, help="Seconds.")
@click.option("--tcp", is_flag=True, help="Measure TCP, too, on a second connection.")
@click.option("--rdma", is_flag=True, help="Fail with the reason instead of measuring TCP as a fallback.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object (schema aiordma-ping/1).")
def ping(peer: tuple[str, int], as_json: bool, tcp: bool, rdma: bool, **given: Any) -> None:
    """Measure round trips to `aiordma serve-diagnostics` at HOST:PORT, from event loop to event loop.

    The path is the one that every connection of aiordma takes, and is shown, with the reason if it is TCP.
    Ctrl-C ends the measurement and shows what there was.

    Exit status: 0; 1 if there was no connection, or a message was not answered.

    \b
    Examples:
      aiordma ping server7:7118                     1000 round trips of 64 bytes
      aiordma ping server7:7118 --tcp               ... and the same over TCP
      aiordma ping server7:7118 --rdma -n 100000    or fail with the reason
      aiordma ping server7:7118 -i 1 -n 60          one a second
      aiordma ping server7:7118 --json              for scripts
    """
    # What goes wrong is in the report.
    logging.getLogger("aiordma").addHandler(logging.NullHandler())
    modes: list[Literal["auto", "rdma", "tcp"]] = ["rdma" if rdma else "auto"]
    if tcp:
        modes.append("tcp")
    runs = [_measured(peer, mode, given) for mode in modes]
    if as_json:
        import msgspec

        from .pinging import SCHEMA, Ping

        click.echo(msgspec.json.encode(Ping(SCHEMA, *peer, given["size"], runs)))
    else:
        _show(peer, given["size"], runs)
    sys.exit(_LOST if any(run.error or run.lost for run in runs) else 0)


def _measured(peer: tuple[str, int], mode: Literal["auto", "rdma", "tcp"], given: dict[str, Any]) -> Run:
    import anyio

    from .pinging import Wanted, measure

    wanted = Wanted(
        *peer, mode, given["size"], given["count"], given["warm_up"], given["interval"], given["timeout"]
    )
    kept: list[Run] = []
    try:
        return anyio.run(measure, wanted, kept.append)
    except KeyboardInterrupt:
        if not kept:
            raise
        return kept[-1]


def _show(peer: tuple[str, int], size: int, runs: list[Run]) -> None:
    from .tables import Column, clean, table

    def time_of(name: str) -> Column:
        title = name.upper().replace("P999", "P99.9")
        return Column(title, lambda run: f"{getattr(run, f'{name}_us'):.1f}", True)

    columns = [
        Column("PATH", lambda run: run.path.upper() or "-"),
        Column("CONNECT", lambda run: f"{run.connect_ms:.1f}ms", True),
        Column("TRIPS", lambda run: run.count, True),
        Column("LOST", lambda run: run.lost, True),
        *[time_of(name) for name in ("min", "mean", "median", "p99", "p999", "max")],
    ]
    host, port = peer
    click.echo(f"{host}:{port}: round trips of {size} bytes, in microseconds")
    click.echo("\n".join(table(columns, runs)))
    for run in runs:
        if run.asked != "tcp" and run.path == "tcp":
            click.echo(clean(run.mode))
        if run.error:
            click.echo(clean(f"{run.asked}: {run.error}"), err=True)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=DIAGNOSTICS_PORT, show_default=True)
def serve_diagnostics(host: str, port: int) -> None:
    """Answer `aiordma ping` and `aiordma perf` until Ctrl-C. Whoever reaches the port may use it: 64 clients,
    of 60 s silence at most.

    Settings come from the environment, as for every program on aiordma.

    \b
    Examples:
      aiordma serve-diagnostics                     for this host
      aiordma serve-diagnostics --host 0.0.0.0      for others
      AIORDMA_DEVICE=mlx5_0 aiordma serve-diagnostics --port 7200
    """
    import anyio

    from ..config import Config
    from .diagnostics import serve_diagnostics as serve

    def ready(actual: int) -> None:
        click.echo(f"listening on {host}:{actual}")

    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        anyio.run(serve, host, port, Config.from_env(), ready)
    except KeyboardInterrupt:
        click.echo()
    except OSError as error:
        raise click.ClickException(str(error)) from error

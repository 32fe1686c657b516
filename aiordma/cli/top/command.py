"""``aiordma top``: rates, links, slow calls and fallbacks of all processes of this user, again and again."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from ..arguments import Time, parse_host, with_options
from ..output import tolerate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .rates import Top

_NO_PROCESS = 1


_OPTIONS: list[Callable[..., Any]] = [
    click.option(
        "-i",
        "--interval",
        type=Time(0.1),
        default=1.0,
        show_default=True,
        help="Seconds between looks.",
    ),
    click.option("-n", "--count", type=click.IntRange(1), help="So many looks; without it, until Ctrl-C."),
    click.option("--pid", type=int, metavar="PID", help="One process only."),
    click.option("--program", metavar="TEXT", help="Processes with this in their names."),
    click.option("--json", "as_json", is_flag=True, help="One JSON object a line (schema aiordma-top/1)."),
    click.option("--schema", is_flag=True, help="Print the JSON schema of --json."),
    click.option(
        "--serve",
        type=click.IntRange(0, 65535),
        metavar="PORT",
        help="A live page for browsers; 0: any port.",
    ),
    click.option(
        "--host",
        default="127.0.0.1",
        show_default=True,
        callback=parse_host,
        help="With --serve: an address of this host to listen on.",
    ),
]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@with_options(_OPTIONS)
def top(**given: Any) -> None:
    """Watch all processes of this user (root: of all users): the busiest connections and links, the slowest
    calls, and what fell back to TCP, with rates since the look before.

    Times of calls are those of one call in 64, or of the traced ones. Ctrl-C ends it.

    --serve shows the same in a browser, with who is slow as sentences, ten minutes of history, and events
    with their times. On loopback only your own user and root may read it; on another --host everyone can
    who reaches the port.

    Exit status: 0; 1 if no process uses aiordma at the end.

    \b
    Examples:
      aiordma top                                   until Ctrl-C
      aiordma top -i 5 --program worker.py          some programs, every 5 seconds
      aiordma top -n 2 --json | tail -1 | jq .links rates of one second, for scripts
      aiordma top --serve 7119                      http://127.0.0.1:7119/
    """
    tolerate()
    if given["schema"]:
        _print_schema()
        return
    which = given["interval"], given["pid"], given["program"]
    if given["serve"] is not None:
        if given["as_json"] or given["count"] is not None:
            raise click.UsageError("--serve has its JSON at /top.json, and goes on until Ctrl-C")
        _serve(given["host"], given["serve"], *which)
        return
    looks = _looks(given["count"], *which)
    found = None
    with contextlib.suppress(KeyboardInterrupt):
        if given["as_json"]:
            import msgspec

            for found in looks:
                click.echo(msgspec.json.encode(found))
        else:
            found = _show(looks)
    sys.exit(0 if found is not None and found.processes else _NO_PROCESS)


def _print_schema() -> None:
    import json

    import msgspec

    from .rates import Top

    click.echo(json.dumps(msgspec.json.schema(Top), indent=2))


def _serve(host: str, port: int, interval: float, pid: int | None, program: str | None) -> None:
    import asyncio

    from ...admin.report import Report, collect
    from .history import PAGE_VIEWS
    from .serve import serve

    def look() -> Report:
        return collect(PAGE_VIEWS, lambda page: program is None or program in page.program, pid)

    def ready(address: str) -> None:
        click.echo(f"{address} shows all processes (Ctrl-C ends it)")

    try:
        asyncio.run(serve(host, port, look, interval, ready))
    except KeyboardInterrupt:
        click.echo()
    except OSError as error:
        raise click.ClickException(f"{host}:{port}: {error.strerror or error}") from None


def _looks(count: int | None, interval: float, pid: int | None, program: str | None) -> Iterator[Top]:
    from ...admin.page import Page
    from ...admin.report import collect
    from .rates import VIEWS, compare

    def wanted(page: Page) -> bool:
        return program is None or program in page.program

    before, number, following = None, 0, time.monotonic()
    while True:
        report = collect(VIEWS, wanted, pid)
        yield compare(before, report)
        before, number = report, number + 1
        if number == count:
            return
        following = max(following + interval, time.monotonic())
        time.sleep(max(0.0, following - time.monotonic()))


def _show(looks: Iterator[Top]) -> Top | None:
    try:
        from rich.console import Console
        from rich.live import Live
    except ImportError:
        raise click.ClickException("without --json it needs rich: pip install 'aiordma[cli]'") from None
    from .view import render

    console, found = Console(), None
    if not console.is_terminal:
        for found in looks:
            console.print(render(found, 10_000), crop=False, overflow="ignore", no_wrap=True, soft_wrap=True)
        return found
    # Drawn when there is news, by this thread.
    with Live(console=console, screen=True, auto_refresh=False) as live:
        with contextlib.suppress(KeyboardInterrupt):
            for found in looks:
                live.update(render(found, console.height), refresh=True)
    if found is not None:
        console.print(render(found, console.height))
    return found

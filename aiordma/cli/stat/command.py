"""``aiordma stat``: the connections of all processes of this user, and what they run on."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from ..arguments import Time, with_options
from ..output import tolerate
from .order import BY, SORTS, Arrangement

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...admin.messages import Connection
    from ...admin.page import Page
    from ...admin.report import Process, Report
    from ...admin.requests import View
    from .views import Rates

VIEWS: tuple[View, ...] = (
    "connections",
    "listeners",
    "links",
    "devices",
    "memory",
    "rpc",
    "fallbacks",
    "events",
    "leaks",
    "totals",
)
#: Exit status.
_NOBODY, _SILENT = 1, 3


class Wanted:
    """The filters of the command line."""

    def __init__(self, pid: int | None, program: str | None, rows: dict[str, str | None]) -> None:
        self.pid, self._program = pid, program
        self._rows = {name: value for name, value in rows.items() if value is not None}

    def process(self, page: Page) -> bool:
        """Whether this process is to be asked."""
        return self._program is None or self._program in page.program

    def narrow(self, report: Report) -> None:
        """Leave the other connections out."""
        for process in report.processes if self._rows else ():
            if process.connections is not None:
                process.connections = [each for each in process.connections if self._matches(each)]

    def _matches(self, row: Connection) -> bool:
        for name, value in self._rows.items():
            if name == "address":
                if not (_is_at(row.local, value) or _is_at(row.remote, value)):
                    return False
            elif name == "mode":
                if value.lower() != row.path and not row.mode.lower().startswith(value.lower()):
                    return False
            elif getattr(row, name) != value:
                return False
        return True


def _is_at(address: str, wanted: str) -> bool:
    from ...addresses import show, writings  # not for --help

    host, _, port = address.rpartition(":")
    if wanted in (address, host, f":{port}"):
        return True
    return any(wanted in (each, show((each, port))) for each in writings(host.strip("[]")))


_KINDS = ["stream", "datagrams", "calls", "valkey"]
_OPTIONS: list[Callable[..., Any]] = [
    click.option("-c", "--connections", is_flag=True, help="Connections; the default."),
    click.option("--listeners", is_flag=True, help="Where clients connect to, and how many have."),
    click.option("-l", "--links", is_flag=True, help="Links: queue pairs to peers, with window and memory."),
    click.option(
        "--devices", is_flag=True, help="RDMA devices, why one is not used, and which programs have one open."
    ),
    click.option("-m", "--memory", is_flag=True, help="Registered memory, and who holds it."),
    click.option("--rpc", is_flag=True, help="Calls by method: errors, in flight, times."),
    click.option(
        "-f", "--fallbacks", is_flag=True, help="Why connections are on TCP, with counts and times."
    ),
    click.option("-e", "--events", is_flag=True, help="What happened to links, devices and paths, and when."),
    click.option("--leaks", is_flag=True, help="What programs have forgotten, and where it was created."),
    click.option("-t", "--totals", is_flag=True, help="Counts since the processes began."),
    click.option("-a", "--all", "everything", is_flag=True, help="All of these."),
    click.option(
        "-d", "--details", is_flag=True, help="Rings, cursors and flags (as smcss -d); more of links."
    ),
    click.option("--pid", type=int, metavar="PID", help="One process only."),
    click.option("--program", metavar="TEXT", help="Processes with this in their names."),
    click.option("--address", metavar="HOST|HOST:PORT|:PORT", help="Connections with it at either end."),
    click.option("--state", metavar="STATE", help="Connections in it, such as 'active' or 'broken'."),
    click.option("--mode", metavar="rdma|tcp|CODE", help="Connections on it: tcp, or 'TCP 0x03010000'."),
    click.option("--kind", type=click.Choice(_KINDS), help="Connections of it."),
    click.option("--sort", type=click.Choice(list(SORTS)), help="Connections with the most of it first."),
    click.option("-n", "--limit", type=click.IntRange(1), metavar="N", help="So many connections at most."),
    click.option("--sum", "sum_by", type=click.Choice(list(BY)), help="Connections summed up by it."),
    click.option("--watch", type=Time(0.1), metavar="SECONDS", help="Show it again and again."),
    click.option("--reset", is_flag=True, help="Your totals count from now on (only yours)."),
    click.option("--absolute", is_flag=True, help="Totals without regard to --reset."),
    click.option("--json", "as_json", is_flag=True, help="One JSON object (schema aiordma-stat/1)."),
    click.option("--schema", is_flag=True, help="Print the JSON schema of --json."),
]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@with_options(_OPTIONS)
def stat(**given: Any) -> None:
    """Show connections of aiordma: path, reason for TCP, state, bytes, and what they run on.

    All processes of this user are asked, for root those of all users. One that does not answer is shown with
    the reason, such as an event loop that stands still. One that has returned, and was not closed, is
    STOPPED, which is no failure.

    Exit status: 0; 1 if no process uses aiordma; 3 if one did not answer.

    \b
    Examples:
      aiordma stat                                  all connections
      aiordma stat --mode tcp                       those that are not on RDMA, and why
      aiordma stat -d --pid 4711                    rings and cursors of one process
      aiordma stat --fallbacks --events             reasons for TCP, and what happened when
      aiordma stat --sort waiting -n 20             whose programs do not read
      aiordma stat --sum peer                       thousands of connections, by peer
      aiordma stat --watch 1                        with rates, every second
      aiordma stat --links --memory                 what is beneath
      aiordma stat --json --all                     for scripts
      aiordma stat --reset                          count from now on
    """
    tolerate()
    if given["schema"]:
        _print_schema()
        return
    views: tuple[View, ...] = tuple(view for view in VIEWS if given[view] or given["everything"])
    if not views:
        views = VIEWS if given["as_json"] else ("connections",)
    if given["as_json"] and given["sum_by"]:
        raise click.UsageError("--sum is for people: --json has each connection")
    rows = {name: given[name] for name in ("address", "state", "mode", "kind")}
    wanted = Wanted(given["pid"], given["program"], rows)
    if given["reset"]:
        _reset(wanted)
    elif given["watch"] is None:
        report = _collect(views, wanted, absolute=given["absolute"])
        _print(report, views, given, None)
        sys.exit(_status(report))
    else:
        try:
            _watch(views, wanted, given)
        except KeyboardInterrupt:
            click.echo()


def _collect(views: tuple[View, ...], wanted: Wanted, *, absolute: bool) -> Report:
    from ...admin.report import collect  # not for --help

    report = collect(views, wanted.process, wanted.pid)
    wanted.narrow(report)
    if "totals" in views and not absolute:
        from .baseline import Baseline

        Baseline.load().subtract(report)
    return report


def _status(report: Report) -> int:
    if not report.processes:
        return _NOBODY
    from ...admin.asked import QUIET

    return 0 if all(process.state in QUIET for process in report.processes) else _SILENT


def _print_schema() -> None:
    import json

    from ...admin.report import schema

    click.echo(json.dumps(schema(), indent=2))


def _print(report: Report, views: tuple[View, ...], given: dict[str, Any], rates: Rates | None) -> None:
    order = Arrangement(given["sort"], given["limit"], given["sum_by"])
    if given["as_json"]:
        import msgspec

        order.cut(report)
        click.echo(msgspec.json.encode(report))
        return
    from ..tables import NONE
    from .views import lines

    if not report.processes:
        click.echo(NONE, err=True)
        return
    click.echo("\n".join(lines(report, views, details=given["details"], rates=rates, order=order)))


def _reset(wanted: Wanted) -> None:
    from .baseline import Baseline

    report = _collect(("totals",), wanted, absolute=True)
    try:
        Baseline.load().take(report)
    except OSError as error:
        why = f"{error.strerror or error}; XDG_CACHE_HOME names a folder for it"
        raise click.ClickException(f"the totals cannot be stored: {why}") from None
    click.echo(f"totals of {len(report.processes)} processes count from now on")
    sys.exit(_status(report))


# ---- again and again


def _watch(views: tuple[View, ...], wanted: Wanted, given: dict[str, Any]) -> None:
    before: Report | None = None
    in_place = sys.stdout.isatty() and not given["as_json"]
    while True:
        report = _collect(views, wanted, absolute=given["absolute"])
        if in_place:
            click.echo("\x1b[H\x1b[2J", nl=False)
            click.echo(time.strftime("%H:%M:%S", time.localtime(report.taken_at)))
        _print(report, views, given, _rates(before, report))
        before = report
        time.sleep(given["watch"])


def _counts(report: Report) -> dict[tuple[int, int], tuple[int, int]]:
    processes: list[Process] = report.processes
    return {
        (process.pid, row.number): (row.bytes_sent, row.bytes_received)
        for process in processes
        for row in process.connections or ()
    }


def _rates(before: Report | None, now: Report) -> Rates:
    if before is None:
        return {}
    seconds = max(1e-3, now.taken_at - before.taken_at)
    earlier = _counts(before)
    return {
        key: ((sent - earlier[key][0]) / seconds, (received - earlier[key][1]) / seconds)
        for key, (sent, received) in _counts(now).items()
        if key in earlier
    }

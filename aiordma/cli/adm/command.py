"""``aiordma adm``: read and change settings of running processes, move and reset connections, release
memory."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal

import click

from ...config import variable_of
from ..output import tolerate
from .capture import capture, trace
from .drain import drain
from .faults import faults
from .target import SILENT, Target, clean, name_of, settings_of

if TYPE_CHECKING:
    from ...admin.asked import Loop
    from ...admin.messages import Setting

#: A connection that returns to RDMA negotiates with its peer.
_LONG_S = 20.0


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--pid", type=int, metavar="PID", help="This process.")
@click.option("--program", metavar="TEXT", help="Processes with this in their names.")
@click.option("--all", "everyone", is_flag=True, help="Changes may concern several processes.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object: what each process has answered.")
@click.pass_context
def adm(context: click.Context, pid: int | None, program: str | None, everyone: bool, as_json: bool) -> None:
    """Change running processes of this user (root: of all users). They log each change, with who asked for
    it.

    Exit status: 0; 1 if there is no such process; 2 for a wrong command line; 3 if a process did not answer;
    4 if one refused.

    \b
    Examples:
      aiordma adm list                              processes with aiordma
      aiordma adm get                               settings that differ from the default
      aiordma adm --pid 4711 set busy_poll_us=0     sleep instead of polling
      aiordma adm set trace_sample=1                trace calls from now on
      aiordma adm set --undo                        as it was before
      aiordma adm set filter='delay op=cdc ms=5'    install fault rules; filter=unset removes them
      aiordma adm switch tcp 17 18                  connections (numbers of aiordma stat) to TCP
      aiordma adm switch rdma                       all that left RDMA back to it
      aiordma adm close 17                          reset a connection
      aiordma adm trim                              give unused memory back
      aiordma adm drain                             nothing new on RDMA; streams go on over TCP
      aiordma adm faults add 'drop op=cdc nth=3'    one fault rule more
      aiordma adm trace start                       trace calls, watch for slow polls and handlers
      aiordma adm capture -o it.pcapng --seconds 5  the messages of all links, for Wireshark
    """
    tolerate()
    context.obj = Target(pid, program, everyone, as_json)


@adm.command(name="list")
@click.pass_obj
def list_(target: Target) -> None:
    """List the processes: each event loop, also those that do not answer.

    \b
    Examples:
      aiordma adm list
      aiordma adm --json list                       for scripts
    """
    from ...admin.requests import Show
    from ..tables import Column, seconds_text, table

    found = target.ask(Show(("totals",)), target.all_loops())
    if target.as_json:
        target.end(found, "", status=0)
    columns = [
        Column("PID", lambda each: each.page.pid, True),
        Column("PROGRAM", lambda each: each.page.program),
        Column("LOOP", lambda each: each.page.loop),
        Column("CONNECTIONS", _open, True),
        Column("SEEN", lambda each: f"{seconds_text(each.page.silent_s)} ago", True),
        Column("STATE", lambda each: each.state if each.state == "answered" else each.state.upper()),
    ]
    click.echo("\n".join(table(columns, found)))


def _open(loop: Loop) -> int:
    """As `aiordma stat` counts them; of a loop that has not answered, what it had when it came by."""
    from ...admin.messages import Totals

    totals = next((part for part in loop.parts if isinstance(part, Totals)), None)
    return loop.page.connections if totals is None else totals.open


# ---- settings


@adm.command()
@click.argument("names", nargs=-1)
@click.pass_obj
def get(target: Target, names: tuple[str, ...]) -> None:
    """Show settings: NAMES, or those that differ from their default.

    \b
    Examples:
      aiordma adm get                               what differs, of every process
      aiordma adm --pid 4711 get busy_poll_us ring_bytes
    """
    from ...admin.requests import ShowSettings

    answered = target.ask(ShowSettings(), target.loops(changes=False))
    for loop in answered:
        for name in names:
            if loop.state == "answered":
                _setting(loop, name)
    if target.as_json or not answered:
        target.end(answered, "")
    for loop in answered:
        if loop.state != "answered":
            click.echo(f"{name_of(loop)}: {loop.state.upper()}: {clean(loop.text)}", err=True)
            continue
        chosen = [
            row for row in settings_of(loop) if row.name in names or (not names and row.value != row.default)
        ]
        for row in chosen:
            when = "" if row.online else "  (read at the start)"
            click.echo(f"{name_of(loop)}: {row.name}={_shown(row.value)}{when}")
        if not chosen:
            click.echo(f"{name_of(loop)}: all settings have their defaults")
    sys.exit(0 if all(each.state == "answered" for each in answered) else SILENT)


def _shown(value: Any) -> str:
    return "unset" if value is None else clean(str(value))


def _setting(loop: Loop, name: str) -> Setting:
    rows = {row.name: row for row in settings_of(loop)}
    if name not in rows:
        raise click.UsageError(f"unknown setting {name!r}: known are {', '.join(rows)}")
    return rows[name]


def _parse(loop: Loop, text: str) -> tuple[str, int | str | None]:
    name, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError(f"{text!r} is not NAME=VALUE")
    row = _setting(loop, name.strip().lower().removeprefix("aiordma_"))
    if not row.online:
        raise click.UsageError(
            f"{row.name} is read when the program starts and needs a restart: "
            f"set {variable_of(row.name)}={value} in its environment (now: {_shown(row.value)})"
        )
    if value == "unset":
        return row.name, None
    try:
        return row.name, int(value)
    except ValueError:
        return row.name, value


@adm.command(name="set")
@click.argument("changes", nargs=-1, metavar="NAME=VALUE...")
@click.option("--undo", is_flag=True, help="Take the last change back, then the one before.")
@click.pass_obj
def set_(target: Target, changes: tuple[str, ...], undo: bool) -> None:
    """Change online settings, at once for everything that the engine does.

    The process remembers the last 16 changes (those of `adm trace`, too) for --undo.

    \b
    Examples:
      aiordma adm --pid 4711 set busy_poll_us=0     sleep instead of polling
      aiordma adm --pid 4711 set busy_poll_us=unset adaptive again
      aiordma adm --pid 4711 set --undo
    """
    from ...admin.requests import Change, ShowSettings, Undo

    if bool(changes) == undo:
        raise click.UsageError("give either NAME=VALUE or --undo")
    loops = target.loops(changes=True)
    if undo:
        target.end(target.ask(Undo(), loops), "{} settings changed back")
    asked = target.ask(ShowSettings(), loops)
    fine = [loop for loop in asked if loop.state == "answered"]
    if len(fine) < len(asked) or not asked:
        target.end(asked, "")
    request = Change(dict(_parse(fine[0], text) for text in changes))
    target.end(target.ask(request, fine), "{} settings changed")


# ---- connections


def _owners(target: Target, numbers: tuple[int, ...]) -> dict[Loop, tuple[int, ...]]:
    """The loops that have these connections."""
    from ...admin.messages import Connections
    from ...admin.requests import Show

    asked = target.ask(Show(("connections",)), target.loops(changes=True))
    owners: dict[Loop, tuple[int, ...]] = {}
    for loop in asked:
        rows = {row.number for part in loop.parts if isinstance(part, Connections) for row in part.rows}
        if rows & set(numbers):
            owners[loop] = tuple(number for number in numbers if number in rows)
    known = {number for each in owners.values() for number in each}
    if missing := [str(number) for number in numbers if number not in known]:
        if silent := [loop for loop in asked if loop.state != "answered"]:
            target.end(silent, "")  # it may have them
        raise click.UsageError(
            f"no connection has the number {', '.join(missing)}; `aiordma stat` lists them"
        )
    return owners


@adm.command()
@click.argument("path", type=click.Choice(["tcp", "rdma"]))
@click.argument("numbers", nargs=-1, type=int)
@click.option("--reason", default="", metavar="TEXT", help="Why; fallback_reason of both ends shows it.")
@click.pass_obj
def switch(target: Target, path: Literal["tcp", "rdma"], numbers: tuple[int, ...], reason: str) -> None:
    """Move streams and datagram connections to TCP, or back to RDMA, without loss: NUMBERS, or all of the
    process.

    New connections still use RDMA; connections of calls do not switch.

    \b
    Examples:
      aiordma adm switch tcp 17 18 --reason 'new cable'
      aiordma adm --pid 4711 switch rdma            all of a process back
    """
    from ...admin.requests import Switch

    patience = _LONG_S if path == "rdma" else 1.0
    answered: list[Loop] = []
    if numbers:
        for loop, its in _owners(target, numbers).items():
            answered += target.ask(Switch(path, its, reason), [loop], patience)
    else:
        answered = target.ask(Switch(path, None, reason), target.loops(changes=True), patience)
    target.end(answered, f"{{}} connections switch to {path.upper()}")


@adm.command()
@click.argument("numbers", nargs=-1, type=int, required=True)
@click.pass_obj
def close(target: Target, numbers: tuple[int, ...]) -> None:
    """Reset connections: both ends get an error, as if the network had failed.

    NUMBERS are those of `aiordma stat`.

    \b
    Example:
      aiordma adm close 17
    """
    from ...admin.requests import Close

    answered: list[Loop] = []
    for loop, its in _owners(target, numbers).items():
        answered += target.ask(Close(its), [loop])
    target.end(answered, "{} connections are reset")


@adm.command()
@click.pass_obj
def trim(target: Target) -> None:
    """Give memory that nothing uses now back to the system.

    \b
    Example:
      aiordma adm --pid 4711 trim
    """
    from ...admin.requests import Trim

    target.end(target.ask(Trim(), target.loops(changes=True)), "{} bytes were released")


for command in (capture, drain, faults, trace):
    adm.add_command(command)

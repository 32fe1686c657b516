"""Which processes `aiordma adm` means, how it asks them, and how it reports what they answered."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...admin.asked import Loop
    from ...admin.messages import Setting
    from ...admin.requests import FromTool

#: Exit status.
_NOBODY, SILENT, _REFUSED = 1, 3, 4


class Target:
    """The event loops that are meant.

    :param pid, program: only these.
    :param everyone: there may be several processes.
    """

    def __init__(self, pid: int | None, program: str | None, everyone: bool, as_json: bool) -> None:
        self.pid, self.program, self.everyone, self.as_json = pid, program, everyone, as_json

    def loops(self, *, changes: bool) -> list[Loop]:
        """Those that there are, and run. The command ends if there are none, or, for changes, if they belong
        to several processes and ``--all`` was not given."""
        from ...admin.asking import is_stopped  # not for --help

        found = self.all_loops()
        running = [each for each in found if not is_stopped(each)]
        if not running:
            self.end(found, "")
        # Several may have one number: those of containers.
        pids = {each.page.process: each.page for each in running}
        if changes and len(pids) > 1 and not self.everyone:
            names = "\n".join(
                f"  --pid {page.pid}  {clean(page.program)}" for _, page in sorted(pids.items())
            )
            raise click.UsageError(
                f"there are {len(pids)} processes; choose one (by --program, if their numbers are the same), "
                f"or all with --all:\n{names}"
            )
        return running

    def all_loops(self) -> list[Loop]:
        """Those that there are. The command ends if there are none."""
        from ...admin.asking import loops  # not for --help

        found = loops(lambda page: self.program is None or self.program in page.program, self.pid)
        if not found:
            click.echo("no process uses aiordma (of those that this user may change)", err=True)
            sys.exit(_NOBODY)
        return found

    def ask(self, request: FromTool, loops: Sequence[Loop], patience_s: float = 1.0) -> list[Loop]:
        """Ask them; those that are still there. The command ends if a word or number fits into no request."""
        from ...admin.asking import ask

        try:
            return ask(request, loops, patience_s)
        except (OverflowError, UnicodeEncodeError) as error:
            raise click.UsageError(f"what was given cannot be sent: {error}") from None

    def end(self, answered: Sequence[Loop], what: str, status: int | None = None) -> NoReturn:
        """Say what each has answered, and end with the status that fits, unless one is given.

        :param what: with ``{}`` for the number that each reports.
        """
        if self.as_json:
            click.echo(
                json.dumps({"schema": "aiordma-adm/1", "processes": [_row(each) for each in answered]})
            )
        if not answered:
            click.echo("there is no answer: the process has ended", err=True)
        for loop in () if self.as_json else answered:
            done = loop.state == "answered"
            text = loop.text or what.format(loop.count) if done else f"{loop.state.upper()}: {loop.text}"
            click.echo(f"{name_of(loop)}: {clean(text)}", err=not done)
        if status is not None:
            sys.exit(status)
        if not answered:
            sys.exit(_NOBODY)
        states = {each.state for each in answered}
        sys.exit(_REFUSED if "refused" in states else SILENT if states - {"answered"} else 0)


def clean(text: str) -> str:
    """What cannot change the terminal."""
    from .. import tables

    return tables.clean(text)


def name_of(loop: Loop) -> str:
    """For people."""
    return clean(f"{loop.page.program}[{loop.page.pid}]")


def _row(loop: Loop) -> dict[str, Any]:
    page = loop.page
    found: dict[str, Any] = {
        "pid": page.pid,
        "program": page.program,
        "loop": page.loop,
        "state": loop.state,
        "text": loop.text,
        "count": loop.count,
    }
    settings = settings_of(loop)
    if settings:
        names = ("value", "default", "online", "allowed")
        found["settings"] = {row.name: {name: getattr(row, name) for name in names} for row in settings}
    return found


def settings_of(loop: Loop) -> list[Setting]:
    """What it has answered to ``ShowSettings``."""
    from ...admin.messages import Settings

    return [row for part in loop.parts if isinstance(part, Settings) for row in part.rows]

"""``aiordma fabric plan``: settings of switches and hosts, and what they rest on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..whole_file import make_folder, write_whole
from .shared import FILE, FOLDER, FORMATS, NETWORK, load, show_report

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["plan"]


@click.command()
@NETWORK
@FORMATS
@click.option("-o", "--output", type=FILE, help="Write the report there.")
@click.option("--settings", type=FOLDER, help="Write the devices' settings there.")
def plan(network: Path, kind: str, output: Path | None, settings: Path | None) -> None:
    """Work out switch and host settings for NETWORK, with formula and source of each number.

    Ends with status 1 if a check is broken. --settings writes a file for each switch, for the system that
    NETWORK says (SONiC, Cumulus Linux, EOS, Junos), and for each kind of host; nothing is applied.

    \b
    Examples:
      aiordma fabric plan network.toml
      aiordma fabric plan network.toml --settings settings/ --format html -o plan.html
    """
    from .. import planner
    from ..errors import NetworkError
    from ..report import Verdict

    try:
        report = planner.plan(load(network))
    except NetworkError as error:
        raise click.ClickException(str(error)) from None
    show_report(report, kind, output)
    if settings is not None:
        make_folder(settings)
        for name, text in report.files().items():
            write_whole(settings / name, text)
    if report.verdict is Verdict.BROKEN:
        raise SystemExit(1)

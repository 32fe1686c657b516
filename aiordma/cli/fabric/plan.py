"""``aiordma fabric plan``: settings of switches and hosts, and what they rest on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..whole_file import make_folder, write_whole
from .shared import FILE, FOLDER, NETWORK, console, load, show

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["plan"]

_FORMATS = ["terminal", "markdown", "html", "json"]


@click.command()
@NETWORK
@click.option("--format", "kind", type=click.Choice(_FORMATS), default="terminal")
@click.option("-o", "--output", type=FILE, help="Write the report there.")
@click.option("--settings", type=FOLDER, help="Write the devices' settings there.")
def plan(network: Path, kind: str, output: Path | None, settings: Path | None) -> None:
    """Work out switch and host settings for NETWORK, with formula and source of each number.

    Ends with status 1 if a check is broken.
    """
    from rocefabric import planner, render
    from rocefabric.errors import NetworkError
    from rocefabric.report import Verdict

    try:
        report = planner.plan(load(network))
    except NetworkError as error:
        raise click.ClickException(str(error)) from None
    if kind == "terminal" and output is None:
        render.to_terminal(report, console())
    else:
        make = {"html": render.to_html, "json": render.to_json}.get(kind, render.to_markdown)
        show(make(report), output)
    if settings is not None:
        make_folder(settings)
        for name, text in report.files().items():
            write_whole(settings / name, text)
    if report.verdict is Verdict.BROKEN:
        raise SystemExit(1)

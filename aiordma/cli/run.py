"""``aiordma run``: a program whose asyncio connections negotiate RDMA."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import click

from ..launch.rules import Rules
from ..launch.settings import RULES, environment

__all__ = ["run"]

#: What shells report for a program that they cannot find.
_NOT_FOUND = 127


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--allow", multiple=True, metavar="RULE", help="Negotiate only what a rule allows.")
@click.option("--deny", multiple=True, metavar="RULE", help="Keep this plain TCP.")
@click.option(
    "--rules",
    "files",
    multiple=True,
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file with a rule in each line: `allow RULE` or `deny RULE`.",
)
@click.option("--no-children", is_flag=True, help="Not for the programs that PROGRAM starts.")
@click.option("--report", is_flag=True, help="Print at exit which connections went which way, and why.")
@click.option(
    "--outside-tls", is_flag=True, help="Let payload of TLS connections travel by RDMA, unencrypted."
)
@click.option("-m", "as_module", is_flag=True, help="PROGRAM is the name of a Python module.")
@click.argument("program")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(  # noqa: PLR0913
    allow: tuple[str, ...],
    deny: tuple[str, ...],
    files: tuple[Path, ...],
    no_children: bool,
    report: bool,
    outside_tls: bool,
    as_module: bool,
    program: str,
    arguments: tuple[str, ...],
) -> None:
    """Run PROGRAM so that its asyncio and uvloop connections negotiate RDMA.

    PROGRAM is a command, a Python script, or with -m a module. It needs no change, and peers without aiordma
    are served by TCP on the same port. It replaces this process, so its output, its signals and its exit
    status are its own.

    \b
    A RULE is [in:|out:]ADDRESS[:PORT[-PORT]]: the peer's address, network or
    name, and the port that is listened on. A deny wins over an allow.
    AIORDMA_RUN_RULES may hold rules, separated by semicolons.

    \b
    Examples:
      aiordma run uvicorn app:app
      aiordma run -m aiohttp.web app:main
      aiordma run --allow 10.0.0.0/8 --deny '*:6379' worker.py
    """
    lines = [path.read_text(encoding="utf-8") for path in files]
    lines += [f"allow {pattern}" for pattern in allow] + [f"deny {pattern}" for pattern in deny]
    try:
        rules = Rules.parse("\n".join([os.environ.get(RULES, ""), *lines]))
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    words = {"no-children": no_children, "report": report, "outside-tls": outside_tls}
    os.environ.update(environment(str(rules), [word for word, given in words.items() if given]))
    command = _command(program, list(arguments), as_module)
    if command is None:
        click.echo(f"Error: {program}: no such program", err=True)
        raise SystemExit(_NOT_FOUND)
    os.execv(command[0], command)


def _command(program: str, arguments: list[str], as_module: bool) -> list[str] | None:
    """What to execute; None: there is no such program."""
    if as_module:
        return [sys.executable, "-m", program, *arguments]
    if program.endswith(".py") and Path(program).is_file():
        return [sys.executable, program, *arguments]
    # Commands of this Python's environment come first, also when it is not activated.
    beside = Path(sys.executable).parent / program
    found = str(beside) if "/" not in program and os.access(beside, os.X_OK) else shutil.which(program)
    return None if found is None else [found, *arguments]

"""``aiordma run``: a program whose connections negotiate RDMA."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ...launch.starting import RunRequest, planned

if TYPE_CHECKING:
    from collections.abc import Callable

#: What shells report for a program that they cannot find.
_NOT_FOUND = 127
_FLAGS = {
    "no_children": "--no-children",
    "report": "--report",
    "outside_tls": "--outside-tls",
    "as_module": "-m",
    "as_code": "-c",
}


# long: an option for each thing that it can be asked for, and the help
@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--allow", multiple=True, metavar="RULE", help="Negotiate only what a rule allows.")
@click.option("--deny", multiple=True, metavar="RULE", help="Keep this plain TCP.")
@click.option(
    "--rules",
    "files",
    multiple=True,
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="A file with a rule in each line: `allow RULE` or `deny RULE`.",
)
@click.option("--no-children", is_flag=True, help="Not for the programs that PROGRAM starts.")
@click.option("--report", is_flag=True, help="Print at exit which connections went which way, and why.")
@click.option(
    "--outside-tls", is_flag=True, help="Let payload of TLS connections travel by RDMA, unencrypted."
)
@click.option("-m", "as_module", is_flag=True, help="PROGRAM is the name of a Python module.")
@click.option("-c", "as_code", is_flag=True, help="PROGRAM is Python code.")
@click.argument("program")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def run(
    plans: list[Callable[[], None]] | None,
    /,
    allow: tuple[str, ...],
    deny: tuple[str, ...],
    files: tuple[str, ...],
    program: str,
    arguments: tuple[str, ...],
    **switches: bool,
) -> None:
    """Run PROGRAM so that its asyncio, uvloop and trio connections negotiate RDMA.

    PROGRAM is a command, what `python` runs (a script, `-` for standard input, a directory or a zipped
    application), or with -m a module. It needs no change, and peers without aiordma
    are served by TCP on the same port. It runs in this process, or replaces it, so its output, its signals
    and its exit status are its own.

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
    rules = [f"allow {pattern}" for pattern in allow] + [f"deny {pattern}" for pattern in deny]
    flags = {_FLAGS[name] for name, is_given in switches.items() if is_given}
    try:
        plan = planned(RunRequest(program, list(arguments), flags, rules, list(files)))
    except (OSError, ValueError) as error:
        raise click.UsageError(str(error)) from None
    if plan is None:
        click.echo(f"Error: {program}: no such program", err=True)
        raise SystemExit(_NOT_FOUND)
    if plans is None:  # this command alone
        plan()
    else:
        plans.append(plan)

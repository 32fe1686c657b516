"""``aiordma preload``: other programs on the software RDMA device."""

from __future__ import annotations

import os
import shutil

import click

from ...launch.execution import execute
from ...verbs import softlib

#: What shells report for a program that they cannot find.
_NOT_FOUND = 127


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("program", required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def preload(program: str | None, arguments: tuple[str, ...]) -> None:
    """Run PROGRAM on the software RDMA device, or print the library to preload.

    The software device answers the calls of libibverbs and librdmacm; the program needs no change and no
    privilege. PROGRAM replaces this process, so its output, its signals and its exit status are its own.

    \b
    Examples:
      aiordma preload ibv_devinfo                   show the device
      aiordma preload ibv_rc_pingpong -g 0          any verbs program
      export LD_PRELOAD=$(aiordma preload)          for all that this shell starts
    """
    library = softlib.locate()
    if library is None:
        raise click.ClickException(
            f"{softlib.LIBRARY} is not installed: aiordma was built without the RDMA headers. "
            "Install libibverbs-dev and librdmacm-dev, and build aiordma again."
        )
    if program is None:
        click.echo(library)
        return
    path = shutil.which(program)
    if path is None:
        click.echo(f"Error: {program}: no such program", err=True)
        raise SystemExit(_NOT_FOUND)
    others = os.environ.get("LD_PRELOAD")
    os.environ["LD_PRELOAD"] = f"{library}:{others}" if others else str(library)
    # Programs in C know the device's own variable only.
    if word := softlib.choice():
        os.environ.setdefault("SOFTDEV_DEVICE", word)
    execute(path, [program, *arguments])

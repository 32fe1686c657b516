"""``aiordma smcr``: prepare a host for streams with programs on the kernel's SMC-R, and look at it."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from . import setup

if TYPE_CHECKING:
    from collections.abc import Callable


@click.group()
def smcr() -> None:
    """SMC-R with programs on the Linux kernel's own sockets for it (AF_SMC, smc_run).

    Such peers say by a TCP option that they speak SMC-R. Linux lets no ordinary program send one, so a
    program in the kernel does it for those that ask. Without it everything works, over TCP with such peers.

    \b
    Examples:
      aiordma smcr enable --group rdma        as root, once: members of the group may use it
      aiordma smcr status                     whether programs of this user can use it
      aiordma smcr disable                    as root: take it back
      aiordma smcr unit --group rdma          a unit of systemd that enables it at each boot
    """


@smcr.command()
@click.option("--group", help="Members of this group may use it; default: root alone.")
@click.option(
    "--cgroup",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="For processes below this directory of cgroup version 2; default: all.",
)
def enable(group: str | None, cgroup: Path | None) -> None:
    """Load the program, until `disable` or the next boot. Takes root, once.

    \b
    Examples:
      aiordma smcr enable                           for root alone
      aiordma smcr enable --group rdma              for the members of a group
    """
    _run(lambda: setup.enable(cgroup, group))
    click.echo(f"SMC's TCP option is on: {setup.MAP}")
    if bounds := setup.bounds():
        click.echo(f"note: {bounds}", err=True)


@smcr.command()
def disable() -> None:
    """Take the program back, as root. Connections that are open go on.

    \b
    Example:
      aiordma smcr disable
    """
    _run(setup.disable)
    click.echo("SMC's TCP option is off")


@smcr.command()
def status() -> None:
    """Say whether programs of this user can use it; the exit status is 1 if not.

    \b
    Example:
      aiordma smcr status || echo by TCP
    """
    text = setup.problem()
    click.echo(f"SMC's TCP option: {text or 'programs of this user can use it'}")
    raise SystemExit(1 if text else 0)


@smcr.command()
@click.option("--group", help="Members of this group may use it; default: root alone.")
def unit(group: str | None) -> None:
    """Print a unit of systemd that enables it at each boot. Services that need it start after it.

    \b
    Example, as root:
      aiordma smcr unit --group rdma > /etc/systemd/system/aiordma-smcr.service
      systemctl enable --now aiordma-smcr
    """
    click.echo(setup.unit(f"{shlex.quote(sys.executable)} -m aiordma", group), nl=False)


def _run(step: Callable[[], None]) -> None:
    try:
        step()
    except (OSError, LookupError) as error:
        what = (
            f"{error}: run it as root" if isinstance(error, PermissionError) and os.geteuid() else str(error)
        )
        raise click.ClickException(what) from error

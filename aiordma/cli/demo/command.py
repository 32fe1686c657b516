"""``aiordma demo``: the command, and what it says around its acts."""

from __future__ import annotations

import os
import time

import click

from ...config import Config
from ...errors import NegotiationError
from ...verbs import choice, hardware
from ..arguments import Time
from ..ending import cleaned_up
from .acts import link_cut, plain_programs, round_trips


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--seconds", type=Time(0.01, 60), default=0.5, show_default=True, help="Of each measurement.")
@click.argument("acts", nargs=-1, type=click.Choice(["programs", "latency", "cut"]))
@cleaned_up()
def demo(seconds: float, acts: tuple[str, ...]) -> None:
    """See what aiordma does, on this machine, in a minute: no server, compiler, network or root is needed.

    Its acts, all unless named: two plain asyncio "programs" run by turns as they are and under `aiordma run`;
    the "latency" of messages and typed calls is measured beside TCP and Unix sockets, asleep and awake; and a
    link is "cut" in the middle of a transfer. Everything runs in processes on this host, which end with the
    demo; Ctrl-C ends it at any time.

    Exit status: 0; 1 if a part failed.

    \b
    Examples:
      aiordma demo                                  everything, in less than a minute
      aiordma demo latency --seconds 5              steadier numbers
      aiordma demo cut                              what remains of a transfer whose link is lost
    """
    begun = time.monotonic()
    _introduce()
    if not acts or "programs" in acts:
        _title("Two plain asyncio programs, as they are and under `aiordma run`")
        plain_programs(click.echo, seconds)
    if not acts or "latency" in acts:
        _title("One message there and back, between two processes")
        click.echo(
            "  Median; CPU is the processor time of both ends for one. The same event loop everywhere.\n"
        )
        round_trips(click.echo, seconds)
    if not acts or "cut" in acts:
        _title("A link is cut in the middle of a transfer")
        link_cut(click.echo)
    _title("Now yours")
    click.echo(
        "  aiordma run python server.py          any asyncio program, unchanged; start both ends so\n"
        "  aiordma stat                          which connections use RDMA, and why others do not\n"
        "  aiordma doctor                        what this machine has, and what it lacks\n"
        f"\nThat took {time.monotonic() - begun:.0f} s."
    )


def _introduce() -> None:
    cards = [device.name for device in hardware.scan() if not device.problem]
    try:
        software = choice.choose(Config.from_env().device) is not None
    except NegotiationError as error:
        raise click.ClickException(f"{error}. `aiordma doctor` says what this machine lacks.") from None
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    device = (
        "the software RDMA device, which moves data through shared memory" if software else ", ".join(cards)
    )
    click.echo(f"Both ends of everything are on this host, and use {device or 'no RDMA device'}.")
    load, processors = os.getloadavg()[0], os.cpu_count() or 1
    if load > processors / 2:
        click.echo(
            f"This host is busy (load {load:.1f} on {processors} CPUs): all numbers are worse than on "
            "a quiet one, and those with both ends awake most."
        )
    elif processors < 2:
        click.echo("This host has one CPU: two ends that are awake take it from each other.")


def _title(text: str) -> None:
    click.echo()
    click.secho(text, bold=True)

"""``aiordma adm capture`` and ``aiordma adm trace``: what a process sends, and where its time goes."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..private_file import private_file
from .target import Target

if TYPE_CHECKING:
    from ...admin.asked import Loop

_KEPT_KIB = 1024


def packets_of(loop: Loop) -> list[Any]:
    """What it has answered to ``Capture``, as ``proto.packets.Packet``."""
    from ...admin.messages import Packets
    from ...proto.packets import Packet

    rows = [row for part in loop.parts if isinstance(part, Packets) for row in part.rows]
    return [Packet(row.at_ns, row.outbound, row.length, row.data) for row in rows]


def _save(path: Path, answered: list[Loop]) -> None:
    from ...proto.packets import pcapng

    found = [packet for loop in answered for packet in packets_of(loop)]
    try:
        with private_file(path) as file:
            file.write(pcapng(sorted(found)))
    except OSError as error:
        raise click.ClickException(f"cannot write {path}: {error.strerror}") from error
    click.echo(f"{path}: {len(found)} messages", err=True)


@click.command()
@click.argument("action", type=click.Choice(["start", "stop", "take"]), required=False)
@click.option("-o", "--output", type=click.Path(dir_okay=False), metavar="FILE", help="Where to (pcapng).")
@click.option(
    "--seconds", type=click.FloatRange(0, 86400), default=10.0, show_default=True, help="Without an ACTION."
)
@click.option("--payload", is_flag=True, help="With what the program sends; otherwise it is left out.")
@click.option(
    "--keep",
    type=click.IntRange(4, 65536),
    default=_KEPT_KIB,
    show_default=True,
    metavar="KIB",
    help="Memory of the process for the last messages; older ones go.",
)
@click.pass_obj
def capture(
    target: Target, action: str | None, output: str | None, seconds: float, payload: bool, keep: int
) -> None:
    """Capture the messages of all links and negotiations of a process: CLC, LLC, CDC, messages of channels,
    WRITEs and READs, as packets that Wireshark and tshark read.

    Without ACTION: capture for --seconds (Ctrl-C ends it earlier), and write FILE. Or "start" it now, and
    "take" what there is, or "stop" it, later. Keys of memory are blanked, and payload is left out unless
    --payload asks for it. While it runs, links are slower.

    \b
    Examples:
      aiordma adm capture -o it.pcapng --seconds 5
      aiordma adm capture start; sleep 3600; aiordma adm capture stop -o it.pcapng
      tshark -r it.pcapng
    """
    from ...admin.requests import Capture

    if output is None and action != "start":
        raise click.UsageError("-o FILE says where the messages go")
    loops = target.loops(changes=True)
    # All loops of a process share one capture.
    loops = list({loop.page.process: loop for loop in loops}.values())
    if action in (None, "start"):
        begun = target.ask(Capture("start", keep * 1024, payload), loops)
        if action == "start" or any(loop.state != "answered" for loop in begun):
            target.end(begun, "")
        try:
            time.sleep(seconds)
        except KeyboardInterrupt:
            click.echo(err=True)
        for loop in loops:
            loop.parts.clear()
    answered = target.ask(Capture("take" if action == "take" else "stop"), loops)
    fine = [loop for loop in answered if loop.state == "answered"]
    if fine and output is not None:
        _save(Path(output), fine)
    target.end(answered, "")


@click.command()
@click.argument("action", type=click.Choice(["start", "stop"]))
@click.option("--sample", type=click.IntRange(1), default=1, show_default=True, help="One call in so many.")
@click.option(
    "--slow-ms",
    type=click.FloatRange(0, 1e6),
    default=10.0,
    show_default=True,
    help="Log calls, handlers and polls of the event loop that take longer; 0: none.",
)
@click.pass_obj
def trace(target: Target, action: str, sample: int, slow_ms: float) -> None:
    """Start or stop tracing of calls, and the watch for slow polls, slow handlers and slow calls.

    `aiordma stat --rpc` shows the times, `--totals` counts what was slow, the program's log names it, and so
    does `aiordma debug-bundle`. "stop" sets what "start" has set to its defaults.

    \b
    Examples:
      aiordma adm trace start                       every call; what takes more than 10 ms is logged
      aiordma adm trace start --sample 64 --slow-ms 2
      aiordma adm trace stop
    """
    from ...admin.requests import Change

    slow_us = int(slow_ms * 1000)
    changes: dict[str, int | str | None] = {
        "trace_sample": sample,
        "slow_request_us": slow_us,
        "slow_handler_us": slow_us,
        "slow_poll_us": slow_us,
    }
    if action == "stop":
        from ...config import Config

        changes = {name: getattr(Config(), name) for name in changes}
    target.end(target.ask(Change(changes), target.loops(changes=True)), "{} settings changed")
    sys.exit(0)

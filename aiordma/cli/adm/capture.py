"""``aiordma adm capture`` and ``aiordma adm trace``: what a process sends, and where its time goes."""

from __future__ import annotations

import contextlib
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from ..arguments import Time
from ..private_file import private_file
from .target import Target

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...admin.asked import Loop
    from ...admin.requests import Capture

_KEPT_KIB = 1024
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def packets_of(loop: Loop) -> list[Any]:
    """What it has answered to ``Capture``, as ``proto.packets.Packet``."""
    from ...admin.messages import Packets
    from ...proto.packets import Packet

    rows = [row for part in loop.parts if isinstance(part, Packets) for row in part.rows]
    return [Packet(row.at_ns, row.outbound, row.length, row.data) for row in rows]


def _packets_of_all(target: Target, answered: list[Loop]) -> list[Any]:
    """The command ends, and writes nothing, if no process has answered."""
    fine = [loop for loop in answered if loop.state == "answered"]
    if not fine:
        target.end(answered, "")
    return sorted(packet for loop in fine for packet in packets_of(loop))


def _begin(target: Target, request: Capture, loops: list[Loop]) -> None:
    """The command ends unless all begin: then none of them goes on."""
    from ...admin.requests import Capture

    begun = target.ask(request, loops)
    if any(loop.state != "answered" for loop in begun):
        told = [(loop, loop.state, loop.text) for loop in begun]
        target.ask(Capture("stop"), [loop for loop in begun if loop.state == "answered"])
        for loop, state, text in told:
            loop.state, loop.text = state, text
        target.end(begun, "")


@contextlib.contextmanager
def _held_signals() -> Iterator[set[signal.Signals]]:
    """What ends a command, but for SIGKILL, is held back: what a command has begun, it can end."""
    held = {each for each in _ENDING if signal.getsignal(each) != signal.SIG_IGN}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        yield held
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _during(target: Target, request: Capture, loops: list[Loop], seconds: float) -> list[Loop]:
    """Capture for so long, or until a signal comes. :return: those who have answered to the end of it."""
    from ...admin.requests import Capture

    with _held_signals() as held:
        _begin(target, request, loops)
        try:
            signal.sigtimedwait(held, seconds)
        finally:
            answered = target.ask(Capture("stop"), loops)
    return answered


@click.command()
@click.argument("action", type=click.Choice(["start", "stop", "take"]), required=False)
@click.option("-o", "--output", type=click.Path(dir_okay=False), metavar="FILE", help="Where to (pcapng).")
@click.option("--seconds", type=Time(0, 86400), default=10.0, show_default=True, help="Without an ACTION.")
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
    target: Target,
    action: Literal["start", "stop", "take"] | None,
    output: str | None,
    seconds: float,
    payload: bool,
    keep: int,
) -> None:
    """Capture the messages of all links and negotiations of a process: CLC, LLC, CDC, messages of channels,
    WRITEs and READs, as packets that Wireshark and tshark read.

    Without ACTION: capture for --seconds (Ctrl-C, SIGTERM and SIGHUP end it earlier), and write FILE. Or
    "start" it now, and "take" what there is, or "stop" it, later. Keys of memory are blanked, and payload is
    left out unless --payload asks for it. While it runs, links are slower.

    \b
    Examples:
      aiordma adm capture -o it.pcapng --seconds 5
      aiordma adm capture start; sleep 3600; aiordma adm capture stop -o it.pcapng
      tshark -r it.pcapng
    """
    from ...admin.requests import Capture
    from ...proto.packets import pcapng

    if output is None and action != "start":
        raise click.UsageError("-o FILE says where the messages go")
    loops = target.loops(changes=True)
    # All loops of a process share one capture.
    loops = list({loop.page.process: loop for loop in loops}.values())
    begin = Capture("start", keep * 1024, payload)
    if action == "start" or output is None:
        target.end(target.ask(begin, loops), "")
    try:
        # Opened before: messages that have nowhere to go would be lost.
        with private_file(Path(output)) as file:
            if action is None:
                answered = _during(target, begin, loops, seconds)
            else:
                answered = target.ask(Capture(action), loops)
            found = _packets_of_all(target, answered)
            file.write(pcapng(found))
    except OSError as error:
        raise click.ClickException(f"cannot write {output}: {error.strerror}") from error
    click.echo(f"{output}: {len(found)} messages", err=True)
    target.end(answered, "")


@click.command()
@click.argument("action", type=click.Choice(["start", "stop"]))
@click.option("--sample", type=click.IntRange(1), default=1, show_default=True, help="One call in so many.")
@click.option(
    "--slow-ms",
    type=Time(0, 1e6),
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

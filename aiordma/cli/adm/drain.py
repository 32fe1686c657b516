"""``aiordma adm drain``: let RDMA devices become idle while the program runs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from ..arguments import Time
from .target import Target

if TYPE_CHECKING:
    from ...admin.asked import Loop

_LOOK_S = 0.1


def _left(target: Target, loops: list[Loop]) -> dict[Loop, int | None]:
    """Who has links on drained devices, and how many; None: it has not said. A process that has ended has
    none."""
    from ...admin.messages import Devices
    from ...admin.requests import Show

    found: dict[Loop, int | None] = {}
    for loop in target.ask(Show(("devices",)), loops):
        if loop.state != "answered":
            found[loop] = None
            continue
        rows = [row for part in loop.parts if isinstance(part, Devices) for row in part.rows]
        links = sum(row.links for row in rows if row.state == "draining")
        if links:
            found[loop] = links
    return found


@click.command()
@click.argument("devices", nargs=-1)
@click.option("--revoke", is_flag=True, help="Use the devices again.")
@click.option("--wait", type=Time(0), metavar="SECONDS", help="Until they are idle, at most so long.")
@click.option("--reason", default="", metavar="TEXT", help="Why; fallback_reason of both ends shows it.")
@click.pass_obj
def drain(target: Target, devices: tuple[str, ...], revoke: bool, wait: float | None, reason: str) -> None:
    """Take a process off RDMA devices, before maintenance of a card, a port or a switch: DEVICES, or all.

    Nothing new begins on them. Streams and datagram connections go on without loss, on another device of the
    process or on TCP. Connections of calls cannot move: new ones use TCP, and the links close when the last
    old one is closed. `aiordma stat --devices` shows "draining", then "drained".

    Exit status, besides those of adm: 3 if --wait is over and links are left, or a process does not say.

    \b
    Examples:
      aiordma adm --pid 4711 drain --wait 60 --reason "new firmware"
      aiordma adm --all drain mlx5_0
      aiordma adm drain --revoke; aiordma adm switch rdma
    """
    from ...admin.requests import Drain

    loops = target.loops(changes=True)
    answered = target.ask(Drain(devices or None, revoke, reason), loops)
    fine = [loop for loop in answered if loop.state == "answered"]
    texts = {loop: loop.text for loop in fine}
    if wait is not None and not revoke:
        until = time.monotonic() + wait
        while (left := _left(target, fine)) and time.monotonic() < until:
            time.sleep(_LOOK_S)
        for loop in fine:
            if loop not in left:
                loop.state, loop.text = "answered", texts[loop]
            elif left[loop] is not None:
                loop.state, loop.text = "no answer", f"{left[loop]} links are left after {wait:g} s"
    target.end(answered, "")

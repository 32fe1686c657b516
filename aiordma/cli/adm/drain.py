"""``aiordma adm drain``: let RDMA devices become idle while the program runs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from ..arguments import Time
from .target import Target, name_of

if TYPE_CHECKING:
    from ...admin.asked import Loop

_LOOK_S = 0.1


def _left(target: Target, loops: list[Loop]) -> dict[str, int]:
    """Links on drained devices, by process."""
    from ...admin.messages import Devices
    from ...admin.requests import Show

    for loop in loops:
        loop.parts.clear()
    found = {}
    for loop in target.ask(Show(("devices",)), loops):
        rows = [row for part in loop.parts if isinstance(part, Devices) for row in part.rows]
        links = sum(row.links for row in rows if row.state == "draining")
        if links:
            found[name_of(loop)] = links
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

    Exit status, besides those of adm: 3 if --wait is over and links are left.

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
            loop.state, loop.text = "answered", texts[loop]
            if name_of(loop) in left:
                loop.state, loop.text = "no answer", f"{left[name_of(loop)]} links are left after {wait:g} s"
    target.end(answered, "")

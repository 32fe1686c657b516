"""A program that plays every behaviour with plain functions, for `aiordma run`; it prints what was seen.

`[aiordma run] python -m tests.contracts.program LOOP`
"""

from __future__ import annotations

import json
import sys

from aiordma.launch import hooks

from .carriers import PLAIN, UNDER_RUN
from .playing import play
from .table import BEHAVIOURS


def main(loop: str) -> None:
    carrier = PLAIN if hooks._installed is None else UNDER_RUN
    seen = {
        name: repr(sorted(play(behaviour, carrier, loop).items())) for name, behaviour in BEHAVIOURS.items()
    }
    # Not print(): a signal may cut a long write to a pipe short, and with PYTHONUNBUFFERED the rest is lost.
    with open(1, "wb", closefd=False) as out:
        out.write(json.dumps([carrier.name, seen]).encode())


if __name__ == "__main__":
    main(sys.argv[1])

"""Plays a behaviour once, on a loop of its own. Without pytest, for programs, too."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import uvloop

from aiordma.negotiation import peer_cache

from . import (  # noqa: F401  # these fill the table
    broken_off,
    callbacks,
    cancelling,
    clients,
    datagrams,
    ends,
    escaping,
    files,
    handlers,
    in_vain,
    inside_tls,
    options_of_datagrams,
    reading,
    secure,
    secure_ends,
    servers,
    silent,
    sockets,
    streams,
    transports,
    writing,
)
from .stage import Stage

if TYPE_CHECKING:
    from .carriers import Carrier
    from .table import Behaviour

__all__ = ["LOOPS", "play"]

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def play(behaviour: Behaviour, carrier: Carrier, loop: str) -> dict[str, list[Any]]:
    """What was seen."""

    async def main() -> dict[str, list[Any]]:
        stage = Stage(carrier)
        try:
            await behaviour(stage)
        except BaseException:
            await stage.finish()
            raise
        return await stage.finish()

    peer_cache.forget()
    with carrier.at_work(), asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        return runner.run(main())

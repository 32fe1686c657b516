"""Ways to take streams off their link, and a server that does so when it is told."""

from __future__ import annotations

import random as random_module
from random import Random
from typing import TYPE_CHECKING, Any

import anyio

import aiordma
from aiordma.config import Config
from aiordma.errors import LinkError
from aiordma.links import engine as engines
from aiordma.links.failover.leave import switch_engine, switch_pipe
from tests.roles import LOCAL
from tests.system.integration.test_integrity import both_ways

if TYPE_CHECKING:
    from aiordma.links.engine import Engine
    from tests.program import Control

WAYS = ("link", "qp", "switch all", "switch one")


def take_off(engine: Engine, way: str) -> None:
    """Every link of the engine fails, or its streams leave it."""
    for group in [group for group in engine.all_groups if group.members]:
        if way == "link":
            group.link.queue_pair.break_link(LinkError("broken by the test", group.peer))
        elif way == "qp":
            # Found out from the next thing that is posted, by either end.
            group.link.parts.qp.to_error()
            group.link.suspect()
        elif way == "switch one":
            switch_pipe(random_module.choice(list(group.members)).connection, "asked for by the test")
    if way == "switch all":
        switch_engine(engine, "asked for by the test")


async def exchanging_server(control: Control, total: int, **settings: Any) -> None:
    """Says its port, then for every stream what it sent and received, and its path. Hears of ways."""

    async def serve(stream: aiordma.RdmaStream) -> None:
        result = await both_ways(stream, Random(), total)
        control.say([*result, stream.path])

    async with await aiordma.listen(LOCAL, 0, config=Config(**settings), mode="rdma") as listener:
        control.say(listener.port)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, serve)
            try:
                while True:
                    take_off(await engines.current(), await control.hear())
            except EOFError:
                pass
            tasks.cancel_scope.cancel()

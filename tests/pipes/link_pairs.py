"""Connections between the running loop's engine and itself: no TCP, the CLC messages are handed over in
memory.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio

from aiordma.links import engine as engines
from aiordma.proto import clc
from tests.tuned import tuned
from tests.world import DEVICE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from aiordma.links.engine import Engine
    from aiordma.pipes._link_channel import MessageChannel

    Open = Callable[..., AbstractAsyncContextManager[Engine]]


@asynccontextmanager
async def open_engine(**settings: Any) -> AsyncIterator[Engine]:
    engine = await engines.current(tuned(device=DEVICE, **settings))
    try:
        yield engine
    finally:
        engine.close()


async def connect(engine: Engine, kind: int = 0) -> tuple[Any, Any]:
    """A connected pair (client, server) of that kind; the messages go through their encodings."""
    client = await engine.propose(kind)
    proposal = clc.decode(client.proposal.encode())
    assert isinstance(proposal, clc.Proposal)
    server = await engine.answer(proposal, "client")
    accept = clc.decode(server.accept.encode())
    assert isinstance(accept, clc.Accept)
    confirm = clc.decode((await client.accepted(accept, "server")).encode())
    assert isinstance(confirm, clc.Confirm)
    pipes: list[Any] = []

    async def confirmed() -> None:
        pipes.append(await server.confirmed(confirm))

    async with anyio.create_task_group() as group:
        group.start_soon(confirmed)
        pipe = await client.established()
    return pipe, pipes[0]


async def connect_channels(
    engine: Engine, kind: int = clc.Kind.CALLS
) -> tuple[MessageChannel, MessageChannel]:
    """The same for a connection of messages."""
    return await connect(engine, kind)

"""A plain connection beside a negotiation that takes long.

A plain server may never answer a Proposal, nor may one that has taken the place of a server that did. So the
client waits a moment for the answer, and then opens a plain connection beside the first one: the user of a
plain server hardly notices the attempt.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import anyio

from .clc_io import ClcIO
from .question import question

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ..proto.events import Event
    from ..proto.handshake import ClientHandshake
    from .clc_io import Carrier

__all__ = ["receive_or_connect"]

#: Seconds that the plain connection has to come about once the answer is there.
_CONNECTING_S = 0.05


async def receive_or_connect(
    io: ClcIO, handshake: ClientHandshake, head_start_s: float, connect: Callable[[], Awaitable[Carrier]]
) -> tuple[list[Event], Carrier | None]:
    """Wait for the answer; after the head start, open a plain connection at the same time.

    :returns: the answer's events; or none, and the plain connection, which was there before the answer.
    """
    events = await io.receive(handshake, io.now() + head_start_s)
    if events:
        return events, None
    with contextlib.ExitStack() as stack:
        plain: Carrier | None = None

        async def receive(scope: anyio.CancelScope) -> None:
            events.extend(await io.receive(handshake))
            # A connection that is being made may exist for the server already.
            scope.deadline = anyio.current_time() + _CONNECTING_S

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(receive, tasks.cancel_scope)
            # If there is no second connection, the first one's answer or its time limit decides.
            with contextlib.suppress(OSError):
                plain = await connect()
                stack.callback(plain.close)
                tasks.cancel_scope.cancel()
        # On a busy loop both may be noticed late: what has arrived counts, not what was noticed first.
        if plain is not None and not events and io.has_data():
            events = await io.receive(handshake)
        if plain is not None and not events:
            stack.pop_all()
            return [], plain
        if plain is not None:
            await _withdraw(plain)
        return events, None


async def _withdraw(carrier: Carrier) -> None:
    """Have the server close a connection that is not needed, and not show it to its program: the server
    negotiates, as its answer on the other connection has shown."""
    with ClcIO(carrier) as io:
        await io.send(question())

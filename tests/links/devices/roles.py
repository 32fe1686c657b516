"""Programs of the other process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio

import aiordma
from aiordma.links import engine as engines
from tests.roles import LOCAL
from tests.tuned import tuned

from .kit import fail

if TYPE_CHECKING:
    from tests.program import Control


async def echo_server(control: Control, **settings: Any) -> None:
    """Reports its port; fails its links in the ways that it is sent."""

    async def echo(stream: aiordma.RdmaStream) -> None:
        async with stream:
            async for data in stream:
                await stream.send(data)

    async with await aiordma.listen(LOCAL, 0, config=tuned(**settings), mode="rdma") as listener:
        control.say(listener.port)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, echo)
            try:
                while True:
                    way = await control.hear()
                    fail((await engines.current()).devices, way)
            except EOFError:
                pass
            tasks.cancel_scope.cancel()

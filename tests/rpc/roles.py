"""Clients and servers in processes of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from aiordma import rpc
from aiordma.config import Config
from tests.world import DEVICE

from .services import service

if TYPE_CHECKING:
    from aiordma.config import Mode
    from tests.program import Control

CONFIG = Config(device=DEVICE)
LOCAL = "127.0.0.1"


async def server(control: Control) -> None:
    """Serves; says its port, then every second thing it hears is answered with the number of handlers."""
    made, seen = service()
    async with rpc.serve(made, LOCAL, config=CONFIG, drain_timeout=0.0) as answering:
        control.say(answering.port)
        try:
            while True:
                await control.hear()
                control.say(seen.running)
        except EOFError:
            pass


async def client(control: Control, port: int, path: Mode) -> None:
    """Waits in calls of every kind; says "waiting" once they are made."""
    async with rpc.connect(LOCAL, port, config=CONFIG, mode=path) as caller:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(caller.call, "t.wait")
            items = caller.stream("t.count_async", 1_000_000, window=1000)
            assert await items.receive() == 0
            held = caller.stream("t.hold")
            await held.send(bytes(10))
            control.say("waiting")
            await anyio.sleep_forever()

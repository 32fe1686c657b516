"""What this end's processes do that tests kill."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import anyio

import aiordma
from aiordma.config import Config

from . import pattern
from .ends import EID

if TYPE_CHECKING:
    from aiordma.streams.stream import RdmaStream
    from tests.program import Control


def config() -> Config:
    """Of a process that has nothing but the host's set-up."""
    return Config.from_env(smcr_eids=EID, soft_wire="auto")


async def client(control: Control, here: str, host: str, port: int) -> None:
    """Sends to an echo until it is killed, and says when bytes come back."""
    stream = await aiordma.connect(host, port, config=config(), local_host=here)
    control.say([stream.path, stream.smc_peer])
    await pump(stream, control)


async def server(control: Control, host: str, port: int) -> None:
    """Echoes to one client until it is killed."""
    async with await aiordma.listen(host, port, config=config()) as listener:
        control.say("ready")
        stream = await listener.accept()
        control.say([stream.path, stream.smc_peer])
        with contextlib.suppress(anyio.EndOfStream):
            while True:
                await stream.send(await stream.receive())


async def pump(stream: RdmaStream, control: Control) -> None:
    async def send() -> None:
        sent = 0
        while True:
            data = pattern.part(sent, 3000)
            await stream.send(data)
            sent += len(data)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(send)
        checked = pattern.Checked()
        while True:
            checked.take(await stream.receive())
            control.say(checked.count)

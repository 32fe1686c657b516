"""Servers of HTTP/1.1 in processes of their own, which close all connections when they are told to."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import anyio

import aiordma
from aiordma.config import Config
from tests.roles import LOCAL
from tests.world import DEVICE

if TYPE_CHECKING:
    from tests.program import Control


async def forgetful_server(control: Control, mode: aiordma.Mode) -> None:
    """Answers each request. Says its port; then, whenever it hears anything, that it has closed all."""
    streams: list[aiordma.RdmaStream] = []

    async def answer(stream: aiordma.RdmaStream) -> None:
        streams.append(stream)
        with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            while True:
                head = b""
                while b"\r\n\r\n" not in head:
                    head += await stream.receive()
                await stream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async with await aiordma.listen(LOCAL, 0, mode=mode, config=Config(device=DEVICE)) as listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, answer)
            control.say(listener.port)
            with contextlib.suppress(EOFError):
                while True:
                    await control.hear()
                    for stream in streams:
                        await stream.aclose()
                    streams.clear()
                    control.say("closed")
            tasks.cancel_scope.cancel()

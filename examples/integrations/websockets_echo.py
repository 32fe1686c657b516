"""Server and client of websockets in one program; prints the path: ``python websockets_echo.py 8012``."""

import asyncio
import sys
from typing import Any

from websockets.asyncio.server import serve

import aiordma
from aiordma.integrations.websockets import connect


async def echo(websocket: Any) -> None:
    async for message in websocket:
        await websocket.send(message)


async def main(port: int) -> None:
    async with serve(echo, "127.0.0.1", port), connect(f"ws://127.0.0.1:{port}") as websocket:
        await websocket.send("hello")
        print(await websocket.recv(), websocket.transport.get_extra_info("aiordma.path"))


with asyncio.Runner(loop_factory=aiordma.new_event_loop) as runner:
    runner.run(main(int(sys.argv[1]) if sys.argv[1:] else 8012))

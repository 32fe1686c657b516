"""A server of streams that answers each record: ``feed.py``, then its port on stdout."""

from __future__ import annotations

import asyncio
import contextlib

import anyio

import aiordma


async def answer(stream: aiordma.RdmaStream) -> None:
    """Until the client closes, or is gone."""
    async with stream:
        with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            while True:
                await stream.send(await stream.receive())


async def main() -> None:
    async with await aiordma.listen("127.0.0.1") as listener:
        print(listener.port, flush=True)
        await listener.serve(answer)


asyncio.run(main())

"""A server of calls: ``shop.py``, then its port on stdout. A number on stdin makes ``report`` block the
event loop for so many seconds."""

from __future__ import annotations

import asyncio
import sys
import time

from aiordma import rpc

shop = rpc.Service("shop")
blocks = 0.0


@shop.method
async def price(article: str) -> int:
    return len(article)


@shop.method
async def report(article: str) -> int:
    time.sleep(blocks)  # noqa: ASYNC251 - as a database driver that is not made for event loops
    return len(article)


async def main() -> None:
    global blocks
    words = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(words)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    async with rpc.serve(shop, "127.0.0.1", 0) as server:
        print(server.port, flush=True)
        while word := await words.readline():
            blocks = float(word)
            print("blocks", flush=True)


asyncio.run(main())

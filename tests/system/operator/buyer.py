"""A client of shop.py: ``buyer.py PORT``. It asks for prices all the time, and for a report now and then."""

from __future__ import annotations

import asyncio
import sys

from aiordma import rpc


async def prices(client: rpc.Client) -> None:
    while True:
        await client.call("shop.price", "bread")
        await asyncio.sleep(0.002)


async def reports(client: rpc.Client) -> None:
    while True:
        await client.call("shop.report", "bread")
        await asyncio.sleep(0.2)


async def main() -> None:
    async with rpc.connect("127.0.0.1", int(sys.argv[1])) as client, asyncio.TaskGroup() as tasks:
        tasks.create_task(prices(client))
        tasks.create_task(reports(client))
        print("begun", flush=True)


asyncio.run(main())

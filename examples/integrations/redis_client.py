"""A value by redis-py: ``python redis_client.py rdma://127.0.0.1:6379``, a proxy's or a redis-server's."""

import asyncio
import sys

from aiordma.integrations.redis import from_url


async def main(url: str) -> None:
    client = from_url(url)
    await client.set("greeting", "hello")
    print((await client.get("greeting")).decode())
    await client.aclose()


asyncio.run(main(*sys.argv[1:] or ["rdma://127.0.0.1:6379"]))

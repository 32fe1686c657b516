"""A message by nats-py: ``python nats_client.py nats://127.0.0.1:4222``."""

import asyncio
import sys

from aiordma.integrations.nats import connect


async def main(url: str) -> None:
    client = await connect(url)
    subscription = await client.subscribe("greeting")
    await client.publish("greeting", b"hello")
    print((await subscription.next_msg()).data.decode())
    await client.close()


asyncio.run(main(*sys.argv[1:] or ["nats://127.0.0.1:4222"]))

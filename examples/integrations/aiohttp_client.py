"""A page by aiohttp: ``AIORDMA_MODE=rdma python aiohttp_client.py http://127.0.0.1:8000/`` or without."""

import asyncio
import sys

import aiohttp

from aiordma.integrations.aiohttp import RdmaConnector


async def main(url: str) -> None:
    async with aiohttp.ClientSession(connector=RdmaConnector()) as session, session.get(url) as response:
        print(await response.text())


asyncio.run(main(*sys.argv[1:] or ["http://127.0.0.1:8000/"]))

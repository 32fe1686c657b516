"""A page by httpx, and the path that it came by: ``python httpx_client.py http://127.0.0.1:8000/``."""

import asyncio
import sys

import httpx

from aiordma.integrations.httpx import RdmaTransport


async def main(url: str) -> None:
    async with httpx.AsyncClient(transport=RdmaTransport()) as client:
        response = await client.get(url)
        print(response.text, response.extensions["network_stream"].get_extra_info("aiordma.path"))


asyncio.run(main(*sys.argv[1:] or ["http://127.0.0.1:8000/"]))

"""A page by httpcore, on trio, and its path: ``python httpcore_client.py http://127.0.0.1:8000/``."""

import sys

import httpcore
import trio

from aiordma.integrations.httpcore import RdmaBackend


async def main(url: str) -> None:
    async with httpcore.AsyncConnectionPool(network_backend=RdmaBackend()) as pool:
        response = await pool.request("GET", url)
        path = response.extensions["network_stream"].get_extra_info("aiordma.path")
        print(response.content.decode(), path)


trio.run(main, sys.argv[1] if sys.argv[1:] else "http://127.0.0.1:8000/")

"""Echo client: python examples/echo_client.py [HOST PORT]"""

import sys

import anyio

import aiordma


async def main(host: str = "127.0.0.1", port: int = 7000) -> None:
    async with await aiordma.connect(host, port) as stream:
        await stream.send(b"hello, RDMA")
        print(f"{await stream.receive()!r} by {stream.path}")


if len(sys.argv) > 1:
    anyio.run(main, sys.argv[1], int(sys.argv[2]))
else:
    anyio.run(main)

"""Echo server: python examples/echo_server.py [HOST PORT]"""

import sys

import anyio

import aiordma


async def echo(stream: aiordma.RdmaStream) -> None:
    async with stream:
        async for data in stream:
            await stream.send(data)


async def main(host: str = "127.0.0.1", port: int = 7000) -> None:
    async with await aiordma.listen(host, port) as listener:
        print(f"listening on {host}:{listener.extra(anyio.abc.SocketAttribute.local_port)}", flush=True)
        await listener.serve(echo)


if len(sys.argv) > 1:
    anyio.run(main, sys.argv[1], int(sys.argv[2]))
else:
    anyio.run(main)

"""Echo server: python examples/echo_server.py [HOST PORT]"""

import argparse

import anyio

import aiordma


async def echo(stream: aiordma.RdmaStream) -> None:
    async for data in stream:
        await stream.send(data)


async def main(host: str, port: int) -> None:
    async with aiordma.listen(host, port) as listener:
        print(f"listening on {host}:{listener.extra(anyio.abc.SocketAttribute.local_port)}", flush=True)
        await listener.serve(echo)


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("host", nargs="?", default="127.0.0.1")
parser.add_argument("port", nargs="?", type=int, default=7000)
options = parser.parse_args()
anyio.run(main, options.host, options.port)

"""Echo client: python examples/echo_client.py [HOST PORT]"""

import argparse

import anyio

import aiordma


async def main(host: str, port: int) -> None:
    async with aiordma.connect(host, port) as stream:
        await stream.send(b"hello, RDMA")
        print(f"{await stream.receive()!r} by {stream.path}")


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("host", nargs="?", default="127.0.0.1")
parser.add_argument("port", nargs="?", type=int, default=7000)
options = parser.parse_args()
anyio.run(main, options.host, options.port)

"""Server and client of grpclib in one program, without protobuf: ``python grpclib_hello.py 50051``."""

import asyncio
import sys
from typing import Any

from grpclib.client import UnaryUnaryMethod
from grpclib.const import Cardinality, Handler
from grpclib.encoding.base import CodecBase

from aiordma.integrations.grpclib import RdmaChannel, RdmaServer


class Text(CodecBase):  # type: ignore[misc]
    __content_subtype__ = "text"

    def encode(self, message: str, message_type: Any) -> bytes:
        return message.encode()

    def decode(self, data: bytes, message_type: Any) -> str:
        return data.decode()


class Greeter:
    async def greet(self, stream: Any) -> None:
        await stream.send_message(f"hello, {await stream.recv_message()}")

    def __mapping__(self) -> dict[str, Handler]:
        return {"/Greeter/Greet": Handler(self.greet, Cardinality.UNARY_UNARY, str, str)}


async def main(port: int) -> None:
    server = RdmaServer([Greeter()], codec=Text())
    await server.start("127.0.0.1", port)
    async with RdmaChannel("127.0.0.1", port, codec=Text()) as channel:
        print(await UnaryUnaryMethod(channel, "/Greeter/Greet", str, str)("RDMA"))
        print(channel._protocol.connection._transport.get_extra_info("aiordma.path"))
    server.close()
    await server.wait_closed()


asyncio.run(main(int(sys.argv[1]) if sys.argv[1:] else 50051))

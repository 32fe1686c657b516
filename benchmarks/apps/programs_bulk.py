"""Programs that do much with long messages: sanic's HTTP server, and OPC UA by asyncua, both ends."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

#: The node that has SIZE bytes is s=SIZE in this namespace.
_NAMESPACE = 2


async def serve_sanic(ready: Callable[[int], None]) -> None:
    """Bodies as long as the path says, and what was posted."""
    from sanic import Sanic
    from sanic.response import raw

    bodies: dict[int, bytes] = {}
    app: Any = Sanic("bench", configure_logging=False)
    app.config.ACCESS_LOG = False

    async def answer(_request: Any, size: int) -> Any:
        return raw(bodies.setdefault(size, b"x" * size))

    async def echo(request: Any) -> Any:
        return raw(request.body)

    app.add_route(answer, "/<size:int>")
    app.add_route(echo, "/", methods=["POST"])
    server: Any = await app.create_server(
        "127.0.0.1", _free_port(), return_asyncio_server=True, access_log=False
    )
    await server.startup()
    await server.before_start()
    await server.after_start()
    ready(server.server.sockets[0].getsockname()[1])
    await asyncio.Event().wait()


def _free_port() -> int:
    """sanic refuses port 0."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


async def serve_asyncua(ready: Callable[[int], None]) -> None:
    """Variables of 64 bytes and of 1 MiB."""
    from asyncua import Server, ua

    server: Any = Server()
    await server.init()
    server.set_endpoint(f"opc.tcp://127.0.0.1:{_free_port()}/")
    server.set_security_policy([ua.SecurityPolicyType.NoSecurity])
    index = await server.register_namespace("bench")
    assert index == _NAMESPACE
    for size in (64, 1 << 20):
        name = ua.NodeId(str(size), index)
        await server.nodes.objects.add_variable(name, str(size), b"x" * size)
    async with server:
        ready(server.bserver._server.sockets[0].getsockname()[1])
        await asyncio.Event().wait()


async def drive_asyncua(port: int, connections: int, size: int) -> tuple[list[Any], str, Callable[[], None]]:
    from asyncua.client import Client

    logging.getLogger("asyncua").setLevel(logging.ERROR)  # it warns of the time limits that servers set
    clients: list[Any] = [Client(f"opc.tcp://127.0.0.1:{port}/", timeout=60) for _ in range(connections)]
    for client in clients:
        await client.connect()

    def request(node: Any) -> Callable[[], Any]:
        async def one() -> None:
            assert len(await node.read_value()) == size

        return one

    requests = [request(client.get_node(f"ns={_NAMESPACE};s={size}")) for client in clients]
    transport = clients[0].uaclient.protocol.transport
    path = str(transport.get_extra_info("aiordma.path", "tcp"))

    def close() -> None:
        for client in clients:
            client.uaclient.protocol.transport.abort()

    return requests, path, close

"""Everything that ``aiordma serve-diagnostics`` serves: streams, and beside them calls, memory, datagrams and
asyncio's own streams, which the client learns of on the first port."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import socket
import sys
from typing import TYPE_CHECKING, Any

import anyio

from .. import memory, rpc, wake
from ..datagrams.connection import listen_datagram
from ..streams.listener import listen
from .diagnostics import DiagnosticsServer, Services
from .ping import PingRequest, Run, measure
from .plain_streams import serve_plain
from .socket_folder import socket_folder

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ..config import Config

#: Calls in flight on one connection.
_CALLS = 1024
#: For others that are measured from here at the same time.
_PINGS = 4


def _ignore(port: int) -> None:
    """The default of ``ready``."""


def _calls(config: Config, may_ping: bool) -> rpc.Service:
    service = rpc.Service("diagnostics")
    limiter = anyio.CapacityLimiter(_PINGS)

    @service.method
    async def echo(message: bytes) -> bytes:
        """The message."""
        return message

    @service.method
    async def ping(request: PingRequest) -> Run:
        """Round trips from here to another server."""
        if not may_ping:
            raise rpc.RpcError(
                rpc.Code.PERMISSION_DENIED,
                "it does not measure for others: start it as aiordma serve-diagnostics --mesh",
            )
        try:
            wanted = request.wanted()
        except ValueError as error:
            raise rpc.RpcError(rpc.Code.INVALID_ARGUMENT, str(error)) from None
        async with limiter:
            return await measure(wanted)

    return service


async def serve_diagnostics(
    host: str,
    port: int,
    config: Config,
    ready: Callable[[int], None] = _ignore,
    *,
    mesh: bool = False,
    against: bool = True,
) -> None:
    """Serve until cancelled: streams on ``port``, and everything else on the ports behind it.

    :param port: 0: any ports.
    :param ready: called with the port when everything listens.
    :param mesh: measure to other servers when a client asks for it.
    :param against: also asyncio's own streams, which comparisons need.
    :raises OSError: one of the addresses cannot be listened on.
    """

    def beside(distance: int) -> int:
        return port + distance if port else 0

    async with contextlib.AsyncExitStack() as stack:
        own: dict[str, Any] = {"version": sys.modules["aiordma"].__version__, "host": socket.gethostname()}
        services = Services(loop=wake.current().name, **own)
        server = DiagnosticsServer(services)
        listener = await stack.enter_async_context(await listen(host, port, config=config))
        calls = rpc.serve(_calls(config, mesh), host, beside(1), calls=_CALLS, config=config)
        services.calls = (await stack.enter_async_context(calls)).port
        served = await stack.enter_async_context(memory.serve(host, beside(2), config=config))
        services.memory = served.port
        datagrams = await listen_datagram(host, beside(3), config=config)
        services.datagrams = (await stack.enter_async_context(datagrams)).port
        if against:
            await _plain(stack, services, host, beside)
        # The last one, so that tasks end before what they listen on.
        tasks = await stack.enter_async_context(anyio.create_task_group())
        tasks.start_soon(server.watch)
        tasks.start_soon(datagrams.serve, server.answer_datagrams)
        ready(listener.port)
        await listener.serve(server.answer)


async def _plain(
    stack: contextlib.AsyncExitStack, services: Services, host: str, beside: Callable[[int], int]
) -> None:
    def make() -> tuple[Callable[[Any], Awaitable[None]], Callable[[], Awaitable[None]]]:
        server = DiagnosticsServer()
        return server.answer, server.watch

    # Mode 0700: for processes of this user.
    folder = stack.enter_context(socket_folder("aiordma-diagnostics-", "socket"))
    services.unix = os.path.join(folder, "socket")
    plain = serve_plain(make, host, beside(4), unix=services.unix)
    services.tcp = await stack.enter_async_context(plain)
    if importlib.util.find_spec("uvloop") is not None:
        plain = serve_plain(make, host, beside(5), use_uvloop=True)
        services.uvloop = await stack.enter_async_context(plain)

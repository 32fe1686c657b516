"""Connections on TCP that their protocol closes in connection_made(): no descriptor is closed twice.

uvloop takes the socket that it is given only after that call. A number that is closed once more, when the
socket is collected, is that of another connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
import warnings
from typing import TYPE_CHECKING, Any

import pytest

import aiordma
from aiordma.config import Config
from aiordma.errors import Code, FallbackReason
from aiordma.negotiation import peer_cache
from tests.health import until
from tests.roles import LOCAL, port_of
from tests.world import DEVICE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

pytestmark = pytest.mark.anyio
_CONFIG = Config(device=DEVICE, server_first_wait_ms=0)
#: Without a negotiation, and where it has ended on TCP.
_MODES = {"tcp": "tcp", "any": None}
_PLAIN = FallbackReason.of_local(Code.PLAIN_TCP_PEER)


@pytest.fixture(params=[f"asyncio{kind}" for kind in ("", "+uvloop")])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return "asyncio", {"use_uvloop": request.param.endswith("uvloop")}


class Leaves(asyncio.Protocol):
    """Closes, or aborts, in connection_made()."""

    def __init__(self, way: str) -> None:
        self.way, self.lost = way, False

    def connection_made(self, transport: Any) -> None:
        getattr(transport, self.way)()

    def connection_lost(self, exc: BaseException | None) -> None:
        self.lost = True


async def connected(way: str, plain: socket.socket, **ours: Any) -> Leaves:
    made = (await aiordma.create_connection(lambda: Leaves(way), *plain.getsockname(), **ours))[1]
    assert isinstance(made, Leaves)
    return made


async def given(way: str, plain: socket.socket, **ours: Any) -> Leaves:
    """On a socket of the program's."""
    sock = socket.socket()
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, plain.getsockname())
    made = (await aiordma.create_connection(lambda: Leaves(way), sock=sock, **ours))[1]
    assert isinstance(made, Leaves)
    return made


async def accepted(way: str, plain: socket.socket, **ours: Any) -> Leaves:
    """Accepted by the program."""
    with socket.create_connection(plain.getsockname()):
        sock, _ = await asyncio.get_running_loop().sock_accept(plain)
        made = (await aiordma.connect_accepted_socket(lambda: Leaves(way), sock, **ours))[1]
        assert isinstance(made, Leaves)
        await until(lambda: made.lost)
    return made


async def served(way: str, plain: socket.socket, **ours: Any) -> Leaves:
    """Accepted by a server."""
    made: list[Leaves] = []

    def factory() -> Leaves:
        made.append(Leaves(way))
        return made[-1]

    async with await aiordma.create_server(factory, LOCAL, 0, **ours) as server:
        with socket.create_connection((LOCAL, port_of(server))):
            await until(lambda: bool(made) and made[0].lost)
    return made[0]


@pytest.mark.parametrize("mode", _MODES)
@pytest.mark.parametrize("way", ["close", "abort"])
@pytest.mark.parametrize("ends", [connected, given, accepted, served])
async def test_no_descriptor_is_closed_twice(
    ends: Callable[..., Awaitable[Leaves]], way: str, mode: str
) -> None:
    with contextlib.ExitStack() as stack:
        plain = stack.enter_context(socket.create_server((LOCAL, 0)))
        plain.setblocking(False)
        gc.disable()
        stack.callback(gc.enable)
        peer_cache.remember_plain((LOCAL, plain.getsockname()[1], False), _PLAIN, 3600)
        protocol = await ends(way, plain, config=_CONFIG, mode=_MODES[mode])
        await until(lambda: protocol.lost)
        # These get the numbers that are free now; what is collected must leave them alone.
        others = [os.open("/dev/null", os.O_RDONLY) for _ in range(16)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # the same, said by the socket
            gc.collect()
        gone = [number for number in others if not _is_open(number)]
        for number in others:
            with contextlib.suppress(OSError):
                os.close(number)
        assert not gone


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True

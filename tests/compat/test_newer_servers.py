"""What `create_server()` has in newer releases of asyncio, whatever release runs."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

import pytest

import aiordma
from aiordma.compat import arguments, server
from aiordma.compat.datagram import create_datagram_server
from tests.roles import LOCAL

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

pytestmark = pytest.mark.anyio

#: An address that no machine has.
ELSEWHERE = "192.0.2.1"


async def _handle(*_: object) -> None:
    """Is never called."""


SURFACES: dict[str, Callable[..., Coroutine[Any, Any, Any]]] = {
    "start_server": lambda host, **options: aiordma.start_server(_handle, host, 0, **options),
    "create_server": lambda host, **options: aiordma.create_server(asyncio.Protocol, host, 0, **options),
    "datagram server": lambda host, **options: create_datagram_server(
        asyncio.DatagramProtocol, host, 0, **options
    ),
}
MODES = ["auto", "tcp"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("surface", ["start_server", "create_server"])
async def test_keep_alive(surface: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "_HAS_KEEP_ALIVE", True)
    for wanted in (True, False, None):
        async with await SURFACES[surface](LOCAL, mode=mode, keep_alive=wanted) as serving:
            (sock,) = serving.sockets
            assert bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)) is bool(wanted)


@pytest.mark.parametrize("mode", MODES)
async def test_no_keep_alive_before(mode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "_HAS_KEEP_ALIVE", False)
    with pytest.raises(TypeError, match=r"create_server\(\) got an unexpected keyword argument 'keep_alive'"):
        await aiordma.create_server(asyncio.Protocol, LOCAL, 0, mode=mode, keep_alive=True)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("surface", SURFACES)
async def test_an_address_of_another_machine_is_left_out(
    surface: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_LEAVES_OUT_ABSENT", True)
    for hosts in ([ELSEWHERE, LOCAL], [LOCAL, ELSEWHERE]):
        async with await SURFACES[surface](hosts, mode=mode) as serving:
            assert [sock.getsockname()[0] for sock in serving.sockets] == [LOCAL]
    with pytest.raises(OSError, match="could not bind on any address out of"):
        await SURFACES[surface](ELSEWHERE, mode=mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("surface", SURFACES)
async def test_it_is_an_error_before(surface: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_LEAVES_OUT_ABSENT", False)
    with pytest.raises(OSError, match="error while attempting to bind on address"):
        await SURFACES[surface]([LOCAL, ELSEWHERE], mode=mode)

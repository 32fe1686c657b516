"""Declines between versions: 28 bytes once, 44 as Linux asks for in version 2 now; version 1 has 28."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from aiordma.errors import Code
from aiordma.proto import clc
from aiordma.streams.connector import connect

from .serving import LOCAL, plain_server, serving
from .test_hostile import PROPOSAL

if TYPE_CHECKING:
    from anyio.abc import SocketStream

    from .fake import Engine

pytestmark = pytest.mark.anyio

NEW = clc.Decline(diagnosis=Code.NO_DEVICE).encode()
#: As older versions of aiordma sent it: version 2 in the length of version 1.
OLD = clc.EYE_CATCHER + bytes.fromhex("04001c20") + NEW[8:24] + clc.EYE_CATCHER


async def _exactly(stream: SocketStream, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += await stream.receive(size - len(data))
    return data


@pytest.mark.parametrize("decline", [OLD, NEW], ids=["28", "44"])
async def test_a_client_goes_on_behind_either(engine: Engine, decline: bytes) -> None:
    async def refuse(stream: SocketStream) -> None:
        header = await _exactly(stream, 8)
        await _exactly(stream, int.from_bytes(header[5:7]) - len(header))
        await stream.send(decline + b"first")  # in one piece
        await stream.send(await _exactly(stream, 4))

    async with plain_server(refuse) as port, await connect(LOCAL, port) as stream:
        assert stream.path == "tcp"
        assert stream.fallback_reason is not None
        assert stream.fallback_reason.peer == Code.NO_DEVICE
        await stream.send(b"echo")
        assert await stream.receive_exactly(9) == b"firstecho"


VERSION_1 = clc.EYE_CATCHER + bytes.fromhex("01003410") + bytes(40) + clc.EYE_CATCHER


@pytest.mark.parametrize(("proposal", "length"), [(PROPOSAL, 44), (VERSION_1, 28)], ids=["2", "1"])
async def test_a_server_declines_in_the_version_of_the_client(
    no_engine: None, proposal: bytes, length: int
) -> None:
    async with serving() as listener, await anyio.connect_tcp(LOCAL, listener.port) as client:
        await client.send(proposal)
        header = await _exactly(client, 8)
        assert (int.from_bytes(header[5:7]), header[7] >> 4) == (length, proposal[7] >> 4)
        message = clc.decode(header + await _exactly(client, length - 8))
        assert isinstance(message, clc.Decline)
        assert message.diagnosis == Code.NO_DEVICE
        await client.send(b"echo")
        assert await _exactly(client, 4) == b"echo"

"""A socket that the caller gave is closed, as by asyncio, if its connection is refused."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import TYPE_CHECKING, Any

import pytest

import aiordma
from aiordma.errors import Code
from tests.streams.pairs import tcp_sockets, tls_contexts

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

pytestmark = pytest.mark.anyio


@pytest.fixture(
    params=[("asyncio", {"use_uvloop": False}), ("asyncio", {"use_uvloop": True})], ids=["asyncio", "uvloop"]
)
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


def open_connection(sock: socket.socket, context: ssl.SSLContext) -> Awaitable[object]:
    return aiordma.open_connection(sock=sock, ssl=context, server_hostname="localhost", mode="rdma")


def create_connection(sock: socket.socket, context: ssl.SSLContext) -> Awaitable[object]:
    return aiordma.create_connection(
        asyncio.Protocol, sock=sock, ssl=context, server_hostname="localhost", mode="rdma"
    )


def connect_accepted_socket(sock: socket.socket, context: ssl.SSLContext) -> Awaitable[object]:
    return aiordma.connect_accepted_socket(asyncio.Protocol, sock, ssl=context, mode="rdma")


@pytest.mark.parametrize("attempt", [open_connection, create_connection, connect_accepted_socket])
async def test_a_refused_socket_is_closed(
    attempt: Callable[[socket.socket, ssl.SSLContext], Awaitable[object]],
) -> None:
    one, other = tcp_sockets()
    with other:
        with pytest.raises(aiordma.NegotiationError, match="ssl= is TLS over TCP; mode is 'rdma'") as told:
            await attempt(one, tls_contexts()[0])
        assert one.fileno() == -1
    assert told.value.code == Code.TLS_PAYLOAD_POLICY
    assert str(told.value).count("payload outside TLS") == 1
